//! Bytes without a meaning, and damaged records, in every topic that a process reads.
//!
//! Invariant: what is poisonous is set aside as a dead letter, once, and its neighbours fire: in
//! time, as long as their owner lives. Damage keeps the first bytes, which name the schema: an
//! unknown schema means a newer Orloj, not poison.

use std::ops::Range;

use orloj::clock;
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::lateness::{FireTimes, fire_times};
use super::processes::{assert_no_long_turn, wait_for_ms, wait_until_owned};
use super::report::{FaultFigures, FaultResult};
use super::rng::FaultRng;
use super::{COMPLETION_DEADLINE, FaultFixture, Scale, record_letter};
use crate::records;
use crate::test_cluster::{PARTITIONS, READY_DEADLINE, TestCluster};
use crate::wait::until;

/// Avro's marker and the schema's fingerprint.
const NAMED_BY: usize = 10;
/// How late a neighbour may be while its owner lives, in ms.
const LATE_MAX: u64 = 250;
/// How long the load runs before and after the time in which that counts, in ms.
const SETTLE_MS: u64 = 3_000;
/// Headers that mean something, with values that do not.
const HEADERS: [&str; 4] = ["orloj-fire-at", "orloj-delay", "orloj-step", "scheduler-epoch"];

pub(super) fn everywhere(scale: Scale) -> FaultResult {
    let rounds = if scale == Scale::Long { 200 } else { 20 };
    let mut fixture = FaultFixture::new("poison");
    let cluster = &fixture.cluster;
    let mut scheduler = cluster.scheduler("first");
    let mut worker = cluster.start("worker", "worker");
    scheduler.wait_until_ready(READY_DEADLINE);
    worker.wait_until_ready(READY_DEADLINE);
    let mut poison = PoisonWriter::of(cluster);
    let undisturbed = fixture.steady_load().during(|| {
        wait_until_owned(&scheduler, PARTITIONS as usize);
        wait_for_ms(SETTLE_MS);
        let began = clock::now_ms();
        for _ in 0..rounds {
            poison.write_everywhere();
            wait_for_ms(200);
        }
        // What is due at the end of it fires before an owner dies.
        wait_for_ms(SETTLE_MS);
        let undisturbed = began..clock::now_ms();
        for round in 0..rounds {
            poison.write_everywhere();
            match round % 5 {
                // Then it lives for three rounds, in which it fires what is due.
                0 => wait_until_owned(&scheduler, PARTITIONS as usize),
                3 => {
                    // The next owner reads all of it again.
                    scheduler.signal(rustix::process::Signal::KILL);
                    until("its death", COMPLETION_DEADLINE, || scheduler.exit_status());
                    cluster.wipe("first");
                    scheduler = cluster.scheduler("first");
                }
                _ => {}
            }
            wait_for_ms(200);
        }
        undisturbed
    });
    let PoisonWriter { written, expected, .. } = poison;
    until("a dead letter for each poisonous record", COMPLETION_DEADLINE, || {
        (cluster.dead_letters().len() >= expected.len()).then_some(())
    });
    for process in [&mut scheduler, &mut worker] {
        process.wait_until_ready(READY_DEADLINE);
        assert!(!process.panicked(), "{}", process.log_text());
    }
    // Before it has started it does not say.
    assert_no_long_turn(&scheduler);
    worker.terminate();
    fixture.expected_letters = expected;
    let report = fixture.settled(&mut [&mut scheduler]);
    let late = latest_due_in(&fixture, &undisturbed);
    assert!(late <= LATE_MAX, "a neighbour was {late} ms late; {LATE_MAX} are allowed");
    let figures = FaultFigures::of(&report).with("poisonous records", written);
    FaultResult::Passed(figures.with("late ms, while no owner dies", late as usize))
}

/// How late a fire was at most that was due, and registered, within these times.
fn latest_due_in(fixture: &FaultFixture, times: &Range<u64>) -> u64 {
    let fires = fixture.cluster.fires();
    let all = fire_times(&fixture.client.acknowledged(), &fires);
    let within = all.iter().filter(|fire| times.contains(&fire.from));
    within.map(FireTimes::late).max().expect("neighbours were due meanwhile")
}

/// Writes poisonous records.
struct PoisonWriter<'a> {
    cluster: &'a TestCluster,
    producer: BaseProducer,
    rng: FaultRng,
    /// How many.
    written: usize,
    /// The dead letters that they become.
    expected: Vec<String>,
}

impl<'a> PoisonWriter<'a> {
    fn of(cluster: &'a TestCluster) -> Self {
        let (producer, rng) = (cluster.kafka().create().unwrap(), FaultRng::new(7));
        Self { cluster, producer, rng, written: 0, expected: Vec::new() }
    }

    /// One for each partition of each topic that a process reads.
    fn write_everywhere(&mut self) {
        let names = &self.cluster.names;
        let letters_of = [names.triggers(), names.signals(), names.fires()];
        let topics = [&letters_of[0], &letters_of[1], &letters_of[2], &names.ledger()];
        for topic in topics {
            let sound: Vec<_> = records::read_all(self.cluster.kafka(), topic)
                .iter()
                .filter_map(|record| Some(record.payload()?.to_vec()))
                .collect();
            for partition in 0..PARTITIONS {
                let value = poison(&mut self.rng, &sound);
                write(&self.producer, topic, partition, &value, &mut self.rng);
                if letters_of.contains(topic) {
                    self.expected.push(record_letter(topic, &value));
                }
                self.written += 1;
            }
        }
        self.producer.flush(COMPLETION_DEADLINE).unwrap();
    }
}

/// Random bytes, or a sound value that was cut or changed behind its name.
fn poison(rng: &mut FaultRng, sound: &[Vec<u8>]) -> Vec<u8> {
    let length = 1 + rng.below(300);
    let mut value = rng.bytes(length);
    let place = rng.below(1 + sound.len() as u64) as usize;
    match sound.get(place) {
        Some(sound) if sound.len() > NAMED_BY && sound.starts_with(&[0xC3, 0x01]) => {
            let keep = NAMED_BY as u64 + rng.below((sound.len() - NAMED_BY) as u64);
            value = sound[..keep as usize].to_vec();
        }
        _ if value.starts_with(&[0xC3, 0x01]) => value[0] = 0,
        _ => {}
    }
    value
}

fn write(producer: &BaseProducer, topic: &str, partition: i32, value: &[u8], rng: &mut FaultRng) {
    let header = HEADERS[rng.below(HEADERS.len() as u64) as usize];
    let nonsense = rng.bytes(9);
    let headers = OwnedHeaders::new().insert(Header { key: header, value: Some(&nonsense) });
    let key = rng.bytes(1 + value.len() as u64 % 20);
    let record =
        BaseRecord::to(topic).partition(partition).key(&key).payload(value).headers(headers);
    producer.send(record).map_err(|(error, _)| error).unwrap();
}
