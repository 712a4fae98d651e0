//! Disks that are full, too old or too slow.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use orloj::clock;
use rdkafka::message::Message as _;

use super::processes::{owns, stay};
use super::report::{Figures, Verdict};
use super::witness::{self, Witness};
use super::{SETTLE, Scale, Scene};
use crate::command::run_to_end;
use crate::kafka_server::{KafkaServer, Options, tool};
use crate::records;
use crate::stage::{PARTITIONS, READY, Stage};
use crate::wait::until;

/// A file system of its own, gone with its value.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: PathBuf) -> Result<Self, String> {
        fs::create_dir_all(&folder).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=48m", "tmpfs"]).arg(&folder);
        let output = mount.output().map_err(|error| error.to_string())?;
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if output.status.success() { Ok(Self(folder)) } else { Err(complaint) }
    }

    /// Takes all that is left, and says what to remove to get it back.
    fn fill(&self) -> PathBuf {
        let ballast = self.0.join("ballast");
        let mut file = File::create(&ballast).unwrap();
        while file.write_all(&[7; 4096]).is_ok() {}
        ballast
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// The disk is full for a while; what is due then fires when there is room again, or before.
pub(super) fn full(_: Scale) -> Verdict {
    let stage = Stage::new("full").set("store.flush_interval", "300ms");
    let disk = match SmallDisk::mount(stage.data_of("first")) {
        Ok(disk) => disk,
        Err(why) => return Verdict::Skipped(format!("no tmpfs can be mounted: {why}")),
    };
    let scene = Scene::of(stage);
    let mut scheduler = scene.stage.scheduler("first");
    owns(&scheduler, PARTITIONS as usize);
    let witness = Witness::of(&scheduler);
    scene.flow().during(|| {
        stay(2_000);
        let ballast = disk.fill();
        scheduler.says("the local store failed", READY);
        stay(20_000);
        fs::remove_file(ballast).unwrap();
        until("it to recover by itself", SETTLE, || {
            let ended = scheduler.ended();
            assert!(ended.is_none(), "it ended: {ended:?}\n{}", scheduler.said());
            (scheduler.is_ready() && scheduler.owned() == PARTITIONS as usize).then_some(())
        });
    });
    let report = scene.settled();
    witness::assert_true(&[&witness], &scene.client.acknowledged(), &scene.stage.fires());
    assert!(!scheduler.panicked());
    let figures = Figures::of(&report).takeovers(scheduler.takeovers());
    scheduler.terminate();
    Verdict::Passed(figures.with("times not ready", witness.not_ready()))
}

/// A disk comes back from which a trigger was never removed: elsewhere it was cancelled, and the
/// ledger has forgotten even that.
pub(super) fn old(_: Scale) -> Verdict {
    /// When the cancelled trigger would be due, in ms from now: after all that happens before.
    const DUE: u64 = 90_000;
    const ID: &str = "cancelled-elsewhere";
    let eager = ("log.cleaner.backoff.ms", "200".to_owned());
    let server = KafkaServer::start(&Options { properties: vec![eager], ..Options::default() });
    let stage = Stage::at("old", &server).set("store.state_age_max", "1s");
    let scene = Scene::of(stage);
    let due = clock::now_ms() + DUE;
    scene.client.register(ID, due, scene.stage.target(), "no", true);
    let first = scene.stage.scheduler("first");
    owns(&first, PARTITIONS as usize);
    scene.flow().during(|| stay(3_000));
    first.terminate();
    let second = scene.stage.scheduler("second");
    owns(&second, PARTITIONS as usize);
    scene.client.cancel(ID);
    let forgets = "min.compaction.lag.ms=0,max.compaction.lag.ms=1000,segment.ms=500,\
                   min.cleanable.dirty.ratio=0.001";
    configure(&scene.stage, "--add-config", &format!("{forgets},delete.retention.ms=100"));
    scene.flow().during(|| {
        until("the ledger to forget", SETTLE, || {
            let ledger = records::read_all(scene.stage.kafka(), &scene.stage.names.ledger());
            let told =
                ledger.iter().any(|record| record.key() == Some(format!("m|{ID}").as_bytes()));
            (!told).then_some(())
        });
    });
    second.terminate();
    // As defined, or nobody starts.
    configure(&scene.stage, "--delete-config", "max.compaction.lag.ms");
    let defined = "delete.retention.ms=604800000,min.compaction.lag.ms=3600000";
    configure(&scene.stage, "--add-config", defined);
    assert!(clock::now_ms() < due, "too slow a machine for this case");

    let mut again = scene.stage.scheduler("first");
    again.ready(READY);
    until("the cancelled one's time", SETTLE, || (clock::now_ms() > due + 3_000).then_some(()));
    let report = scene.settled();
    again.terminate();
    Verdict::Passed(Figures::of(&report))
}

/// Changes the configuration of the ledger's topic.
fn configure(stage: &Stage, how: &str, what: &str) {
    let mut configs = tool("kafka.admin.ConfigCommand");
    let bootstrap = stage.kafka().get("bootstrap.servers").expect("every client has it");
    configs.args(["--bootstrap-server", bootstrap, "--alter", "--entity-type", "topics"]);
    configs.args(["--entity-name", &stage.names.ledger(), how, what]);
    run_to_end(&mut configs);
}

/// Every fsync takes half a second, and the store is brought to disk all the time. (The kernel lets
/// strace hold up the call, and nothing else.)
pub(super) fn slow(_: Scale) -> Verdict {
    const DELAY_MS: u64 = 500;
    let stage = Stage::new("slow").set("store.flush_interval", "300ms");
    let delays = tempfile::NamedTempFile::new().unwrap();
    let inject = format!("inject=fsync,fdatasync:delay_enter={DELAY_MS}ms");
    let log = delays.path().to_str().unwrap();
    let tracer = [
        "strace",
        "-D",
        "-f",
        "--seccomp-bpf",
        "-e",
        "trace=fsync,fdatasync",
        "-e",
        &inject,
        "-o",
        log,
    ];
    let tried = Command::new(tracer[0]).args(&tracer[1..]).arg("true").output();
    match tried {
        Ok(tried) if tried.status.success() => {}
        Ok(tried) => {
            let why = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
            return Verdict::Skipped(format!("strace may not hold up a process: {why}"));
        }
        Err(error) => return Verdict::Skipped(format!("strace cannot be run: {error}")),
    }
    let scene = Scene::of(stage);
    let mut scheduler = scene.stage.scheduler_under(&tracer, "first");
    scheduler.ready(READY);
    owns(&scheduler, PARTITIONS as usize);
    scene.flow().during(|| stay(10_000));
    let report = scene.settled();
    let delayed = fs::read_to_string(delays.path()).unwrap().matches("(DELAYED)").count();
    assert!(delayed >= 20, "{delayed} calls were held up");
    assert!(report.late_at(1.0) < DELAY_MS, "late by {} ms: something waited", report.late_at(1.0));
    let figures = Figures::of(&report).takeovers(scheduler.takeovers());
    scheduler.kill();
    Verdict::Passed(figures.with("fsyncs held up", delayed))
}
