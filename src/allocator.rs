//! The memory of every program that links this crate.
//!
//! Invariant: librdkafka and RocksDB keep the system's allocator. This one is fast for what a
//! trigger costs in Rust: a dozen small blocks that are freed after seconds.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Makes Linux give this process, and those that it starts, memory in small pages only. The first
/// access to a huge page waits until its 2 MiB are zeroed; several such accesses together take 10
/// to 30 ms, in which nothing fires.
pub fn disable_huge_pages() {
    // On a kernel without this setting, or in a sandbox that forbids it, huge pages stay enabled.
    #[cfg(target_os = "linux")]
    rustix::thread::disable_transparent_huge_pages(true).ok();
}
