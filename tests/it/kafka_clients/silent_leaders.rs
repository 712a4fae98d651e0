//! How many questions a client sends who leads partitions whose leader is connected and does not
//! answer: what librdkafka's main thread decides, without brokers, and by the clock of the test.
//!
//! Invariant: where brokers are slow for good, questions become rare; where one was, they are as
//! frequent again after some time. That they are sent, and answered, is tested in
//! `unanswered_requests`.
#![allow(unsafe_code, reason = "what librdkafka decides has no binding in rdkafka")]

use rdkafka::bindings as c;

/// Between two looks at the leaders. All times of the limit are multiples of it.
const LOOK_MS: i64 = 50;
/// librdkafka counts in them.
const MICROSECONDS: i64 = 1_000;
/// So many questions follow each other quickly.
const QUICK: usize = 120;
/// The pauses after them, in ms.
const LONGER: [i64; 6] = [500, 1_000, 2_000, 4_000, 5_000, 5_000];

/// What is decided, and the time.
struct Leaders {
    limit: c::rd_kafka_silent_query_limit_t,
    now_ms: i64,
}

impl Leaders {
    /// They have always answered.
    fn new() -> Self {
        let limit = c::rd_kafka_silent_query_limit_t { cnt: 0, ts_next: 0, ts_forget: 0 };
        Self { limit, now_ms: 0 }
    }

    /// They are looked at. Returns whether a question is sent.
    fn look(&mut self, is_silent: bool) -> bool {
        self.now_ms += LOOK_MS;
        let (limit, now) = (&raw mut self.limit, self.now_ms * MICROSECONDS);
        // SAFETY: the declared struct is the one of rdkafka_topic.h, and only this call uses it.
        unsafe { c::rd_kafka_silent_query_limit_scan(limit, is_silent.into(), now) != 0 }
    }

    /// The last question is answered at once.
    fn answer(&mut self) {
        let (limit, now) = (&raw mut self.limit, self.now_ms * MICROSECONDS);
        // SAFETY: the same.
        let _until_next = unsafe { c::rd_kafka_silent_query_limit_answered(limit, now) };
    }

    /// One does not answer until there were so many pauses between two questions. Returns how long
    /// each was, in ms.
    fn stay_silent(&mut self, pauses: usize, is_answered: bool) -> Vec<i64> {
        let mut sent_at = Vec::new();
        while sent_at.len() <= pauses {
            if self.look(true) {
                sent_at.push(self.now_ms);
                if is_answered {
                    self.answer();
                }
            }
        }
        sent_at.windows(2).map(|pair| pair[1] - pair[0]).collect()
    }

    /// All answer for so long.
    fn answer_for(&mut self, seconds: i64) {
        for _ in 0..seconds * 1_000 / LOOK_MS {
            assert!(!self.look(false));
        }
    }
}

#[test]
fn after_120_questions_who_leads_the_time_between_them_doubles_up_to_five_seconds() {
    let pauses = Leaders::new().stay_silent(QUICK + LONGER.len(), true);
    assert_eq!(&pauses[..QUICK], [250; QUICK]);
    assert_eq!(&pauses[QUICK..], LONGER);
}

#[test]
fn a_question_who_leads_that_is_not_answered_is_waited_for_a_second() {
    // The first two longer pauses are not longer than that.
    let pauses = Leaders::new().stay_silent(QUICK + LONGER.len(), false);
    assert_eq!(&pauses[..QUICK + 2], [1_000; QUICK + 2]);
    assert_eq!(pauses[QUICK + 2..], LONGER[2..]);
}

#[test]
fn each_second_in_which_leaders_answer_takes_one_off_the_questions_but_the_first_five() {
    let mut leaders = Leaders::new();
    let _many = leaders.stay_silent(QUICK + LONGER.len(), true);
    // One with the fifth second, and with each after it: eleven, of which five doubled the time.
    leaders.answer_for(15);
    let pauses = leaders.stay_silent(6 + LONGER.len(), true);
    assert_eq!(&pauses[..6], [250; 6]);
    assert_eq!(&pauses[6..], LONGER);

    leaders.answer_for(300);
    let pauses = leaders.stay_silent(QUICK + LONGER.len(), true);
    assert_eq!(&pauses[..QUICK], [250; QUICK], "all are forgotten, and no more");
    assert_eq!(&pauses[QUICK..], LONGER);
}

#[test]
fn questions_who_leads_stay_rare_while_leaders_are_silent_now_and_then() {
    let mut leaders = Leaders::new();
    let _many = leaders.stay_silent(QUICK + LONGER.len(), true);
    for _ in 0..100 {
        leaders.answer_for(4);
        let _is_sent = leaders.look(true);
    }
    assert_eq!(leaders.stay_silent(3, true), [5_000; 3]);
}
