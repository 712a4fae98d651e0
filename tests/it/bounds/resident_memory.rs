//! Whether the memory of a process stays as it is at a bound.
//!
//! Invariant: a sample is what the kernel says is resident, once a second. The first third of the
//! samples is left out, in which queues, pools and caches fill. The most of the last third may
//! exceed the most of the second one by a tenth and 16 MiB: allocators and caches differ by so much
//! from minute to minute. What grows without a bound exceeds it in ten minutes if it grows by a
//! megabyte in 5 seconds; in the short form only if it grows by several in each second, as a queue
//! of payloads does that has no bound.

use crate::process::OrlojProcess;

use super::wait_for_ms;

const MIB: u64 = 1_048_576;
/// The last third may have so many MiB more, beside a tenth.
const GROWTH_MAX_MIB: u64 = 16;
/// Between two samples.
const SAMPLE_MS: u64 = 1_000;

/// What a process had in memory, second by second.
pub(super) struct RssSamples {
    process: &'static str,
    /// MiB.
    samples: Vec<u64>,
    /// The most that it ever had, in MiB.
    peak: u64,
}

/// Takes samples of these processes for so many seconds; `check` is called after each.
pub(super) fn sample_for(
    seconds: u64,
    processes: &[(&'static str, &OrlojProcess)],
    mut check: impl FnMut(),
) -> Vec<RssSamples> {
    let empty = |&(process, _): &(&'static str, &OrlojProcess)| RssSamples {
        process,
        samples: Vec::new(),
        peak: 0,
    };
    let mut all: Vec<_> = processes.iter().map(empty).collect();
    for _ in 0..seconds {
        wait_for_ms(SAMPLE_MS);
        for (of, (_, process)) in all.iter_mut().zip(processes) {
            let memory = process.footprint();
            of.samples.push(memory.resident / MIB);
            of.peak = memory.peak / MIB;
        }
        check();
    }
    all
}

/// Panics unless the memory of each stays as it is.
pub(super) fn assert_flat(all: &[RssSamples]) {
    for of in all {
        let thirds = Thirds::of(&of.samples);
        eprintln!("  {}: {thirds:?} MiB, peak {} MiB", of.process, of.peak);
    }
    for of in all {
        let thirds = Thirds::of(&of.samples);
        assert!(thirds.are_flat(), "{} grows: {thirds:?} of {:?}", of.process, of.samples);
    }
}

/// Panics if the process called so ever had more MiB.
pub(super) fn assert_peak(all: &[RssSamples], process: &str, most: u64) {
    let of = all.iter().find(|of| of.process == process).unwrap();
    assert!(of.peak <= most, "{process} had {} MiB; {most} are allowed", of.peak);
}

/// The most of each third of the samples.
#[derive(Debug)]
struct Thirds([u64; 3]);

impl Thirds {
    fn of(samples: &[u64]) -> Self {
        let third = samples.len() / 3;
        let most = |samples: &[u64]| samples.iter().copied().max().unwrap();
        let (first, rest) = samples.split_at(third);
        let (second, last) = rest.split_at(third);
        Self([first, second, last].map(most))
    }

    fn are_flat(&self) -> bool {
        let Self([_, second, last]) = self;
        last * 10 <= second * 11 + GROWTH_MAX_MIB * 10
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_flat(samples: impl Iterator<Item = u64>) -> bool {
        Thirds::of(&samples.collect::<Vec<_>>()).are_flat()
    }

    #[test]
    fn what_fills_at_first_and_varies_then_is_flat() {
        assert!(is_flat((0..600).map(|second| (second * 3).min(500) + second % 20)));
        assert!(is_flat((0..15).map(|second| (second * 100).min(500))));
    }

    #[test]
    fn what_grows_all_the_time_is_found() {
        assert!(!is_flat((0..600).map(|second| 100 + second / 5)));
        assert!(!is_flat((0..15).map(|second| 100 + second * 8)));
        assert!(!is_flat((0..600).map(|second| if second == 590 { 400 } else { 300 })));
    }
}
