//! `orloj reconcile`: callbacks that have not ended long after their due time, and another attempt
//! of each under the same id.
//!
//! Invariant: nothing can get lost by design, so what this finds is caused by a bug, by a topic
//! whose records were deleted, or by a missing worker; it prints what it has found before it does
//! anything. An attempt requested twice within a minute is made once.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::CliError;
use super::trigger::read_delay;
use crate::clock;
use crate::codec::schemas::Schemas;
use crate::config::{ByteSize, Settings};
use crate::health::Health;
use crate::kafka::Names;
use crate::kafka::record_producer::RecordProducer;
use crate::kafka::transaction::ProducerRecord;
use crate::model::entry::FireId;
use crate::model::limits::PAYLOAD_BYTES_MAX;
use crate::model::signal::{RetryRequest, Signal};
use crate::model::time::format_time;
use crate::model::{Millis, Timestamp};
use crate::view::{ExecutionStatus, Overdue, View, ViewError};

/// The interval at which the progress of the view is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const MINUTE_MS: Millis = 60_000;

const HELP: &str = "\
It reads the topics from their start, which takes longer the larger they are, and commits nothing.
Another attempt has the same webhook-id as the ones before, so a receiver that has handled it can
recognize it. Use --dry-run first: if the workers only lag behind, they will make these callbacks
without it.

Examples:
  orloj reconcile --dry-run
  orloj reconcile --older-than 6h";

/// The arguments of `orloj reconcile`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct ReconcileArguments {
    /// Only callbacks whose due time is at least this long ago.
    #[arg(long, value_name = "DELAY", default_value = "1h", value_parser = read_delay)]
    older_than: Millis,
    /// Only print what was found.
    #[arg(long)]
    dry_run: bool,
}

impl ReconcileArguments {
    pub(super) async fn run(&self, settings: &Settings) -> Result<(), CliError> {
        let started = clock::now_ms();
        let shutdown = CancellationToken::new();
        let _reading_ends = shutdown.clone().drop_guard();
        let scratch = TemporaryViewDirectory::new();
        let view = scratch.view(settings, shutdown)?;
        read_up_to(&view, started).await;

        let mut overdue = Vec::new();
        let before = started.saturating_sub(self.older_than);
        view.for_each_overdue(before, |one| overdue.push(one)).await.map_err(view_error)?;
        for one in &overdue {
            println!("{}", describe(one));
        }
        if !self.dry_run {
            request_attempts(settings, &overdue, started).await?;
        }
        let what = if self.dry_run {
            "nothing was requested"
        } else {
            "another attempt of each requested"
        };
        println!("{} callbacks have not ended; {what}", overdue.len());
        Ok(())
    }
}

/// A directory for a view of this command's own; deleted when dropped.
struct TemporaryViewDirectory(PathBuf);

impl TemporaryViewDirectory {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("orloj-reconcile-{}", Uuid::now_v7())))
    }

    /// A view that is built from nothing and has complete payloads.
    fn view(&self, settings: &Settings, shutdown: CancellationToken) -> Result<View, CliError> {
        let mut settings = settings.clone();
        settings.gateway.view_dir.clone_from(&self.0);
        settings.gateway.view_payload_max = ByteSize::of(PAYLOAD_BYTES_MAX as u64);
        View::open(&settings, Health::new("reconcile"), shutdown).map_err(view_error)
    }
}

impl Drop for TemporaryViewDirectory {
    fn drop(&mut self) {
        // What cannot be deleted stays in the system's temporary directory.
        let _deleted = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until the view has everything that was written before `started`.
async fn read_up_to(view: &View, started: Timestamp) {
    let style = ProgressStyle::with_template("{spinner} reading the topics {elapsed}: {msg}");
    let bar = ProgressBar::new_spinner().with_style(style.expect("the template is ours"));
    let mut interval = tokio::time::interval(POLL_INTERVAL);
    loop {
        let freshness = view.freshness();
        if freshness.as_of >= started {
            break bar.finish_and_clear();
        }
        bar.set_message(match freshness.as_of {
            0 => "the existing records".to_owned(),
            as_of => format!("up to {}", format_time(as_of)),
        });
        bar.tick();
        interval.tick().await;
    }
}

fn describe(overdue: &Overdue) -> String {
    let trigger = &overdue.trigger;
    let caller = trigger.caller.as_deref().unwrap_or("no caller");
    let (id, generation) = (&trigger.id, trigger.generation);
    let ended =
        trigger.last_execution.as_ref().filter(|last| last.status != ExecutionStatus::InFlight);
    let last = ended.map_or_else(
        || "no attempt is known to have ended".to_owned(),
        |last| format!("attempt {} ended at {}", last.attempt, format_time(last.at)),
    );
    format!("{id}:{generation}, of {caller}, due {}, {last}", format_time(overdue.since))
}

/// Requests another attempt of each from the owners.
async fn request_attempts(
    settings: &Settings,
    overdue: &[Overdue],
    now: Timestamp,
) -> Result<(), CliError> {
    let producer = RecordProducer::open(settings, None)?;
    let (topic, schemas) = (Names::new(&settings.topics.prefix).signals(), Schemas::new());
    let mut sent = Vec::with_capacity(overdue.len());
    for one in overdue {
        let value = schemas.encode_signal(&Signal::Retry(another_attempt(one, now)));
        sent.push(producer.send(ProducerRecord {
            topic: &topic,
            partition: Some(one.trigger.partition),
            key: Some(one.trigger.id.as_bytes()),
            value: Some(&value),
            headers: &[],
        })?);
    }
    for delivery in sent {
        let _position = delivery.acknowledged().await?;
    }
    Ok(())
}

/// The attempt after the last one that is known, or the first one again. Its deferral number
/// distinguishes it from earlier requests: an attempt is deferred less than once a minute.
fn another_attempt(overdue: &Overdue, now: Timestamp) -> RetryRequest {
    let trigger = &overdue.trigger;
    let (occurrence, attempt) = trigger.last_execution.as_ref().map_or((0, 1), |last| {
        let failed = last.status == ExecutionStatus::Retrying;
        (last.occurrence, last.attempt.max(1) + u32::from(failed))
    });
    let minutes = now.saturating_sub(overdue.since) / MINUTE_MS;
    let deferral = u32::try_from(minutes + 1).unwrap_or(u32::MAX);
    RetryRequest {
        id: FireId {
            trigger: trigger.id.as_str().into(),
            generation: trigger.generation,
            occurrence,
            attempt,
            deferral,
        },
        due: now,
        scheduled: trigger.fire_at.unwrap_or(overdue.since),
        reason: format!("no result since {}: reconciled", format_time(overdue.since)),
        definition: trigger.definition.clone(),
        history: None,
        report_end: true,
        priority: trigger.priority,
    }
}

fn view_error(error: ViewError) -> CliError {
    CliError::Refused(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::definition::{Definition, HttpTarget};
    use crate::view::{ExecutionView, Status, TriggerView};

    const SINCE: Timestamp = 1_800_000_000_000;

    fn overdue(last: Option<(ExecutionStatus, u32)>) -> Overdue {
        let execution = |(status, attempt)| ExecutionView {
            generation: 41,
            occurrence: 2,
            attempt,
            status,
            due: None,
            at: SINCE,
            http_status: None,
            reason: None,
            retry_at: None,
        };
        let trigger = TriggerView {
            id: "tea".to_owned(),
            generation: 41,
            revision: 41,
            is_behind: false,
            partition: 0,
            caller: None,
            status: Status::InFlight,
            name: None,
            labels: BTreeMap::new(),
            definition: Definition {
                target: HttpTarget::post("https://h/x").into(),
                payload: None,
                headers: Vec::new(),
                retry: None,
                caller: None,
            },
            payload_is_complete: true,
            schedule: None,
            after: None,
            expire_after: None,
            retain: None,
            priority: 200,
            fire_at: Some(SINCE - 7),
            created_at: 1,
            settled_at: None,
            executions: 0,
            counted_from: 0,
            last_execution: last.map(execution),
            reason: None,
        };
        Overdue { trigger, since: SINCE }
    }

    #[test]
    fn the_requested_attempt_is_the_one_that_was_never_made() {
        use ExecutionStatus::{InFlight, Retrying};
        for (last, occurrence, attempt) in [
            (None, 0, 1),
            (Some((InFlight, 1)), 2, 1),
            (Some((InFlight, 0)), 2, 1),
            (Some((Retrying, 3)), 2, 4),
        ] {
            let RetryRequest { id, scheduled, priority, .. } =
                another_attempt(&overdue(last), SINCE + 60_000);
            assert_eq!((id.occurrence, id.attempt, id.deferral), (occurrence, attempt, 2));
            assert_eq!((id.generation, scheduled, priority), (41, SINCE - 7, 200));
        }
    }

    #[test]
    fn two_requests_within_a_minute_have_the_same_id() {
        let at = |now| another_attempt(&overdue(None), now).id;
        assert_eq!(at(SINCE + 60_000), at(SINCE + 119_999));
        assert_ne!(at(SINCE + 119_999), at(SINCE + 120_000));
    }

    #[test]
    fn the_description_contains_the_last_known_attempt() {
        let description = |last| describe(&overdue(last));
        let known = "tea:41, of no caller, due 2027-01-15T08:00:00Z";
        assert_eq!(description(None), format!("{known}, no attempt is known to have ended"));
        let ended = format!("{known}, attempt 3 ended at 2027-01-15T08:00:00Z");
        assert_eq!(description(Some((ExecutionStatus::Retrying, 3))), ended);
    }
}
