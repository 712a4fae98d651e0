//! Finds out which members of the group are absent, to end the transactions that they left open.
//!
//! Invariant: one question at a time, with a pause after each, however many wait for an answer. One
//! that is not answered is asked again. Nothing is fenced by an answer that comes late: the process
//! may have been paused, and those that it names may be members again.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::ClientResult;
use super::member_history::MemberHistory;

/// Members are fenced if it was wanted so short a time before. Who still waits says so every two
/// seconds.
const WANTED_MAX: Duration = Duration::from_secs(4);
/// So many members are fenced by one answer: each takes some clients for a moment.
const FENCED_MAX: usize = 8;

/// Which members are absent, and what is to be asked.
#[derive(Debug)]
pub(super) struct AbsentMembers {
    history: Mutex<MemberHistory>,
    next: Mutex<NextQuestion>,
}

#[derive(Debug, Default)]
struct NextQuestion {
    is_wanted: bool,
    /// When it was last wanted that those that are absent are fenced.
    fencing_wanted_at: Option<Instant>,
    /// A thread asks.
    is_asking: bool,
}

impl AbsentMembers {
    pub(super) fn new(history: MemberHistory) -> Self {
        Self { history: Mutex::new(history), next: Mutex::default() }
    }

    /// Wants to know the members, and to fence those that are absent if `fences`. Returns whether a
    /// thread must be started that calls [`serve`](Self::serve); if that fails, call
    /// [`give_up`](Self::give_up).
    pub(super) fn want(&self, fences: bool, now: Instant) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.is_wanted = true;
        if fences {
            next.fencing_wanted_at = Some(now);
        }
        !std::mem::replace(&mut next.is_asking, true)
    }

    /// Nothing is wanted any more.
    pub(super) fn give_up(&self) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = NextQuestion::default();
    }

    /// Asks until all that was wanted is answered. `ask` returns the member ids, `fence` ends the
    /// transactions of the member with an instance id.
    pub(super) fn serve(
        &self,
        ask: impl Fn() -> ClientResult<Vec<String>>,
        fence: impl Fn(&str),
        now: impl Fn() -> Instant,
        pause: impl Fn(),
    ) {
        while self.take_question() {
            let absent = ask().map_err(|error| {
                tracing::debug!(%error, "the members of the group are not known; asking again");
            });
            let absent = absent.ok().and_then(|member_ids| {
                let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                history.update(member_ids.iter().map(String::as_str), now())
            });
            let is_fencing = self.is_answered(absent.is_some(), now());
            for instance in absent.iter().flatten().take(FENCED_MAX).filter(|_| is_fencing) {
                fence(instance);
            }
            pause();
        }
    }

    /// Whether there is a question.
    fn take_question(&self) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.is_asking = next.is_wanted;
        std::mem::take(&mut next.is_wanted)
    }

    /// The question is answered, or is asked again. Returns whether to fence those that are absent.
    fn is_answered(&self, is_known: bool, now: Instant) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_known {
            next.is_wanted = true;
            return false;
        }
        let wanted_at = next.fencing_wanted_at.take();
        wanted_at.is_some_and(|at| now - at <= WANTED_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::iter;

    use super::*;
    use crate::clock;
    use crate::kafka::error::ClientError;

    fn member(instance: &str) -> String {
        format!("{instance}-0f8fad5b-d9cb-469f-a165-70867728950e")
    }

    fn present(instances: &[&str]) -> ClientResult<Vec<String>> {
        Ok(instances.iter().copied().map(member).collect())
    }

    /// What it is asked is answered from a list, which also says how long that takes.
    struct Group {
        absent: AbsentMembers,
        now: Cell<Instant>,
        /// Each with the time that it takes.
        answers: RefCell<Vec<(ClientResult<Vec<String>>, Duration)>>,
        pauses: Cell<usize>,
    }

    impl Group {
        fn new() -> Self {
            let history = MemberHistory::new("own", Duration::from_secs(30));
            let absent = AbsentMembers::new(history);
            let now = Cell::new(clock::monotonic());
            Self { absent, now, answers: RefCell::default(), pauses: Cell::new(0) }
        }

        /// Who is fenced if the group answers so.
        fn fenced(
            &self,
            answers: impl IntoIterator<Item = (ClientResult<Vec<String>>, Duration)>,
        ) -> Vec<String> {
            *self.answers.borrow_mut() = answers.into_iter().collect();
            let fenced = RefCell::new(Vec::new());
            self.absent.serve(
                || {
                    let (answer, takes) = self.answers.borrow_mut().remove(0);
                    self.now.set(self.now.get() + takes);
                    answer
                },
                |instance| fenced.borrow_mut().push(instance.to_owned()),
                || self.now.get(),
                || self.pauses.set(self.pauses.get() + 1),
            );
            assert!(self.answers.borrow().is_empty(), "all are asked for");
            fenced.into_inner()
        }

        fn want(&self, fences: bool) -> bool {
            self.absent.want(fences, self.now.get())
        }
    }

    fn soon(answer: ClientResult<Vec<String>>) -> (ClientResult<Vec<String>>, Duration) {
        (answer, Duration::ZERO)
    }

    #[test]
    fn a_question_is_asked_again_until_it_is_answered_with_a_pause_after_each() {
        let group = Group::new();
        assert!(group.want(false));
        let failed = || soon(Err(ClientError::Expelled));
        let none = group.fenced([failed(), soon(present(&[])), soon(present(&["own", "a"]))]);
        assert!(none.is_empty());
        assert_eq!(group.pauses.get(), 3);
        assert!(group.want(true));
        assert_eq!(group.fenced([failed(), soon(present(&["own"]))]), ["a"]);
    }

    #[test]
    fn one_thread_asks_once_for_all_that_wait() {
        let group = Group::new();
        assert!(group.want(false));
        assert!(!group.want(true), "a thread asks already");
        assert!(group.fenced([soon(present(&["own", "a"]))]).is_empty());
        assert!(group.want(false));
        assert!(group.fenced([soon(present(&["own"]))]).is_empty(), "it is not wanted any more");
        group.absent.want(true, group.now.get());
        group.absent.give_up();
        assert!(group.want(false), "no thread could be started");
        assert!(group.fenced([soon(present(&["own"]))]).is_empty());
    }

    #[test]
    fn nothing_is_fenced_by_an_answer_that_comes_late() {
        for (takes, fenced) in [(WANTED_MAX, 1), (WANTED_MAX + Duration::from_millis(1), 0)] {
            let group = Group::new();
            group.want(false);
            let _none = group.fenced([soon(present(&["own", "a"]))]);
            group.want(true);
            assert_eq!(group.fenced([(present(&["own"]), takes)]).len(), fenced, "{takes:?}");
        }
    }

    #[test]
    fn of_many_that_are_absent_some_are_fenced() {
        let group = Group::new();
        let instances: Vec<_> = (0..FENCED_MAX + 2).map(|n| format!("m{n}")).collect();
        let all: Vec<_> = iter::once("own").chain(instances.iter().map(String::as_str)).collect();
        group.want(false);
        let _none = group.fenced([soon(present(&all))]);
        group.want(true);
        assert_eq!(group.fenced([soon(present(&["own"]))]).len(), FENCED_MAX);
    }
}
