//! Disks that are full, too old or too slow.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;

use orloj::clock;
use rdkafka::message::Message as _;

use super::lateness::{fire_times, latest_since};
use super::logged_turns::{LOG_FILTER, logged_turns};
use super::processes::{long_turns, wait_for_ms, wait_until_owned};
use super::readiness::{self, ReadinessProbe};
use super::report::{FaultFigures, FaultResult};
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, print_progress, second_look};
use crate::command::run_to_end;
use crate::kafka_server::{KafkaServer, Options, tool};
use crate::process::OrlojProcess;
use crate::records;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::until;

/// A file system of its own, removed when the value is dropped.
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
pub(super) fn full(_: Scale) -> FaultResult {
    let cluster = TestCluster::new("full").set("store.flush_interval", "300ms");
    let disk = match SmallDisk::mount(cluster.data_of("first")) {
        Ok(disk) => disk,
        Err(why) => return FaultResult::Skipped(format!("no tmpfs can be mounted: {why}")),
    };
    let fixture = FaultFixture::from_cluster(cluster);
    let mut scheduler = fixture.cluster.scheduler("first");
    wait_until_owned(&scheduler, PARTITIONS as usize);
    let probe = ReadinessProbe::of(&scheduler);
    fixture.under_load(|| {
        wait_for_ms(2_000);
        let ballast = disk.fill();
        scheduler.wait_for_log("the local store failed", READY_DEADLINE);
        wait_for_ms(20_000);
        fs::remove_file(ballast).unwrap();
        until("it to recover by itself", COMPLETION_DEADLINE, || {
            let ended = scheduler.exit_status();
            assert!(ended.is_none(), "it ended: {ended:?}\n{}", scheduler.log_text());
            (scheduler.is_ready() && scheduler.owned_partitions() == PARTITIONS as usize)
                .then_some(())
        });
    });
    let not_ready = probe.not_ready();
    let report = fixture.settled(&mut [&mut scheduler]);
    readiness::assert_readiness_was_correct(
        &[&probe],
        &fixture.client.acknowledged(),
        &fixture.cluster.fires(),
    );
    assert!(!scheduler.panicked());
    let figures = FaultFigures::of(&report).takeovers(scheduler.takeovers());
    FaultResult::Passed(figures.with("times not ready", not_ready))
}

/// A disk comes back from which a trigger was never removed: elsewhere it was cancelled, and the
/// ledger has forgotten even that.
pub(super) fn old(_: Scale) -> FaultResult {
    /// When the cancelled trigger would be due, in ms from now: after all that happens before.
    const DUE: u64 = 90_000;
    const ID: &str = "cancelled-elsewhere";
    let eager = ("log.cleaner.backoff.ms", "200".to_owned());
    let server = KafkaServer::start(&Options { properties: vec![eager], ..Options::default() });
    let cluster = TestCluster::on_server("old", &server).set("store.state_age_max", "1s");
    let fixture = FaultFixture::from_cluster(cluster);
    let due = clock::now_ms() + DUE;
    fixture.client.register(ID, due, fixture.cluster.target(), "no", true);
    let first = fixture.cluster.scheduler("first");
    wait_until_owned(&first, PARTITIONS as usize);
    fixture.steady_load().during(|| wait_for_ms(3_000));
    first.terminate();
    let second = fixture.cluster.scheduler("second");
    wait_until_owned(&second, PARTITIONS as usize);
    fixture.client.cancel(ID);
    let forgets = "min.compaction.lag.ms=0,max.compaction.lag.ms=1000,segment.ms=500,\
                   min.cleanable.dirty.ratio=0.001";
    configure(&fixture.cluster, "--add-config", &format!("{forgets},delete.retention.ms=100"));
    fixture.steady_load().during(|| {
        until("the ledger to forget", COMPLETION_DEADLINE, || {
            let ledger =
                records::read_all(fixture.cluster.kafka(), &fixture.cluster.names.ledger());
            let is_reported =
                ledger.iter().any(|record| record.key() == Some(format!("m|{ID}").as_bytes()));
            (!is_reported).then_some(())
        });
    });
    second.terminate();
    // The topics must be as defined: otherwise no process starts.
    configure(&fixture.cluster, "--delete-config", "max.compaction.lag.ms");
    let defined = "delete.retention.ms=604800000,min.compaction.lag.ms=3600000";
    configure(&fixture.cluster, "--add-config", defined);
    assert!(clock::now_ms() < due, "too slow a machine for this case");

    let mut again = fixture.cluster.scheduler("first");
    again.wait_until_ready(READY_DEADLINE);
    until("the cancelled one's time", COMPLETION_DEADLINE, || {
        (clock::now_ms() > due + 3_000).then_some(())
    });
    let report = fixture.settled(&mut [&mut again]);
    FaultResult::Passed(FaultFigures::of(&report))
}

/// Changes the configuration of the ledger's topic.
fn configure(cluster: &TestCluster, how: &str, what: &str) {
    let mut configs = tool("kafka.admin.ConfigCommand");
    let bootstrap = cluster.kafka().get("bootstrap.servers").expect("every client has it");
    configs.args(["--bootstrap-server", bootstrap, "--alter", "--entity-type", "topics"]);
    configs.args(["--entity-name", &cluster.names.ledger(), how, what]);
    run_to_end(&mut configs);
}

/// How long an fsync takes on a slow disk, in ms.
const FSYNC_MS: u64 = 500;
/// How many of them a case must have had.
const FSYNCS_MIN: usize = 20;

/// A disk of which every fsync takes half a second. (The kernel lets strace hold up the call, and
/// nothing else.)
struct SlowDisk {
    /// What strace has written.
    log: tempfile::NamedTempFile,
    tracer: Vec<String>,
}

impl SlowDisk {
    /// Why there is none, if strace may not hold up a process.
    fn new() -> Result<Self, String> {
        let log = tempfile::NamedTempFile::new().unwrap();
        let inject = format!("inject=fsync,fdatasync:delay_enter={FSYNC_MS}ms");
        let options = ["-D", "-f", "--seccomp-bpf", "-e", "trace=fsync,fdatasync", "-e", &inject];
        let words = [&["strace"][..], &options, &["-o", log.path().to_str().unwrap()]].concat();
        let tracer: Vec<_> = words.into_iter().map(str::to_owned).collect();
        match Command::new(&tracer[0]).args(&tracer[1..]).arg("true").output() {
            Ok(tried) if tried.status.success() => Ok(Self { log, tracer }),
            Ok(tried) => {
                let why = String::from_utf8_lossy(&tried.stderr).trim().to_owned();
                Err(format!("strace may not hold up a process: {why}"))
            }
            Err(error) => Err(format!("strace cannot be run: {error}")),
        }
    }

    /// Starts a scheduler on it. The store is brought to disk all the time.
    fn scheduler(&self, cluster: &TestCluster, name: &str) -> OrlojProcess {
        let tracer: Vec<_> = self.tracer.iter().map(String::as_str).collect();
        let mut scheduler = cluster.traced_scheduler(&tracer, name);
        scheduler.wait_until_ready(READY_DEADLINE);
        wait_until_owned(&scheduler, PARTITIONS as usize);
        scheduler
    }

    /// How many calls were held up.
    fn fsyncs(&self) -> usize {
        let fsyncs = fs::read_to_string(self.log.path()).unwrap().matches("(DELAYED)").count();
        assert!(fsyncs >= FSYNCS_MIN, "{fsyncs} calls were held up");
        fsyncs
    }
}

/// Nothing happens but that the disk is slow.
pub(super) fn slow(_: Scale) -> FaultResult {
    let disk = match SlowDisk::new() {
        Ok(disk) => disk,
        Err(why) => return FaultResult::Skipped(why),
    };
    let cluster = TestCluster::new("slow").set("store.flush_interval", "300ms");
    let fixture = FaultFixture::from_cluster(cluster);
    let scheduler = disk.scheduler(&fixture.cluster, "first");
    fixture.steady_load().during(|| wait_for_ms(10_000));
    let report = fixture.judged();
    let fsyncs = disk.fsyncs();
    let late = report.lateness_at(1.0);
    assert!(late < FSYNC_MS, "late by {late} ms: something waited");
    let figures = FaultFigures::of(&report).takeovers(scheduler.takeovers());
    // An orderly end would take as long as all its fsyncs.
    scheduler.kill();
    second_look::assert_nothing_fires_again(&fixture, &mut []);
    fixture.check_topics();
    FaultResult::Passed(figures.with("fsyncs held up", fsyncs))
}

/// A process on a slow disk takes over what the other one of two had when it died. What it had
/// itself does not wait for that.
pub(super) fn slow_with_dying_peer(_: Scale) -> FaultResult {
    /// How late a fire of a partition may be that stays where it is, in ms.
    const KEPT_LATE_MAX: u64 = 250;
    /// How long the load runs before the kill at least, in ms.
    const SETTLE_FOR: u64 = 10_000;
    let disk = match SlowDisk::new() {
        Ok(disk) => disk,
        Err(why) => return FaultResult::Skipped(why),
    };
    let cluster = TestCluster::new("slow-peer")
        .set("store.flush_interval", "300ms")
        .set("log.filter", LOG_FILTER);
    let fixture = FaultFixture::from_cluster(cluster);
    let survivor = disk.scheduler(&fixture.cluster, "first");
    let peer = fixture.cluster.scheduler("second");
    let share = PARTITIONS as usize / 2;
    [&survivor, &peer].iter().for_each(|process| wait_until_owned(process, share));
    let lost: Vec<_> = peer.numbers("taken over", "partition");
    assert_eq!(lost.len(), share, "{lost:?}");
    let progress = fixture.cluster.fire_progress();
    let (killed, long) = fixture.steady_load().during(|| {
        // What is late before the kill is not the peer's: a broker that was just started compiles.
        wait_for_ms(SETTLE_FOR);
        progress.wait_until_caught_up(COMPLETION_DEADLINE, || {});
        let before = long_turns(&survivor);
        let killed = clock::now_ms();
        peer.kill();
        wait_until_owned(&survivor, PARTITIONS as usize);
        wait_for_ms(5_000);
        (killed, long_turns(&survivor) - before)
    });
    let report = fixture.judged();
    let fires = fixture.cluster.fires();
    let times = fire_times(&fixture.client.acknowledged(), &fires);
    let kept: Vec<_> = times.iter().filter(|fire| !lost.contains(&fire.partition())).collect();
    assert!(kept.iter().any(|fire| fire.from >= killed), "nothing was due in kept partitions");
    let (late, after) = latest_since(&kept, killed);
    let turns = logged_turns(&survivor, killed);
    print_progress(&format!(
        "  {late} ms late in kept partitions, {after} ms after the kill; long turns: {turns:?}"
    ));
    assert!(late <= KEPT_LATE_MAX, "{late} ms late in a partition that stayed where it was");
    assert_eq!(long, 0, "turns of more than 100 ms since the kill: {turns:?}");
    let figures = FaultFigures::of(&report).takeovers(survivor.takeovers());
    survivor.kill();
    second_look::assert_nothing_fires_again(&fixture, &mut []);
    fixture.check_topics();
    let late = usize::try_from(late).unwrap();
    FaultResult::Passed(
        figures.with("fsyncs held up", disk.fsyncs()).with("ms late in kept partitions", late),
    )
}
