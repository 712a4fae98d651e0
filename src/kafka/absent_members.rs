//! Finds out which members of the group are absent, to end the transactions that they left open.
//!
//! Invariant: one question at a time, with a pause after each, however many wait for an answer. One
//! that is not answered is asked again, after longer and longer pauses, for a while. Members are
//! fenced by the answer to a question that was asked after that was wanted, and not by one that
//! comes late: the process may have been paused, and those that it names may be members again.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::ClientResult;
use super::member_history::MemberHistory;

/// Members are fenced if it was wanted so short a time before. Who still waits says so every two
/// seconds.
const WANTED_MAX: Duration = Duration::from_secs(4);
/// So many members are fenced by one answer: each takes some clients for a moment.
const FENCED_MAX: usize = 8;
/// Pause after each question that is answered; after those that are not twice as long, then four
/// times, and so on.
const PAUSE: Duration = Duration::from_millis(250);
/// Pauses are doubled so often at most: none is longer than 8 s.
const PAUSE_DOUBLINGS_MAX: u32 = 5;
/// After so many questions without an answer, which take more than a minute, none is asked until
/// the next is wanted: the broker may have no answer.
const FAILURES_MAX: u32 = 12;

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

/// When it was last wanted, before the question was asked, that those that are absent are fenced.
#[derive(Debug)]
struct Question(Option<Instant>);

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

    /// Asks until all that was wanted is answered. `ask` returns the member ids, `fence` starts to
    /// end the transactions of the member with an instance id, unless that was started lately.
    pub(super) fn serve(
        &self,
        ask: impl Fn() -> ClientResult<Vec<String>>,
        fence: impl Fn(&str) -> bool,
        now: impl Fn() -> Instant,
        pause: impl Fn(Duration),
    ) {
        let mut failures = 0;
        while let Some(question) = self.take_question() {
            let absent = ask().map_err(|error| {
                tracing::debug!(%error, "the members of the group are not known; asking again");
            });
            let absent = absent.ok().and_then(|member_ids| {
                let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                history.update(member_ids.iter().map(String::as_str), now())
            });
            failures = if absent.is_some() { 0 } else { failures + 1 };
            match absent {
                Some(absent) if question.0.is_some_and(|at| now() - at <= WANTED_MAX) => {
                    let _fenced = absent.iter().filter(|it| fence(it)).take(FENCED_MAX).count();
                }
                Some(_) => {}
                None if failures == FAILURES_MAX => return self.give_up(),
                None => self.ask_again(question),
            }
            pause(PAUSE * 2_u32.pow(failures.min(PAUSE_DOUBLINGS_MAX)));
        }
    }

    /// The next question, if one is wanted.
    fn take_question(&self) -> Option<Question> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.is_asking = std::mem::take(&mut next.is_wanted);
        next.is_asking.then(|| Question(next.fencing_wanted_at.take()))
    }

    /// The question was not answered.
    fn ask_again(&self, question: Question) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        next.is_wanted = true;
        next.fencing_wanted_at = next.fencing_wanted_at.max(question.0);
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
        pauses: RefCell<Vec<Duration>>,
        /// During a question it is wanted that those that are absent are fenced.
        is_wanted_meanwhile: Cell<bool>,
        /// Who was fenced lately.
        fenced_lately: RefCell<Vec<String>>,
    }

    impl Group {
        fn new() -> Self {
            let history = MemberHistory::new("own", Duration::from_secs(30));
            let absent = AbsentMembers::new(history);
            let now = Cell::new(clock::monotonic());
            Self {
                absent,
                now,
                answers: RefCell::default(),
                pauses: RefCell::default(),
                is_wanted_meanwhile: Cell::new(false),
                fenced_lately: RefCell::default(),
            }
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
                    if self.is_wanted_meanwhile.take() {
                        assert!(!self.want(true), "a thread asks already");
                    }
                    answer
                },
                |instance| {
                    let mut lately = self.fenced_lately.borrow_mut();
                    let is_started = !lately.iter().any(|it| it == instance);
                    if is_started {
                        lately.push(instance.to_owned());
                        fenced.borrow_mut().push(instance.to_owned());
                    }
                    is_started
                },
                || self.now.get(),
                |length| self.pauses.borrow_mut().push(length),
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
        assert_eq!(*group.pauses.borrow(), [PAUSE * 2, PAUSE * 4, PAUSE]);
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
    fn what_is_wanted_during_a_question_is_done_by_the_answer_to_the_next_one() {
        let group = Group::new();
        group.want(false);
        group.is_wanted_meanwhile.set(true);
        let answers = [soon(present(&["own", "a"])), soon(present(&["own"]))];
        assert_eq!(group.fenced(answers), ["a"]);
    }

    #[test]
    fn a_broker_without_an_answer_is_not_asked_for_ever() {
        let group = Group::new();
        group.want(true);
        let failed = || soon(Err(ClientError::Expelled));
        assert!(group.fenced((0..FAILURES_MAX).map(|_| failed())).is_empty());
        let longest = PAUSE * 2_u32.pow(PAUSE_DOUBLINGS_MAX);
        assert_eq!(group.pauses.borrow().last(), Some(&longest));
        assert!(group.want(false), "it is asked when it is wanted again");
    }

    #[test]
    fn of_many_that_are_absent_some_are_fenced_and_others_the_next_time() {
        let group = Group::new();
        let instances: Vec<_> = (0..FENCED_MAX + 2).map(|n| format!("m{n}")).collect();
        let all: Vec<_> = iter::once("own").chain(instances.iter().map(String::as_str)).collect();
        group.want(false);
        let _none = group.fenced([soon(present(&all))]);
        for count in [FENCED_MAX, 2, 0] {
            group.want(true);
            assert_eq!(group.fenced([soon(present(&["own"]))]).len(), count);
        }
    }
}
