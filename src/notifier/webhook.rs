//! Webhooks: a message in JSON, posted to a URL of the caller's and signed by its secrets.
//!
//! Invariant: it goes where callbacks may go and nowhere else, as one request without redirects. No
//! log shows its URL, which may be a secret.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderValue, USER_AGENT};
use reqwest::{Method, Request, StatusCode, Url};
use tokio::time::timeout;
use tokio_rustls::rustls;

use super::notification::Notification;
use super::recipient::NotificationSendError;
use crate::callers::{Caller, signature};
use crate::config::WorkerSettings;
use crate::guard::{self, ForbiddenTarget, Guard, GuardedClient, ORLOJ_USER_AGENT};
use crate::model::Timestamp;

/// Posts messages.
#[derive(Debug)]
pub(super) struct WebhookTransport {
    client: GuardedClient,
    timeout: Duration,
}

impl WebhookTransport {
    /// A transport to the addresses that `guard` allows, within the limits of callbacks; an attempt
    /// takes at most `timeout`.
    pub(super) fn new(
        guard: Guard,
        limits: &WorkerSettings,
        timeout: Duration,
    ) -> Result<Self, rustls::Error> {
        Ok(Self { client: GuardedClient::new(guard, limits)?, timeout })
    }

    /// Makes one request.
    pub(super) async fn post(
        &self,
        url: &Url,
        caller: &Caller,
        message: &Notification,
        now: Timestamp,
    ) -> Result<(), NotificationSendError> {
        let late = |_| Err(NotificationSendError::Retryable("timed out".to_owned()));
        let attempt = self.attempt(url, caller, message, now);
        timeout(self.timeout, attempt).await.unwrap_or_else(late)
    }

    async fn attempt(
        &self,
        url: &Url,
        caller: &Caller,
        message: &Notification,
        now: Timestamp,
    ) -> Result<(), NotificationSendError> {
        // The base URLs of a caller restrict its triggers only; this URL is set by the operator.
        let url = self.client.guard().check(url.as_str(), None).await.map_err(forbidden)?;
        let request = request(url, caller, message, now)?;
        match self.client.execute(&caller.id, request).await {
            Ok(response) => classify_status(response.status()),
            Err(guard::RequestError::Forbidden(refusal)) => Err(forbidden(refusal)),
            Err(failure) => Err(NotificationSendError::Retryable(failure.to_string())),
        }
    }
}

fn request(
    url: Url,
    caller: &Caller,
    message: &Notification,
    now: Timestamp,
) -> Result<Request, NotificationSendError> {
    let (body, seconds) = (message.json(), now / 1_000);
    let signature = signature::sign(caller, &message.id, seconds, &body, now);
    let signature = signature.map_err(|none| NotificationSendError::Retryable(none.to_string()))?;
    let mut request = Request::new(Method::POST, url);
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(ORLOJ_USER_AGENT));
    let values = [
        ("webhook-id", Some(message.id.clone())),
        ("webhook-timestamp", Some(seconds.to_string())),
        ("webhook-signature", signature),
    ];
    for (name, value) in values {
        if let Some(Ok(value)) = value.map(HeaderValue::try_from) {
            headers.insert(name, value);
        }
    }
    *request.body_mut() = Some(body.into());
    Ok(request)
}

/// 410 says that the receiver wants no more messages; every other failure may be temporary.
fn classify_status(status: StatusCode) -> Result<(), NotificationSendError> {
    let reason = || format!("answered {}", status.as_u16());
    match status.as_u16() {
        410 => Err(NotificationSendError::Permanent(reason())),
        200..=299 => Ok(()),
        _ => Err(NotificationSendError::Retryable(reason())),
    }
}

/// Why it must not be called, without its URL.
fn forbidden(refusal: ForbiddenTarget) -> NotificationSendError {
    NotificationSendError::Permanent(match refusal {
        ForbiddenTarget::Url { reason, .. } => reason,
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_2xx_is_delivered_and_only_410_is_permanent() {
        let judged = |status| classify_status(StatusCode::from_u16(status).unwrap());
        assert_eq!((judged(200), judged(204)), (Ok(()), Ok(())));
        assert!(matches!(judged(410), Err(NotificationSendError::Permanent(_))));
        for status in [301, 400, 404, 429, 500] {
            assert_eq!(
                judged(status),
                Err(NotificationSendError::Retryable(format!("answered {status}")))
            );
        }
    }
}
