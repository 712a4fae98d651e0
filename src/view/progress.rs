//! The progress of the view, for requests that wait for it.
//!
//! Invariant: what is published here is committed to the database already.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::model::{Millis, Offset, PartitionId, Timestamp};

/// A topic of which a request may name a record that the view must contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ViewTopic {
    /// Registrations, commands, cancels.
    Triggers = 0,
    /// Results that owners and workers wrote.
    Outcomes = 1,
    /// Dead letters and their marks.
    DeadLetters = 2,
}

/// The number of topics.
const TOPICS: usize = 3;

/// A record that must be contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritePosition {
    /// The topic.
    pub topic: ViewTopic,
    /// The partition.
    pub partition: PartitionId,
    /// The offset.
    pub offset: Offset,
    /// When it was known to be written, in ms since the epoch.
    pub known_at: Timestamp,
}

/// How fresh the view is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    /// Everything written before is contained, in ms since the epoch; 0 before it has caught up
    /// for the first time.
    pub as_of: Timestamp,
    /// How long ago that was, in ms.
    pub lag: Millis,
    /// Whether the requested records are contained.
    pub reached: bool,
}

/// How far each partition is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ProgressState {
    /// By topic and partition, the next offset to read.
    next_offsets: [Vec<Offset>; TOPICS],
    /// When the ends were polled up to which everything is contained, in ms since the epoch.
    as_of: Vec<Timestamp>,
}

impl ProgressState {
    fn of(partitions: usize) -> Self {
        let next = std::array::from_fn(|_log| vec![0; partitions]);
        Self { next_offsets: next, as_of: vec![0; partitions] }
    }

    /// Whether the record is contained. A log that was cut may end below it: then everything that
    /// was there later is contained.
    fn contains(&self, mark: &WritePosition) -> bool {
        let Ok(at) = usize::try_from(mark.partition) else { return false };
        let next = self.next_offsets[mark.topic as usize].get(at);
        next.is_some_and(|next| *next > mark.offset)
            || self.as_of.get(at).is_some_and(|as_of| *as_of > mark.known_at)
    }
}

/// What both sides share. Waiters are woken in the order in which they wait: a simulation depends
/// on it, and `tokio::sync::watch` wakes them in any order.
#[derive(Debug)]
struct SharedProgress {
    published: Mutex<PublishedProgress>,
    changed: Notify,
}

#[derive(Debug)]
struct PublishedProgress {
    state: ProgressState,
    /// How often it has changed.
    version: u64,
    /// The view has ended.
    ended: bool,
}

/// The receiving side, for requests that wait.
#[derive(Clone, Debug)]
pub(super) struct ViewProgress {
    shared: Arc<SharedProgress>,
    /// The version that was seen last.
    seen: u64,
}

/// The sending side, for the thread that writes.
#[derive(Debug)]
pub(super) struct ProgressPublisher(Arc<SharedProgress>);

pub(super) fn progress_channel(partitions: usize) -> (ViewProgress, ProgressPublisher) {
    let (state, version, ended) = (ProgressState::of(partitions), 0, false);
    let published = Mutex::new(PublishedProgress { state, version, ended });
    let shared = Arc::new(SharedProgress { published, changed: Notify::new() });
    (ViewProgress { shared: Arc::clone(&shared), seen: 0 }, ProgressPublisher(shared))
}

impl SharedProgress {
    fn lock(&self) -> MutexGuard<'_, PublishedProgress> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `read` returns something; `None` if the view has ended.
    async fn wait<T>(&self, read: impl Fn(&PublishedProgress) -> Option<T>) -> Option<T> {
        loop {
            // It is woken by what is published from here on.
            let changed = self.changed.notified();
            let (found, ended) = {
                let published = self.lock();
                (read(&published), published.ended)
            };
            if found.is_some() || ended {
                return found;
            }
            changed.await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut PublishedProgress)) {
        change(&mut self.lock());
        self.changed.notify_waiters();
    }
}

impl ViewProgress {
    pub(super) async fn wait_for(&self, marks: &[WritePosition], timeout: Duration) -> bool {
        let is_contained = |state: &ProgressState| marks.iter().all(|mark| state.contains(mark));
        self.wait_until(is_contained, timeout).await
    }

    async fn wait_until(
        &self,
        is_reached: impl Fn(&ProgressState) -> bool,
        timeout: Duration,
    ) -> bool {
        let reached = self.shared.wait(|published| is_reached(&published.state).then_some(()));
        matches!(tokio::time::timeout(timeout, reached).await, Ok(Some(())))
    }

    /// Waits until everything of these partitions is contained that was written at the partition's
    /// time or before, in ms since the epoch.
    pub(super) async fn wait_for_times(
        &self,
        times: &[(PartitionId, Timestamp)],
        timeout: Duration,
    ) -> bool {
        let as_of = |state: &ProgressState, partition: PartitionId| {
            usize::try_from(partition).ok().and_then(|at| state.as_of.get(at)).copied()
        };
        let is_later = |state: &ProgressState| {
            times.iter().all(|(partition, time)| as_of(state, *partition) > Some(*time))
        };
        self.wait_until(is_later, timeout).await
    }

    /// Waits until it has changed since the last call, or since this value was made; false if the
    /// view has ended.
    pub(super) async fn changed(&mut self) -> bool {
        let seen = self.seen;
        let is_newer = |published: &PublishedProgress| {
            Some(published.version).filter(|version| *version != seen)
        };
        let newer = self.shared.wait(is_newer).await;
        self.seen = newer.unwrap_or(seen);
        newer.is_some()
    }

    pub(super) fn freshness(&self, now: Timestamp, reached: bool) -> Freshness {
        let as_of = self.shared.lock().state.as_of.iter().copied().min().unwrap_or(0);
        Freshness { as_of, lag: now.saturating_sub(as_of), reached }
    }
}

impl ProgressPublisher {
    /// Publishes the next offset by [`ViewTopic`] and partition. Receivers are woken only if
    /// something has changed.
    pub(super) fn publish(&self, next: [Vec<Offset>; TOPICS], as_of: &[Timestamp]) {
        let new = ProgressState { next_offsets: next, as_of: as_of.to_vec() };
        if self.0.lock().state != new {
            self.replace(new);
        }
    }

    /// The times that were published last.
    pub(super) fn as_of(&self) -> Vec<Timestamp> {
        self.0.lock().state.as_of.clone()
    }

    /// The view is rebuilt from the start of the topics.
    pub(super) fn reset(&self) {
        let partitions = self.0.lock().state.as_of.len();
        self.replace(ProgressState::of(partitions));
    }

    fn replace(&self, state: ProgressState) {
        self.0.change(|published| {
            published.state = state;
            published.version += 1;
        });
    }
}

impl Drop for ProgressPublisher {
    fn drop(&mut self) {
        self.0.change(|published| published.ended = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_ends_when_the_view_contains_the_record() {
        let (progress, report) = progress_channel(2);
        let known_at = 9_000;
        let mark = |topic, partition, offset| WritePosition { topic, partition, offset, known_at };
        let marks = [
            (ViewTopic::Triggers, 1, 7),
            (ViewTopic::Outcomes, 0, 3),
            (ViewTopic::DeadLetters, 0, 5),
        ];
        let marks = marks.map(|(log, partition, offset)| mark(log, partition, offset));
        let publish = |outcomes, letters| {
            report.publish([vec![0, 8], vec![outcomes, 0], vec![letters, 0]], &[0, 0]);
        };
        let soon = Duration::from_millis(1);
        publish(0, 6);
        assert!(!progress.wait_for(&marks, soon).await, "the outcome is not there");
        publish(4, 5);
        assert!(!progress.wait_for(&marks, soon).await, "the letter is not there");
        let waiting = tokio::spawn({
            let progress = progress.clone();
            async move { progress.wait_for(&marks, Duration::from_secs(5)).await }
        });
        tokio::task::yield_now().await; // so that it waits indeed
        publish(4, 6);
        assert!(waiting.await.unwrap());
        assert!(
            !progress.wait_for(&[mark(ViewTopic::Triggers, 9, 0)], soon).await,
            "no such partition"
        );
    }

    #[tokio::test]
    async fn a_log_that_was_cut_is_not_waited_for() {
        let (progress, report) = progress_channel(2);
        let (topic, soon) = (ViewTopic::Triggers, Duration::from_millis(1));
        let mark = WritePosition { topic, partition: 1, offset: 40, known_at: 7_000 };
        let publish =
            |as_of| report.publish(std::array::from_fn(|_log| vec![0, 8]), &[9_000, as_of]);
        publish(7_000);
        assert!(!progress.wait_for(&[mark], soon).await, "it may have been written since");
        publish(7_001);
        assert!(progress.wait_for(&[mark], soon).await);
    }

    #[tokio::test]
    async fn a_change_is_seen_once_and_the_end_by_all_who_wait() {
        let (mut progress, report) = progress_channel(1);
        report.publish([vec![8], vec![0], vec![0]], &[4_000]);
        assert!(progress.changed().await);
        let mut waiting = progress.clone();
        let waiting = tokio::spawn(async move { waiting.changed().await });
        tokio::task::yield_now().await; // so that it waits indeed
        assert!(!waiting.is_finished());
        drop(report);
        assert!(!waiting.await.unwrap());
        let (topic, known_at) = (ViewTopic::Triggers, 9_000);
        let mark = WritePosition { topic, partition: 0, offset: 8, known_at };
        assert!(!progress.wait_for(&[mark], Duration::from_secs(5)).await);
    }

    #[tokio::test]
    async fn a_reset_view_contains_nothing() {
        let (progress, report) = progress_channel(2);
        report.publish([vec![8, 8], vec![0, 0], vec![0, 0]], &[4_000, 4_500]);
        let (topic, known_at) = (ViewTopic::Triggers, 9_000);
        let marks = [WritePosition { topic, partition: 1, offset: 7, known_at }];
        assert!(progress.wait_for(&marks, Duration::from_millis(1)).await);
        report.reset();
        assert!(!progress.wait_for(&marks, Duration::from_millis(1)).await);
        assert_eq!(progress.freshness(5_000, true).as_of, 0);
    }

    #[tokio::test]
    async fn waiting_for_times_ends_when_their_partitions_were_read_later() {
        let (progress, report) = progress_channel(2);
        let soon = Duration::from_millis(1);
        report.publish(std::array::from_fn(|_log| vec![0, 0]), &[0, 4_001]);
        assert!(
            progress.wait_for_times(&[(1, 4_000)], soon).await,
            "the other one does not matter"
        );
        let same_ms = [(1, 4_001)];
        assert!(!progress.wait_for_times(&same_ms, soon).await, "in the same ms it may be later");
        assert!(!progress.wait_for_times(&[(1, 4_000), (0, 0)], soon).await);
        assert!(!progress.wait_for_times(&[(9, 0)], soon).await, "no such partition");
    }

    #[test]
    fn it_is_as_fresh_as_its_oldest_partition() {
        let (progress, report) = progress_channel(2);
        assert_eq!(progress.freshness(5_000, true).as_of, 0);
        report.publish(std::array::from_fn(|_log| vec![0, 0]), &[4_000, 4_500]);
        let fresh = Freshness { as_of: 4_000, lag: 1_000, reached: false };
        assert_eq!(progress.freshness(5_000, false), fresh);
    }
}
