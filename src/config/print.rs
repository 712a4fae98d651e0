//! The current settings, as a file that loads to the same settings, with passwords masked.

use figment::value::{Dict, Value};

use super::layers::format_value;
use super::{ConfigError, DEFAULTS, Layers, Settings, merge};

/// Parts of the names of settings whose values are secrets.
const SECRETS: [&str; 5] = ["password", "secret", "token", "jaas", ".pem"];

impl Settings {
    /// The merged layers as TOML. They are checked first: what is printed can be loaded.
    pub fn print(layers: &Layers) -> Result<String, ConfigError> {
        let _checked = Self::load(layers)?;
        let sections: Dict = merge(DEFAULTS, layers)?.extract().unwrap_or_default();
        let mut text = String::new();
        for (section, keys) in &sections {
            text += &format!("[{section}]\n");
            for (key, value) in keys.as_dict().into_iter().flatten() {
                text += &line(key, value);
            }
            text.push('\n');
        }
        Ok(text)
    }
}

/// A value as it would be written in a file, unless it may be a secret.
pub(super) fn masked(key: &str, value: &Value) -> String {
    let is_secret = SECRETS.iter().any(|part| key.contains(part))
        // A URL may carry a password before its host.
        || value.as_str().is_some_and(|text| text.contains("://") && text.contains('@'));
    let is_set = value.as_str() != Some("");
    if is_secret && is_set { "\"***\"".to_owned() } else { format_value(value) }
}

fn line(key: &str, value: &Value) -> String {
    let value = masked(key, value);
    // librdkafka's names have dots, which TOML would read as tables.
    let key = if key.contains('.') { format!("{key:?}") } else { key.to_owned() };
    format!("{key} = {value}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_loads_to_the_same() {
        let overrides =
            ["wheel.tick=7ms", "kafka.linger.ms=3", "scheduler.leave_on_shutdown=false"];
        let layers =
            Layers { overrides: overrides.map(str::to_owned).to_vec(), ..Layers::default() };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("printed.toml");
        std::fs::write(&file, Settings::print(&layers).unwrap()).unwrap();
        let printed = Layers { file: Some(file), ..Layers::default() };
        assert_eq!(Settings::load(&printed).unwrap(), Settings::load(&layers).unwrap());
    }

    #[test]
    fn secrets_are_masked() {
        let overrides = [
            "kafka.sasl.password=s3cret",
            "kafka.sasl.oauthbearer.client.secret=s3cret",
            "kafka.ssl.key.pem=s3cret",
            "triggers.registry_url=http://me:s3cret@registry",
            "notifier.smtp_password=s3cret",
        ];
        let layers =
            Layers { overrides: overrides.map(str::to_owned).to_vec(), ..Layers::default() };
        let printed = Settings::print(&layers).unwrap();
        assert!(!printed.contains("s3cret"), "{printed}");
        assert!(printed.contains("\"sasl.password\" = \"***\""), "{printed}");
    }
}
