//! When a fire whose callback cannot start now is fired again: its owner keeps it on its timeline
//! until then.
//!
//! Invariant: pure. Fires that were deferred together do not return together: the delay of each is
//! spread by its own id, so that a repetition is due at the same time. The more often one was
//! deferred, the longer its delay, so that a caller's backlog is written to the log a few times and
//! not once a second.

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::model::entry::FireId;

/// Why a fire goes back to its owner without an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferralCause {
    /// The queue of its caller is full.
    QueueFull,
    /// Its host fails; the next probe is after this long.
    CircuitOpen(Duration),
    /// It waits in a partition whose window is full, so that reading cannot continue.
    WindowFull,
    /// The worker has been shutting down for so long, waits for its host to answer earlier
    /// callbacks, and has no room to keep it for the next owner.
    ShuttingDown(Duration),
}

impl DeferralCause {
    /// The label of its metric.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::CircuitOpen(_) => "circuit_open",
            Self::WindowFull => "held_back",
            Self::ShuttingDown(_) => "shutting_down",
        }
    }

    /// For people.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::QueueFull => "not started: too many callbacks of its caller wait",
            Self::CircuitOpen(_) => "not started: the circuit of its host is open",
            Self::WindowFull => "not started: it held back the progress of its partition",
            Self::ShuttingDown(_) => {
                "not started: the worker is shutting down, and its host is slow"
            }
        }
    }
}

/// A worker that shuts down is soon replaced: what it defers waits for as long as that has lasted,
/// but for this many first delays at most.
const SHUTDOWN_DELAYS_MAX: u32 = 4;

/// How long fires are deferred.
#[derive(Clone, Copy, Debug)]
pub struct DeferralDelays {
    /// The first delay; each further deferral doubles it.
    pub first: Duration,
    /// No delay is longer.
    pub longest: Duration,
    /// The period after a circuit's probe over which the other fires return.
    pub after_probe: Duration,
    /// How many bytes of a caller return in a second.
    pub bytes_per_second_max: usize,
}

impl DeferralDelays {
    /// How long `id`, which is deferred for `cause`, waits if fires that wait for `before` return
    /// before it.
    #[must_use]
    pub fn delay_after(&self, before: Duration, id: &FireId, cause: DeferralCause) -> Duration {
        let delay = self.delay(id, cause);
        let all = before + delay;
        // What has to wait longer than it may is spread over the second half.
        if all > self.longest { delay.max(Self::spread(self.longest, id)) } else { all }
    }

    /// How long `id`, which is deferred for `cause`, waits.
    #[must_use]
    pub fn delay(&self, id: &FireId, cause: DeferralCause) -> Duration {
        match cause {
            DeferralCause::CircuitOpen(probe_in) => {
                probe_in + self.after_probe.mul_f64(spread_fraction(id))
            }
            // The first delay, doubled for each earlier deferral.
            DeferralCause::QueueFull | DeferralCause::WindowFull => {
                let full = self.first.saturating_mul(1_u32 << id.deferral.min(31));
                Self::spread(full.min(self.longest), id)
            }
            DeferralCause::ShuttingDown(lasted) => {
                Self::spread(lasted.clamp(self.first, self.first * SHUTDOWN_DELAYS_MAX), id)
            }
        }
    }

    /// From half of `full` to all of it.
    fn spread(full: Duration, id: &FireId) -> Duration {
        full.mul_f64((1.0 + spread_fraction(id)) / 2.0)
    }
}

/// A number from 0 to 1 that is different for every fire and every deferral of it.
fn spread_fraction(id: &FireId) -> f64 {
    let hash = xxh3_64(format!("{}:{}:{}", id.occurrence_id(), id.attempt, id.deferral).as_bytes());
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn id(generation: u64, deferral: u32) -> FireId {
        FireId { trigger: "a".into(), generation, occurrence: 0, attempt: 1, deferral }
    }

    fn delays() -> DeferralDelays {
        DeferralDelays {
            first: SECOND,
            longest: 600 * SECOND,
            after_probe: 30 * SECOND,
            bytes_per_second_max: 1 << 20,
        }
    }

    #[test]
    fn each_deferral_lasts_about_twice_as_long_up_to_a_maximum() {
        for (deferral, full) in [(0, 1), (1, 2), (5, 32), (10, 600), (u32::MAX, 600)] {
            let delay = delays().delay(&id(7, deferral), DeferralCause::QueueFull);
            let full = full * SECOND;
            assert!(delay >= full / 2 && delay <= full, "{deferral}: {delay:?}");
            assert_eq!(delay, delays().delay(&id(7, deferral), DeferralCause::WindowFull));
        }
    }

    #[test]
    fn a_worker_that_shuts_down_defers_for_seconds() {
        for (lasted, full) in [(0, 1), (2, 2), (4, 4), (30, 4)] {
            let cause = DeferralCause::ShuttingDown(lasted * SECOND);
            let delay = delays().delay(&id(7, 31), cause);
            assert!(delay >= full * SECOND / 2 && delay <= full * SECOND, "{lasted}: {delay:?}");
        }
    }

    #[test]
    fn fires_deferred_together_come_back_at_different_times() {
        let open = DeferralCause::CircuitOpen(20 * SECOND);
        let mut seconds = [0; 30];
        for generation in 0..3_000 {
            let delay = delays().delay(&id(generation, 0), open);
            seconds[usize::try_from(delay.as_secs() - 20).unwrap()] += 1;
        }
        assert!(seconds.iter().all(|&count| (50..200).contains(&count)), "{seconds:?}");
        let first = delays().delay(&id(1, 0), open);
        assert_eq!(first, delays().delay(&id(1, 0), open), "a repetition is due at the same time");
        assert_ne!(first, delays().delay(&id(1, 1), open), "each deferral has another delay");
    }
}
