//! The RocksDB options and their reasons. One template serves all partitions of a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rocksdb::compaction_filter::Decision;
use rocksdb::{
    BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, Env, Options,
    WriteBufferManager,
};

use super::{index, keys};
use crate::model::Millis;

pub(super) const TIMELINE: &str = "timeline";
pub(super) const INDEX: &str = "index";
/// The column family of the state and the skip marks. RocksDB requires a family with this name.
pub(super) const DEFAULT: &str = "default";

/// How long an index row is kept after its last entry has fired, so that a late cancellation is
/// answered with "already fired".
const INDEX_GRACE_MS: Millis = 3_600_000;

/// From this number of level-0 files on, RocksDB slows down writes and a flush waits for
/// compaction.
const LEVEL_0_SLOWDOWN_FILES: i32 = 24;
/// From this number of level-0 files on, no optional flush is started. RocksDB makes a flush wait
/// if it would bring a family with default options to 20 files.
pub(super) const LEVEL_0_FLUSH_FILES_MAX: u64 = 16;
/// Options with which a flush starts at once, even if compaction is behind.
pub(super) const WITHOUT_WRITE_STALLS: [(&str, &str); 4] = [
    ("level0_slowdown_writes_trigger", "1000000"),
    ("level0_stop_writes_trigger", "1000000"),
    ("soft_pending_compaction_bytes_limit", "0"),
    ("hard_pending_compaction_bytes_limit", "0"),
];

/// Removes the blocks and filters of files that compaction has replaced from the cache. By default
/// they stay there until their space is needed.
const UNCACHE_OPTION: &str = "uncache_aggressiveness=1000";

/// Options that an operator can set.
#[derive(Clone, Copy, Debug)]
pub struct RocksDbOptions {
    /// Write buffers of the process, in bytes.
    pub write_buffer: usize,
    /// Block cache of the process, in bytes.
    pub block_cache: usize,
    /// Open files per partition.
    pub max_open_files: i32,
}

impl From<&crate::config::StoreSettings> for RocksDbOptions {
    fn from(settings: &crate::config::StoreSettings) -> Self {
        let bytes =
            |size: crate::config::ByteSize| usize::try_from(size.bytes()).unwrap_or(usize::MAX);
        Self {
            write_buffer: bytes(settings.write_buffer),
            block_cache: bytes(settings.block_cache),
            max_open_files: i32::from(settings.max_open_files.get()),
        }
    }
}

/// What all stores of a process share.
pub(super) struct Template {
    settings: RocksDbOptions,
    cache: Cache,
    buffers: WriteBufferManager,
    pub(super) env: Option<Env>,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Template {
    pub(super) fn new(settings: RocksDbOptions) -> Self {
        let cache = Cache::new_lru_cache(settings.block_cache);
        // An upper limit only: reaching it must not stall writes.
        let limit = settings.write_buffer.saturating_mul(4);
        let buffers = WriteBufferManager::new_write_buffer_manager(limit, false);
        let env = Env::new().ok().map(|mut env| {
            env.set_low_priority_background_threads(1);
            env.set_high_priority_background_threads(1);
            // Compaction has a lower priority than fires and takeovers.
            env.lower_thread_pool_cpu_priority();
            env
        });
        Self { settings, cache, buffers, env }
    }

    pub(super) fn cache_usage(&self) -> usize {
        self.cache.get_usage()
    }

    pub(super) fn database(&self) -> Options {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.create_missing_column_families(true);
        // Without a write-ahead log, the families must be flushed together.
        options.set_atomic_flush(true);
        options.set_allow_concurrent_memtable_write(false); // one writer: allows insert hints
        options.set_max_background_jobs(2);
        options.set_max_open_files(self.settings.max_open_files);
        options.set_bytes_per_sync(1 << 20);
        options.set_keep_log_file_num(3);
        options.set_max_log_file_size(16 << 20);
        options.set_skip_stats_update_on_db_open(true);
        options.set_write_buffer_manager(&self.buffers);
        if let Some(env) = &self.env {
            options.set_env(env);
        }
        options
    }

    /// The column families. Their compaction filters delete rows that have fired.
    pub(super) fn families(&self, fired_filter: &Arc<FiredFilter>) -> Vec<ColumnFamilyDescriptor> {
        vec![
            ColumnFamilyDescriptor::new(TIMELINE, self.timeline(Arc::clone(fired_filter))),
            ColumnFamilyDescriptor::new(INDEX, self.index(Arc::clone(fired_filter))),
            ColumnFamilyDescriptor::new(DEFAULT, Options::default()),
        ]
    }

    pub(super) fn timeline(&self, fired_filter: Arc<FiredFilter>) -> Options {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&self.cache);
        table.set_block_size(32 << 10); // rows are scanned, so large blocks and no filter
        let mut options = family(self.settings.write_buffer / 2);
        options.set_block_based_table_factory(&table);
        options.add_compact_on_deletion_collector_factory(4_096, 2_048, 0.5);
        options.set_compaction_filter("decided timeline", move |_level, key, _row| {
            let due = keys::parse_timeline(key).map(|key| key.due);
            if due.is_some_and(|due| fired_filter.is_fired(due)) {
                Decision::Remove
            } else {
                Decision::Keep
            }
        });
        options
    }

    pub(super) fn index(&self, fired_filter: Arc<FiredFilter>) -> Options {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&self.cache);
        table.set_block_size(8 << 10);
        // Almost every registration looks up an unknown id. With a false-positive rate of 1:100,
        // blocks that are not needed would fill the cache; with 1:1000 they do not.
        table.set_bloom_filter(15.0, false);
        table.set_cache_index_and_filter_blocks(true);
        table.set_pin_l0_filter_and_index_blocks_in_cache(true);
        let mut options = family(self.settings.write_buffer / 2);
        options.set_block_based_table_factory(&table);
        options.set_memtable_prefix_bloom_ratio(0.1);
        options.set_memtable_whole_key_filtering(true);
        options.set_compaction_filter("decided index", move |_level, _key, row| {
            let last = index::last_key(row);
            let is_expired = |due: u64| fired_filter.is_fired(due.saturating_add(INDEX_GRACE_MS));
            if last.is_some_and(|key| is_expired(key.due)) {
                Decision::Remove
            } else {
                Decision::Keep
            }
        });
        options
    }
}

fn family(write_buffer: usize) -> Options {
    let parsed = Options::default().get_options_from_string(UNCACHE_OPTION);
    let mut options = parsed.expect("RocksDB knows its own option");
    options.set_write_buffer_size(write_buffer.max(1 << 20));
    options.set_max_write_buffer_number(4);
    options.set_compression_type(DBCompressionType::Lz4);
    options.set_level_compaction_dynamic_level_bytes(true);
    options.set_level_zero_slowdown_writes_trigger(LEVEL_0_SLOWDOWN_FILES);
    options.set_level_zero_stop_writes_trigger(40);
    options
}

/// The due time (ms since the epoch) before which everything has fired and is committed. The
/// compaction filters compare with it.
#[derive(Debug, Default)]
pub(super) struct FiredFilter(AtomicU64);

impl FiredFilter {
    /// Everything due before `due` (ms since the epoch) has fired.
    pub(super) fn advance_to(&self, due: u64) {
        let _previous = self.0.fetch_max(due, Ordering::Relaxed);
    }

    /// Whether an entry due at `due` has fired. In the last millisecond some entries may not have.
    fn is_fired(&self, due: u64) -> bool {
        due < self.0.load(Ordering::Relaxed)
    }
}
