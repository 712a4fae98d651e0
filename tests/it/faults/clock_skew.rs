//! Clocks that are set back: nothing fires early or twice; what must wait for the clock says so.

use super::processes::{wait_for_ms, wait_until_owned};
use super::readiness::{self, ReadinessProbe};
use super::report::{FaultFigures, FaultResult};
use super::{FaultFixture, Scale};
use crate::test_cluster::{PARTITIONS, READY_DEADLINE};

/// Back by 8 s, at the n-th reading of the clock.
const AT_ONCE: &str = "clock=back8000@1";
const LATER: &str = "clock=back8000@3000";

pub(super) fn set_back(_: Scale) -> FaultResult {
    let fixture = FaultFixture::new("clock");
    let mut probes = Vec::new();
    let mut takeovers = Vec::new();
    fixture.steady_load().during(|| {
        for fault in ["", AT_ONCE, LATER] {
            let scheduler = fixture.cluster.scheduler_with_faults("first", fault);
            probes.push(ReadinessProbe::of(&scheduler));
            wait_until_owned(&scheduler, PARTITIONS as usize);
            wait_for_ms(12_000);
            assert!(!scheduler.panicked(), "{}", scheduler.log_text());
            if fault == AT_ONCE {
                scheduler.wait_for_log("the local clock is behind", READY_DEADLINE);
            }
            takeovers.extend(scheduler.takeovers());
            scheduler.kill();
        }
    });
    let mut last = fixture.cluster.scheduler("first");
    last.wait_until_ready(READY_DEADLINE);
    let report = fixture.settled(&mut [&mut last]);
    let probes: Vec<_> = probes.iter().collect();
    readiness::assert_readiness_was_correct(
        &probes,
        &fixture.client.acknowledged(),
        &fixture.cluster.fires(),
    );
    FaultResult::Passed(FaultFigures::of(&report).takeovers(takeovers))
}
