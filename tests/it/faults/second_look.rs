//! A second look at a topic of fires: what fires again after everything had fired once.
//!
//! Invariant: the schedulers are ended, and one with an empty disk has decided in every partition
//! before the second look: what it would repeat is there.

use orloj::clock;

use super::assignments::partition_of;
use super::processes::wait_until_owned;
use super::{COMPLETION_DEADLINE, FaultFixture, assert_clean};
use crate::process::OrlojProcess;
use crate::test_cluster::{PARTITIONS, TestCluster};
use crate::test_producer::TestProducer;
use crate::wait::until;

/// What the triggers of a second look are called.
pub(super) const NAME: &str = "second-look";

/// Ends the schedulers, has everything taken over once more, and judges again.
pub(super) fn assert_nothing_fires_again(
    fixture: &FaultFixture,
    schedulers: &mut [&mut OrlojProcess],
) {
    schedulers.iter_mut().for_each(|scheduler| scheduler.end());
    take_over_again(&fixture.cluster, &fixture.client);
    assert_clean("the second look", &fixture.judged_now());
}

/// A scheduler with an empty disk takes everything over, fires a trigger in every partition, and
/// ends.
pub(super) fn take_over_again(cluster: &TestCluster, client: &TestProducer) {
    cluster.wipe(NAME);
    let scheduler = cluster.scheduler(NAME);
    wait_until_owned(&scheduler, PARTITIONS as usize);
    let now = clock::now_ms();
    let ids: Vec<_> = (0..PARTITIONS).map(|partition| id(partition, now)).collect();
    ids.iter().for_each(|id| client.register(id, now, cluster.target(), NAME, true));
    client.acknowledged();
    until("a fire in every partition", COMPLETION_DEADLINE, || {
        let fires = cluster.fires();
        ids.iter().all(|id| fires.iter().any(|fire| fire.trigger == *id)).then_some(())
    });
    assert!(!scheduler.panicked(), "{}", scheduler.log_text());
    scheduler.terminate();
}

/// An id of this partition that no second look had before.
fn id(partition: i32, now: u64) -> String {
    let mut ids = (0..).map(|n| format!("{NAME}-{now}-{n}"));
    let of = |id: &String| partition_of(id) == partition;
    ids.find(of).expect("some id of so many is of the partition")
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::super::offsets::reset;
    use super::super::reason;
    use super::*;
    use crate::test_cluster::READY_DEADLINE;

    /// What fires again does so after everything was complete: an operator has moved the offsets.
    #[test]
    fn a_duplicate_after_the_first_complete_moment_is_found() {
        let fixture = FaultFixture::new("second-look");
        let mut scheduler = fixture.cluster.scheduler("first");
        scheduler.wait_until_ready(READY_DEADLINE);
        let due = clock::now_ms();
        for n in 0..20 {
            let target = fixture.cluster.target();
            fixture.client.register(&format!("twice-{n}"), due, target, "twice", true);
        }
        assert!(fixture.judged().is_clean());
        scheduler.end();
        reset(&fixture.cluster, |_| 0);
        assert!(fixture.judged_now().is_clean(), "nothing has fired twice yet");
        let look = || assert_nothing_fires_again(&fixture, &mut []);
        let panic = catch_unwind(AssertUnwindSafe(look)).expect_err("all of them fired twice");
        let found = reason(&*panic);
        assert!(found.contains("DUPLICATE"), "{found}");
    }
}
