//! Search: the words and labels of a trigger, and the tokens that stand for them.
//!
//! Invariant: a token is a hash of what it stands for *and* of who may find it by it. So a caller's
//! search reads only its own triggers, however common its words are with others. What is found is
//! compared with the words themselves, so a collision finds nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::model::callback_url::{self, Host};
use crate::model::definition::{Definition, Target};

/// Words of a trigger that are indexed; more of them are no name but a text.
const WORDS_MAX: usize = 48;
/// Characters of a word that count.
const WORD_CHARS_MAX: usize = 64;
/// Labels of a trigger that are indexed.
const LABELS_MAX: usize = 32;
/// The carried header that names a trigger.
pub const NAME_HEADER: &str = "orloj-name";
/// What the carried header of a label begins with.
pub const LABEL_HEADER_PREFIX: &str = "orloj-label-";
/// The carried header with the hash of the request that registered a trigger.
pub const FINGERPRINT_HEADER: &str = "orloj-fingerprint";

/// What a token makes findable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchTerm<'a> {
    Text(&'a str),
    Label(&'a str, &'a str),
}

impl SearchTerm<'_> {
    /// The token of this word for everyone (`None`) or for one caller by its number.
    pub(super) fn token(self, caller: Option<i64>) -> String {
        let seed = caller.map_or(u64::MAX, i64::unsigned_abs);
        let hash = match self {
            SearchTerm::Text(word) => xxh3_64_with_seed(format!("w{word}").as_bytes(), seed),
            SearchTerm::Label(key, value) => {
                xxh3_64_with_seed(format!("l{}:{key}{value}", key.len()).as_bytes(), seed)
            }
        };
        format!("{hash:016x}")
    }
}

/// The name and the labels of a trigger, from its carried headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SearchAttributes {
    pub(super) name: Option<String>,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) fingerprint: Option<String>,
}

impl SearchAttributes {
    pub(super) fn of(definition: &Definition) -> Self {
        let mut attributes = Self::default();
        for header in &definition.headers {
            let value = header.value.as_deref().unwrap_or_default();
            let Ok(value) = std::str::from_utf8(value) else { continue };
            match header.name.as_str() {
                NAME_HEADER => attributes.name = Some(value.to_owned()),
                FINGERPRINT_HEADER => attributes.fingerprint = Some(value.to_owned()),
                name => {
                    if let Some(key) = name.strip_prefix(LABEL_HEADER_PREFIX) {
                        let _older = attributes.labels.insert(key.to_owned(), value.to_owned());
                    }
                }
            }
        }
        attributes
    }
}

/// The host or topic that a trigger fires to, as filters name it.
pub(super) fn target_of(definition: &Definition) -> String {
    match &definition.target {
        Target::Topic(target) => target.topic.to_string(),
        Target::Http(target) => callback_url::parse(target.url.as_str()).map_or_else(
            |_| String::new(),
            |place| match place.host {
                Host::Name(name) => name.to_ascii_lowercase(),
                Host::Address(address) if address.is_ipv6() => format!("[{address}]"),
                Host::Address(address) => address.to_string(),
            },
        ),
    }
}

/// The words of a text: letters and digits, in lower case.
pub(super) fn split_words(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.map(|word| word.chars().flat_map(char::to_lowercase).take(WORD_CHARS_MAX).collect())
}

/// Every word by which a trigger is found.
pub(super) fn all_words(
    id: &str,
    attributes: &SearchAttributes,
    definition: &Definition,
) -> BTreeSet<String> {
    let mut words: BTreeSet<String> = split_words(id).collect();
    let labels = attributes.labels.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]);
    let target = match &definition.target {
        Target::Topic(target) => target.topic.as_str(),
        Target::Http(target) => target.url.as_str(),
    };
    for text in attributes.name.as_deref().into_iter().chain(labels).chain([target]) {
        for word in split_words(text) {
            if words.len() >= WORDS_MAX {
                return words;
            }
            let _new = words.insert(word);
        }
    }
    words
}

/// The tokens of a trigger, for everyone and for its caller.
pub(super) fn search_tokens(
    id: &str,
    caller: i64,
    attributes: &SearchAttributes,
    definition: &Definition,
) -> String {
    let mut tokens = String::new();
    let words = all_words(id, attributes, definition);
    let labels = attributes.labels.iter().take(LABELS_MAX);
    let all = words.iter().map(|word| SearchTerm::Text(word));
    let all = all.chain(labels.map(|(key, value)| SearchTerm::Label(key, value)));
    for word in all {
        let _infallible = write!(tokens, "{} ", word.token(None));
        if caller != 0 {
            let _infallible = write!(tokens, "{} ", word.token(Some(caller)));
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::definition::{Header, HttpTarget};

    fn definition(url: &str, headers: &[(&str, &str)]) -> Definition {
        let header = |(name, value): &(&str, &str)| Header {
            name: (*name).into(),
            value: Some(bytes::Bytes::copy_from_slice(value.as_bytes())),
        };
        Definition {
            target: HttpTarget::post(url).into(),
            payload: None,
            headers: headers.iter().map(header).collect(),
            retry: None,
            caller: None,
        }
    }

    #[test]
    fn a_trigger_is_found_by_its_id_name_labels_and_target() {
        let headers = [
            ("orloj-name", "Úhrada č. 7"),
            ("orloj-label-team", "Billing-EU"),
            ("orloj-fingerprint", "ff"),
        ];
        let definition = definition("https://API.example.com:8443/v1", &headers);
        let attributes = SearchAttributes::of(&definition);
        let words = all_words("order-42", &attributes, &definition);
        for word in ["order", "42", "úhrada", "č", "7", "team", "billing", "eu", "api", "v1"] {
            assert!(words.contains(word), "{word}: {words:?}");
        }
        assert_eq!(target_of(&definition), "api.example.com");
        assert_eq!(attributes.labels["team"], "Billing-EU");
        assert_eq!(attributes.fingerprint.as_deref(), Some("ff"));
    }

    #[test]
    fn a_target_is_a_host_without_its_port_or_a_topic() {
        for (url, target) in [
            ("http://h:81/x", "h"),
            ("http://10.0.0.7:81/x", "10.0.0.7"),
            ("http://[::1]:81/x", "[::1]"),
            ("nonsense", ""),
        ] {
            assert_eq!(target_of(&definition(url, &[])), target, "{url}");
        }
    }

    #[test]
    fn the_number_of_indexed_words_and_labels_is_limited() {
        let name: String = (0..200).map(|n| format!("w{n} ")).collect();
        let attributes = SearchAttributes { name: Some(name), ..SearchAttributes::default() };
        let definition = definition("http://h/", &[]);
        assert_eq!(all_words("tea", &attributes, &definition).len(), WORDS_MAX);
        let labels = BTreeMap::from([("team".to_owned(), "eu".to_owned())]);
        let attributes = SearchAttributes { labels, ..SearchAttributes::default() };
        let tokens = search_tokens("tea", 0, &attributes, &definition);
        assert!(tokens.contains(&SearchTerm::Label("team", "eu").token(None)));
        assert_ne!(SearchTerm::Label("team", "eu").token(None), SearchTerm::Text("eu").token(None));
    }

    #[test]
    fn tokens_differ_by_caller_and_labels_are_not_words() {
        let word = SearchTerm::Text("order");
        assert_ne!(word.token(Some(1)), word.token(Some(2)));
        assert_ne!(word.token(Some(1)), word.token(None));
        assert_ne!(
            SearchTerm::Label("a", "bc").token(None),
            SearchTerm::Label("ab", "c").token(None)
        );
        let without_caller = definition("http://h/", &[]);
        let of =
            |caller| search_tokens("order", caller, &SearchAttributes::default(), &without_caller);
        assert!(of(0).contains(&word.token(None)) && !of(0).contains(&word.token(Some(0))));
        assert!(of(1).contains(&word.token(Some(1))));
    }
}
