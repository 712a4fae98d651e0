//! The ticker: commits ready-made fires at their times, without store and timer.
//!
//! Invariant: it is as punctual as a scheduler on this machine could be, because it commits as soon
//! as something is due and the previous commit is done, and does nothing else.

use std::time::Duration;

use orloj::clock;
use orloj::config::Settings;
use orloj::kafka::transaction::ProducerRecord;
use orloj::model::{Offset, Timestamp};

use crate::bench_cluster::{self, PARTITIONS};
use crate::load_generator::{Payload, due_at_rate, trigger_id};
use crate::transaction_writer::{SINGLE_PRODUCER, TransactionWriter};

/// Its fires' keys begin with this.
pub(crate) const SERIES: &str = "tick";
/// What the ticker waits for at a time: the grain of due times.
const TICK: Duration = Duration::from_millis(1);
/// Between being ready and the first fire, in ms.
const LEAD_MS: Timestamp = 500;

/// Commits `count` fires at their times, `rate` a second.
pub(crate) fn run(settings: &Settings, count: u32, rate: u32) {
    let output = bench_cluster::output(settings, "ticker");
    let mut writer = TransactionWriter::join(settings, "ticker", SINGLE_PRODUCER);
    let mut payload = Payload::new();
    println!("ready");

    let begin = clock::now_ms() + LEAD_MS;
    let due_of = |fire: u32| begin + due_at_rate(fire, rate);
    let mut fire = 0;
    while fire < count {
        if !writer.is_free(TICK) {
            continue;
        }
        let now = clock::now_ms();
        if due_of(fire) > now {
            writer.serve_group(TICK);
            continue;
        }
        writer.begin();
        while fire < count && due_of(fire) <= now {
            send(&writer, &output, fire, due_of(fire), payload.next());
            fire += 1;
        }
        writer.submit([Offset::from(fire); PARTITIONS.len()]);
    }
    while !writer.is_free(TICK) {}
}

fn send(writer: &TransactionWriter, output: &str, fire: u32, due: Timestamp, payload: &[u8]) {
    let key = trigger_id(SERIES, fire);
    let (id, due) = (format!("{key}:{fire}:0"), due.to_string());
    writer.send(ProducerRecord {
        topic: output,
        partition: None,
        key: Some(key.as_bytes()),
        value: Some(payload),
        headers: &[("orloj-fire-id", Some(id.as_bytes())), ("orloj-due", Some(due.as_bytes()))],
    });
}
