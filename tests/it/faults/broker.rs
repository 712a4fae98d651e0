//! A broker that is restarted, and one that is killed: what is due meanwhile fires late, once.

use rustix::process::{Pid, Signal, kill_process};

use super::processes::wait_for_ms;
use super::readiness::{self, ReadinessProbe};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale};
use crate::kafka_server::{KafkaServer, Options};
use crate::process::state_of;
use crate::test_cluster::READY_DEADLINE;
use crate::wait::until;

/// How long the broker is away, in ms: short, and beyond every timeout of ours.
const AWAY: [u64; 3] = [2_000, 8_000, 25_000];

/// SIGTERM, then the same broker again.
pub(super) fn restarted(scale: Scale) -> FaultResult {
    away(scale, "broker-restarted", |server| {
        let java = server.process_id();
        kill_process(Pid::from_raw(java.cast_signed()).unwrap(), Signal::TERM).unwrap();
        // Its shell has not asked yet how it ended.
        until("the broker to end", COMPLETION_DEADLINE, || {
            (state_of(java) == Some('Z')).then_some(())
        });
    })
}

/// SIGKILL, then the same broker again.
pub(super) fn killed(scale: Scale) -> FaultResult {
    away(scale, "broker-killed", |_| ())
}

fn away(scale: Scale, name: &str, end: impl Fn(&KafkaServer)) -> FaultResult {
    let mut server = KafkaServer::start(&Options::default());
    let fixture = FaultFixture::on_server(name, &server);
    let mut scheduler = fixture.cluster.scheduler("first");
    scheduler.wait_until_ready(READY_DEADLINE);
    let probe = ReadinessProbe::of(&scheduler);
    let times = if scale == Scale::Short { &AWAY[..1] } else { &AWAY[..] };
    fixture.under_load(|| {
        for away in times {
            wait_for_ms(2_000);
            end(&server);
            server.kill();
            wait_for_ms(*away);
            server.start_again();
            let fires = fixture.cluster.fires().len();
            until("fires to go on", COMPLETION_DEADLINE, || {
                let ended = scheduler.exit_status();
                assert!(ended.is_none(), "away for {away} ms, it ended by itself: {ended:?}");
                (fixture.cluster.fires().len() > fires).then_some(())
            });
        }
    });
    scheduler.wait_until_ready(READY_DEADLINE);
    let not_ready = probe.not_ready();
    let report = fixture.settled(&mut [&mut scheduler]);
    readiness::assert_readiness_was_correct(
        &[&probe],
        &fixture.client.acknowledged(),
        &fixture.cluster.fires(),
    );
    let figures =
        FaultFigures::of(&report).takeovers(scheduler.takeovers()).with("times away", times.len());
    assert!(!scheduler.panicked());
    FaultResult::Passed(figures.with("times not ready", not_ready))
}
