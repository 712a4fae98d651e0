//! The transports of messages: mail and webhook.

use super::mail::MailTransport;
use super::notification::Notification;
use super::recipient::NotificationSendError;
use super::subscribers::Channel;
use super::webhook::WebhookTransport;
use crate::callers::Caller;
use crate::model::Timestamp;

/// Both transports.
#[derive(Debug)]
pub(super) struct NotificationTransports {
    /// `None` if no mail server is configured.
    pub(super) mail: Option<MailTransport>,
    pub(super) webhook: WebhookTransport,
}

impl NotificationTransports {
    /// Makes one attempt at `now` for `caller`.
    pub(super) async fn send(
        &self,
        channel: &Channel,
        caller: &Caller,
        message: &Notification,
        now: Timestamp,
    ) -> Result<(), NotificationSendError> {
        match (channel, &self.mail) {
            (Channel::Webhook(url), _) => self.webhook.post(url, caller, message, now).await,
            (Channel::Mail(to), Some(mail)) => mail.send(to, message).await,
            (Channel::Mail(_), None) => Err(NotificationSendError::Permanent(
                "no mail server is configured: set notifier.smtp_url".to_owned(),
            )),
        }
    }
}
