//! Disks that lose, damage, forget and fill up: what is stored locally can always be rebuilt.

use std::fs;
use std::path::{Path, PathBuf};

use super::dice::Dice;
use super::processes::{owns, stay};
use super::report::{Figures, Verdict};
use super::{Scale, Scene};
use crate::process::Orloj;
use crate::stage::{PARTITIONS, READY, Stage};

/// What happens to the files of a process that was killed.
type Damage = fn(&[PathBuf], &mut Dice);

const DAMAGES: [(&str, Damage); 6] = [
    ("flipped bytes", flip),
    ("truncated files", truncate),
    ("empty files", |files, _| files.iter().for_each(|file| fs::write(file, []).unwrap())),
    ("a lost manifest", |files, _| remove(files, "MANIFEST")),
    ("a lost table", |files, _| remove(files, ".sst")),
    ("a lost CURRENT", |files, _| remove(files, "CURRENT")),
];

/// A process is killed, its files are damaged, and it starts again.
pub(super) fn damaged(scale: Scale) -> Verdict {
    let scene = Scene::of(Stage::new("damaged").set("store.flush_interval", "300ms"));
    let mut dice = Dice::new(3);
    let rounds = if scale == Scale::Long { 10 } else { 1 };
    let mut takeovers = Vec::new();
    scene.flow().during(|| {
        for (_, damage) in DAMAGES.iter().cycle().take(rounds * DAMAGES.len()) {
            live(&scene, &mut takeovers).kill();
            damage(&files(&scene.stage.data_of("first").join("partitions")), &mut dice);
        }
        live(&scene, &mut takeovers).terminate();
    });
    finish(&scene, takeovers, "damages", rounds * DAMAGES.len())
}

/// The folder is removed after a kill, and from under a running process.
pub(super) fn wiped(scale: Scale) -> Verdict {
    let scene = Scene::of(Stage::new("wiped").set("store.flush_interval", "300ms"));
    let rounds = if scale == Scale::Long { 10 } else { 2 };
    let mut takeovers = Vec::new();
    scene.flow().during(|| {
        for _ in 0..rounds {
            live(&scene, &mut takeovers).kill();
            scene.stage.wipe("first");
            let mut running = live(&scene, &mut takeovers);
            fs::remove_dir_all(scene.stage.data_of("first").join("partitions")).unwrap();
            stay(3_000);
            running.ready(READY);
            running.terminate();
        }
    });
    finish(&scene, takeovers, "lost disks", 2 * rounds)
}

/// Starts the process and lets it live for a while.
fn live(scene: &Scene, takeovers: &mut Vec<u64>) -> Orloj {
    let process = scene.stage.scheduler("first");
    owns(&process, PARTITIONS as usize);
    stay(2_000);
    assert!(!process.panicked(), "{}", process.said());
    takeovers.extend(process.takeovers());
    process
}

fn finish(scene: &Scene, takeovers: Vec<u64>, what: &'static str, count: usize) -> Verdict {
    let mut last = scene.stage.scheduler("first");
    last.ready(READY);
    let report = scene.settled();
    assert!(!last.panicked());
    last.terminate();
    Verdict::Passed(Figures::of(&report).takeovers(takeovers).with(what, count))
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn flip(files: &[PathBuf], dice: &mut Dice) {
    for file in files {
        let mut bytes = fs::read(file).unwrap();
        for _ in 0..=bytes.len() / 500 {
            let place = dice.below(1 + bytes.len() as u64) as usize;
            bytes.get_mut(place).into_iter().for_each(|byte| *byte ^= 0x55);
        }
        fs::write(file, bytes).unwrap();
    }
}

fn truncate(files: &[PathBuf], dice: &mut Dice) {
    for file in files {
        let bytes = fs::read(file).unwrap();
        let kept = dice.below(1 + bytes.len() as u64) as usize;
        fs::write(file, &bytes[..kept]).unwrap();
    }
}

fn remove(files: &[PathBuf], part: &str) {
    let named = |file: &&PathBuf| file.to_string_lossy().contains(part);
    files.iter().filter(named).for_each(|file| fs::remove_file(file).unwrap());
}
