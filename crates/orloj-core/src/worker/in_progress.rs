//! When the callbacks in progress have started, and on which routes.
//!
//! Invariant: a callback is here from its start to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use super::callback::FirePlace;
use super::circuit::Route;

/// The callbacks in progress by their starts, on the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct InProgress(BTreeMap<Duration, Vec<(FirePlace, Route)>>);

impl InProgress {
    pub(super) fn start(&mut self, now: Duration, place: FirePlace, route: &Route) {
        self.0.entry(now).or_default().push((place, route.clone()));
    }

    /// One that has started at `started` has ended.
    pub(super) fn end(&mut self, started: Duration, place: FirePlace) {
        let Some(callbacks) = self.0.get_mut(&started) else { return };
        callbacks.retain(|(other, _)| *other != place);
        if callbacks.is_empty() {
            self.0.remove(&started);
        }
    }

    /// When the earliest has started.
    pub(super) fn earliest(&self) -> Option<Duration> {
        self.0.first_key_value().map(|(started, _)| *started)
    }

    /// The routes of those that have started from `from` to `to`.
    pub(super) fn routes(&self, from: Duration, to: Duration) -> impl Iterator<Item = &Route> {
        self.0.range(from..=to).flat_map(|(_, callbacks)| callbacks).map(|(_, route)| route)
    }
}
