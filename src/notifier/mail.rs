//! Mail: a message as text, sent through one server.
//!
//! Invariant: one recipient a mail, so that an address that is refused harms no other. Texts from
//! triggers and receivers are in the body only, never in a header.

use std::time::Duration;

use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, SinglePart};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::response::Category;
use lettre::transport::smtp::{self, AsyncSmtpTransport};
use lettre::{Address, AsyncTransport as _, Tokio1Executor};

use super::notification::Notification;
use super::recipient::NotificationSendError;
use crate::config::NotifierSettings;

/// The way to the server; each mail has a connection of its own.
#[derive(Debug)]
pub(super) struct MailTransport {
    server: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    timeout: Duration,
}

impl MailTransport {
    /// From the settings; `None` if they name no server.
    pub(super) fn new(settings: &NotifierSettings) -> Result<Option<Self>, smtp::Error> {
        let NotifierSettings { smtp_url, smtp_username, smtp_password, timeout, .. } = settings;
        if smtp_url.is_empty() {
            return Ok(None);
        }
        let mut server = AsyncSmtpTransport::<Tokio1Executor>::from_url(smtp_url)?;
        if !smtp_username.is_empty() {
            let password = smtp_password.as_str().to_owned();
            server = server.credentials(Credentials::new(smtp_username.clone(), password));
        }
        let server = server.timeout(Some(*timeout)).build();
        Ok(Some(Self { server, from: settings.from.clone(), timeout: *timeout }))
    }

    /// Hands a mail to the server.
    pub(super) async fn send(
        &self,
        to: &Address,
        message: &Notification,
    ) -> Result<(), NotificationSendError> {
        let mail = build_mail(&self.from, to, message);
        let mail = mail.map_err(|error| NotificationSendError::Permanent(error.to_string()))?;
        match tokio::time::timeout(self.timeout, self.server.send(mail)).await {
            Ok(Ok(_accepted)) => Ok(()),
            Ok(Err(error)) => Err(classify_error(&error)),
            Err(_) => Err(NotificationSendError::Retryable(format!(
                "it took longer than {:?}",
                self.timeout
            ))),
        }
    }
}

fn build_mail(
    from: &Mailbox,
    to: &Address,
    message: &Notification,
) -> Result<lettre::Message, lettre::error::Error> {
    // So that automatic replies are not sent back.
    let automatic = HeaderName::new_from_ascii_str("Auto-Submitted");
    lettre::Message::builder()
        .from(from.clone())
        .to(Mailbox::new(None, to.clone()))
        .subject(message.subject())
        .message_id(Some(format!("<{}@orloj>", message.id)))
        .raw_header(HeaderValue::new(automatic, "auto-generated".to_owned()))
        .singlepart(SinglePart::plain(message.text()))
}

/// A permanent refusal of the server is final; but 53x is about our name and password, which an
/// operator can correct.
fn classify_error(error: &smtp::Error) -> NotificationSendError {
    let is_ours = error.status().is_some_and(|code| code.category == Category::Unspecified3);
    let reason = error.to_string();
    if error.is_permanent() && !is_ours {
        NotificationSendError::Permanent(reason)
    } else {
        NotificationSendError::Retryable(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notifier::digest::Digest;
    use crate::notifier::digest::samples::{FIRST_AT, position, record};

    fn mail(caller: &str, reason: &str) -> String {
        let mut digest = Digest::default();
        digest.add_dead_letter(&record(reason, reason, FIRST_AT), position(0));
        let message = Notification {
            id: "m1".to_owned(),
            at: FIRST_AT,
            caller: Some(caller.to_owned()),
            interval: Duration::from_secs(60),
            digest,
        };
        let from = "Orloj <orloj@localhost>".parse().unwrap();
        let letter = build_mail(&from, &"ops@example.com".parse().unwrap(), &message).unwrap();
        String::from_utf8(letter.formatted()).unwrap()
    }

    fn headers(mail: &str) -> Vec<(&str, &str)> {
        let (head, _body) = mail.split_once("\r\n\r\n").unwrap();
        head.split("\r\n").map(|line| line.split_once(": ").unwrap_or(("", line))).collect()
    }

    #[test]
    fn a_mail_names_its_sender_and_is_marked_as_automatic() {
        let mail = mail("billing", "nothing says when");
        let headers = headers(&mail);
        for expected in [
            ("From", "Orloj <orloj@localhost>"),
            ("To", "ops@example.com"),
            ("Subject", "1 dead letter of billing"),
            ("Message-ID", "<m1@orloj>"),
            ("Auto-Submitted", "auto-generated"),
            ("MIME-Version", "1.0"),
            ("Content-Type", "text/plain; charset=utf-8"),
        ] {
            assert!(headers.contains(&expected), "{expected:?}: {headers:?}");
        }
        assert!(mail.contains("nothing says when"), "{mail}");
    }

    #[test]
    fn external_text_never_becomes_a_header_or_ends_the_mail() {
        let hostile = "x\r\nBcc: everyone@example.com\r\n\r\n.\r\nMAIL FROM:<me@example.com>";
        for mail in [mail("billing", hostile), mail("Účtárna ☕", hostile)] {
            let names: Vec<_> = headers(&mail).iter().map(|(name, _)| *name).collect();
            assert!(!names.iter().any(|name| name.eq_ignore_ascii_case("bcc")), "{mail}");
            assert!(mail.is_ascii() && !mail.contains("\r\n.\r\n"), "{mail}");
        }
        // No caller can be called so; but if one were, the subject would still be one header.
        let mail = mail(hostile, "harmless");
        assert!(headers(&mail).iter().all(|(_, value)| !value.starts_with("everyone")), "{mail}");
    }

    #[test]
    fn mail_is_sent_only_if_a_server_is_named() {
        use crate::config::{Layers, Settings};
        let open = |url: &str| {
            let overrides = vec![format!("notifier.smtp_url={url}"), "notifier.from=a@b.c".into()];
            let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
            MailTransport::new(&settings.notifier)
        };
        assert!(open("").unwrap().is_none());
        for url in ["smtp://mail", "smtps://mail", "smtp://mail?tls=required", "smtp://mail:2525"] {
            assert!(open(url).unwrap().is_some(), "{url}");
        }
    }
}
