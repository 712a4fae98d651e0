//! The names of topics, groups and transactional ids.
//!
//! Invariant: all of them start with the configured prefix.

/// The names of topics, groups and transactional ids, which all start with `topics.prefix`.
#[derive(Clone, Debug)]
pub struct Names {
    prefix: String,
}

impl Names {
    /// The names under a prefix.
    #[must_use]
    pub fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    /// The topic of registrations, commands and tombstones.
    #[must_use]
    pub fn triggers(&self) -> String {
        self.topic("triggers")
    }

    /// The topic of messages from workers to the owners of partitions.
    #[must_use]
    pub fn signals(&self) -> String {
        self.topic("signals")
    }

    /// The topic of state that must outlive the retention of `triggers`.
    #[must_use]
    pub fn ledger(&self) -> String {
        self.topic("ledger")
    }

    /// The topic of due callbacks of the default pool.
    #[must_use]
    pub fn fires(&self) -> String {
        self.topic("fires")
    }

    /// The topic of due callbacks of a pool; the default pool's name is empty.
    #[must_use]
    pub fn fires_of(&self, pool: &str) -> String {
        let fires = self.fires();
        if pool.is_empty() { fires } else { format!("{fires}.{pool}") }
    }

    /// Whether a topic belongs to a pool other than the default one.
    #[must_use]
    pub fn is_pool_topic(&self, topic: &str) -> bool {
        topic.strip_prefix(&self.fires()).is_some_and(|rest| rest.starts_with('.'))
    }

    /// The topic of the audit trail.
    #[must_use]
    pub fn outcomes(&self) -> String {
        self.topic("outcomes")
    }

    /// The topic of records that no client tries again automatically.
    #[must_use]
    pub fn dead_letters(&self) -> String {
        self.topic("dead-letters")
    }

    /// The topic of what notifiers have reported.
    #[must_use]
    pub fn notifications(&self) -> String {
        self.topic("notifications")
    }

    /// The schedulers' consumer group.
    #[must_use]
    pub fn scheduler_group(&self) -> String {
        format!("{}.schedulers", self.prefix)
    }

    /// The workers' consumer group of a pool; the default pool's name is empty.
    #[must_use]
    pub fn worker_group(&self, pool: &str) -> String {
        if pool.is_empty() {
            format!("{}.workers", self.prefix)
        } else {
            format!("{}.workers.{pool}", self.prefix)
        }
    }

    /// The notifiers' consumer group.
    #[must_use]
    pub fn notifier_group(&self) -> String {
        format!("{}.notifiers", self.prefix)
    }

    /// A transactional id: `<prefix>.<role>.<instance>`.
    #[must_use]
    pub fn transactional_id(&self, role: &str, instance: &str) -> String {
        format!("{}.{role}.{instance}", self.prefix)
    }

    /// Whether a topic is one of Orloj's, which no trigger may fire into.
    #[must_use]
    pub fn owns(&self, topic: &str) -> bool {
        topic.strip_prefix(&self.prefix).is_some_and(|rest| rest.starts_with('.'))
    }

    fn topic(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.prefix)
    }
}
