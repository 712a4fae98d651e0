//! What each timeout trades: it is shorter or longer than its default while a broker of three dies,
//! and while one does not answer.
//!
//! Invariant: with any of them nothing is lost or repeated, and no partition is taken over. How
//! late fires are is printed, beside what a plain producer waits for.

use super::broker_roles::RolesCase;
use super::failed_round::KafkaWaits;
use super::report::{FaultFigures, FaultResult};
use super::{Scale, print_progress};
use crate::brokers::BrokerRole;

/// A setting and its value.
type Setting = (&'static str, &'static str);

/// The defaults, and of each timeout a shorter and a longer one. A transaction lasts for as long as
/// a delivery and a request at least.
const NEIGHBOURS: [&[Setting]; 13] = [
    &[],
    &[("timeouts.request", "5s")],
    &[("timeouts.request", "20s"), ("scheduler.transaction_timeout", "40s")],
    &[("timeouts.fetch", "2s")],
    &[("timeouts.fetch", "9s")],
    &[("timeouts.delivery", "12s")],
    &[("timeouts.delivery", "40s"), ("scheduler.transaction_timeout", "50s")],
    &[("timeouts.connect", "1s")],
    &[("timeouts.connect", "8s")],
    &[("timeouts.metadata_refresh", "500ms")],
    &[("timeouts.metadata_refresh", "10s")],
    &[("timeouts.metadata_refresh_producers", "1s")],
    &[("timeouts.metadata_refresh_producers", "20s")],
];
/// For how long a broker does not answer, in ms: longer than its cluster waits for it.
const STOPPED_FOR: u64 = 30_000;
/// How late a fire may be, in ms: what each of them costs is printed, and a broker that is stopped
/// is back after 30 s.
pub(super) const LATE_MAX: u64 = 60_000;

/// Measures each of them with the broker that leads the first partition of the fires, and
/// coordinates transactions, in turn.
pub(super) fn neighbours(scale: Scale) -> FaultResult {
    let rounds = if scale == Scale::Long { 3 } else { 1 };
    let mut figures = FaultFigures::default();
    for settings in NEIGHBOURS {
        print_progress(&format!("  {settings:?}"));
        let mut case = RolesCase::start_with_settings("timeouts", settings);
        let (target, id) = (case.target(), case.transactional_id());
        let roles = [BrokerRole::Leader(&target), BrokerRole::TransactionCoordinator(&id)];
        let roles = roles.repeat(rounds);
        let late_max = |_: KafkaWaits| LATE_MAX;
        case.assert_survives(&roles, late_max, |case, place| case.kill(place));
        case.assert_survives(&roles, late_max, |case, place| case.stop(place, STOPPED_FOR));
        figures = figures.and(&case.settled());
    }
    FaultResult::Passed(figures)
}
