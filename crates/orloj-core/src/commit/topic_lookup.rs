//! A look-up of a topic, as a job beside the loop.
//!
//! Invariant: an answer names its question, so that one to an earlier question is known as such. If
//! no broker has answered, there is no state.

use crate::engine::catalog::TopicState;
use crate::environment::ClusterQueries;
use crate::environment::call_error::CallResult;
use crate::environment::job::{Job, JobStep};

/// Asks for the state of a topic.
#[derive(Debug)]
pub(crate) struct TopicLookup<C> {
    pub(crate) cluster: C,
    pub(crate) topic: String,
    pub(crate) number: u64,
}

/// What a look-up has found.
#[derive(Debug)]
pub(crate) struct TopicAnswer {
    pub(crate) topic: String,
    /// Of the look-up.
    pub(crate) number: u64,
    /// The state of the topic; an error: no broker has answered.
    pub(crate) state: CallResult<TopicState>,
}

impl<C: ClusterQueries> Job for TopicLookup<C> {
    type Output = TopicAnswer;
    type Worker = ();

    fn step(&mut self, (): &mut ()) -> JobStep<TopicAnswer> {
        let state = self.cluster.topic_state(&self.topic);
        let (topic, number) = (std::mem::take(&mut self.topic), self.number);
        JobStep::Done(TopicAnswer { topic, number, state })
    }
}
