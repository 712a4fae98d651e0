//! Tests of the requests to leaders: what one that does not answer delays, and for how long.
//!
//! Invariant: a request to a broker that is silent takes a thread until its timeout. Every other
//! one is answered in the turn after the one in which it has a thread; a turn takes 10 ms.

use std::collections::VecDeque;

use super::*;
use crate::environment::job::{Job as _, JobStep};
use crate::test_environment::clock::{MS, SECOND};
use crate::test_environment::cluster::TestBounds;
use crate::test_environment::{TestEnvironment, TestQueue};

type TestJob = EndOffsetJob<TestEnvironment>;

const TRIGGERS: InputLog = InputLog::Triggers;
/// Turns in the interval of the requests for the end of a log, and for its leaders.
const INTERVAL_TURNS: u32 = 20;
/// Turns from the end of an interval until the answers to what is sent then: that of the leaders is
/// received, and then that of the new leader.
const ANSWER_TURNS: u32 = 3;
/// Turns until a leader has been silent for too long.
const SILENCE_TURNS: u32 = 30;

/// The threads of a queue.
#[derive(Default)]
struct TestThreads {
    waiting: VecDeque<TestJob>,
    /// What waits for a silent broker, and until when.
    blocked: Vec<(Duration, TestJob)>,
}

/// Brokers, and what is asked of them.
struct TestBrokers {
    world: TestEnvironment,
    poller: EndOffsetPoller<TestEnvironment>,
    /// Who leads the partitions.
    leaders: BTreeMap<PartitionId, BrokerId>,
    silent: BTreeSet<BrokerId>,
    /// How often each was asked for ends of `triggers`.
    requests: BTreeMap<BrokerId, u32>,
    /// How often the leaders of `triggers` were asked for.
    leader_requests: u32,
    /// Of the two queues for ends.
    threads: [TestThreads; 2],
}

impl TestBrokers {
    /// So many partitions, which these brokers lead.
    fn start(partitions: PartitionId, leader: impl Fn(PartitionId) -> BrokerId) -> Self {
        let world = TestEnvironment::default();
        world.clock.advance(SECOND);
        let parts = (world.cluster.clone(), world.clock.clone());
        let timing = SchedulerTiming::default();
        let mut poller = EndOffsetPoller::start(&world, parts, &Names::new("o"), &timing);
        poller.watch(0..partitions);
        let mut brokers = Self {
            world,
            poller,
            leaders: BTreeMap::new(),
            silent: BTreeSet::new(),
            requests: BTreeMap::new(),
            leader_requests: 0,
            threads: Default::default(),
        };
        for partition in 0..partitions {
            brokers.lead(partition, leader(partition));
            brokers.write(partition);
        }
        brokers
    }

    /// A partition has this leader from now on.
    fn lead(&mut self, partition: PartitionId, leader: BrokerId) {
        let _before = self.leaders.insert(partition, leader);
        self.name_leader(partition, leader);
    }

    /// The brokers answer from now on that this is the leader.
    fn name_leader(&self, partition: PartitionId, leader: BrokerId) {
        for (log, _) in self.poller.intervals {
            self.world.cluster.set_leader(&log.topic(&self.poller.names), partition, leader);
        }
    }

    /// The logs of a partition have ends.
    fn write(&self, partition: PartitionId) {
        for (log, _) in self.poller.intervals {
            let topic = log.topic(&self.poller.names);
            self.world.cluster.set(&topic, partition, TestBounds::whole(0, 7));
        }
    }

    /// The partitions whose end of `triggers` is known in this turn.
    fn turn(&mut self) -> Vec<PartitionId> {
        let mut leaders = Vec::new();
        while let Some((log, found)) = self.poller.leaders_queue.poll(Duration::ZERO) {
            self.leader_requests += u32::from(log == TRIGGERS);
            leaders.push((log, found));
        }
        let queues = [&mut self.poller.queue, &mut self.poller.silent_queue];
        for (queue, threads) in queues.into_iter().zip(&mut self.threads) {
            threads.waiting.extend(all_of(queue));
        }
        let answers = self.run_threads();
        self.world.clock.advance(MS * 10);
        let ends = self.poller.on_answers(leaders, answers, |_, _| KnownLog::default());
        let known = ends.iter().filter(|end| end.log == TRIGGERS && end.end == Some(7));
        known.map(|end| end.partition).collect()
    }

    /// What the threads have answered in this turn.
    fn run_threads(&mut self) -> Vec<EndOffsetAnswer> {
        let (now, mut answers) = (self.world.clock.monotonic(), Vec::new());
        for threads in &mut self.threads {
            let over = threads.blocked.extract_if(.., |(until, _)| now >= *until);
            answers.extend(over.map(|(_, job)| no_answer(&job)));
            while threads.blocked.len() < QUERY_THREADS
                && let Some(job) = threads.waiting.pop_front()
            {
                let asked = job.partitions.iter().map(|id| self.leaders[id]);
                let asked: BTreeSet<_> = asked.collect();
                if is_of_triggers(&job) {
                    asked.iter().for_each(|id| *self.requests.entry(*id).or_default() += 1);
                }
                if asked.is_disjoint(&self.silent) {
                    answers.push(answer(job));
                } else {
                    threads.blocked.push((now + job.timeout, job));
                }
            }
        }
        answers
    }

    /// What waits for a broker is answered, and it is silent no more.
    fn answer_all_of(&mut self, broker: BrokerId) {
        let _was_silent = self.silent.remove(&broker);
        let (now, leaders) = (self.world.clock.monotonic(), &self.leaders);
        let is_of = |job: &TestJob| leaders[&job.partitions[0]] == broker;
        let threads = self.threads.iter_mut();
        let blocked = threads.flat_map(|t| t.blocked.extract_if(.., |(_, job)| is_of(job)));
        let answers = blocked.map(|(until, job)| {
            let took = Some(job.timeout - (until - now));
            EndOffsetAnswer { took, ..answer(job) }
        });
        let answers = answers.collect();
        let _ends = self.poller.on_answers(Vec::new(), answers, |_, _| KnownLog::default());
    }

    /// The same in several turns.
    fn run(&mut self, turns: u32) -> Vec<PartitionId> {
        (0..turns).flat_map(|_| self.turn()).collect()
    }

    /// The number of the first of so many turns in which the end of a partition is known.
    fn turns_until_known(&mut self, partition: PartitionId, turns: u32) -> Option<u32> {
        (1..=turns).find(|_| self.turn().contains(&partition))
    }

    /// The most turns between two ends of one of these partitions, in so many turns.
    fn longest_gap(&mut self, turns: u32, partitions: std::ops::Range<PartitionId>) -> u32 {
        let mut known_at: BTreeMap<_, u32> = partitions.map(|id| (id, 0)).collect();
        let mut longest = 0;
        for turn in 1..=turns {
            for id in self.turn() {
                if let Some(before) = known_at.get_mut(&id) {
                    longest = longest.max(turn - std::mem::replace(before, turn));
                }
            }
        }
        known_at.values().map(|before| turns - before).fold(longest, u32::max)
    }
}

/// The jobs of a queue.
fn all_of(queue: &mut TestQueue<TestJob>) -> Vec<TestJob> {
    std::iter::from_fn(|| (queue.in_flight() > 0).then(|| queue.take())).collect()
}

fn is_of_triggers(job: &TestJob) -> bool {
    job.topic == TRIGGERS.topic(&Names::new("o"))
}

fn answer(mut job: TestJob) -> EndOffsetAnswer {
    match job.step(&mut ()) {
        JobStep::Done(answer) => answer,
        other => panic!("it is one step: {other:?}"),
    }
}

/// The time of a job is over.
fn no_answer(job: &TestJob) -> EndOffsetAnswer {
    EndOffsetAnswer { number: job.number, ends: BTreeMap::new(), took: None }
}

/// There are more of them than threads, so the others wait for those that are not known to be slow
/// yet: twice, because all logs are asked for at the start.
#[test]
fn partitions_of_leaders_that_do_not_answer_delay_those_of_no_other_one() {
    let mut brokers = TestBrokers::start(48, |id| if id < 40 { id % 20 } else { 20 });
    let _known = brokers.run(50);
    brokers.silent.extend(0..20);
    let first = brokers.longest_gap(500, 40..48);
    assert!(first <= 250, "{first} turns");
    let longest = brokers.longest_gap(2_000, 40..48);
    assert!(longest <= INTERVAL_TURNS + ANSWER_TURNS, "{longest} turns");
    brokers.silent.clear();
    let _known = brokers.run(500);
    let longest = brokers.longest_gap(500, 0..48);
    assert!(longest <= INTERVAL_TURNS + ANSWER_TURNS, "{longest} turns");
}

#[test]
fn a_partition_is_asked_for_of_its_new_leader_although_the_old_one_never_answers() {
    let mut brokers = TestBrokers::start(4, |id| if id == 0 { 1 } else { 2 });
    let _known = brokers.run(50);
    brokers.silent.insert(1);
    assert!(!brokers.run(100).contains(&0));
    brokers.lead(0, 2);
    let turns = brokers.turns_until_known(0, INTERVAL_TURNS + ANSWER_TURNS);
    assert!(turns.is_some(), "the leader is not asked for in time");
    let known = brokers.run(100);
    assert!((0..4).all(|id| known.iter().filter(|known| **known == id).count() >= 4), "{known:?}");
}

#[test]
fn what_was_asked_for_together_with_a_partition_that_has_moved_does_not_wait_for_it() {
    let mut brokers = TestBrokers::start(2, |_| 2);
    let _known = brokers.run(50);
    brokers.lead(1, 1);
    brokers.silent.insert(1);
    // The next request for both is sent, and waits for a broker that does not answer.
    let _known = brokers.run(INTERVAL_TURNS + ANSWER_TURNS);
    let turns = brokers.turns_until_known(0, SILENCE_TURNS + ANSWER_TURNS);
    assert!(turns.is_some(), "it waits with the other one");
    let known = brokers.run(100);
    assert!(known.len() >= 4 && known.iter().all(|id| *id == 0), "{known:?}");
}

#[test]
fn an_answer_of_an_earlier_leader_counts_for_nothing_once_the_new_one_was_asked() {
    let mut brokers = TestBrokers::start(1, |_| 1);
    let _known = brokers.run(50);
    brokers.silent.insert(1);
    let _known = brokers.run(60);
    brokers.lead(0, 2);
    assert!(brokers.turns_until_known(0, INTERVAL_TURNS + ANSWER_TURNS).is_some());
    let threads = brokers.threads.iter_mut();
    let late = threads.flat_map(|threads| threads.blocked.drain(..));
    let late: Vec<_> = late.map(|(_, job)| answer(job)).collect();
    assert!(!late.is_empty());
    let counted = brokers.poller.on_answers(Vec::new(), late, |_, _| KnownLog::default());
    assert!(counted.is_empty(), "{counted:?}");
}

#[test]
fn an_end_that_an_answer_lacks_delays_no_other_one_and_leaders_are_asked_for_until_it_is_known() {
    let mut brokers = TestBrokers::start(2, |_| 1);
    brokers.poller.watch(0..3);
    brokers.lead(2, 1);
    let known = brokers.run(101);
    for (id, least) in [(0, 4), (1, 4)] {
        assert!(known.iter().filter(|known| **known == id).count() >= least, "{known:?}");
    }
    assert!(!known.contains(&2));
    assert!((4..=6).contains(&brokers.leader_requests), "{}", brokers.leader_requests);
    brokers.write(2);
    assert!(brokers.turns_until_known(2, INTERVAL_TURNS + ANSWER_TURNS).is_some());
    let _known = brokers.run(50);
    brokers.leader_requests = 0;
    let _known = brokers.run(100);
    assert_eq!(brokers.leader_requests, 0);
}

#[test]
fn each_leader_gets_one_request_in_an_interval() {
    let mut brokers = TestBrokers::start(30, |id| 1 + id % 3);
    brokers.poller.watch(0..15);
    let _known = brokers.run(7);
    brokers.poller.watch(0..30);
    let _known = brokers.run(100);
    brokers.requests.clear();
    brokers.leader_requests = 0;
    let known = brokers.run(1_000);
    // An answer takes a turn.
    let most = 1_000 / INTERVAL_TURNS;
    let requests = &brokers.requests;
    assert_eq!(requests.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    assert!(requests.values().all(|count| (most - 4..=most).contains(count)), "{requests:?}");
    assert_eq!(brokers.leader_requests, 0, "none is in doubt");
    let least = usize::try_from(most - 4).unwrap();
    assert!((0..30).all(|id| known.iter().filter(|known| **known == id).count() >= least));
}

/// Two requests wait for the leader before, and no third one is sent.
#[test]
fn partitions_that_move_one_after_another_are_each_asked_for_of_their_new_leaders() {
    let mut brokers = TestBrokers::start(3, |_| 1);
    let _known = brokers.run(50);
    brokers.silent.insert(1);
    let _known = brokers.run(200);
    for partition in 0..3 {
        brokers.lead(partition, 2);
        let turns = brokers.turns_until_known(partition, INTERVAL_TURNS + ANSWER_TURNS);
        assert!(turns.is_some(), "the leader of {partition} is not asked for in time");
        let _known = brokers.run(SILENCE_TURNS + 15);
    }
}

/// It had to wait for a thread behind those that never answered.
#[test]
fn a_leader_that_was_slow_once_does_not_wait_for_those_that_do_not_answer() {
    let mut brokers = TestBrokers::start(21, |id| id);
    let _known = brokers.run(50);
    brokers.silent.extend(0..20);
    let _known = brokers.run(500);
    brokers.silent.insert(20);
    let _known = brokers.run(INTERVAL_TURNS + SILENCE_TURNS + 5);
    brokers.answer_all_of(20);
    let longest = brokers.longest_gap(500, 20..21);
    assert!(longest <= INTERVAL_TURNS + ANSWER_TURNS, "{longest} turns");
}

/// The broker that is asked for the leaders may know less than the one that answers.
#[test]
fn a_partition_that_is_answered_stays_with_its_leader_whatever_a_broker_says() {
    let mut brokers = TestBrokers::start(2, |_| 2);
    // Partition 2 has no end, so leaders are asked for.
    brokers.poller.watch(0..3);
    brokers.lead(2, 2);
    let _known = brokers.run(50);
    brokers.name_leader(0, 1);
    let longest = brokers.longest_gap(200, 0..2);
    assert!(longest <= INTERVAL_TURNS + ANSWER_TURNS, "{longest} turns");
    let leaders = &brokers.poller.leaders[&TRIGGERS];
    assert_eq!([0, 1].map(|id| leaders.of(id)), [Some(2), Some(2)]);
}

#[test]
fn an_answer_that_arrives_together_with_another_leader_counts_for_nothing() {
    let mut brokers = TestBrokers::start(1, |_| 1);
    let _known = brokers.run(50);
    brokers.silent.insert(1);
    let _known = brokers.run(INTERVAL_TURNS + SILENCE_TURNS + 5);
    let jobs: Vec<_> = brokers.threads[0].blocked.drain(..).map(|(_, job)| job).collect();
    assert!(jobs.iter().any(is_of_triggers));
    let late = jobs.into_iter().map(answer).collect();
    let leaders = vec![(TRIGGERS, Some([(0, 2)].into()))];
    let counted = brokers.poller.on_answers(leaders, late, |_, _| KnownLog::default());
    assert!(counted.iter().all(|end| end.log != TRIGGERS), "{counted:?}");
}

#[test]
fn a_leader_that_was_slow_has_longer_to_answer_until_it_was_not() {
    let mut brokers = TestBrokers::start(1, |_| 1);
    // The next request for the end of `triggers`, with the time that it has.
    let next = |brokers: &mut TestBrokers, took: Option<Duration>| {
        for _ in 0..=INTERVAL_TURNS + ANSWER_TURNS {
            let leaders = std::iter::from_fn(|| brokers.poller.leaders_queue.poll(Duration::ZERO));
            let leaders = leaders.collect();
            let mut jobs = all_of(&mut brokers.poller.queue);
            jobs.extend(all_of(&mut brokers.poller.silent_queue));
            let of_triggers = jobs.iter().find(|job| is_of_triggers(job)).map(|job| job.timeout);
            let answers = jobs.into_iter().map(|job| EndOffsetAnswer { took, ..answer(job) });
            let answers = answers.collect();
            brokers.world.clock.advance(MS * 10);
            let _ends = brokers.poller.on_answers(leaders, answers, |_, _| KnownLog::default());
            if let Some(timeout) = of_triggers {
                return timeout;
            }
        }
        panic!("nothing is asked for")
    };
    let silence_max = SchedulerTiming::default().leader_silence_max;
    assert_eq!(next(&mut brokers, Some(silence_max - MS)), REQUEST_TIMEOUT);
    assert_eq!(next(&mut brokers, Some(silence_max)), REQUEST_TIMEOUT);
    assert_eq!(next(&mut brokers, Some(silence_max)), SLOW_REQUEST_TIMEOUT, "it was slow");
    assert_eq!(next(&mut brokers, Some(MS)), SLOW_REQUEST_TIMEOUT, "it was slow again");
    assert_eq!(next(&mut brokers, None), REQUEST_TIMEOUT, "it was not");
    assert_eq!(next(&mut brokers, Some(MS)), SLOW_REQUEST_TIMEOUT, "it has not answered");
}
