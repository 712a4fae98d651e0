//! The notifier: tells callers by mail and webhook that callbacks of theirs have failed for good,
//! and which hosts are left alone.
//!
//! Law: an outage is a message now and then, and not one for each failure. What was not told is
//! told after a crash; it may be told twice. One notifier leads, and the others stand by.
//!
//! ```text
//!   dead-letters ─┐                    ┌─ gather, then one an interval ─► mail
//!                 ├─read──► recipients ┤
//!   outcomes ─────┘             │      └────────────────────────────────► webhook
//!      ▲                        │
//!      └──── committed ◄── told ┘
//! ```

pub mod audience;
pub mod digest;
pub mod lead;
pub mod message;
pub mod recipient;

mod courier;
mod intake;
mod mail;
mod webhook;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use lettre::transport::smtp;
use rdkafka::consumer::CommitMode;
use rdkafka::error::KafkaError;
use tokio::runtime::Runtime;
use tokio_rustls::rustls;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::callers::Callers;
use crate::clock;
use crate::codec::schemas::{CodecError, Schemas};
use crate::config::callers::ANONYMOUS;
use crate::config::{ConfigError, NotifierSettings, Settings};
use crate::engine::tenure::Change;
use crate::guard::Guard;
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::member::Member;
use crate::kafka::probe::Probe;
use crate::kafka::reader::Reader;
use crate::model::PartitionId;
use crate::telemetry;
use audience::{Audience, Channel, Subscriber};
use courier::Couriers;
use intake::{Desk, Topics};
use lead::Lead;
use mail::Mail;
use message::Message;
use recipient::{Failure, Fate, Pace};
use webhook::Webhook;

/// Whoever has this partition of the dead letters leads, and reads all there are: an outage is in
/// all partitions, and shall be one message.
const LEADING: PartitionId = 0;
/// How long the loop waits for a record: the group and the clock want to be served.
const POLL: Duration = Duration::from_millis(100);
/// How long a call to the broker may take before it counts as away.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two commits while nobody is told anything.
const COMMIT_INTERVAL: Duration = Duration::from_secs(5);
/// Messages under way at once. What waits for a place goes on gathering.
const SENDS_MAX: usize = 16;

/// Why the notifier ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum NotifierError {
    /// A client could not be made, or the group has thrown this member out for good.
    #[error("Kafka: {0}; check [kafka]")]
    Kafka(#[from] KafkaError),
    /// Newer processes have been here: upgrade this one.
    #[error(transparent)]
    Newer(#[from] CodecError),
    /// The HTTP client cannot be made: its certificates, most likely.
    #[error("TLS: {0}; check the certificates of this machine")]
    Tls(#[from] rustls::Error),
    /// The mail client cannot be made: its certificates, most likely.
    #[error("mail: {0}; check notifier.smtp_url and the certificates of this machine")]
    Mail(#[from] smtp::Error),
    /// Mend the file of the callers.
    #[error(transparent)]
    Callers(#[from] ConfigError),
    /// The machine gives no threads.
    #[error("threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// Runs a notifier until `shutdown`; blocks. What has gathered is then told at once. Says through
/// `health` whether it is ready.
pub fn run(
    settings: &Settings,
    shutdown: CancellationToken,
    health: Arc<Health>,
) -> Result<(), NotifierError> {
    Notifier::start(settings, shutdown, health)?.serve()
}

/// The loop's state.
struct Notifier {
    settings: NotifierSettings,
    shutdown: CancellationToken,
    health: Arc<Health>,
    member: Member,
    reader: Reader,
    probe: Probe,
    desk: Desk,
    couriers: Arc<Couriers>,
    runtime: Runtime,
    ended: (Sender<Ended>, Receiver<Ended>),
    /// Messages under way, those of earlier terms included.
    under_way: usize,
    is_elected: bool,
    is_away: bool,
    /// Present while we lead.
    lead: Option<Lead>,
    /// Terms begun so far.
    terms: u64,
    commit_at: Instant,
}

/// An attempt to tell.
struct Ended {
    term: u64,
    subscriber: Subscriber,
    result: Result<(), Failure>,
}

impl Notifier {
    fn start(
        settings: &Settings,
        shutdown: CancellationToken,
        health: Arc<Health>,
    ) -> Result<Self, NotifierError> {
        let (names, own) = (Names::new(&settings.topics.prefix), &settings.notifier);
        let topics = Topics {
            dead_letters: names.dead_letters(),
            outcomes: names.outcomes(),
            partitions: settings.topics.partitions.get().into(),
        };
        let probe = Probe::open(settings, CALL_TIMEOUT)?;
        let guard = Guard::new(settings).knowing_brokers(probe.brokers(&topics.dead_letters)?);
        health.not_ready("lead", "the group has not answered yet");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .thread_name("messages")
            .build()?;
        let entered = runtime.enter();
        let callers = Callers::follow(settings, Arc::clone(&health), shutdown.clone())?;
        drop(entered);
        let webhook = Webhook::new(guard, &settings.worker, own.timeout)?;
        let group = names.notifiers();
        Ok(Self {
            member: Member::join_unnamed(settings, &group, &topics.dead_letters)?,
            reader: Reader::open(settings, &group)?,
            desk: Desk {
                topics,
                schemas: Schemas::new(),
                audience: Audience::new(callers, own.operator_email.clone()),
            },
            couriers: Arc::new(Couriers { mail: Mail::new(own)?, webhook }),
            ended: channel(),
            under_way: 0,
            is_elected: false,
            is_away: false,
            lead: None,
            terms: 0,
            commit_at: clock::monotonic(),
            settings: own.clone(),
            shutdown,
            health,
            probe,
            runtime,
        })
    }

    fn serve(mut self) -> Result<(), NotifierError> {
        self.health.ready("broker");
        while !self.shutdown.is_cancelled() {
            self.turn()?;
        }
        self.leave()
    }

    fn turn(&mut self) -> Result<(), NotifierError> {
        self.follow_group()?;
        if self.is_away {
            self.look_for_broker();
        }
        if self.is_elected && self.lead.is_none() {
            match self.take_lead() {
                Ok(()) => self.health.ready("lead"),
                Err(error) => self.health.not_ready("lead", error.to_string()),
            }
        }
        self.read(POLL)?;
        while let Ok(ended) = self.ended.1.try_recv() {
            self.on_ended(ended);
        }
        self.send(None);
        if clock::monotonic() >= self.commit_at {
            self.commit(CommitMode::Async);
            self.commit_at = clock::monotonic() + COMMIT_INTERVAL;
        }
        Ok(())
    }

    /// Hears what the group says.
    fn follow_group(&mut self) -> Result<(), NotifierError> {
        for change in self.member.poll(Duration::ZERO)? {
            tracing::info!(?change, "the group has spoken");
            match change {
                Change::Assigned(partitions) => {
                    self.is_elected |= partitions.contains(&LEADING);
                }
                Change::Revoked(partitions) => {
                    self.commit(CommitMode::Sync);
                    self.give_up(&partitions)?;
                }
                Change::Lost(partitions) => self.give_up(&partitions)?,
            }
            if !self.is_elected {
                self.health.ready("lead"); // standing by is all that is asked of it
            }
        }
        Ok(())
    }

    fn give_up(&mut self, partitions: &[PartitionId]) -> Result<(), NotifierError> {
        if partitions.contains(&LEADING) {
            self.is_elected = false;
            self.step_down()?;
        }
        Ok(self.member.release(partitions)?)
    }

    /// Sends what is due by the callers' own pace, or by `pace`.
    fn send(&mut self, pace: Option<Pace>) {
        let Some(lead) = &mut self.lead else { return };
        let (term, now, gather) = (lead.term(), clock::monotonic(), self.settings.gather);
        let audience = &self.desk.audience;
        let mut waiting = 0;
        lead.recipients().retain(|subscriber, recipient| {
            // Who wants to hear nothing any more holds nothing back.
            let Some(caller) = audience.caller(subscriber) else { return false };
            let interval = caller.notify.interval;
            let write = |digest| Message {
                id: Uuid::now_v7().simple().to_string(),
                at: clock::now_ms(),
                caller: (caller.id != ANONYMOUS).then(|| caller.id.clone()),
                interval,
                digest,
            };
            let pace = pace.unwrap_or(Pace { gather, interval });
            let has_room = self.under_way < SENDS_MAX;
            let message = has_room.then(|| recipient.begin(pace, now, write)).flatten();
            if let Some(message) = message {
                self.under_way += 1;
                let (couriers, ended) = (Arc::clone(&self.couriers), self.ended.0.clone());
                let subscriber = subscriber.clone();
                self.runtime.spawn(async move {
                    let channel = &subscriber.channel;
                    let result = couriers.send(channel, &caller, &message, clock::now_ms()).await;
                    // The loop has ended if nobody hears it.
                    let _ = ended.send(Ended { term, subscriber, result });
                });
            }
            waiting += usize::from(recipient.is_waiting());
            true
        });
        metrics::gauge!(telemetry::NOTIFICATIONS_WAITING).set(waiting as f64);
    }

    fn on_ended(&mut self, ended: Ended) {
        self.under_way -= 1;
        let Ended { term, subscriber, result } = ended;
        let lead = self.lead.as_mut().filter(|lead| lead.term() == term);
        let recipient = lead.and_then(|lead| lead.recipients().get_mut(&subscriber));
        let Some(recipient) = recipient else { return };
        let fate = recipient.end(&result, self.settings.give_up_after, clock::monotonic());
        let Subscriber { caller, channel } = &subscriber;
        let (kind, name) = (channel.kind(), fate.name());
        metrics::counter!(telemetry::NOTIFICATIONS, "channel" => kind, "result" => name)
            .increment(1);
        let reason = match &result {
            Ok(()) => "",
            Err(Failure::Later(reason) | Failure::Never(reason)) => reason,
        };
        match fate {
            Fate::Told => tracing::info!(%caller, %channel, "told"),
            Fate::Failed => tracing::warn!(%caller, %channel, reason, "not told; trying again"),
            Fate::Refused | Fate::GivenUp => {
                tracing::error!(%caller, %channel, reason, name, "not told, and never will be");
            }
        }
        match (channel, &result) {
            (Channel::Mail(_), Ok(())) => self.health.ready("mail"),
            (Channel::Mail(_), Err(Failure::Later(_))) => self.health.ready_but("mail", reason),
            _ => {}
        }
        if fate != Fate::Failed {
            self.commit_at = clock::monotonic();
        }
    }

    /// Tells at once what has gathered, so that nobody repeats anything, and leaves the group.
    fn leave(mut self) -> Result<(), NotifierError> {
        self.health.not_ready("lead", "shutting down");
        let deadline = clock::monotonic() + self.settings.timeout;
        self.send(Some(Pace::NOW));
        while self.under_way > 0 && clock::monotonic() < deadline {
            if let Ok(ended) = self.ended.1.recv_timeout(POLL) {
                self.on_ended(ended);
                self.send(Some(Pace::NOW));
            }
        }
        self.commit(CommitMode::Sync);
        Ok(())
    }
}
