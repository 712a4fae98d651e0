//! Transactions beside a loop: a thread that commits, the producers that it commits with, and the
//! questions that decide what became of a transaction.
//!
//! Invariant: no loop waits for a broker. Scheduler and worker use the same code, each with records
//! of its own.

pub(crate) mod commit_lead;
pub(crate) mod committer;
pub(crate) mod finding_reader;
pub(crate) mod producer_jobs;
pub(crate) mod topic_lookup;
