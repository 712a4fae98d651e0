//! A broker that is restarted, and one that is killed: what is due meanwhile fires late, once.

use rustix::process::{Pid, Signal, kill_process};

use super::processes::stay;
use super::report::{Figures, Verdict};
use super::witness::{self, Witness};
use super::{SETTLE, Scale, Scene};
use crate::kafka_server::{KafkaServer, Options};
use crate::process::state_of;
use crate::stage::READY;
use crate::wait::until;

/// How long the broker is away, in ms: short, and beyond every timeout of ours.
const AWAY: [u64; 3] = [2_000, 8_000, 25_000];

/// SIGTERM, then the same broker again.
pub(super) fn restarted(scale: Scale) -> Verdict {
    away(scale, "broker-restarted", |server| {
        let java = server.process_id();
        kill_process(Pid::from_raw(java.cast_signed()).unwrap(), Signal::TERM).unwrap();
        // Its shell has not asked yet how it ended.
        until("the broker to end", SETTLE, || (state_of(java) == Some('Z')).then_some(()));
    })
}

/// SIGKILL, then the same broker again.
pub(super) fn killed(scale: Scale) -> Verdict {
    away(scale, "broker-killed", |_| ())
}

fn away(scale: Scale, name: &str, end: impl Fn(&KafkaServer)) -> Verdict {
    let mut server = KafkaServer::start(&Options::default());
    let scene = Scene::on(name, &server);
    let mut scheduler = scene.stage.scheduler("first");
    scheduler.ready(READY);
    let witness = Witness::of(&scheduler);
    let times = if scale == Scale::Short { &AWAY[..1] } else { &AWAY[..] };
    scene.flow().during(|| {
        for away in times {
            stay(2_000);
            end(&server);
            server.kill();
            stay(*away);
            server.start_again();
            let fires = scene.stage.fires().len();
            until("fires to go on", SETTLE, || {
                let ended = scheduler.ended();
                assert!(ended.is_none(), "away for {away} ms, it ended by itself: {ended:?}");
                (scene.stage.fires().len() > fires).then_some(())
            });
        }
    });
    scheduler.ready(READY);
    let report = scene.settled();
    witness::assert_true(&[&witness], &scene.client.acknowledged(), &scene.stage.fires());
    let figures =
        Figures::of(&report).takeovers(scheduler.takeovers()).with("times away", times.len());
    assert!(!scheduler.panicked());
    scheduler.terminate();
    Verdict::Passed(figures.with("times not ready", witness.not_ready()))
}
