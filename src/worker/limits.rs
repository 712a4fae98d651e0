//! Whose a fire is, where it goes, and how much of it its caller may have at once.
//!
//! Invariant: pure. The host is that which the client will call.

use std::num::NonZeroU32;

use orloj_core::worker::circuit::Route;
use orloj_core::worker::queue::QueueLimits;
use reqwest::Url;

use crate::callers::Caller;
use crate::config::WorkerSettings;
use crate::model::definition::Target;
use crate::model::fire::Fire;

/// The limits of a caller: of its own entry, and where it has none, of the settings.
pub(super) fn queue_limits(caller: &Caller, defaults: &WorkerSettings) -> QueueLimits {
    let own = &caller.limits;
    let rate = own.dispatch_rate_max.unwrap_or(defaults.caller_dispatch_rate_max);
    QueueLimits {
        concurrent: own.concurrent.unwrap_or(defaults.caller_in_flight_max).get(),
        waiting: own.waiting.unwrap_or(defaults.caller_queue_max).get(),
        rate: NonZeroU32::new(rate),
    }
}

/// The route of a fire. A target that is no URL has no host and is never requested.
pub(super) fn route_of(fire: &Fire) -> Route {
    let caller = fire.definition.caller.clone();
    let url = match &fire.definition.target {
        Target::Http(target) => Url::parse(target.url.as_str()).ok(),
        Target::Topic(_) => None,
    };
    let host = url.as_ref().and_then(|url| {
        let host = url.host_str()?;
        Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
    });
    Route { caller, host: host.unwrap_or_default().into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callers::CallerTable;
    use crate::config::{Layers, Settings};
    use crate::model::definition::{Definition, HttpTarget};
    use crate::model::entry::FireId;

    #[test]
    fn a_caller_has_its_own_limits_and_otherwise_those_of_the_worker() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("callers.toml");
        let entries = "callers.swift.limits.dispatch_rate_max = 0\n\
                       callers.slow.limits = { dispatch_rate_max = 3, concurrent = 2 }\n";
        std::fs::write(&file, entries).unwrap();
        let file = format!("callers.file={}", file.display());
        let overrides = vec![file, "worker.caller_dispatch_rate_max=50".to_owned()];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let callers = CallerTable::read(&settings).unwrap();
        let of = |caller| queue_limits(callers.by_id(caller), &settings.worker);
        assert_eq!(
            of(None),
            QueueLimits { concurrent: 100, waiting: 5_000, rate: NonZeroU32::new(50) }
        );
        assert_eq!(of(Some("swift")), QueueLimits { rate: None, ..of(None) });
        let slow = QueueLimits { rate: NonZeroU32::new(3), concurrent: 2, waiting: 5_000 };
        assert_eq!(of(Some("slow")), slow);
    }

    #[test]
    fn a_route_is_a_caller_and_a_normalized_host() {
        let host = |url: &str| {
            let id = FireId {
                trigger: "a".into(),
                generation: 1,
                occurrence: 0,
                attempt: 1,
                deferral: 0,
            };
            let target = Target::from(HttpTarget::post(url));
            let caller = Some("billing".into());
            let definition =
                Definition { target, payload: None, headers: Vec::new(), retry: None, caller };
            let (scheduled, fired, history, report_end, priority) = (0, 0, None, false, 127);
            let fire = Fire { id, scheduled, fired, definition, history, report_end, priority };
            let route = route_of(&fire);
            assert_eq!(route.caller, Some("billing".into()));
            route.host.to_string()
        };
        assert_eq!(host("https://Example.com/a?b=c"), "example.com");
        assert_eq!(host("https://example.com:443/"), "example.com");
        assert_eq!(host("http://me:pass@example.com:8080/"), "example.com:8080");
        assert_eq!(host("http://[::1]:9/"), "[::1]:9");
        assert_eq!(host("no url"), "");
    }
}
