//! The filter that selects dead letters.

use clap::Args;
use jiff::{Span, SpanRelativeTo};

use crate::clock;
use crate::model::Timestamp;
use crate::model::dead_letter::DeadLetter;
use crate::model::time::parse_time;

/// Conditions that must all hold; without any, every letter is selected.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct LetterFilter {
    /// Of this caller.
    #[arg(long)]
    caller: Option<String>,
    /// To this host.
    #[arg(long)]
    host: Option<String>,
    /// Of this trigger.
    #[arg(long, value_name = "ID")]
    trigger: Option<String>,
    /// Whose reason contains this text, case-insensitive.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Given up at this time or later: RFC 3339, or how long ago (2h, 7d).
    #[arg(long, value_name = "TIME", value_parser = read_moment)]
    since: Option<Timestamp>,
    /// Given up before this time.
    #[arg(long, value_name = "TIME", value_parser = read_moment)]
    until: Option<Timestamp>,
}

impl LetterFilter {
    /// Whether any condition is set.
    pub(super) fn is_set(&self) -> bool {
        let texts = [&self.caller, &self.host, &self.trigger, &self.reason];
        texts.into_iter().any(Option::is_some) || self.since.or(self.until).is_some()
    }

    /// Whether the letter is selected.
    pub(super) fn matches(&self, letter: &DeadLetter) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        let host = letter.host();
        is(&self.caller, letter.caller())
            && is(&self.host, host.as_deref())
            && is(&self.trigger, letter.trigger())
            && self
                .reason
                .as_ref()
                .is_none_or(|text| letter.reason.to_lowercase().contains(&text.to_lowercase()))
            && self.since.is_none_or(|since| letter.at >= since)
            && self.until.is_none_or(|until| letter.at < until)
    }
}

/// A time, or how long ago.
fn read_moment(text: &str) -> Result<Timestamp, String> {
    if let Some(at) = text.parse().ok().or_else(|| parse_time(text)) {
        return Ok(at);
    }
    let ago =
        text.parse::<Span>().and_then(|span| span.to_duration(SpanRelativeTo::days_are_24_hours()));
    let ago = ago.ok().and_then(|ago| u64::try_from(ago.as_millis()).ok());
    ago.map(|ago| clock::now_ms().saturating_sub(ago)).ok_or_else(|| {
        "write RFC 3339 such as 2030-01-31T08:00:00Z, ms since the epoch, or how long ago such as \
         2h"
        .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::dead_letter::{Content, Origin};
    use crate::model::definition::{Definition, HttpTarget, Target};
    use crate::model::entry::FireId;
    use crate::model::fire::Fire;

    fn letter() -> DeadLetter {
        let target = Target::from(HttpTarget::post("https://API.example.com:8443/x"));
        let id = FireId {
            trigger: "order-7".into(),
            generation: 41,
            occurrence: 0,
            attempt: 6,
            deferral: 0,
        };
        let (headers, caller) = (Vec::new(), Some("billing".into()));
        let definition = Definition { target, payload: None, headers, retry: None, caller };
        let (history, report_end, priority) = (None, false, 127);
        let fire = Fire { id, scheduled: 1, fired: 2, definition, history, report_end, priority };
        DeadLetter {
            origin: Origin { topic: "orloj.fires".into(), partition: 3, offset: 41 },
            reason: "attempt 6 was the last: answered 500: Boom".to_owned(),
            at: 1_000,
            content: Content::Fire { fire, attempts: 6 },
        }
    }

    #[test]
    fn all_conditions_must_hold() {
        let some = |text: &str| Some(text.to_owned());
        let none = LetterFilter::default;
        assert!(none().matches(&letter()) && !none().is_set());
        let whole = LetterFilter {
            caller: some("billing"),
            host: some("api.example.com"),
            trigger: some("order-7"),
            reason: some("bOOm"),
            since: Some(1_000),
            until: Some(1_001),
        };
        assert!(whole.matches(&letter()) && whole.is_set());
        for filter in [
            LetterFilter { caller: some("shipping"), ..whole.clone() },
            LetterFilter { host: some("example.com"), ..whole.clone() },
            LetterFilter { trigger: some("order"), ..whole.clone() },
            LetterFilter { reason: some("answered 404"), ..whole.clone() },
            LetterFilter { since: Some(1_001), ..whole.clone() },
            LetterFilter { until: Some(1_000), ..whole },
        ] {
            assert!(!filter.matches(&letter()), "{filter:?}");
        }
    }

    #[test]
    fn a_moment_is_a_time_or_how_long_ago() {
        assert_eq!(read_moment("1970-01-01T00:00:01Z"), Ok(1_000));
        assert_eq!(read_moment("7"), Ok(7));
        let now = clock::now_ms();
        assert!(read_moment("2h").is_ok_and(|at| at.abs_diff(now - 7_200_000) < 60_000));
        assert!(read_moment("soon").is_err() && read_moment("-2h").is_err());
    }
}
