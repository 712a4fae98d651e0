//! The rate limit of a caller's requests, and its headers in every response.
//!
//! Invariant: a burst of one second's requests is allowed; a request over the limit is refused with
//! the time after which to retry. There is one entry per caller of the file.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use crate::rate_limit;
pub(super) use crate::rate_limit::{BURST, try_acquire};

/// The theoretical arrival time (GCRA) of each caller's next request.
#[derive(Debug, Default)]
pub(super) struct RequestRateLimiter {
    theoretical_arrival: Mutex<HashMap<String, Duration>>,
}

/// The state of a caller's limit after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateLimitStatus {
    /// Requests in a second, and at once.
    quota: NonZeroU32,
    /// How many more are allowed now.
    remaining: u32,
    /// Seconds until the whole burst is allowed again.
    reset: u64,
}

/// A request over the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateLimited {
    /// After which time it is allowed.
    pub(super) retry_after: Duration,
    pub(super) status: RateLimitStatus,
}

impl RequestRateLimiter {
    /// Counts a request of `caller` at `now` on a monotonic clock, or returns after which time it
    /// is allowed.
    pub(super) fn admit(
        &self,
        caller: &str,
        per_second: NonZeroU32,
        now: Duration,
    ) -> Result<RateLimitStatus, RateLimited> {
        let mut worked_off =
            self.theoretical_arrival.lock().unwrap_or_else(PoisonError::into_inner);
        let until = worked_off.get(caller).copied();
        match try_acquire(until, per_second, now) {
            Ok(next) => {
                let _before = worked_off.insert(caller.to_owned(), next);
                Ok(RateLimitStatus::after(next, per_second, now))
            }
            Err(by) => {
                let standing = RateLimitStatus::after(until.unwrap_or(now), per_second, now);
                Err(RateLimited { retry_after: by, status: standing })
            }
        }
    }
}

impl RateLimitStatus {
    fn after(until: Duration, quota: NonZeroU32, now: Duration) -> Self {
        let remaining = rate_limit::remaining(until, quota, now);
        let used = until.saturating_sub(now);
        let reset = used.as_secs() + u64::from(used.subsec_nanos() > 0);
        Self { quota, remaining, reset }
    }

    /// As draft-ietf-httpapi-ratelimit-headers has it, in structured fields.
    fn write(self, headers: &mut HeaderMap) {
        let Self { quota, remaining, reset } = self;
        let window = BURST.as_secs();
        for (name, text) in [
            ("ratelimit-policy", format!("\"default\";q={quota};w={window}")),
            ("ratelimit", format!("\"default\";r={remaining};t={reset}")),
        ] {
            let value = HeaderValue::from_str(&text).expect("words and numbers fit a header");
            let _before = headers.insert(name, value);
        }
    }
}

/// Carries the state of the limit from the authenticator to the response.
#[derive(Clone, Debug, Default)]
pub(super) struct RateLimitHeaders(Arc<OnceLock<RateLimitStatus>>);

impl RateLimitHeaders {
    /// A request is counted once.
    pub(super) fn set(&self, standing: RateLimitStatus) {
        let _first = self.0.set(standing);
    }
}

/// Adds the headers to every response for a known caller.
pub(super) async fn add_headers(mut request: Request, next: Next) -> Response {
    let headers = RateLimitHeaders::default();
    let _before = request.extensions_mut().insert(headers.clone());
    let mut response = next.run(request).await;
    if let Some(standing) = headers.0.get() {
        standing.write(response.headers_mut());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1_000);

    #[test]
    fn a_burst_of_one_second_is_allowed_and_no_more() {
        let (rates, now) = (RequestRateLimiter::default(), NOW);
        let four = NonZeroU32::new(4).unwrap();
        let admit =
            |caller, at| rates.admit(caller, four, at).map_err(|too_early| too_early.retry_after);
        let standing = |remaining, reset| RateLimitStatus { quota: four, remaining, reset };
        for remaining in [3, 2, 1, 0] {
            assert_eq!(admit("a", now), Ok(standing(remaining, 1)));
        }
        assert_eq!(admit("a", now), Err(Duration::from_millis(250)));
        let refused = rates.admit("a", four, now).unwrap_err();
        assert_eq!(refused.status, standing(0, 1));
        assert_eq!(admit("b", now), Ok(standing(3, 1)));

        let later = now + Duration::from_millis(250);
        assert_eq!((admit("a", later), admit("a", later).is_ok()), (Ok(standing(0, 1)), false));
        let much_later = now + Duration::from_secs(60);
        assert!((0..4).all(|_| admit("a", much_later).is_ok()));
        assert!(admit("a", much_later).is_err());
    }

    #[test]
    fn the_rate_limit_status_is_written_in_structured_fields() {
        let mut headers = HeaderMap::new();
        let now = NOW;
        let quota = |n| NonZeroU32::new(n).unwrap();
        RateLimitStatus::after(now + Duration::from_millis(510), quota(100), now)
            .write(&mut headers);
        assert_eq!(headers["ratelimit-policy"], "\"default\";q=100;w=1");
        assert_eq!(headers["ratelimit"], "\"default\";r=49;t=1");
        RateLimitStatus::after(now, quota(u32::MAX), now).write(&mut headers);
        assert_eq!(headers["ratelimit"], "\"default\";r=4294967295;t=0");
    }
}
