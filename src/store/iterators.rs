//! Iterators over rows, each of which is closed by a thread that does nothing else.
//!
//! Invariant: who has read rows does not wait for a flush to close the iterator. RocksDB 11 takes
//! the mutex of the database for that (`ArenaWrappedDBIter::ColumnFamilyDataUnrefDeleter`), and a
//! flush of several families holds it while it syncs the directory.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use ouroboros::self_referencing;
use rocksdb::{ColumnFamily, DB, DBRawIterator, ReadOptions};

/// An iterator and its database, which stays open as long.
#[self_referencing]
struct OwnedIterator {
    db: Arc<DB>,
    #[borrows(db)]
    #[not_covariant]
    rows: DBRawIterator<'this>,
}

/// What the thread does next.
enum Closing {
    Iterator(OwnedIterator),
    /// All that was sent before is closed: say so.
    Reached(Sender<()>),
}

/// Reads rows and lets the thread close the iterators. There are as many of them at most as are
/// read, in all stores of the process, while the directory of one is synced.
#[derive(Clone, Debug)]
pub(super) struct RowReader {
    closing: Sender<Closing>,
}

impl RowReader {
    /// Starts the thread. It ends when the last reader is dropped.
    pub(super) fn start() -> io::Result<Self> {
        let (closing, closings) = channel();
        let thread = std::thread::Builder::new().name("close-iterators".to_owned());
        let _detached = thread.spawn(move || close_all(&closings))?;
        Ok(Self { closing })
    }

    /// Calls `read` with an iterator over the rows of a family from `bounds.start` (inclusive) to
    /// `bounds.end` (exclusive), which is at the first one. Tombstones and fired rows outside of
    /// the bounds are not read. The blocks are read only once, so they do not replace others in the
    /// cache.
    pub(super) fn read<T>(
        &self,
        db: &Arc<DB>,
        family: impl Fn(&DB) -> &ColumnFamily,
        bounds: Range<Vec<u8>>,
        read: impl FnOnce(&mut DBRawIterator<'_>) -> T,
    ) -> T {
        let first = bounds.start.clone();
        let mut options = ReadOptions::default();
        options.set_iterate_range(bounds);
        options.fill_cache(false);
        let mut iterator =
            OwnedIterator::new(Arc::clone(db), |db| db.raw_iterator_cf_opt(family(db), options));
        let result = iterator.with_rows_mut(|rows| {
            rows.seek(first);
            read(rows)
        });
        // If the thread has ended, it is closed here.
        let _closed_here = self.closing.send(Closing::Iterator(iterator));
        result
    }

    /// Waits until all iterators are closed whose reading has ended.
    pub(super) fn wait_until_closed(&self) {
        let (reached, wait) = channel();
        if self.closing.send(Closing::Reached(reached)).is_ok() {
            let _ended = wait.recv();
        }
    }
}

fn close_all(closings: &Receiver<Closing>) {
    for closing in closings {
        match closing {
            Closing::Iterator(iterator) => drop(iterator),
            // It fails only if no store waits any more.
            Closing::Reached(reached) => drop(reached.send(())),
        }
    }
}
