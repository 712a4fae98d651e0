//! Who carries messages: to mail servers and webhooks.

use super::audience::Channel;
use super::mail::Mail;
use super::message::Message;
use super::recipient::Failure;
use super::webhook::Webhook;
use crate::config::callers::Caller;
use crate::model::Timestamp;

/// Both ways to tell.
#[derive(Debug)]
pub(super) struct Couriers {
    /// `None` if no mail server is configured.
    pub(super) mail: Option<Mail>,
    pub(super) webhook: Webhook,
}

impl Couriers {
    /// Makes one attempt, at `now`, in the name of `caller`.
    pub(super) async fn send(
        &self,
        channel: &Channel,
        caller: &Caller,
        message: &Message,
        now: Timestamp,
    ) -> Result<(), Failure> {
        match (channel, &self.mail) {
            (Channel::Webhook(url), _) => self.webhook.post(url, caller, message, now).await,
            (Channel::Mail(to), Some(mail)) => mail.send(to, message).await,
            (Channel::Mail(_), None) => Err(Failure::Never(
                "no mail server is configured: set notifier.smtp_url".to_owned(),
            )),
        }
    }
}
