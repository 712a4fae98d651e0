//! Fires and dead letters as they stand in their topics.
//!
//! Invariant: what a record must be follows from its registration alone, and what a dead letter
//! may be from the case that expects it.

use std::collections::{BTreeMap, HashMap};

use orloj_core::model::partitioner::murmur2_partition;

use super::{AuditReport, Violation};

/// A fire, as a reader of the target topic sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedRecord {
    pub(crate) trigger: String,
    pub(crate) generation: u64,
    pub(crate) occurrence: u32,
    pub(crate) partition: i32,
    pub(crate) key: Vec<u8>,
    /// All of them, in their order.
    pub(crate) headers: Vec<(String, String)>,
}

/// What a registration says of the record that it fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegisteredRecord {
    /// In ms since the epoch.
    pub(crate) due: u64,
    pub(crate) key: Vec<u8>,
    /// The user's own, in their order.
    pub(crate) headers: Vec<(String, String)>,
}

/// By the trigger id and generation of the registration.
pub(crate) type RegisteredRecords = HashMap<(String, u64), RegisteredRecord>;

impl AuditReport {
    /// Checks the records of a topic with so many partitions; those of a partition stand in the
    /// order of their offsets. A fire that was never registered is found elsewhere.
    pub(crate) fn check_records(
        &mut self,
        records: &[ObservedRecord],
        registered: &RegisteredRecords,
        partitions: i32,
    ) {
        let mut latest = HashMap::<(i32, &str), (u64, u32)>::new();
        for record in records {
            let ObservedRecord { trigger, generation, occurrence, partition, .. } = record;
            if let Some(registered) = registered.get(&(trigger.clone(), *generation)) {
                let wrong = record.differences(registered, partitions);
                if !wrong.is_empty() {
                    self.add(Violation::WrongRecord, trigger, *generation, wrong.join(", "));
                }
            }
            let place = (*generation, *occurrence);
            let before = latest.insert((*partition, trigger), place);
            // One that is equal is a duplicate, which is counted already.
            if let Some(before) = before.filter(|before| *before > place) {
                let why = format!("{place:?} after {before:?} in partition {partition}");
                self.add(Violation::OutOfOrder, trigger, *generation, why);
            }
        }
    }

    /// Checks dead letters by what identifies them to the case: each one that is expected is there
    /// as often as it is expected, and there is no other.
    pub(crate) fn check_dead_letters(&mut self, found: &[String], expected: &[String]) {
        let mut missing = BTreeMap::<&str, i64>::new();
        expected.iter().for_each(|letter| *missing.entry(letter).or_default() += 1);
        found.iter().for_each(|letter| *missing.entry(letter).or_default() -= 1);
        for (letter, times) in missing.into_iter().filter(|(_, times)| *times != 0) {
            let why = match times {
                1.. => format!("{times} dead letters are missing: {letter}"),
                _ => format!("{} dead letters too many: {letter}", -times),
            };
            self.add(Violation::DeadLetter, "", 0, why);
        }
    }
}

impl ObservedRecord {
    /// What differs from the registration, in words.
    pub(crate) fn differences(
        &self,
        registered: &RegisteredRecord,
        partitions: i32,
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.key != registered.key {
            wrong.push(format!("fired with the key {:?}", String::from_utf8_lossy(&self.key)));
        }
        let right = murmur2_partition(&registered.key, partitions);
        if self.partition != right {
            wrong.push(format!("fired into partition {}, not {right}", self.partition));
        }
        let id = format!("{}:{}:{}", self.trigger, self.generation, self.occurrence);
        let ours = [("orloj-fire-id", id), ("orloj-due", registered.due.to_string())];
        let ours = ours.map(|(name, value)| (name.to_owned(), value));
        let headers = [&registered.headers[..], &ours].concat();
        if self.headers != headers {
            wrong.push(format!("fired with the headers {:?}, not {headers:?}", self.headers));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARTITIONS: i32 = 4;

    fn header(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    fn registered() -> RegisteredRecords {
        let headers = vec![header("a", "1"), header("a", "2")];
        let record = |due, key: &str| RegisteredRecord {
            due,
            key: key.as_bytes().to_vec(),
            headers: headers.clone(),
        };
        RegisteredRecords::from([
            (("t".to_owned(), 3), record(5_000, "key")),
            (("t".to_owned(), 9), record(7_000, "key")),
        ])
    }

    fn record(generation: u64, due: u64) -> ObservedRecord {
        let id = format!("t:{generation}:0");
        let due = due.to_string();
        let headers = [("a", "1"), ("a", "2"), ("orloj-fire-id", &id), ("orloj-due", &due)];
        ObservedRecord {
            trigger: "t".to_owned(),
            generation,
            occurrence: 0,
            partition: murmur2_partition(b"key", PARTITIONS),
            key: b"key".to_vec(),
            headers: headers.map(|(name, value)| header(name, value)).to_vec(),
        }
    }

    fn violations(records: &[ObservedRecord]) -> Vec<Violation> {
        let mut report = AuditReport::default();
        report.check_records(records, &registered(), PARTITIONS);
        report.findings.into_iter().map(|finding| finding.violation).collect()
    }

    #[test]
    fn right_records_in_order_have_no_findings() {
        assert_eq!(violations(&[record(3, 5_000), record(9, 7_000)]), []);
    }

    #[test]
    fn wrong_keys_headers_and_partitions_are_found() {
        let right = record(3, 5_000);
        let without = ObservedRecord { headers: right.headers[1..].to_vec(), ..right.clone() };
        let mut reordered = right.clone();
        reordered.headers.swap(0, 1);
        let mut added = right.clone();
        added.headers.push(header("b", "1"));
        let other_due = record(3, 5_001);
        let other_key = ObservedRecord { key: b"t".to_vec(), ..right.clone() };
        let partition = (right.partition + 1) % PARTITIONS;
        let other_partition = ObservedRecord { partition, ..right };
        for wrong in [without, reordered, added, other_due, other_key, other_partition] {
            assert_eq!(
                violations(std::slice::from_ref(&wrong)),
                [Violation::WrongRecord],
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn fires_of_a_trigger_out_of_order_are_found() {
        let reversed = [record(9, 7_000), record(3, 5_000)];
        assert_eq!(violations(&reversed), [Violation::OutOfOrder]);
        // In different partitions there is no order, but one of them is the wrong one.
        let partition = (reversed[0].partition + 1) % PARTITIONS;
        let apart = [ObservedRecord { partition, ..reversed[0].clone() }, reversed[1].clone()];
        assert_eq!(violations(&apart), [Violation::WrongRecord]);
    }

    #[test]
    fn unexpected_and_missing_dead_letters_are_found() {
        let letters = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let found = |found: &[&str], expected: &[&str]| {
            let (found, expected): (Vec<String>, Vec<String>) = (letters(found), letters(expected));
            let mut report = AuditReport::default();
            report.check_dead_letters(&found, &expected);
            report.findings.into_iter().map(|finding| finding.violation).collect::<Vec<_>>()
        };
        assert_eq!(found(&["a", "b", "a"], &["a", "a", "b"]), []);
        assert_eq!(found(&["a"], &[]), [Violation::DeadLetter]);
        assert_eq!(found(&["a", "a"], &["a"]), [Violation::DeadLetter]);
        assert_eq!(found(&[], &["a"]), [Violation::DeadLetter]);
        assert_eq!(found(&["a"], &["b"]), [Violation::DeadLetter; 2]);
    }
}
