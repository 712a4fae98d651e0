//! Which members of a group were there lately and are not any more.
//!
//! Invariant: an answer without this process is none: the broker that gave it does not know the
//! group. So no member that it does not name counts as absent.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A group names a static member after its instance id, a dash and a UUID of so many characters.
const UUID_LEN: usize = 36;

/// The static members of a group, by their instance ids.
#[derive(Debug)]
pub(super) struct MemberHistory {
    /// The instance id of this process.
    own: String,
    /// When each was first found to be absent; `None`: it was there the last time.
    absent_since: BTreeMap<String, Option<Instant>>,
    /// A member that is absent for so long has no transaction open any more.
    kept: Duration,
}

impl MemberHistory {
    pub(super) fn new(own: &str, kept: Duration) -> Self {
        Self { own: own.to_owned(), absent_since: BTreeMap::new(), kept }
    }

    /// The group had these members `now`. Returns those that are absent, the last one that was
    /// there first; `None` if that is not known.
    pub(super) fn update<'a>(
        &mut self,
        member_ids: impl Iterator<Item = &'a str>,
        now: Instant,
    ) -> Option<Vec<String>> {
        let present: Vec<_> = member_ids.filter_map(instance_of).collect();
        if !present.contains(&self.own.as_str()) {
            return None;
        }
        for instance in &present {
            self.absent_since.insert((*instance).to_owned(), None);
        }
        for (instance, absent_since) in &mut self.absent_since {
            if !present.contains(&instance.as_str()) {
                let _since = absent_since.get_or_insert(now);
            }
        }
        self.absent_since
            .retain(|_, absent_since| absent_since.is_none_or(|at| now - at < self.kept));
        let since = self.absent_since.iter().filter_map(|(instance, at)| Some(((*at)?, instance)));
        let mut absent: Vec<_> = since.collect();
        absent.sort_unstable_by_key(|(at, _)| std::cmp::Reverse(*at));
        Some(absent.into_iter().map(|(_, instance)| instance.clone()).collect())
    }
}

/// The instance id of a static member; `None` if the id is too short to have one.
fn instance_of(member_id: &str) -> Option<&str> {
    let len = member_id.len().checked_sub(UUID_LEN)?;
    member_id.get(..len)?.strip_suffix('-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const KEPT: Duration = Duration::from_secs(30);

    fn member(instance: &str) -> String {
        format!("{instance}-0f8fad5b-d9cb-469f-a165-70867728950e")
    }

    #[test]
    fn a_member_that_was_there_and_is_not_any_more_is_absent_until_its_transaction_has_timed_out() {
        let began = clock::monotonic();
        let mut history = MemberHistory::new("own", KEPT);
        let mut at = |seconds: u64, instances: &[&str]| {
            let members: Vec<_> = instances.iter().map(|instance| member(instance)).collect();
            let now = began + Duration::from_secs(seconds);
            history.update(members.iter().map(String::as_str), now).unwrap().join(" ")
        };
        assert_eq!(at(0, &["own", "a-b", "c"]), "");
        assert_eq!(at(1, &["own", "c"]), "a-b");
        assert_eq!(at(2, &["own"]), "c a-b");
        assert_eq!(at(3, &["own", "a-b"]), "c", "it is there again");
        assert_eq!(at(31, &["own", "a-b"]), "c");
        assert_eq!(at(32, &["own", "a-b"]), "", "too long ago");
        assert_eq!(at(33, &["own"]), "a-b");
    }

    #[test]
    fn nothing_is_known_by_an_answer_that_does_not_name_this_process() {
        let now = clock::monotonic();
        let mut history = MemberHistory::new("own", KEPT);
        let mut update =
            |members: &[String]| history.update(members.iter().map(String::as_str), now);
        assert_eq!(update(&["own", "a"].map(member)), Some(vec![]));
        for members in [&[][..], &[member("b")], &["own".to_owned()]] {
            assert_eq!(update(members), None);
        }
        assert_eq!(update(&[member("own")]), Some(vec!["a".to_owned()]));
    }

    #[test]
    fn a_member_id_is_split_before_its_uuid() {
        assert_eq!(instance_of(&member("a-b")), Some("a-b"));
        assert_eq!(instance_of("0f8fad5b-d9cb-469f-a165-70867728950e"), None);
        assert_eq!(instance_of("ä-short"), None);
        assert_eq!(instance_of(&format!("ä{}", "é".repeat(18))), None);
    }
}
