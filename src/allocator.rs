//! The memory of every program that links this crate.
//!
//! Invariant: librdkafka and RocksDB keep the system's allocator. What a trigger costs in Rust, a
//! dozen small blocks that live for seconds, is what this one is good at.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Has Linux hand this process, and those that it starts, memory in small pages only. The first
/// touch of a huge page waits until 2 MiB of it are zeroed: with whatever else is touched for the
/// first time then, 10 to 30 ms in which nothing fires.
pub fn disable_huge_pages() {
    // A kernel that has no such setting, or a sandbox that forbids it, costs no more than that.
    #[cfg(target_os = "linux")]
    rustix::thread::disable_transparent_huge_pages(true).ok();
}
