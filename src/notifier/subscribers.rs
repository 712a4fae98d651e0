//! The subscribers: the addresses and webhooks of callers, as `callers.toml` has them now, and the
//! operator's for triggers of no caller.
//!
//! Invariant: a webhook's URL may be a secret, and is never shown.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use lettre::Address;
use reqwest::Url;
use xxhash_rust::xxh3::xxh3_64;

use super::reported_state::RecipientId;
use crate::callers::{ANONYMOUS, Caller, Callers};

/// A channel: where messages are sent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Channel {
    /// Mail to this address.
    Mail(Address),
    /// A request to this URL.
    Webhook(Url),
}

/// A subscriber to one caller's triggers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subscriber {
    /// The caller's id.
    pub caller: String,
    /// Where messages are sent.
    pub channel: Channel,
}

/// All subscribers.
#[derive(Debug)]
pub struct Subscribers {
    callers: Callers,
    operator: Vec<Address>,
}

impl Channel {
    /// What metrics call it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mail(_) => "mail",
            Self::Webhook(_) => "webhook",
        }
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mail(address) => write!(f, "{address}"),
            Self::Webhook(url) => write!(f, "webhook at {}", url.host_str().unwrap_or_default()),
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Subscriber {
    /// The same in every process. It does not tell the address, which may be a secret.
    #[must_use]
    pub fn id(&self) -> RecipientId {
        let address = match &self.channel {
            Channel::Mail(address) => address.to_string(),
            Channel::Webhook(url) => url.to_string(),
        };
        let text = format!("{}\n{}\n{address}", self.caller, self.channel.name());
        xxh3_64(text.as_bytes())
    }
}

impl Subscribers {
    /// The subscriptions of the callers, and `operator` for triggers without a known caller.
    #[must_use]
    pub fn new(callers: Callers, operator: Vec<Address>) -> Self {
        Self { callers, operator }
    }

    /// The subscribers to triggers whose record names `caller`.
    #[must_use]
    pub fn subscribers_of(&self, caller: Option<&str>) -> Vec<Subscriber> {
        let caller = self.callers.for_record(caller);
        let channels = self.channels(&caller).into_iter();
        channels.map(|channel| Subscriber { caller: caller.id.clone(), channel }).collect()
    }

    /// All that are subscribed now.
    #[must_use]
    pub fn ids(&self) -> BTreeSet<RecipientId> {
        let callers = self.callers.current();
        let of_caller = |caller: &Arc<Caller>| self.subscribers_of(Some(&caller.id));
        callers.all().flat_map(of_caller).map(|subscriber| subscriber.id()).collect()
    }

    /// The caller of a subscriber, if it is still subscribed.
    #[must_use]
    pub fn subscribed_caller(&self, subscriber: &Subscriber) -> Option<Arc<Caller>> {
        let caller = self.callers.for_record(Some(&subscriber.caller));
        let wants =
            caller.id == subscriber.caller && self.channels(&caller).contains(&subscriber.channel);
        wants.then_some(caller)
    }

    fn channels(&self, caller: &Caller) -> Vec<Channel> {
        let mail = caller.notify.email.iter().cloned().map(Channel::Mail);
        let mut channels: Vec<_> =
            mail.chain(caller.notify.webhook.clone().map(Channel::Webhook)).collect();
        if channels.is_empty() && caller.id == ANONYMOUS {
            channels.extend(self.operator.iter().cloned().map(Channel::Mail));
        }
        channels
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callers::CallerTable;
    use crate::config::{Layers, Settings};

    fn subscribers(text: &str) -> Subscribers {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("callers.toml");
        std::fs::write(&file, text).unwrap();
        let overrides = vec![format!("callers.file={}", file.display())];
        let settings = Settings::load(&Layers { overrides, ..Layers::default() }).unwrap();
        let callers = Callers::fixed(CallerTable::read(&settings).unwrap());
        Subscribers::new(callers, vec!["op@example.com".parse().unwrap()])
    }

    fn subscriber_names(audience: &Subscribers, caller: Option<&str>) -> Vec<String> {
        let subscribers = audience.subscribers_of(caller).into_iter();
        subscribers
            .map(|subscriber| format!("{}: {}", subscriber.caller, subscriber.channel))
            .collect()
    }

    #[test]
    fn a_caller_has_its_own_channels_and_the_operator_those_of_anonymous_triggers() {
        let file = "[callers.billing.notify]\nemail = [\"a@example.com\", \"b@example.com\"]\n\
                    webhook = \"https://chat.example.com/T0/s3cret\"\n[callers.shop]\n";
        let audience = subscribers(file);
        let billing = [
            "billing: a@example.com",
            "billing: b@example.com",
            "billing: webhook at chat.example.com",
        ];
        assert_eq!(subscriber_names(&audience, Some("billing")), billing);
        assert_eq!(subscriber_names(&audience, Some("shop")), [""; 0], "it has no subscription");
        for unknown in [None, Some("unknown")] {
            assert_eq!(subscriber_names(&audience, unknown), ["anonymous: op@example.com"]);
        }
        assert!(!format!("{:?}", audience.subscribers_of(Some("billing"))).contains("s3cret"));
    }

    #[test]
    fn everyone_who_is_subscribed_is_known() {
        let audience = subscribers(
            "[callers.billing.notify]\nemail = [\"a@example.com\"]\n[callers.shop.notify]\n\
             webhook = \"https://chat.example.com/T0\"\n[callers.quiet]\n",
        );
        let callers = [Some("billing"), Some("shop"), Some("quiet"), None];
        let all = callers.into_iter().flat_map(|caller| audience.subscribers_of(caller));
        let all: BTreeSet<_> = all.map(|subscriber| subscriber.id()).collect();
        assert_eq!(all.len(), 3);
        assert_eq!(audience.ids(), all);
    }

    #[test]
    fn an_id_is_of_a_caller_and_an_address() {
        let mail = Channel::Mail("a@example.com".parse().unwrap());
        let webhook = Channel::Webhook("https://chat.example.com/T0".parse().unwrap());
        let id = |caller: &str, channel: &Channel| {
            Subscriber { caller: caller.to_owned(), channel: channel.clone() }.id()
        };
        assert_eq!(id("billing", &mail), id("billing", &mail));
        let different = [id("billing", &mail), id("shop", &mail), id("billing", &webhook)];
        assert!(different[0] != different[1] && different[0] != different[2], "{different:?}");
    }

    #[test]
    fn anonymous_may_have_channels_of_its_own() {
        let audience = subscribers("callers.anonymous.notify.email = [\"a@example.com\"]");
        assert_eq!(subscriber_names(&audience, None), ["anonymous: a@example.com"]);
        let operator = Channel::Mail("op@example.com".parse().unwrap());
        let removed = Subscriber { caller: ANONYMOUS.to_owned(), channel: operator };
        assert!(audience.subscribed_caller(&removed).is_none());
        assert!(
            audience
                .subscribers_of(None)
                .iter()
                .all(|subscriber| audience.subscribed_caller(subscriber).is_some())
        );
    }
}
