//! The store of one partition.
//!
//! Invariant: scans have a lower and an upper bound and never start below the fired watermark,
//! where fired rows remain until compaction deletes them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rocksdb::{
    ColumnFamily, DB, DBCompressionType, DBRawIterator, FlushOptions, IngestExternalFileOptions,
    Options, SstFileWriter, WriteBatch, WriteOptions,
};

use super::iterators::RowReader;
use super::options::{self, DEFAULT, FiredFilter, INDEX, TIMELINE, Template};
use super::state::{self, NewerFormat};
use super::{LocalState, Scan, StoreError, StoreMemoryUsage, index, keys};
use crate::codec::row::RowBytes;
use crate::engine::index_row::{IdHash, IndexRow};
use crate::engine::prefetch::TimelineRows;
use crate::engine::step::RowOp;
use crate::engine::wheel::ENTRY_BYTES;
use crate::fault;
use crate::model::timeline::TimelineKey;
use crate::model::{Millis, Offset};

/// The key of the state.
const STATE_KEY: &[u8] = b"state";
/// Estimated size of a batch without its rows, in bytes.
const BATCH_BYTES: usize = 512;
/// Estimated size of a change in a batch without the row's bytes (key, lengths, tag), in bytes.
const CHANGE_BYTES: usize = 64;
/// The number of rows from which on `bulk_load` writes files.
const FILE_MIN: usize = 8_192;
/// The name of a file that is not yet part of the database. Only one is written at a time.
const INGEST_FILE: &str = "incoming";
/// RocksDB property: the number of files in level 0.
const LEVEL_0_FILES: &str = "rocksdb.num-files-at-level0";
/// RocksDB property: 1 if a flush of the family has not started yet.
const FLUSH_PENDING: &str = "rocksdb.mem-table-flush-pending";
/// RocksDB property: the flushes of the database that run; the same for each family.
const RUNNING_FLUSHES: &str = "rocksdb.num-running-flushes";
/// RocksDB property: the bytes of a family's memtables, including those that are still being read.
const MEMTABLES: &str = "rocksdb.size-all-mem-tables";
/// RocksDB property: the memory of a family's open files without the block cache, in bytes.
const TABLE_READERS: &str = "rocksdb.estimate-table-readers-mem";
/// How far the fired watermark must advance before whole files are deleted again.
const DROP_FILES_INTERVAL_MS: Millis = 60_000;

/// A RocksDB database.
pub struct PartitionStore {
    db: Arc<DB>,
    reader: RowReader,
    path: PathBuf,
    fired_filter: Arc<FiredFilter>,
    dropped_until: AtomicU64,
    writes: WriteOptions,
    /// The options of ingested files, for the timeline and for the index.
    files: [Options; 2],
}

impl std::fmt::Debug for PartitionStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PartitionStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl PartitionStore {
    pub(super) fn open(
        path: &Path,
        template: &Template,
        reader: RowReader,
    ) -> Result<Self, StoreError> {
        let fired_filter = Arc::new(FiredFilter::default());
        let families = template.families(&fired_filter);
        let db = DB::open_cf_descriptors(&template.database(), path, families)
            .map_err(|error| store_error(path, &error))?;
        let mut writes = WriteOptions::default();
        writes.disable_wal(true);
        let mut files = [
            template.timeline(Arc::clone(&fired_filter)),
            template.index(Arc::clone(&fired_filter)),
        ];
        // They are compacted soon; compressing them before that would delay a takeover.
        files.iter_mut().for_each(|file| file.set_compression_type(DBCompressionType::None));
        let (path, dropped_until) = (path.to_owned(), AtomicU64::new(0));
        Ok(Self { db: Arc::new(db), reader, path, fired_filter, dropped_until, writes, files })
    }

    /// The state of the store; `None` if it is new, damaged or of an older format.
    pub fn state(&self) -> Result<Option<LocalState>, StoreError> {
        let bytes = self.db.get(STATE_KEY).map_err(|error| store_error(&self.path, &error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        state::from_bytes(&bytes)
            .map_err(|NewerFormat(found)| StoreError::Newer { path: self.path.clone(), found })
    }

    /// Writes rows in key order ([`RowOp::sort_key`]) without a state; [`apply`](Self::apply)
    /// writes the state later. Many rows are ingested as files, at a third of the cost of writing
    /// them to memtables first. After a crash the store may therefore have rows that are newer than
    /// its state; the restore reads and writes them again.
    pub fn bulk_load(&self, rows: &[RowOp]) -> Result<(), StoreError> {
        debug_assert!(rows.is_sorted_by_key(RowOp::sort_key), "files are written in key order");
        if rows.len() < FILE_MIN {
            return self.write(rows, WriteBatch::default());
        }
        let of = |row: &RowOp| row.sort_key().0;
        for rows in rows.chunk_by(|row, next| of(row) == of(next)) {
            match rows[0] {
                RowOp::Put { .. } | RowOp::Delete { .. } => self.ingest(TIMELINE, rows),
                RowOp::Index { .. } => self.ingest(INDEX, rows),
                RowOp::Skip { .. } => self.write(rows, WriteBatch::default()),
            }?;
        }
        Ok(())
    }

    /// Writes rows of one family to a file and ingests it.
    fn ingest(&self, family: &str, rows: &[RowOp]) -> Result<(), StoreError> {
        let options = &self.files[usize::from(family == INDEX)];
        let path = self.path.join(INGEST_FILE);
        self.write_file(&path, options, rows).map_err(|error| store_error(&self.path, &error))?;
        let mut ingestion = IngestExternalFileOptions::default();
        ingestion.set_move_files(true);
        self.db
            .ingest_external_file_cf_opts(self.family(family), &ingestion, vec![&path])
            .map_err(|error| store_error(&self.path, &error))
    }

    fn write_file(
        &self,
        path: &Path,
        options: &Options,
        rows: &[RowOp],
    ) -> Result<(), rocksdb::Error> {
        let mut file = SstFileWriter::create(options);
        file.open(path)?;
        for same_key in rows.chunk_by(|row, next| row.sort_key() == next.sort_key()) {
            match &same_key[same_key.len() - 1] {
                RowOp::Put { key, row } => file.put(keys::timeline(*key), row)?,
                RowOp::Delete { key } => file.delete(keys::timeline(*key))?,
                RowOp::Index { hash, row: Some(known) } => {
                    file.put(keys::index(*hash), index::encode(known))?;
                }
                RowOp::Index { hash, row: None } => file.delete(keys::index(*hash))?,
                RowOp::Skip { .. } => {}
            }
        }
        file.finish()
    }

    /// Writes rows and the state in one atomic batch. Rows of one family should be in key order,
    /// because inserting into the memtable is faster then. Of several rows with the same key the
    /// last one is used.
    pub fn apply(&self, rows: &[RowOp], state: &LocalState) -> Result<(), StoreError> {
        let bytes: usize = rows.iter().map(row_bytes).sum();
        let mut batch = WriteBatch::with_capacity_bytes(bytes + BATCH_BYTES);
        batch.put(STATE_KEY, state::to_bytes(state));
        fault::reached("store.before_apply");
        self.write(rows, batch)?;
        fault::reached("store.after_apply");
        Ok(())
    }

    fn write(&self, rows: &[RowOp], mut batch: WriteBatch) -> Result<(), StoreError> {
        let (timeline, ids) = (self.family(TIMELINE), self.family(INDEX));
        for row in rows {
            match row {
                RowOp::Put { key, row } => {
                    batch.put_cf(timeline, keys::timeline(*key), row);
                }
                RowOp::Delete { key } => batch.delete_cf(timeline, keys::timeline(*key)),
                RowOp::Index { hash, row: Some(known) } => {
                    batch.put_cf(ids, keys::index(*hash), index::encode(known));
                }
                RowOp::Index { hash, row: None } => batch.delete_cf(ids, keys::index(*hash)),
                RowOp::Skip { offset, marked: true } => batch.put(keys::skip(*offset), []),
                RowOp::Skip { offset, marked: false } => batch.delete(keys::skip(*offset)),
            }
        }
        self.db.write_opt(batch, &self.writes).map_err(|error| store_error(&self.path, &error))
    }

    /// The index rows of `hashes`, which must be sorted.
    pub fn lookup(&self, hashes: &[IdHash]) -> Result<Vec<Option<IndexRow>>, StoreError> {
        debug_assert!(hashes.is_sorted(), "a sorted batch is read in one pass");
        let wanted: Vec<[u8; 16]> = hashes.iter().map(|hash| keys::index(*hash)).collect();
        let found = self.db.batched_multi_get_cf(self.family(INDEX), &wanted, true);
        found
            .into_iter()
            .map(|row| match row.map_err(|error| store_error(&self.path, &error))? {
                None => Ok(None),
                Some(bytes) => {
                    index::decode(&bytes).map(Some).ok_or_else(|| self.unreadable("an index row"))
                }
            })
            .collect()
    }

    /// Timeline entries from `from` (inclusive) to `until` (exclusive). Stops after the entry with
    /// which the sum of row sizes and [`ENTRY_BYTES`] reaches `bytes_max`, so it returns at least
    /// one entry if there is one.
    pub fn scan(
        &self,
        from: TimelineKey,
        until: TimelineKey,
        bytes_max: usize,
    ) -> Result<Scan, StoreError> {
        let bounds = keys::timeline(from).to_vec()..keys::timeline(until).to_vec();
        self.read(TIMELINE, bounds, |rows| {
            let mut entries = Vec::new();
            let (mut bytes, mut reached) = (0, until);
            while let Some((key, row)) = rows.item() {
                let Some(key) = keys::parse_timeline(key) else {
                    return Err(self.unreadable("a timeline key"));
                };
                entries.push((key, RowBytes::from(row)));
                bytes += ENTRY_BYTES + row.len();
                if bytes_max <= bytes {
                    reached = key.successor();
                    break;
                }
                rows.next();
            }
            Ok(Scan { entries, reached })
        })
    }

    /// Reads rows of a family with [`RowReader::read`].
    fn read<T>(
        &self,
        family: &str,
        bounds: Range<Vec<u8>>,
        read: impl FnOnce(&mut DBRawIterator<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.reader.read(
            &self.db,
            |db| handle(db, family),
            bounds,
            |rows| {
                let found = read(rows)?;
                rows.status().map_err(|error| store_error(&self.path, &error))?;
                Ok(found)
            },
        )
    }

    /// The existing rows at `timeline_keys`, which must be sorted.
    pub fn timeline_rows(&self, timeline_keys: &[TimelineKey]) -> Result<TimelineRows, StoreError> {
        if timeline_keys.is_empty() {
            return Ok(TimelineRows::default());
        }
        debug_assert!(timeline_keys.is_sorted(), "a sorted batch is read in one pass");
        let wanted: Vec<_> = timeline_keys.iter().map(|key| keys::timeline(*key)).collect();
        let found = self.db.batched_multi_get_cf(self.family(TIMELINE), &wanted, true);
        let mut rows = TimelineRows::default();
        for (key, row) in timeline_keys.iter().zip(found) {
            if let Some(row) = row.map_err(|error| store_error(&self.path, &error))? {
                let _new = rows.insert(*key, RowBytes::from(row.as_ref()));
            }
        }
        Ok(rows)
    }

    /// The offsets of records that were ignored because of the state at that time.
    pub fn skip_marks(&self) -> Result<BTreeSet<Offset>, StoreError> {
        let bounds = vec![keys::SKIP_PREFIX]..vec![keys::SKIP_PREFIX + 1];
        self.read(DEFAULT, bounds, |rows| {
            let mut marks = BTreeSet::new();
            while let Some(key) = rows.key() {
                marks.extend(keys::parse_skip(key));
                rows.next();
            }
            Ok(marks)
        })
    }

    /// Everything up to `fired_through` has fired and is committed: deletes its rows, whole files
    /// at once.
    pub fn drop_through(&self, fired_through: TimelineKey) -> Result<(), StoreError> {
        self.fired_filter.advance_to(fired_through.due);
        let dropped_until = self.dropped_until.load(Ordering::Relaxed);
        if fired_through.due < dropped_until.saturating_add(DROP_FILES_INTERVAL_MS) {
            return Ok(());
        }
        self.dropped_until.store(fired_through.due, Ordering::Relaxed);
        let (from, to) = (keys::timeline(TimelineKey::MIN), keys::timeline(fired_through));
        self.db
            .delete_file_in_range_cf(self.family(TIMELINE), from, to)
            .map_err(|error| store_error(&self.path, &error))
    }

    /// Flushes all rows and waits for it, but not for compaction. Called before the store is
    /// closed.
    pub fn flush(&self) -> Result<(), StoreError> {
        if self.is_compaction_behind()? {
            for family in [TIMELINE, INDEX, DEFAULT] {
                let set =
                    self.db.set_options_cf(self.family(family), &options::WITHOUT_WRITE_STALLS);
                set.map_err(|error| store_error(&self.path, &error))?;
            }
        }
        self.flush_families(true)
    }

    /// Starts to flush all rows without waiting. Returns false, and does nothing, if compaction is
    /// behind or another flush has not ended, because this one would wait for it. It may wait while
    /// a directory is synced.
    pub fn flush_in_background(&self) -> Result<bool, StoreError> {
        if self.is_compaction_behind()? || self.is_flush_running()? {
            let path = self.path.display();
            tracing::debug!(%path, "compaction or a flush is not done yet; the flush is skipped");
            return Ok(false);
        }
        self.flush_families(false).map(|()| true)
    }

    /// Whether a flush is requested or runs.
    fn is_flush_running(&self) -> Result<bool, StoreError> {
        if self.family_properties(FLUSH_PENDING)?.into_iter().any(|pending| pending > 0) {
            return Ok(true);
        }
        let running = self.db.property_int_value_cf(self.family(DEFAULT), RUNNING_FLUSHES);
        Ok(running.map_err(|error| store_error(&self.path, &error))?.unwrap_or(0) > 0)
    }

    /// Makes the newest version of the rows the one that this thread reads.
    ///
    /// RocksDB keeps the last version (`SuperVersion`) for each thread and family. After a memtable
    /// was switched the next read takes the database's mutex to get the new one, and
    /// `AtomicFlushMemTablesToOutputFiles` holds that while it syncs the directory. Before that it
    /// writes files without the mutex: then this call does not wait.
    pub fn refresh_view(&self) {
        for family in [TIMELINE, INDEX, DEFAULT] {
            // Reads from memory only.
            let _may_exist = self.db.key_may_exist_cf(self.family(family), b"");
        }
    }

    /// Whether a flush would wait for compaction, now or soon.
    fn is_compaction_behind(&self) -> Result<bool, StoreError> {
        let files = self.family_properties(LEVEL_0_FILES)?;
        Ok(files.into_iter().any(|files| files >= options::LEVEL_0_FLUSH_FILES_MAX))
    }

    /// The memory that the store uses, without the shared block cache.
    pub fn memory(&self) -> Result<StoreMemoryUsage, StoreError> {
        let sum = |property| Ok(self.family_properties(property)?.into_iter().sum());
        Ok(StoreMemoryUsage { memtables: sum(MEMTABLES)?, tables: sum(TABLE_READERS)? })
    }

    fn family_properties(&self, property: &str) -> Result<Vec<u64>, StoreError> {
        let of = |name| self.db.property_int_value_cf(self.family(name), property);
        let values = [TIMELINE, INDEX, DEFAULT].into_iter().map(of).collect::<Result<Vec<_>, _>>();
        let values = values.map_err(|error| store_error(&self.path, &error))?;
        Ok(values.into_iter().flatten().collect())
    }

    /// Flushes all families together: one alone would not be consistent with the others.
    fn flush_families(&self, wait: bool) -> Result<(), StoreError> {
        let mut options = FlushOptions::default();
        options.set_wait(wait);
        let families = [TIMELINE, INDEX, DEFAULT].map(|name| self.family(name));
        fault::reached("store.before_flush");
        self.db
            .flush_cfs_opt(&families, &options)
            .map_err(|error| store_error(&self.path, &error))?;
        fault::reached("store.after_flush");
        Ok(())
    }

    fn unreadable(&self, what: &'static str) -> StoreError {
        StoreError::Unreadable { path: self.path.clone(), what }
    }

    fn family(&self, name: &str) -> &ColumnFamily {
        handle(&self.db, name)
    }
}

impl Drop for PartitionStore {
    fn drop(&mut self) {
        // The database is closed with its last iterator, and until then it cannot be opened again.
        // Iterators of other stores may be before it.
        self.reader.wait_until_closed();
    }
}

fn handle<'a>(db: &'a DB, family: &str) -> &'a ColumnFamily {
    db.cf_handle(family).expect("every family is opened with the database")
}

fn store_error(path: &Path, error: &rocksdb::Error) -> StoreError {
    StoreError::Failed { path: path.to_owned(), reason: error.to_string() }
}

/// The estimated size of a change in a batch. Allocating the sum avoids copies while the batch
/// grows.
fn row_bytes(row: &RowOp) -> usize {
    CHANGE_BYTES + if let RowOp::Put { row, .. } = row { row.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::index_row::{IndexEntry, IndexEntryKind, TriggerCaller};
    use crate::model::timeline::Source;
    use crate::store::{RocksDbOptions, StoreFactory};

    const SETTINGS: RocksDbOptions =
        RocksDbOptions { write_buffer: 4 << 20, block_cache: 4 << 20, max_open_files: 64 };

    fn key(due: u64) -> TimelineKey {
        TimelineKey { due, priority: 0, source: Source::Triggers, offset: due }
    }

    fn put(due: u64) -> RowOp {
        RowOp::Put { key: key(due), row: RowBytes::from(format!("row {due}").as_bytes()) }
    }

    fn known(due: u64) -> IndexRow {
        let kind = IndexEntryKind::Main;
        let (in_ledger, is_http, has_lifecycle) = (false, false, false);
        let entry = IndexEntry {
            key: key(due),
            kind,
            generation: due,
            in_ledger,
            is_http,
            has_lifecycle,
            caller: TriggerCaller::NotATrigger,
        };
        IndexRow { entries: [entry].into() }
    }

    fn state(applied: Offset) -> LocalState {
        LocalState {
            applied,
            step: 1,
            ledger_position: 0,
            fired_through: TimelineKey::MIN,
            cluster_id: "c".to_owned(),
            caught_up_at: 7,
        }
    }

    fn due_times(store: &PartitionStore, from: u64, until: u64) -> Vec<u64> {
        let scan = store.scan(key(from), key(until), usize::MAX).unwrap();
        assert_eq!(scan.reached, key(until));
        scan.entries.iter().map(|(key, _)| key.due).collect()
    }

    #[test]
    fn after_a_crash_rows_and_state_are_those_of_the_last_flush() {
        let dir = tempfile::tempdir().unwrap();
        let factory = StoreFactory::new(dir.path(), SETTINGS).unwrap();
        let copy = dir.path().join("crashed");
        let store = factory.open(0).unwrap();
        assert_eq!(store.state().unwrap(), None);
        store.apply(&[put(5), put(3)], &state(2)).unwrap();
        store.flush().unwrap();
        store.apply(&[put(4), RowOp::Delete { key: key(3) }], &state(4)).unwrap();
        assert_eq!(due_times(&store, 0, 9), [4, 5]);
        // A copy of the files at this moment is what a crash would leave.
        copy_dir(&dir.path().join("partitions/00000"), &copy.join("partitions/00000"));
        let crashed = StoreFactory::new(&copy, SETTINGS).unwrap().open(0).unwrap();
        assert_eq!(due_times(&crashed, 0, 9), [3, 5]);
        assert_eq!(crashed.state().unwrap(), Some(state(2)));
    }

    #[test]
    fn scans_end_at_the_byte_limit_and_continue_where_they_ended() {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreFactory::new(dir.path(), SETTINGS).unwrap().open(0).unwrap();
        let rows: Vec<RowOp> = (0..100).map(put).collect();
        store.apply(&rows, &state(1)).unwrap();
        let (mut from, mut scanned) = (key(0), Vec::new());
        while from < key(90) {
            let scan = store.scan(from, key(90), 6 * (ENTRY_BYTES + 6)).unwrap();
            assert!(scan.entries.len() <= 7, "cut after the entry that reaches the bytes");
            scanned.extend(scan.entries.iter().map(|(key, _)| key.due));
            from = scan.reached;
        }
        assert_eq!(scanned, (0..90).collect::<Vec<u64>>());
    }

    #[test]
    fn the_last_of_several_rows_with_one_key_is_applied() {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreFactory::new(dir.path(), SETTINGS).unwrap().open(0).unwrap();
        let delete = |due| RowOp::Delete { key: key(due) };
        store.apply(&[put(1), put(2)], &state(1)).unwrap();
        store.apply(&[delete(2), put(3), delete(1), put(2), delete(3)], &state(2)).unwrap();
        assert_eq!(due_times(&store, 0, 9), [2]);
    }

    #[test]
    fn closing_keeps_what_was_applied() {
        let dir = tempfile::tempdir().unwrap();
        let factory = StoreFactory::new(dir.path(), SETTINGS).unwrap();
        let store = factory.open(0).unwrap();
        store.apply(&[put(1)], &state(1)).unwrap();
        store.flush_in_background().unwrap();
        store.apply(&[put(2)], &state(2)).unwrap();
        drop(store);
        let store = factory.open(0).unwrap();
        assert_eq!(due_times(&store, 0, 9), [1, 2]);
        assert_eq!(store.state().unwrap(), Some(state(2)));
    }

    #[test]
    fn a_store_can_be_opened_as_soon_as_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let factory = StoreFactory::new(dir.path(), SETTINGS).unwrap();
        for n in 0..100 {
            let store = factory.open(0).unwrap();
            store.apply(&[put(n)], &state(n)).unwrap();
            assert_eq!(due_times(&store, n, n + 1), [n], "an iterator was just closed");
        }
    }

    #[test]
    fn a_flush_waits_for_no_compaction() {
        let dir = tempfile::tempdir().unwrap();
        let factory = StoreFactory::new(dir.path(), SETTINGS).unwrap();
        let store = factory.open(0).unwrap();
        // Compaction never runs.
        let mut env = factory.template.env.clone().unwrap();
        env.set_low_priority_background_threads(0);
        let (sender, done) = std::sync::mpsc::channel();
        let writer = std::thread::spawn(move || {
            for n in 0..2 * options::LEVEL_0_FLUSH_FILES_MAX {
                store.apply(&[put(n)], &state(n)).unwrap();
                store.flush_in_background().unwrap();
                // Else the next one is skipped for another reason.
                while store.is_flush_running().unwrap() {
                    std::thread::yield_now();
                }
            }
            // Adds level-0 files, as full write buffers would. RocksDB's threads are those of the
            // whole process: a store that another test opens starts compaction again.
            let is_behind = (0..20).any(|_| {
                env.set_low_priority_background_threads(0);
                for n in 0..options::LEVEL_0_FLUSH_FILES_MAX {
                    store.apply(&[put(n)], &state(n)).unwrap();
                    store.flush().unwrap();
                }
                store.is_compaction_behind().unwrap()
            });
            sender.send(is_behind).unwrap();
            store
        });
        let is_behind =
            done.recv_timeout(std::time::Duration::from_secs(60)).expect("a flush does not return");
        assert!(is_behind, "level 0 was compacted");
        drop(writer.join().unwrap());
        let store = factory.open(0).unwrap();
        assert_eq!(
            due_times(&store, 0, u64::MAX).len() as u64,
            2 * options::LEVEL_0_FLUSH_FILES_MAX
        );
    }

    /// RocksDB lets a second flush wait for the first one, and the spills of all stores with it.
    #[test]
    fn a_flush_in_background_does_not_wait_for_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let settings = RocksDbOptions { write_buffer: 64 << 20, ..SETTINGS };
        let store = StoreFactory::new(dir.path(), settings).unwrap().open(0).unwrap();
        let many: Vec<_> = (1..=20_000).map(put).collect();
        // The first one may have ended by chance.
        let is_left_for_later = (0..20).any(|n| {
            store.apply(&many, &state(n)).unwrap();
            store.flush_in_background().unwrap();
            store.apply(&[put(0)], &state(n)).unwrap();
            let flushes = store.flush_in_background().unwrap();
            let rows = store.family_properties("rocksdb.num-entries-active-mem-table").unwrap();
            assert_eq!(flushes, rows[0] == 0, "it says whether the rows are being flushed");
            !flushes
        });
        assert!(is_left_for_later, "a flush has waited for the one before, and started then");
    }

    #[test]
    fn a_file_is_deleted_when_all_its_rows_are_fired() {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreFactory::new(dir.path(), SETTINGS).unwrap().open(0).unwrap();
        let at = |due| key(due * DROP_FILES_INTERVAL_MS);
        for first in [10, 20, 30] {
            let rows = [at(first).due, at(first + 5).due].map(put);
            store.apply(&rows, &state(first)).unwrap();
            store.flush().unwrap();
            // Moves the rows out of level 0, into a file of their own.
            let from = keys::timeline(at(first));
            store.db.compact_range_cf(store.family(TIMELINE), Some(from), None::<&[u8]>);
        }
        store.drop_through(at(22)).unwrap();
        let left = [20, 25, 30, 35].map(|due| at(due).due);
        assert_eq!(due_times(&store, 0, u64::MAX), left);
    }

    #[test]
    fn the_index_returns_rows_for_a_sorted_batch() {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreFactory::new(dir.path(), SETTINGS).unwrap().open(0).unwrap();
        let row = |n: u64, known| RowOp::Index { hash: IdHash(u128::from(n)), row: known };
        let rows = [row(9, Some(known(9))), row(2, Some(known(2))), row(5, Some(known(5)))];
        store.apply(&rows, &state(1)).unwrap();
        store.apply(&[row(5, None)], &state(1)).unwrap();
        let found = store.lookup(&[2, 5, 7, 9].map(IdHash)).unwrap();
        assert_eq!(found, [Some(known(2)), None, None, Some(known(9))]);
    }

    #[test]
    fn compaction_drops_only_fired_rows() {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreFactory::new(dir.path(), SETTINGS).unwrap().open(0).unwrap();
        let hour = 3_600_000;
        let dues_put = [1, 2 * hour, 3 * hour];
        let index = |due| RowOp::Index { hash: IdHash(u128::from(due)), row: Some(known(due)) };
        let rows: Vec<_> = dues_put.iter().flat_map(|due| [put(*due), index(*due)]).collect();
        store.apply(&rows, &state(1)).unwrap();
        store.flush().unwrap();
        store.drop_through(key(2 * hour)).unwrap();
        for family in [TIMELINE, INDEX] {
            let all = (None::<&[u8]>, None::<&[u8]>);
            store.db.compact_range_cf(store.family(family), all.0, all.1);
        }
        assert_eq!(due_times(&store, 0, 9 * hour), [2 * hour, 3 * hour]);
        let found = store.lookup(&dues_put.map(|due| IdHash(u128::from(due)))).unwrap();
        assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true]);
    }

    #[test]
    fn skip_marks_are_kept_apart_from_the_state() {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreFactory::new(dir.path(), SETTINGS).unwrap().open(0).unwrap();
        let mark = |offset, marked| RowOp::Skip { offset, marked };
        store.apply(&[mark(300, true), mark(2, true)], &state(1)).unwrap();
        store.apply(&[mark(2, false)], &state(1)).unwrap();
        assert_eq!(store.skip_marks().unwrap(), BTreeSet::from([300]));
    }

    #[test]
    fn lookups_read_memtables_and_files() {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreFactory::new(dir.path(), SETTINGS).unwrap().open(0).unwrap();
        let hash = |n: u64| IdHash::of(&n.to_string());
        let row = |n, due| RowOp::Index { hash: hash(n), row: Some(known(due)) };
        let even: Vec<_> = (0..1000).step_by(2).map(|n| row(n, n)).collect();
        store.apply(&even, &state(1)).unwrap();
        store.flush().unwrap();
        store.apply(&[row(4, 77)], &state(2)).unwrap();
        let mut asked: Vec<u64> = (0..1000).collect();
        asked.sort_by_key(|n| hash(*n));
        let hashes: Vec<_> = asked.iter().map(|n| hash(*n)).collect();
        for (n, found) in asked.into_iter().zip(store.lookup(&hashes).unwrap()) {
            let due = if n == 4 { 77 } else { n };
            assert_eq!(found, (n % 2 == 0).then(|| known(due)), "id {n}");
        }
    }

    #[test]
    fn many_rows_are_ingested_as_files_and_read_like_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let store = StoreFactory::new(dir.path(), SETTINGS).unwrap().open(0).unwrap();
        let hash = |due: u64| IdHash(u128::from(due));
        let index = |due| RowOp::Index { hash: hash(due), row: Some(known(due)) };
        let many = FILE_MIN as u64;
        let mut rows: Vec<_> = (0..many).flat_map(|due| [put(due), index(due)]).collect();
        rows.extend([RowOp::Delete { key: key(7) }, RowOp::Skip { offset: 3, marked: true }]);
        rows.sort_by_key(RowOp::sort_key);
        store.bulk_load(&rows).unwrap();
        let mut rows: Vec<_> = (many..2 * many).map(put).collect();
        rows.insert(0, RowOp::Delete { key: key(9) });
        rows.extend([RowOp::Index { hash: hash(5), row: None }]);
        store.bulk_load(&rows).unwrap();
        store.apply(&[put(11), RowOp::Delete { key: key(12) }], &state(1)).unwrap();
        let left = (0..2 * many).filter(|due| ![7, 9, 12].contains(due));
        assert_eq!(due_times(&store, 0, u64::MAX), left.collect::<Vec<_>>());
        assert_eq!(store.lookup(&[4, 5].map(hash)).unwrap(), [Some(known(4)), None]);
        assert_eq!(store.skip_marks().unwrap(), BTreeSet::from([3]));
        assert!(!store.path.join(INGEST_FILE).exists());
    }

    /// `cargo test --lib rows_a_second -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement, not a check"]
    fn rows_a_second() {
        let into_memory = measure(5_000, |store, rows| store.apply(rows, &state(1)).unwrap());
        let as_files = measure(32_768, |store, rows| store.bulk_load(rows).unwrap());
        for (how, (apply, scan)) in [("into memory", into_memory), ("as files", as_files)] {
            println!("{how}: {apply:.0} entries/s (two rows each), scan {scan:.0} rows/s");
        }
    }

    fn measure(batch: u64, write: impl Fn(&PartitionStore, &[RowOp])) -> (f64, f64) {
        let dir = tempfile::tempdir().unwrap();
        let settings = RocksDbOptions { write_buffer: 64 << 20, ..SETTINGS };
        let store = StoreFactory::new(dir.path(), settings).unwrap().open(0).unwrap();
        let (total, row) = (batch * (1_000_000 / batch), RowBytes::from(vec![7; 300]));
        let started = crate::clock::monotonic();
        for first in (0..total).step_by(usize::try_from(batch).unwrap()) {
            let scattered = |n: u64| n.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 24;
            let both = |due: u64| {
                let put = RowOp::Put { key: key(due), row: row.clone() };
                let hash = IdHash::of(&due.to_string());
                [put, RowOp::Index { hash, row: Some(known(due)) }]
            };
            let mut rows: Vec<_> = (first..first + batch).map(scattered).flat_map(both).collect();
            rows.sort_by_key(RowOp::sort_key);
            write(&store, &rows);
        }
        let applied = crate::clock::monotonic();
        assert_eq!(due_times(&store, 0, u64::MAX).len() as u64, total);
        let scanned = crate::clock::monotonic();
        let rate = |from, to| total as f64 / std::time::Duration::as_secs_f64(&(to - from));
        (rate(started, applied), rate(applied, scanned))
    }

    fn copy_dir(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }

    #[test]
    fn files_replaced_by_compaction_leave_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let settings = RocksDbOptions { block_cache: 64 << 20, ..SETTINGS };
        let factory = StoreFactory::new(dir.path(), settings).unwrap();
        let store = factory.open(0).unwrap();
        let index = |due| RowOp::Index { hash: IdHash(u128::from(due)), row: Some(known(due)) };
        let rows: Vec<_> = (0..100_000).map(index).collect();
        store.apply(&rows, &state(1)).unwrap();
        store.flush().unwrap();
        let hashes: Vec<_> = (0..100_000).step_by(50).map(IdHash).collect();
        let after_compaction = || {
            store.db.compact_range_cf(store.family(INDEX), None::<&[u8]>, None::<&[u8]>);
            assert!(store.lookup(&hashes).unwrap().iter().all(Option::is_some));
            factory.cache_usage()
        };
        let first = after_compaction();
        assert!(first > 1 << 20, "a filter and most blocks: {first} bytes");
        let later: Vec<_> = std::iter::repeat_with(after_compaction).take(5).collect();
        assert!(later.iter().all(|bytes| *bytes < first * 3 / 2), "{first}, then {later:?} bytes");
    }
}
