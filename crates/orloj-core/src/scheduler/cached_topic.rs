//! What is known of one target topic.
//!
//! Invariant: a topic that was usable is unusable only after a second answer that says so. A
//! look-up that no broker has answered shows nothing: after it a usable topic stays as it was, for
//! a limited time.

use std::time::Duration;

use crate::engine::catalog::TopicState;
use crate::model::PartitionId;

/// The state of a topic, and what was asked and answered of it. Times are of the monotonic clock.
#[derive(Debug)]
pub(super) struct CachedTopic {
    pub(super) state: TopicState,
    pub(super) expires_at: Duration,
    /// The number of the look-up whose answer replaces it; earlier answers do not count.
    pub(super) pending: Option<u64>,
    /// When the last look-up was made.
    pub(super) asked_at: Duration,
    /// When a fire was last to be sent to it.
    pub(super) used_at: Duration,
    /// It is usable, but no broker has answered the look-ups from then until then.
    unanswered: Option<(Duration, Duration)>,
    /// It was usable since it is cached.
    was_usable: bool,
    /// It was usable, and one answer since says that it is not.
    pub(super) is_doubted: bool,
    /// It has failed, and there is no answer since; or the last one says that it cannot be used.
    pub(super) is_out: bool,
}

impl CachedTopic {
    /// A state that is no answer, in place of `before`: it is not known, or it has failed.
    pub(super) fn new(
        state: TopicState,
        expires_at: Duration,
        before: Option<&Self>,
        now: Duration,
    ) -> Self {
        Self {
            is_out: !matches!(state, TopicState::Unknown),
            state,
            expires_at,
            pending: None,
            asked_at: before.map_or(now, |before| before.asked_at),
            used_at: before.map_or(now, |before| before.used_at),
            unanswered: None,
            was_usable: before.is_some_and(|before| before.was_usable),
            is_doubted: before.is_some_and(|before| before.is_doubted),
        }
    }

    /// The last look-up has this answer.
    pub(super) fn set_answer(&mut self, answer: TopicState) {
        (self.pending, self.unanswered) = (None, None);
        self.is_out = matches!(answer, TopicState::Unusable(_));
        let is_new_doubt = self.was_usable && !self.is_doubted;
        self.state = match answer {
            // It may be replaced, or its rules: fires are dead letters if it is so for longer.
            TopicState::Unusable(reason) if is_new_doubt => {
                self.is_doubted = true;
                TopicState::Unavailable(reason)
            }
            TopicState::Usable { .. } => {
                (self.was_usable, self.is_doubted) = (true, false);
                answer
            }
            answer => answer,
        };
    }

    /// No broker has answered the last look-up, for this reason, as is known at `now`. A usable
    /// topic stays as it was for `kept_max`. Returns whether it does.
    pub(super) fn set_unanswered(
        &mut self,
        reason: String,
        now: Duration,
        kept_max: Duration,
    ) -> bool {
        let is_usable = matches!(self.state, TopicState::Usable { .. });
        // One that is not used is not looked up, and those of long ago show nothing of this one.
        let before = self.unanswered.filter(|(_, until)| now < *until + kept_max);
        let since = before.map_or(now, |(since, _)| since);
        self.unanswered = Some((since, now));
        let stays = is_usable && now < since + kept_max;
        if stays {
            self.pending = None;
        } else {
            self.set_answer(TopicState::Unavailable(reason));
        }
        stays
    }

    /// Whether it is asked for again soon: it cannot be reached now, or a part of it, or that is
    /// not known.
    pub(super) fn expires_soon(&self) -> bool {
        match &self.state {
            TopicState::Usable { unavailable, .. } => {
                self.unanswered.is_some() || !unavailable.is_empty()
            }
            state => matches!(state, TopicState::Unavailable(_)),
        }
    }

    /// Whether the answer to a look-up since `asked_since` shows that this partition cannot be
    /// written.
    pub(super) fn shows_unavailable(&self, partition: PartitionId, asked_since: Duration) -> bool {
        let is_answered = self.pending.is_none() && self.unanswered.is_none();
        let is_new = is_answered && self.asked_at >= asked_since;
        is_new
            && match &self.state {
                TopicState::Usable { unavailable, .. } => unavailable.contains(partition),
                _ => self.is_out,
            }
    }

    /// When it is asked for again if fires are sent to it; `None`: brokers have said that all of it
    /// can be written. `left_out_until`: when the first partition that has failed may return.
    pub(super) fn expires_for_fires(&self, left_out_until: Option<Duration>) -> Option<Duration> {
        match &self.state {
            // None returns without an answer, and each question takes time.
            TopicState::Usable { .. } if self.unanswered.is_some() => Some(self.expires_at),
            TopicState::Usable { unavailable, .. } => {
                let shown = (!unavailable.is_empty()).then_some(self.expires_at);
                shown.into_iter().chain(left_out_until).min()
            }
            _ => Some(self.expires_at),
        }
    }

    /// The same, if it is not asked for already, and fires were to be sent to it since then.
    pub(super) fn asked_again_at(
        &self,
        left_out_until: Option<Duration>,
        used_since: Duration,
    ) -> Option<Duration> {
        let is_asked_for = self.used_at >= used_since && self.pending.is_none();
        is_asked_for.then(|| self.expires_for_fires(left_out_until)).flatten()
    }
}
