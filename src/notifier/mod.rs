//! The notifier: notifies callers by mail and webhook of callbacks that failed permanently, and of
//! hosts whose circuit is open.
//!
//! Invariant: an outage causes a message from time to time, and not one for each failure. What was
//! not delivered is sent again after a crash; it may be delivered twice. What was reported is
//! committed, and written to a log, so that the next leader continues with it, also if brokers have
//! deleted what was committed. One notifier leads, and the others stand by. A leader that ends, or
//! that another member replaces, first sends what has gathered.
//!
//! ```text
//!   dead-letters ─┐                    ┌─ delay, then one an interval ─► mail
//!                 ├─read──► recipients ┤
//!   outcomes ─────┘             │      └────────────────────────────────► webhook
//!      ▲                        │
//!      └─ committed ◄ delivered ─► notifications
//! ```

pub mod digest;
pub mod leader_term;
pub mod notification;
pub mod recipient;
pub mod reported_state;
pub mod subscribers;

mod intake;
mod mail;
mod reported_log;
mod transport;
mod webhook;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use lettre::transport::smtp;
use tokio::runtime::Runtime;
use tokio_rustls::rustls;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::callers::{ANONYMOUS, Callers};
use crate::clock;
use crate::codec::schemas::{CodecError, Schemas};
use crate::config::{ConfigError, NotifierSettings, Settings};
use crate::engine::assignment::AssignmentChange;
use crate::guard::Guard;
use crate::health::{Health, PartReporter};
use crate::kafka::Names;
use crate::kafka::admin_client::KafkaAdminClient;
use crate::kafka::error::ClientError;
use crate::kafka::member::{CommitMode, Member};
use crate::model::PartitionId;
use crate::read_recovery::ReadRecovery;
use crate::telemetry;
use digest::SourcePartition;
use intake::{RecordRouter, SourceReaders, SourceTopics};
use leader_term::LeaderTerm;
use mail::MailTransport;
use notification::Notification;
use recipient::{BatchWindow, NotificationSendError, NotificationStatus};
use reported_log::ReportedLog;
use subscribers::{Channel, Subscriber, Subscribers};
use transport::NotificationTransports;
use webhook::WebhookTransport;

/// The notifier that owns this partition of the dead letters leads, and reads all partitions: an
/// outage affects all of them, and must cause one message.
const LEADER_PARTITION: PartitionId = 0;
/// How long the loop waits for a record: the group and the timers must be served.
const POLL_TIMEOUT: Duration = Duration::from_millis(100);
/// How long a call to the broker may take before the broker counts as unavailable.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a leader that another notifier replaces goes on sending: the others of the group wait
/// for it.
const HANDOVER_MAX: Duration = Duration::from_secs(5);
/// Pause between two commits while nothing is delivered.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Pause between two checks whether the client is a member of the group still.
const MEMBERSHIP_INTERVAL: Duration = Duration::from_secs(1);
/// Pause between two transactions that write to the log what has changed. The loop waits for them.
const RECORD_INTERVAL: Duration = Duration::from_secs(5);
/// The same after one that failed: it may have taken some seconds, as may the next one.
const RECORD_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Pause after a failed start of a term.
const START_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Messages in progress at once. Recipients that wait for one to end continue to gather.
const SENDS_MAX: usize = 16;

/// Why the notifier ended without being asked to.
#[derive(Debug, thiserror::Error)]
pub enum NotifierError {
    /// A client could not be created, or the group has removed this member permanently.
    #[error("Kafka: {0}; check [kafka]")]
    Kafka(#[from] ClientError),
    /// A record has a newer format: upgrade this process.
    #[error(transparent)]
    Newer(#[from] CodecError),
    /// The HTTP client cannot be created: its certificates, most likely.
    #[error("TLS: {0}; check the certificates of this machine")]
    Tls(#[from] rustls::Error),
    /// The mail client cannot be created: its certificates, most likely.
    #[error("mail: {0}; check notifier.smtp_url and the certificates of this machine")]
    Mail(#[from] smtp::Error),
    /// Correct the callers file.
    #[error(transparent)]
    Callers(#[from] ConfigError),
    /// The system refuses to start threads.
    #[error("threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// Runs a notifier until `shutdown`; blocks. What has gathered is then sent at once. Reports
/// readiness through `health`.
pub fn run(
    settings: &Settings,
    shutdown: CancellationToken,
    health: Arc<Health>,
) -> Result<(), NotifierError> {
    Notifier::start(settings, shutdown, health)?.run_loop()
}

/// The loop's state.
struct Notifier {
    settings: NotifierSettings,
    shutdown: CancellationToken,
    health: Arc<Health>,
    /// Whether what is needed can be read.
    broker_health: PartReporter,
    member: Member,
    /// The id of the member to which the group has assigned partitions, or none.
    member_id: String,
    membership_checked_at: Instant,
    readers: SourceReaders,
    recovery: ReadRecovery<SourcePartition>,
    probe: KafkaAdminClient,
    log: ReportedLog,
    router: RecordRouter,
    transports: Arc<NotificationTransports>,
    runtime: Runtime,
    results: (Sender<NotificationAttempt>, Receiver<NotificationAttempt>),
    /// Messages in progress, those of earlier terms included.
    in_progress: usize,
    /// The group has assigned partitions, or none.
    is_assigned: bool,
    is_elected: bool,
    /// Present while we lead.
    leader_term: Option<LeaderTerm>,
    /// Terms started so far.
    terms_started: u64,
    /// When the next term may start, and when the next commit and the next record are due.
    start_at: Instant,
    commit_at: Instant,
    record_at: Instant,
    started: Instant,
}

/// An attempt to deliver a message.
struct NotificationAttempt {
    term: u64,
    subscriber: Subscriber,
    result: Result<(), NotificationSendError>,
}

impl Notifier {
    fn start(
        settings: &Settings,
        shutdown: CancellationToken,
        health: Arc<Health>,
    ) -> Result<Self, NotifierError> {
        let (names, own) = (Names::new(&settings.topics.prefix), &settings.notifier);
        let topics = SourceTopics {
            dead_letters: names.dead_letters(),
            outcomes: names.outcomes(),
            partitions: settings.topics.partitions.get().into(),
        };
        let probe = KafkaAdminClient::open(settings, CALL_TIMEOUT)?;
        let guard = Guard::new(settings).with_brokers(probe.brokers(&topics.dead_letters)?);
        health.not_ready("lead", "no group assignment yet");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .thread_name("messages")
            .build()?;
        let entered = runtime.enter();
        guard.start_lookups();
        let callers = Callers::watch(settings, Arc::clone(&health), shutdown.clone())?;
        drop(entered);
        let webhook = WebhookTransport::new(guard, &settings.worker, own.timeout)?;
        let (group, now) = (names.notifier_group(), clock::monotonic());
        let recovery = ReadRecovery::new(Duration::ZERO, settings.timeouts.fetch * 2);
        Ok(Self {
            member: Member::join_dynamic(settings, &group, &topics.dead_letters)?,
            member_id: String::new(),
            membership_checked_at: now,
            readers: SourceReaders::open(settings, &group)?,
            recovery: recovery.with_questions(),
            log: ReportedLog::new(settings),
            router: RecordRouter {
                topics,
                schemas: Schemas::new(),
                subscribers: Subscribers::new(callers, own.operator_email.clone()),
            },
            transports: Arc::new(NotificationTransports {
                mail: MailTransport::new(own)?,
                webhook,
            }),
            results: channel(),
            in_progress: 0,
            is_assigned: false,
            is_elected: false,
            leader_term: None,
            terms_started: 0,
            started: now,
            start_at: now,
            commit_at: now,
            record_at: now,
            settings: own.clone(),
            shutdown,
            broker_health: PartReporter::new(Arc::clone(&health), "broker"),
            health,
            probe,
            runtime,
        })
    }

    fn run_loop(mut self) -> Result<(), NotifierError> {
        while !self.shutdown.is_cancelled() {
            self.poll_once()?;
        }
        self.shut_down()
    }

    fn poll_once(&mut self) -> Result<(), NotifierError> {
        self.poll_group()?;
        self.check_reading()?;
        let is_waiting = self.is_elected && self.leader_term.is_none();
        if is_waiting && clock::monotonic() >= self.start_at {
            match self.start_leading() {
                Ok(()) => self.health.ready("lead"),
                Err(error) => {
                    self.health.not_ready("lead", error.to_string());
                    self.start_at = clock::monotonic() + START_RETRY_INTERVAL;
                }
            }
        }
        self.read(POLL_TIMEOUT)?;
        while let Ok(ended) = self.results.1.try_recv() {
            self.on_attempt_ended(ended);
        }
        self.send(None);
        let now = clock::monotonic();
        if now >= self.commit_at {
            self.commit(CommitMode::Async);
            if now >= self.record_at && !self.recovery.is_failing() {
                self.record();
            }
            self.commit_at = clock::monotonic() + COMMIT_INTERVAL;
        }
        Ok(())
    }

    /// Handles changes of the group assignment.
    fn poll_group(&mut self) -> Result<(), NotifierError> {
        let changes = self.member.poll(Duration::ZERO)?;
        let is_changed = !changes.is_empty();
        for change in changes {
            tracing::info!(?change, "group assignment changed");
            match change {
                // A notification may be sent twice, so another member id changes nothing else.
                AssignmentChange::Joined(member_id) => self.member_id = member_id,
                AssignmentChange::Assigned(partitions) => {
                    self.is_assigned = true;
                    self.is_elected |= partitions.contains(&LEADER_PARTITION);
                }
                AssignmentChange::Revoked(partitions) => {
                    if partitions.contains(&LEADER_PARTITION) {
                        self.send_gathered(self.settings.timeout.min(HANDOVER_MAX));
                        self.commit(CommitMode::Sync);
                        self.record_finally();
                    }
                    self.release_partitions(&partitions)?;
                }
                AssignmentChange::Lost(partitions) => {
                    self.is_assigned = false;
                    self.release_partitions(&partitions)?;
                }
            }
        }
        let now = clock::monotonic();
        let is_due = self.is_assigned && now >= self.membership_checked_at + MEMBERSHIP_INTERVAL;
        if is_changed || is_due {
            self.membership_checked_at = now;
            self.report_membership();
        }
        Ok(())
    }

    /// Reports whether the group has assigned partitions, or none, to the member that the client
    /// is. One without partitions does not report that the group has expelled it.
    fn report_membership(&self) {
        let is_member = self.is_assigned && self.member.is_member(&self.member_id);
        match (is_member, self.is_elected && self.leader_term.is_none()) {
            (false, _) => self.health.not_ready("lead", "no group assignment"),
            // Standing by is enough. One that is elected is ready when it has started to lead.
            (true, false) => self.health.ready("lead"),
            (true, true) => {}
        }
    }

    /// Since the start, on the monotonic clock.
    fn uptime(&self) -> Duration {
        clock::monotonic().duration_since(self.started)
    }

    fn release_partitions(&mut self, partitions: &[PartitionId]) -> Result<(), NotifierError> {
        if partitions.contains(&LEADER_PARTITION) {
            self.is_elected = false;
            self.stop_leading()?;
        }
        Ok(self.member.release(partitions)?)
    }

    /// Sends what is due by the callers' own intervals, or by `window`.
    fn send(&mut self, window: Option<BatchWindow>) {
        let Some(leader) = &mut self.leader_term else { return };
        let (term, now, batch_delay) =
            (leader.term(), clock::monotonic(), self.settings.batch_delay);
        let subscribers = &self.router.subscribers;
        let mut waiting = 0;
        leader.recipients().retain(|subscriber, recipient| {
            // A subscriber that has unsubscribed does not hold back the commit.
            let Some(caller) = subscribers.subscribed_caller(subscriber) else { return false };
            let interval = caller.notify.interval;
            let write = |digest| Notification {
                id: Uuid::now_v7().simple().to_string(),
                at: clock::now_ms(),
                caller: (caller.id != ANONYMOUS).then(|| caller.id.clone()),
                interval,
                digest,
            };
            let window = window.unwrap_or(BatchWindow { batch_delay, interval });
            let has_room = self.in_progress < SENDS_MAX;
            let next = has_room.then(|| recipient.next_notification(window, now, write)).flatten();
            if let Some(message) = next {
                self.in_progress += 1;
                let (transports, ended) = (Arc::clone(&self.transports), self.results.0.clone());
                let subscriber = subscriber.clone();
                self.runtime.spawn(async move {
                    let channel = &subscriber.channel;
                    let result = transports.send(channel, &caller, &message, clock::now_ms()).await;
                    // The loop has ended if the receiver is closed.
                    let _ = ended.send(NotificationAttempt { term, subscriber, result });
                });
            }
            waiting += usize::from(recipient.is_waiting());
            true
        });
        metrics::gauge!(telemetry::NOTIFICATIONS_WAITING).set(waiting as f64);
    }

    fn on_attempt_ended(&mut self, ended: NotificationAttempt) {
        self.in_progress -= 1;
        let NotificationAttempt { term, subscriber, result } = ended;
        let leader = self.leader_term.as_mut().filter(|leader| leader.term() == term);
        let recipient = leader.and_then(|leader| leader.recipients().get_mut(&subscriber));
        let Some(recipient) = recipient else { return };
        let status =
            recipient.record_result(&result, self.settings.give_up_after, clock::monotonic());
        let Subscriber { caller, channel } = &subscriber;
        let (kind, name) = (channel.name(), status.name());
        metrics::counter!(telemetry::NOTIFICATIONS, "channel" => kind, "result" => name)
            .increment(1);
        let reason = match &result {
            Ok(()) => "",
            Err(
                NotificationSendError::Retryable(reason) | NotificationSendError::Permanent(reason),
            ) => reason,
        };
        match status {
            NotificationStatus::Delivered => {
                tracing::info!(%caller, %channel, "notification delivered")
            }
            NotificationStatus::Failed => {
                tracing::warn!(%caller, %channel, reason, "notification failed; retrying")
            }
            NotificationStatus::Refused | NotificationStatus::GivenUp => {
                tracing::error!(%caller, %channel, reason, name, "notification given up");
            }
        }
        match (channel, &result) {
            (Channel::Mail(_), Ok(())) => self.health.ready("mail"),
            (Channel::Mail(_), Err(NotificationSendError::Retryable(_))) => {
                self.health.ready_with_remark("mail", reason)
            }
            _ => {}
        }
        if status != NotificationStatus::Failed {
            self.commit_at = clock::monotonic();
        }
    }

    /// Sends at once what has gathered, so that the next leader repeats nothing after a commit.
    /// Takes as long as `max` at most, and nothing if we do not lead.
    fn send_gathered(&mut self, max: Duration) {
        if self.leader_term.is_none() {
            return;
        }
        let deadline = clock::monotonic() + max;
        self.send(Some(BatchWindow::IMMEDIATE));
        while self.in_progress > 0 && clock::monotonic() < deadline {
            if let Ok(ended) = self.results.1.recv_timeout(POLL_TIMEOUT) {
                self.on_attempt_ended(ended);
                self.send(Some(BatchWindow::IMMEDIATE));
            }
        }
    }

    /// Sends what has gathered, commits and records it, and leaves the group.
    fn shut_down(mut self) -> Result<(), NotifierError> {
        self.health.not_ready("lead", "shutting down");
        self.send_gathered(self.settings.timeout);
        // While a group assigns its partitions, it may refuse a commit.
        let deadline = clock::monotonic() + CALL_TIMEOUT;
        while !self.commit(CommitMode::Sync) && clock::monotonic() < deadline {
            if self.is_expelled() {
                return Ok(()); // another notifier leads, and may have committed more
            }
        }
        self.record_finally();
        Ok(())
    }

    /// Whether the group has removed this member, as its client finds out within [`POLL_TIMEOUT`].
    fn is_expelled(&self) -> bool {
        let is_lost = |change: &_| matches!(change, AssignmentChange::Lost(_));
        self.member.poll(POLL_TIMEOUT).map_or(true, |changes| changes.iter().any(is_lost))
    }
}
