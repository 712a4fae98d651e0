//! The settings: read once, in layers, before anything starts.
//!
//! Invariant: a default is written in `orloj.default.toml` and nowhere else, and a mistake is
//! reported with its setting, its value, where it was written and how to correct it.
//!
//! ```text
//!  orloj.default.toml ◄── --config FILE ◄── ORLOJ_SECTION__KEY ◄── --set section.key=value
//! ```

mod address_policy;
mod layers;
pub(crate) mod mail;
mod print;
mod reserved_settings;
mod rules;
mod settings;
mod timeouts;
pub(crate) mod units;

use std::path::PathBuf;

use figment::Figment;
use figment::error::Kind;
use figment::value::Value;
use thiserror::Error;

pub use address_policy::{AllowAddresses, PortRange};
use layers::Layer;
pub use layers::Layers;
pub use mail::Password;
pub use settings::{
    Assignor, CallerSettings, GatewaySettings, KafkaSettings, LogFormat, LogSettings,
    NotifierSettings, SchedulerSettings, Settings, StandbySettings, StoreSettings, TargetSettings,
    TopicSettings, TraceSettings, TriggerSettings, WheelSettings, WorkerSettings,
};
pub use timeouts::TimeoutSettings;
pub use units::ByteSize;

/// The embedded default file: every key, its meaning and its default.
pub const DEFAULTS: &str = include_str!("../../orloj.default.toml");

/// Why the settings could not be loaded. Every variant is for the person who wrote them: print it
/// and end.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Name a file that exists and may be read.
    #[error("cannot read the configuration file {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Correct the syntax.
    #[error("{origin}: {reason}")]
    Malformed {
        /// Which layer.
        origin: String,
        /// What is wrong and, if known, how to correct it.
        reason: String,
    },
    /// Correct or remove the key.
    #[error("{origin}: there is no setting `{key}`{}", did_you_mean(nearest.as_deref()))]
    Unknown {
        /// The full key.
        key: String,
        /// Which layer.
        origin: String,
        /// The most similar known key, if there is one.
        nearest: Option<String>,
    },
    /// Remove the key, or use the setting named in the reason.
    #[error("{origin}: `kafka.{name}` cannot be set: {reason}")]
    Reserved {
        /// librdkafka's name.
        name: String,
        /// Which layer.
        origin: String,
        /// Why Orloj sets it, or which setting to use instead.
        reason: &'static str,
    },
    /// Write another value.
    #[error("{origin}: `{key} = {value}` cannot be: {reason}")]
    Invalid {
        /// The full key.
        key: String,
        /// What was written.
        value: String,
        /// Which layer.
        origin: String,
        /// What is expected.
        reason: String,
    },
    /// The default file lacks a key: a bug.
    #[error("the setting `{key}` has no value in the default file; please report this")]
    Missing {
        /// The full key.
        key: String,
    },
}

impl Settings {
    /// Reads all layers; the later ones win.
    pub fn load(layers: &Layers) -> Result<Self, ConfigError> {
        Self::load_over(DEFAULTS, layers)
    }

    fn load_over(defaults: &str, layers: &Layers) -> Result<Self, ConfigError> {
        let figment = merge(defaults, layers)?;
        let kafka = figment.find_value("kafka").ok();
        for (name, value) in kafka.as_ref().and_then(Value::as_dict).into_iter().flatten() {
            if let Some(reason) = reserved_settings::reason(name) {
                let origin = origin(&figment, value);
                return Err(ConfigError::Reserved { name: name.clone(), origin, reason });
            }
        }
        let settings = figment.extract().map_err(|error| explain(&figment, &error))?;
        rules::check(&settings).map_err(|(key, reason)| invalid(&figment, key, reason))?;
        Ok(settings)
    }
}

impl Layers {
    /// Whether one of them has this setting, `section.key`.
    pub fn contain(&self, key: &str) -> Result<bool, ConfigError> {
        Ok(merge("", self)?.contains(key))
    }
}

fn merge(defaults: &str, layers: &Layers) -> Result<Figment, ConfigError> {
    let defaults = Figment::from(Layer::of_toml("orloj.default.toml", defaults)?);
    let mut figment = defaults.clone();
    if let Some(path) = &layers.file {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.clone(), source })?;
        figment = figment.merge(Layer::of_toml(&path.display().to_string(), &text)?);
    }
    for (name, value) in &layers.environment {
        if let Some(layer) = Layer::of_variable(name, value, &defaults)? {
            figment = figment.merge(layer);
        }
    }
    for assignment in &layers.overrides {
        figment = figment.merge(Layer::of_override(assignment, &defaults)?);
    }
    Ok(figment)
}

fn explain(figment: &Figment, error: &figment::Error) -> ConfigError {
    match &error.kind {
        Kind::MissingField(name) => {
            ConfigError::Missing { key: [&error.path[..], &[name.to_string()]].concat().join(".") }
        }
        Kind::UnknownField(name, known) => {
            let key = error.path.join(".");
            let origin = figment
                .find_value(&key)
                .map_or_else(|_| "configuration".to_owned(), |value| origin(figment, &value));
            let nearest = nearest(name, known).map(|right| sibling_key(&key, right));
            ConfigError::Unknown { key, origin, nearest }
        }
        kind => invalid(figment, &error.path.join("."), &kind.to_string()),
    }
}

fn invalid(figment: &Figment, key: &str, reason: &str) -> ConfigError {
    let value = figment.find_value(key).ok();
    ConfigError::Invalid {
        key: key.to_owned(),
        value: value.as_ref().map_or_else(|| "?".to_owned(), |value| print::masked(key, value)),
        origin: value.map_or_else(|| "configuration".to_owned(), |value| origin(figment, &value)),
        reason: reason.to_owned(),
    }
}

/// The layer in which a value was written.
fn origin(figment: &Figment, value: &Value) -> String {
    // A section is a merge of layers: its first key says which layer it is from.
    let tag = value.as_dict().and_then(|keys| keys.values().next()).unwrap_or(value).tag();
    figment
        .get_metadata(tag)
        .map_or_else(|| "configuration".to_owned(), |from| from.name.to_string())
}

/// The known name that is most similar, if one is similar.
pub(crate) fn nearest(name: &str, known: &[&'static str]) -> Option<&'static str> {
    known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
        .filter(|(similarity, _)| *similarity > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// The key named `name` in the section of `key`.
pub(crate) fn sibling_key(key: &str, name: &str) -> String {
    key.rsplit_once('.').map_or_else(|| name.to_owned(), |(section, _)| format!("{section}.{name}"))
}

fn did_you_mean(nearest: Option<&str>) -> String {
    match nearest {
        Some(key) => format!("; did you mean `{key}`?"),
        None => "; orloj.default.toml lists them all".to_owned(),
    }
}

#[cfg(test)]
mod tests;
