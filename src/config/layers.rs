//! One layer of the settings: a file, an environment variable or an override, as a nested table.
//!
//! Invariant: librdkafka's names contain dots, so the `[kafka]` table is flat in every layer,
//! however it was written.

use std::fmt;
use std::path::PathBuf;

use figment::value::{Dict, Map, Value};
use figment::{Error, Figment, Metadata, Profile, Provider};

use super::ConfigError;

/// What our environment variables begin with.
const PREFIX: &str = "ORLOJ_";

/// Where settings come from besides the embedded defaults. The default value has no further layer.
#[derive(Clone, Default)]
pub struct Layers {
    /// The file given with `--config`.
    pub file: Option<PathBuf>,
    /// Names and values of environment variables; those not named `ORLOJ_SECTION__KEY` are ignored.
    pub environment: Vec<(String, String)>,
    /// What was given with `--set`, each `section.key=value`.
    pub overrides: Vec<String>,
}

impl Layers {
    /// The command line's two layers with this process's environment between them.
    #[must_use]
    pub fn of_process(file: Option<PathBuf>, overrides: Vec<String>) -> Self {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with(PREFIX))
            .collect();
        Self { file, environment, overrides }
    }
}

impl fmt::Debug for Layers {
    /// Values may be passwords: only where they are written is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layers").field("file", &self.file).finish_non_exhaustive()
    }
}

/// A table of settings and where it was written.
pub(super) struct Layer {
    origin: String,
    table: Dict,
}

impl Layer {
    pub(super) fn of_toml(origin: &str, text: &str) -> Result<Self, ConfigError> {
        let mut table: Dict = toml::from_str(text).map_err(|error| ConfigError::Malformed {
            origin: origin.to_owned(),
            reason: error.to_string(),
        })?;
        if let Some(Value::Dict(_, kafka)) = table.get_mut("kafka") {
            let mut flat = Dict::new();
            flatten("", std::mem::take(kafka), &mut flat);
            *kafka = flat;
        }
        Ok(Self { origin: origin.to_owned(), table })
    }

    /// `None` if the variable is not a setting.
    pub(super) fn of_variable(
        name: &str,
        value: &str,
        defaults: &Figment,
    ) -> Result<Option<Self>, ConfigError> {
        let Some(rest) = name.strip_prefix(PREFIX) else { return Ok(None) };
        let rest = rest.to_ascii_lowercase();
        let origin = format!("environment variable {name}");
        if let Some((section, key)) = rest.split_once("__") {
            let key = if section == "kafka" { key.replace('_', ".") } else { key.to_owned() };
            return Ok(Some(Self::of_one(origin, section, &key, value, defaults)));
        }
        // Another name, such as ORLOJ_TEST_KAFKA, is no setting; one with a section is a mistake.
        let section = rest.split('_').next().unwrap_or_default();
        if !defaults.contains(section) {
            return Ok(None);
        }
        let section = section.to_ascii_uppercase();
        let reason = format!("two underscores follow the section: ORLOJ_{section}__…");
        Err(ConfigError::Malformed { origin, reason })
    }

    pub(super) fn of_override(assignment: &str, defaults: &Figment) -> Result<Self, ConfigError> {
        let origin = format!("--set {assignment}");
        let parts = assignment
            .split_once('=')
            .and_then(|(path, value)| Some((path.trim().split_once('.')?, value.trim())));
        let Some(((section, key), value)) = parts else {
            let reason = "write section.key=value, for example wheel.tick=5ms".to_owned();
            return Err(ConfigError::Malformed { origin, reason });
        };
        // The origin must not repeat a password.
        let origin = format!("--set {section}.{key}");
        Ok(Self::of_one(origin, section, key, value, defaults))
    }

    fn of_one(origin: String, section: &str, key: &str, text: &str, defaults: &Figment) -> Self {
        // What is text by default stays text, even if it looks like a number: an id, a password.
        // No text setting starts like a list.
        let default = defaults.find_value(&format!("{section}.{key}"));
        let is_text = section == "kafka"
            || matches!(default, Ok(Value::String(..))) && !text.starts_with('[');
        let value = if is_text {
            Value::from(text)
        } else {
            text.parse().unwrap_or_else(|never: std::convert::Infallible| match never {})
        };
        let keys = Dict::from([(key.to_owned(), value)]);
        Self { origin, table: Dict::from([(section.to_owned(), Value::from(keys))]) }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.origin.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        Ok(Profile::Default.collect(self.table.clone()))
    }
}

/// A value as it would be written in a file.
pub(super) fn format_value(value: &Value) -> String {
    match value {
        Value::String(_, text) => format!("{text:?}"),
        Value::Bool(_, flag) => flag.to_string(),
        Value::Num(_, number) => match (number.to_i128(), number.to_u128()) {
            (Some(whole), _) => whole.to_string(),
            (None, Some(whole)) => whole.to_string(),
            (None, None) => number.to_f64().unwrap_or(f64::NAN).to_string(),
        },
        Value::Array(_, items) => {
            format!("[{}]", items.iter().map(format_value).collect::<Vec<_>>().join(", "))
        }
        Value::Char(..) | Value::Empty(..) | Value::Dict(..) => "a table".to_owned(),
    }
}

fn flatten(prefix: &str, nested: Dict, flat: &mut Dict) {
    for (key, value) in nested {
        let name = format!("{prefix}{key}");
        match value {
            Value::Dict(_, inner) => flatten(&format!("{name}."), inner, flat),
            // librdkafka takes every value as text; a bare number or flag in a file is meant so.
            Value::Num(..) | Value::Bool(..) => {
                flat.insert(name, Value::from(format_value(&value)));
            }
            other => {
                flat.insert(name, other);
            }
        }
    }
}
