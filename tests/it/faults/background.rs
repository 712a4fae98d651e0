//! A load that runs for as long as something else does.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

/// Runs `load` on a thread of its own while `body` runs; `load` ends when its argument is set, also
/// if `body` panics.
pub(crate) fn beside<T, U: Send>(
    load: impl FnOnce(&AtomicBool) -> U + Send,
    body: impl FnOnce() -> T,
) -> (T, U) {
    struct SetOnDrop<'a>(&'a AtomicBool);
    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let load = scope.spawn(|| load(&ended));
        let result = {
            let _end = SetOnDrop(&ended);
            body()
        };
        (result, load.join().unwrap())
    })
}
