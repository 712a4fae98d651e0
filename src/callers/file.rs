//! `callers.toml`: read and checked, with the secrets that it refers to.
//!
//! Invariant: strict. An unknown key is an error that names the nearest known one, and no error
//! repeats a value, because any value may be a secret in the wrong place.

use std::collections::{BTreeMap, HashMap};
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use figment::error::Kind;
use figment::value::{Dict, Value};
use reqwest::Url;
use serde::Deserialize;

use super::caller::{ANONYMOUS, Caller, CallerLimits, CallerRole, NotifyPolicy};
use super::issuer::{Issuer, IssuerEntry};
use super::key::KeyHash;
use super::secret::{SigningKey, SigningSecret};
use super::table::CallerTable;
use crate::config::{ByteSize, ConfigError, Settings, mail, nearest, sibling_key, units};
use crate::model::Timestamp;
use crate::model::limits::CALLER_BYTES_MAX;

/// How an environment variable is looked up.
type EnvironmentLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallersFile {
    #[serde(default)]
    callers: BTreeMap<String, CallerEntry>,
    /// One issuer, or a table of several.
    jwt: Option<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallerEntry {
    #[serde(default)]
    keys: Vec<KeyHash>,
    role: Option<CallerRole>,
    urls: Option<Vec<String>>,
    topics: Option<Vec<String>>,
    #[serde(default)]
    secrets: Vec<SecretEntry>,
    #[serde(default)]
    limits: LimitsEntry,
    #[serde(default)]
    notify: NotifyEntry,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SecretEntry {
    secret: String,
    not_before: Option<String>,
    not_after: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsEntry {
    concurrent: Option<NonZeroUsize>,
    waiting: Option<NonZeroUsize>,
    dispatch_rate_max: Option<u32>,
    pending: Option<NonZeroU64>,
    requests_per_second: Option<NonZeroU32>,
    payload: Option<ByteSize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotifyEntry {
    #[serde(default)]
    email: Vec<String>,
    webhook: Option<String>,
    #[serde(default, deserialize_with = "units::maybe_duration")]
    interval: Option<Duration>,
}

impl CallerTable {
    /// Reads the file that the settings name, and the secrets that it refers to.
    pub fn read(settings: &Settings) -> Result<Self, ConfigError> {
        if settings.callers.file.as_os_str().is_empty() {
            return Ok(open_table(settings));
        }
        let variable = |name: &str| std::env::var(name).ok();
        read(settings, &variable)
    }
}

/// The table without a file: only the anonymous caller, which may do everything, with the limits
/// of the settings.
fn open_table(settings: &Settings) -> CallerTable {
    CallerTable {
        by_id: HashMap::new(),
        by_key: Vec::new(),
        issuers: Vec::new(),
        anonymous: Arc::new(Caller { role: Some(CallerRole::Operator), ..anonymous(settings) }),
        is_open: true,
        version: Context::new(&SHA256).finish(),
    }
}

/// Reads the file that the settings name.
pub(super) fn read(
    settings: &Settings,
    variable: EnvironmentLookup<'_>,
) -> Result<CallerTable, ConfigError> {
    let path = &settings.callers.file;
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Unreadable { path: path.clone(), source })?;
    let mut loader = CallersLoader { settings, variable, version: Context::new(&SHA256) };
    loader.version.update(text.as_bytes());
    let callers = parse(&text).and_then(|file| loader.callers(file));
    callers.map_err(|reason| ConfigError::Malformed { origin: path.display().to_string(), reason })
}

fn parse(text: &str) -> Result<CallersFile, String> {
    // The library's own message quotes the line, which may hold a secret.
    let table: Dict = toml::from_str(text).map_err(|error: toml::de::Error| {
        let before = error.span().map_or("", |span| &text[..span.start]);
        format!("line {}: {}", before.matches('\n').count() + 1, error.message())
    })?;
    CallersFile::deserialize(&Value::from(table)).map_err(|error| explain(&error))
}

/// What is wrong, and where, without the value that was written there.
fn explain(error: &figment::Error) -> String {
    let key = error.path.join(".");
    match &error.kind {
        Kind::UnknownField(name, known) => {
            let hint = nearest(name, known).map_or_else(
                || format!("there are {}", known.join(", ")),
                |right| format!("did you mean `{}`?", sibling_key(&key, right)),
            );
            format!("there is no setting `{key}`; {hint}")
        }
        Kind::MissingField(name) => format!("`{key}` lacks `{name}`"),
        Kind::InvalidType(_, expected) | Kind::InvalidValue(_, expected) => {
            format!("`{key}` cannot be: write {expected}")
        }
        Kind::UnknownVariant(_, known) => {
            format!("`{key}` cannot be: write one of {}", known.join(", "))
        }
        Kind::Message(reason) => format!("`{key}` cannot be: {reason}"),
        _ => format!("`{key}` cannot be read"),
    }
}

/// Reads the file and what it refers to.
struct CallersLoader<'a> {
    settings: &'a Settings,
    variable: EnvironmentLookup<'a>,
    version: Context,
}

impl CallersLoader<'_> {
    fn callers(mut self, file: CallersFile) -> Result<CallerTable, String> {
        let issuers = file.jwt.map(|jwt| issuers(jwt, self.settings)).transpose()?;
        let mut by_id = HashMap::new();
        let mut by_key: Vec<(KeyHash, Arc<Caller>)> = Vec::new();
        for (id, mut entry) in file.callers {
            let keys = std::mem::take(&mut entry.keys);
            let caller = self.caller(&id, entry, &keys);
            let caller = Arc::new(caller.map_err(|reason| format!("`callers.{id}{reason}"))?);
            for key in keys {
                if let Some((_, other)) = by_key.iter().find(|(known, _)| *known == key) {
                    let other = &other.id;
                    return Err(format!("`callers.{id}.keys` has a key of `callers.{other}`"));
                }
                by_key.push((key, Arc::clone(&caller)));
            }
            by_id.insert(id, caller);
        }
        let default_anonymous = || Arc::new(anonymous(self.settings));
        let anonymous = by_id.get(ANONYMOUS).map_or_else(default_anonymous, Arc::clone);
        let (issuers, version) = (issuers.unwrap_or_default(), self.version.finish());
        Ok(CallerTable { by_id, by_key, issuers, anonymous, is_open: false, version })
    }

    /// One caller; the error text continues after the caller's id.
    fn caller(&mut self, id: &str, entry: CallerEntry, keys: &[KeyHash]) -> Result<Caller, String> {
        if id.is_empty() || id.len() > CALLER_BYTES_MAX || id.chars().any(char::is_control) {
            return Err(format!("` is no id: write 1 to {CALLER_BYTES_MAX} bytes of plain text"));
        }
        if id == ANONYMOUS && !keys.is_empty() {
            return Err(".keys` cannot be: it is the caller of records that name none".to_owned());
        }
        if entry.role.is_none() && !keys.is_empty() {
            return Err("` lacks `role`: read-only, caller or operator".to_owned());
        }
        let urls = read_all(entry.urls, |url| base_url(&url))
            .map_err(|reason| format!(".urls` cannot be: {reason}"))?;
        let topics = read_all(entry.topics, pattern)
            .map_err(|reason| format!(".topics` cannot be: {reason}"))?;
        let mut secrets = Vec::with_capacity(entry.secrets.len());
        for (at, secret) in entry.secrets.into_iter().enumerate() {
            let secret = self.secret(secret);
            secrets.push(secret.map_err(|reason| format!(".secrets.{at}` cannot be: {reason}"))?);
        }
        Ok(Caller {
            id: id.to_owned(),
            role: entry.role,
            urls,
            topics,
            secrets: secrets.into(),
            limits: limits(self.settings, &entry.limits),
            notify: notify(self.settings, entry.notify)
                .map_err(|reason| format!(".notify` cannot be: {reason}"))?,
        })
    }

    fn secret(&mut self, entry: SecretEntry) -> Result<SigningSecret, String> {
        let text = self.resolve(entry.secret)?;
        self.version.update(text.as_bytes());
        let not_before = entry.not_before.as_deref().map(time).transpose()?;
        let not_after = entry.not_after.as_deref().map(time).transpose()?;
        if not_before.zip(not_after).is_some_and(|(from, until)| from >= until) {
            return Err("not_after must be later than not_before".to_owned());
        }
        Ok(SigningSecret { key: SigningKey::read(text.trim())?, not_before, not_after })
    }

    /// The secret itself, from the file or variable that has it. A relative path starts at the
    /// folder of the callers' file.
    fn resolve(&self, text: String) -> Result<String, String> {
        if let Some(path) = text.strip_prefix("file:") {
            let folder = self.settings.callers.file.parent().unwrap_or_else(|| Path::new(""));
            let path = folder.join(path);
            return std::fs::read_to_string(&path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()));
        }
        match text.strip_prefix("env:") {
            Some(name) => (self.variable)(name)
                .ok_or_else(|| format!("the environment variable {name} is not set, or no text")),
            None => Ok(text),
        }
    }
}

/// `[jwt]` is one issuer, and has values; several are `[jwt.<name>]`.
fn issuers(jwt: Value, settings: &Settings) -> Result<Vec<Arc<Issuer>>, String> {
    let table = jwt.into_dict().ok_or("`jwt` cannot be: write a table")?;
    let are_several = !table.is_empty() && table.values().all(|value| value.as_dict().is_some());
    let entries: Vec<(String, Value)> = if are_several {
        table.into_iter().map(|(name, entry)| (format!("jwt.{name}"), entry)).collect()
    } else {
        vec![("jwt".to_owned(), Value::from(table))]
    };
    let mut issuers: Vec<Arc<Issuer>> = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let entry = IssuerEntry::deserialize(&entry).map_err(|mut error| {
            error.path.insert(0, name.clone());
            explain(&error)
        })?;
        let issuer = entry.check(&name, &settings.callers);
        let issuer = issuer.map_err(|reason| format!("`{name}{reason}"))?;
        // A token names only its issuer, so that must be one entry.
        if let Some(other) = issuers.iter().find(|other| other.issuer == issuer.issuer) {
            return Err(format!("`{name}.issuer` is that of `{}`", other.name));
        }
        issuers.push(Arc::new(issuer));
    }
    Ok(issuers)
}

/// Every item of a list, parsed; `None` if there is no list.
fn read_all<T>(
    texts: Option<Vec<String>>,
    read: impl Fn(String) -> Result<T, &'static str>,
) -> Result<Option<Vec<T>>, &'static str> {
    texts.map(|texts| texts.into_iter().map(read).collect()).transpose()
}

fn anonymous(settings: &Settings) -> Caller {
    Caller {
        id: ANONYMOUS.to_owned(),
        role: None,
        urls: None,
        topics: None,
        secrets: Arc::default(),
        limits: limits(settings, &LimitsEntry::default()),
        notify: NotifyPolicy {
            email: Vec::new(),
            webhook: None,
            interval: settings.callers.notify_interval,
        },
    }
}

fn limits(settings: &Settings, entry: &LimitsEntry) -> CallerLimits {
    let defaults = &settings.callers;
    CallerLimits {
        concurrent: entry.concurrent,
        waiting: entry.waiting,
        dispatch_rate_max: entry.dispatch_rate_max,
        pending: entry.pending.unwrap_or(defaults.pending_max),
        requests_per_second: entry.requests_per_second.unwrap_or(defaults.requests_per_second_max),
        payload: entry.payload.unwrap_or(settings.gateway.payload_max),
    }
}

fn notify(settings: &Settings, entry: NotifyEntry) -> Result<NotifyPolicy, &'static str> {
    let email = entry.email.iter().map(|text| mail::address(text)).collect::<Option<_>>();
    Ok(NotifyPolicy {
        email: email.ok_or("an address in email is not of the form name@host")?,
        webhook: entry.webhook.as_deref().map(http_url).transpose()?,
        interval: entry.interval.unwrap_or(settings.callers.notify_interval),
    })
}

/// An absolute http or https URL without a password.
fn http_url(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).map_err(|_| "a URL begins with http:// or https:// and a host")?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("a URL begins with http:// or https:// and a host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("a URL has no user and no password");
    }
    Ok(url)
}

/// A URL that is a prefix of others: it ends with its path.
fn base_url(text: &str) -> Result<Url, &'static str> {
    let url = http_url(text)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err("a base URL ends with its path, without ? and #");
    }
    Ok(url)
}

fn pattern(text: String) -> Result<String, &'static str> {
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "*.-_".contains(c);
    if text.is_empty() || !text.chars().all(is_legal) {
        return Err("a pattern has letters, digits, '.', '_', '-', and '*' for any run of them");
    }
    Ok(text)
}

/// RFC 3339, in ms since the epoch.
fn time(text: &str) -> Result<Timestamp, &'static str> {
    let time: Option<jiff::Timestamp> = text.parse().ok();
    time.and_then(|time| Timestamp::try_from(time.as_millisecond()).ok())
        .ok_or("write a time as RFC 3339, such as \"2030-01-31T08:00:00Z\"")
}
