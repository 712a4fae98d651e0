//! Checks what the records of fires and dead letters carry against the registrations.
//!
//! Invariant: a fire has the topic, the key and the user's headers that were registered, or that
//! the newest change has, and is in the partition that its key belongs to; each unreadable record
//! has one dead letter, and nothing else has one.

use std::collections::{BTreeMap, HashMap};

use orloj_core::model::Offset;
use orloj_core::model::dead_letter::Content;
use orloj_core::model::definition::Header;
use orloj_core::model::entry::FireId;
use orloj_core::model::fire::Fire;
use orloj_core::model::outcome::OutcomeKind;

use super::{is_forwarded, text};
use crate::audit::records::{ObservedRecord, RegisteredRecord};
use crate::audit::report::Finding;
use crate::audit::{CommandKind, Violation};
use crate::simulation::broker::{
    SimulatedBroker, SimulatedEffect, SimulatedRawRecord, SimulatedTopicFire,
};
use crate::simulation::clients::{AVRO_TOPIC, Intent, UserRequest, Users, serial, serial_of};
use crate::simulation::cluster::{PARTITIONS, partition_of, partitions_of_target};
use crate::simulation::replay::RequestedReplay;
use crate::simulation::run::SimulationRun;

/// Checks all of them. `all`: a letter that is missing will not be written any more.
pub(super) fn check_records(run: &SimulationRun, all: bool, findings: &mut Vec<Finding>) {
    let broker = &run.cluster.broker;
    let states = &broker.transaction_states;
    let mut letters = HashMap::<usize, u32>::new();
    for p in 0..PARTITIONS {
        let registered: BTreeMap<_, _> =
            broker.triggers[p].committed(states).map(|(offset, _, raw)| (offset, raw)).collect();
        let revisions = revisions(run, p);
        for (_, _, sent) in broker.others[p].committed(states) {
            match &sent.effect {
                SimulatedEffect::TopicFire(fire) => {
                    let generation = fire.id.generation;
                    let revisions = revisions.get(&generation).map_or(&[][..], Vec::as_slice);
                    let before = revisions.partition_point(|(order, _)| *order < sent.order);
                    // What an operator has requested again may have fired before its change.
                    let is_replayed = run.is_replayed(p, generation);
                    let from = if is_replayed { 0 } else { before.saturating_sub(1) };
                    let defined_by = revisions[from..before].iter().map(|(_, revision)| *revision);
                    let defined_by = defined_by.chain((before == 0).then_some(generation));
                    let raws = defined_by.filter_map(|offset| registered.get(&offset));
                    let wrong = raws.map(|raw| wrong_record(fire, raw)).reduce(Option::and);
                    let wrong = wrong.flatten();
                    findings.extend(wrong.map(|why| finding(&fire.id, why)));
                }
                SimulatedEffect::DeadLetter(letter) => {
                    if let Content::Record { headers, .. } = &letter.content {
                        *letters.entry(serial_of(headers)).or_default() += 1;
                    }
                }
                _ => {}
            }
        }
        for (_, _, sent) in broker.fires[p].committed(states) {
            let SimulatedEffect::Callback(fire) = &sent.effect else { continue };
            if partition_of(fire.id.trigger.bytes()) != p {
                findings.push(finding(&fire.id, format!("in partition {p} of the workers' topic")));
            }
        }
    }
    check_letters(run, all, &letters, findings);
}

/// The payload of a later attempt as it was registered, if a change of its trigger has made it
/// another one: the attempt has the one that its first attempt had. A change of before the
/// registration may be decided again after it if an operator has requested that.
pub(super) fn registered_payload(
    (broker, users): (&SimulatedBroker, &Users),
    (p, replayed): (usize, Option<RequestedReplay>),
    fire: &Fire,
) -> Vec<u8> {
    let payload = fire.definition.payload.as_deref().unwrap_or_default();
    let (mut registered, mut is_changed) = (None, false);
    for (offset, _, raw) in broker.triggers[p].committed(&broker.transaction_states) {
        let Intent::Lifecycle(request) = &users.intents[serial(raw)] else { continue };
        match &**request {
            UserRequest::Register(wanted) if offset == fire.id.generation => {
                registered = Some(&wanted.payload);
            }
            UserRequest::Change(asked)
                if (offset > fire.id.generation
                    || replayed.is_some_and(|it| it.repeats(offset)))
                    && raw.key == *fire.id.trigger.bytes() =>
            {
                is_changed |= asked.payload.as_deref() == Some(payload);
            }
            _ => {}
        }
    }
    registered.filter(|_| is_changed).map_or_else(|| payload.to_vec(), Vec::clone)
}

/// What owners of a partition have accepted and changed, by generation: in which order, and by the
/// record at which offset.
fn revisions(run: &SimulationRun, p: usize) -> HashMap<Offset, Vec<(u64, Offset)>> {
    let broker = &run.cluster.broker;
    let mut revisions = HashMap::<_, Vec<_>>::new();
    for (_, _, sent) in broker.others[p].committed(&broker.transaction_states) {
        let SimulatedEffect::Outcome(outcome) = &sent.effect else { continue };
        let (generation, revision) = match outcome.kind {
            // Again, if an operator requested a replay.
            OutcomeKind::Accepted { generation, .. } => (generation, generation),
            OutcomeKind::Changed { generation, revision, .. } => (generation, revision),
            _ => continue,
        };
        revisions.entry(generation).or_default().push((sent.order, revision));
    }
    revisions
}

/// What is wrong with a record in a users' topic, if anything.
fn wrong_record(fire: &SimulatedTopicFire, raw: &SimulatedRawRecord) -> Option<String> {
    let SimulatedTopicFire { id, scheduled, topic, partition, key, headers, .. } = fire;
    let registered = |name: &str| {
        let header = raw.headers.iter().find(|header| header.name == *name);
        header.and_then(|header| header.value.as_deref())
    };
    let expected_topic = registered("orloj-target-topic").or_else(|| registered(AVRO_TOPIC));
    if Some(topic.as_bytes()) != expected_topic {
        return Some(format!("fired into {topic}"));
    }
    let users = raw.headers.iter().filter(|header| !header.name.as_str().starts_with("orloj-"));
    let expected = RegisteredRecord {
        due: *scheduled,
        key: registered("orloj-target-key").unwrap_or(&raw.key).to_vec(),
        headers: users.map(header_text).collect(),
    };
    let observed = ObservedRecord {
        trigger: id.trigger.as_str().to_owned(),
        generation: id.generation,
        occurrence: id.occurrence,
        partition: *partition,
        key: key.clone(),
        headers: headers.iter().map(header_text).collect(),
    };
    let wrong = observed.differences(&expected, partitions_of_target(topic));
    (!wrong.is_empty()).then(|| format!("fired into {topic}: {}", wrong.join(", ")))
}

fn header_text(header: &Header) -> (String, String) {
    (header.name.as_str().to_owned(), text(header.value.as_deref().unwrap_or_default()))
}

/// Each unreadable record has one letter: more only where an operator requested a replay.
fn check_letters(
    run: &SimulationRun,
    all: bool,
    letters: &HashMap<usize, u32>,
    findings: &mut Vec<Finding>,
) {
    let broker = &run.cluster.broker;
    // By serial number: what was read, how often, and how many copies were deleted and may not have
    // been read. A replay may have forwarded a record twice.
    let mut read = BTreeMap::<usize, (String, Offset, u32, u32, bool)>::new();
    for p in 0..PARTITIONS {
        for (offset, _, raw) in broker.triggers[p].committed(&broker.transaction_states) {
            if partition_of(&raw.key) == p || is_forwarded(raw) {
                let found = read
                    .entry(serial(raw))
                    .or_insert_with(|| (text(&raw.key), offset, 0, 0, false));
                let deleted = &run.deleted[p].triggers;
                found.2 += 1;
                found.3 += u32::from(deleted.iter().any(|range| range.contains(&offset)));
                found.4 |= run.is_replayed(p, offset);
            }
        }
    }
    for (serial, (trigger, generation, times, deleted, replayed)) in read {
        let intent = &run.users.intents[serial];
        let is_unreadable = matches!(intent, Intent::Plain(CommandKind::Malformed));
        let expected = if is_unreadable { times } else { 0 };
        let written = letters.get(&serial).copied().unwrap_or(0);
        let violation = match written {
            _ if written == expected => continue,
            _ if written > expected && !is_unreadable => Violation::Unexpected,
            _ if written > expected && replayed => continue,
            _ if written > expected => Violation::Duplicate,
            _ if all && written + deleted < expected => Violation::Lost,
            _ => continue,
        };
        let why = format!("{written} dead letters of {intent:?}");
        let command_offset = generation;
        findings.push(Finding { violation, trigger, generation, command_offset, why });
    }
}

fn finding(id: &FireId, why: String) -> Finding {
    let (generation, trigger) = (id.generation, id.trigger.as_str().to_owned());
    let violation = Violation::WrongContent;
    Finding { violation, trigger, generation, command_offset: generation, why }
}
