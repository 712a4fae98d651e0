//! Open files: each callback in progress uses one, and the system limits them per process.
//!
//! Invariant: no callback is started for which there may be no file descriptor. That shortage is
//! the worker's and must not cost a trigger an attempt.

use std::num::NonZeroUsize;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Half of the files are for callbacks. The rest is for connections that are kept for a moment
/// after their callback, for Kafka, and for health and metrics requests.
const FILES_PER_CALLBACK: u64 = 2;

/// How many callbacks may be in progress at once: `wanted`, if the system allows that many open
/// files. Raises the soft limit to the hard one.
pub(super) fn max_in_flight(wanted: NonZeroUsize) -> NonZeroUsize {
    let files = raise_soft_limit();
    let in_flight_max = limit_by_files(wanted, files);
    if in_flight_max < wanted {
        tracing::warn!(
            files,
            "at most {in_flight_max} callbacks at once, not the {wanted} of \
             worker.in_flight_max: the system allows too few open files (`ulimit -Hn`)"
        );
    }
    in_flight_max
}

/// How many files may be open, once the soft limit is the hard one; `None`: any number.
fn raise_soft_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let most = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, most) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files cannot be raised");
            limit.current
        }
    }
}

fn limit_by_files(wanted: NonZeroUsize, files: Option<u64>) -> NonZeroUsize {
    let affordable = files.map_or(u64::MAX, |files| files / FILES_PER_CALLBACK);
    let affordable = usize::try_from(affordable).unwrap_or(usize::MAX);
    NonZeroUsize::new(affordable).map_or(NonZeroUsize::MIN, |affordable| affordable.min(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_files_are_for_callbacks() {
        let wanted = NonZeroUsize::new(10_000).unwrap();
        let affordable = |files| limit_by_files(wanted, files).get();
        assert_eq!(affordable(None), 10_000);
        assert_eq!(affordable(Some(1_048_576)), 10_000);
        assert_eq!(affordable(Some(20_000)), 10_000);
        assert_eq!(affordable(Some(1_024)), 512);
        assert_eq!(affordable(Some(0)), 1);
    }
}
