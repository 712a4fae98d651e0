//! Disks that lose, damage, forget and fill up: what is stored locally can always be rebuilt.

use std::fs;
use std::path::{Path, PathBuf};

use super::processes::{wait_for_ms, wait_until_owned};
use super::report::{FaultFigures, FaultResult};
use super::rng::FaultRng;
use super::{FaultFixture, Scale};
use crate::process::OrlojProcess;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster, remove_folder};

/// What happens to the files of a process that was killed.
type Damage = fn(&[PathBuf], &mut FaultRng);

const DAMAGES: [(&str, Damage); 6] = [
    ("flipped bytes", flip),
    ("truncated files", truncate),
    ("empty files", |files, _| files.iter().for_each(|file| fs::write(file, []).unwrap())),
    ("a lost manifest", |files, _| remove(files, "MANIFEST")),
    ("a lost table", |files, _| remove(files, ".sst")),
    ("a lost CURRENT", |files, _| remove(files, "CURRENT")),
];

/// A process is killed, its files are damaged, and it starts again.
pub(super) fn damaged(scale: Scale) -> FaultResult {
    let fixture = FaultFixture::from_cluster(
        TestCluster::new("damaged").set("store.flush_interval", "300ms"),
    );
    let mut rng = FaultRng::new(3);
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    let mut takeovers = Vec::new();
    fixture.under_load(|| {
        for (_, damage) in DAMAGES.iter().cycle().take(rounds * DAMAGES.len()) {
            run_with_lost_disks(&fixture, &mut takeovers).kill();
            damage(&files(&fixture.cluster.data_of("first").join("partitions")), &mut rng);
        }
        run_with_lost_disks(&fixture, &mut takeovers).terminate();
    });
    finish(&fixture, takeovers, "damages", rounds * DAMAGES.len())
}

/// The folder is removed after a kill, and from under a running process.
pub(super) fn wiped(scale: Scale) -> FaultResult {
    let fixture =
        FaultFixture::from_cluster(TestCluster::new("wiped").set("store.flush_interval", "300ms"));
    let rounds = if scale == Scale::Long { 10 } else { 2 };
    let mut takeovers = Vec::new();
    fixture.under_load(|| {
        for _ in 0..rounds {
            run_with_lost_disks(&fixture, &mut takeovers).kill();
            fixture.cluster.wipe("first");
            let mut running = run_with_lost_disks(&fixture, &mut takeovers);
            remove_folder(&fixture.cluster.data_of("first").join("partitions"));
            wait_for_ms(3_000);
            running.wait_until_ready(READY_DEADLINE);
            running.terminate();
        }
    });
    finish(&fixture, takeovers, "lost disks", 2 * rounds)
}

/// Starts the process and lets it live for a while.
fn run_with_lost_disks(fixture: &FaultFixture, takeovers: &mut Vec<u64>) -> OrlojProcess {
    let process = fixture.cluster.scheduler("first");
    wait_until_owned(&process, PARTITIONS as usize);
    wait_for_ms(2_000);
    assert!(!process.panicked(), "{}", process.log_text());
    takeovers.extend(process.takeovers());
    process
}

fn finish(
    fixture: &FaultFixture,
    takeovers: Vec<u64>,
    what: &'static str,
    count: usize,
) -> FaultResult {
    let mut last = fixture.cluster.scheduler("first");
    last.wait_until_ready(READY_DEADLINE);
    let report = fixture.settled(&mut [&mut last]);
    assert!(!last.panicked());
    FaultResult::Passed(FaultFigures::of(&report).takeovers(takeovers).with(what, count))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn flip(files: &[PathBuf], rng: &mut FaultRng) {
    for file in files {
        let mut bytes = fs::read(file).unwrap();
        for _ in 0..=bytes.len() / 500 {
            let place = rng.below(1 + bytes.len() as u64) as usize;
            bytes.get_mut(place).into_iter().for_each(|byte| *byte ^= 0x55);
        }
        fs::write(file, bytes).unwrap();
    }
}

fn truncate(files: &[PathBuf], rng: &mut FaultRng) {
    for file in files {
        let bytes = fs::read(file).unwrap();
        let kept = rng.below(1 + bytes.len() as u64) as usize;
        fs::write(file, &bytes[..kept]).unwrap();
    }
}

fn remove(files: &[PathBuf], part: &str) {
    let named = |file: &&PathBuf| file.to_string_lossy().contains(part);
    files.iter().filter(named).for_each(|file| fs::remove_file(file).unwrap());
}
