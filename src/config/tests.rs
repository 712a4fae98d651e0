//! What loading promises: complete defaults, layers in order, mistakes that name the way out.

use std::time::Duration;

use super::*;

fn load(environment: &[(&str, &str)], overrides: &[&str]) -> Result<Settings, ConfigError> {
    Settings::load(&Layers {
        file: None,
        environment: environment.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        overrides: overrides.iter().map(|&text| text.to_owned()).collect(),
    })
}

fn refusal(environment: &[(&str, &str)], overrides: &[&str]) -> String {
    load(environment, overrides).unwrap_err().to_string()
}

/// Line numbers of the keys of the default file.
fn key_lines() -> Vec<usize> {
    let is_key = |line: &str| line.contains('=') && !line.starts_with('#');
    (0..).zip(DEFAULTS.lines()).filter(|(_, line)| is_key(line)).map(|(at, _)| at).collect()
}

#[test]
fn every_default_has_a_comment_above_it() {
    let lines: Vec<_> = DEFAULTS.lines().collect();
    for at in key_lines() {
        assert!(lines[at - 1].starts_with("# "), "no comment above `{}`", lines[at]);
    }
}

#[test]
fn no_default_is_written_elsewhere() {
    let lines: Vec<_> = DEFAULTS.lines().collect();
    for at in key_lines().into_iter().filter(|&at| !lines[at].starts_with('"')) {
        let mut without = lines.clone();
        let key = without.remove(at);
        let loaded = Settings::load_over(&without.join("\n"), &Layers::default());
        assert!(matches!(loaded, Err(ConfigError::Missing { .. })), "`{key}` is not missed");
    }
}

#[test]
fn a_setting_is_in_the_layers_if_one_of_them_has_it() {
    let contain = |environment: &[(&str, &str)], overrides: &[&str]| {
        let layers = Layers {
            file: None,
            environment: environment.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            overrides: overrides.iter().map(|&text| text.to_owned()).collect(),
        };
        layers.contain("topics.prefix").unwrap()
    };
    assert!(!contain(&[], &["topics.partitions=4"]));
    assert!(contain(&[], &["topics.prefix=orloj"]), "also if it is as by default");
    assert!(contain(&[("ORLOJ_TOPICS__PREFIX", "o")], &[]));
}

#[test]
fn later_layers_win() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("site.toml");
    let text = "[wheel]\ntick = \"1ms\"\n[kafka]\nsasl.mechanism = \"PLAIN\"\nlinger.ms = 5";
    std::fs::write(&file, text).unwrap();
    let mut layers = Layers { file: Some(file), ..Layers::default() };

    let settings = Settings::load(&layers).unwrap();
    assert_eq!(settings.wheel.tick, Duration::from_millis(1));
    assert_eq!(settings.kafka.get("sasl.mechanism"), Some("PLAIN"));
    assert_eq!(settings.kafka.get("linger.ms"), Some("5"));
    assert_eq!(settings.kafka.get("bootstrap.servers"), Some("localhost:9092"));

    layers.environment = vec![
        ("ORLOJ_WHEEL__TICK".to_owned(), "2ms".to_owned()),
        ("ORLOJ_KAFKA__SASL_MECHANISM".to_owned(), "SCRAM-SHA-512".to_owned()),
        ("ORLOJ_TEST_KAFKA".to_owned(), "not a setting".to_owned()),
    ];
    let settings = Settings::load(&layers).unwrap();
    assert_eq!(settings.wheel.tick, Duration::from_millis(2));
    assert_eq!(settings.kafka.get("sasl.mechanism"), Some("SCRAM-SHA-512"));

    layers.overrides =
        vec!["wheel.tick=3ms".to_owned(), "kafka.sasl.mechanism=OAUTHBEARER".to_owned()];
    let settings = Settings::load(&layers).unwrap();
    assert_eq!(settings.wheel.tick, Duration::from_millis(3));
    assert_eq!(settings.kafka.get("sasl.mechanism"), Some("OAUTHBEARER"));
}

#[test]
fn text_stays_text_and_lists_are_lists() {
    let environment = [
        ("ORLOJ_SCHEDULER__INSTANCE_ID", "007"),
        ("ORLOJ_WORKER__RETRY_DELAYS", r#"["1s", "2s"]"#),
        ("ORLOJ_SCHEDULER__LEAVE_ON_SHUTDOWN", "false"),
        ("ORLOJ_SCHEDULER__FIRES_PER_STEP_MAX", "7"),
    ];
    let settings = load(&environment, &[]).unwrap();
    assert_eq!(settings.scheduler.instance_id, "007");
    assert_eq!(settings.worker.retry_delays.len(), 2);
    assert!(!settings.scheduler.leave_on_shutdown);
    assert_eq!(settings.scheduler.fires_per_step_max.get(), 7);
    let networks = load(&[], &[r#"worker.allow_addresses=["10.1.0.0/16"]"#]).unwrap();
    assert!(
        matches!(networks.worker.allow_addresses, AllowAddresses::Networks(nets) if nets.len() == 1)
    );
    assert!(load(&[], &["worker.retry_delays=[]"]).unwrap().worker.retry_delays.is_empty());
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    let text = refusal(&[], &["scheduler.fires_per_step_maximum=1"]);
    assert!(text.starts_with("--set scheduler.fires_per_step_maximum:"), "{text}");
    assert!(text.ends_with("did you mean `scheduler.fires_per_step_max`?"), "{text}");

    let text = refusal(&[("ORLOJ_SCHEDLER__FIRES_PER_STEP_MAX", "1")], &[]);
    assert!(text.contains("environment variable ORLOJ_SCHEDLER__FIRES_PER_STEP_MAX"), "{text}");
    assert!(text.contains("no setting `schedler`; did you mean `scheduler`?"), "{text}");

    let text = refusal(&[("ORLOJ_SCHEDULER_FIRES_PER_STEP_MAX", "1")], &[]);
    assert!(text.contains("ORLOJ_SCHEDULER__"), "{text}");
    assert!(refusal(&[], &["fires_per_step_max"]).contains("section.key=value"));
}

#[test]
fn a_wrong_value_is_named_with_its_setting_and_the_way_out() {
    for (assignment, expected) in [
        ("wheel.tick=10", "`wheel.tick = \"10\"` cannot be: write a positive whole number and ms"),
        ("wheel.tick=0ms", "`wheel.tick = \"0ms\"` cannot be: write a positive"),
        ("wheel.memory_max=64MB", "`wheel.memory_max = \"64MB\"` cannot be: write a positive"),
        ("scheduler.fires_per_step_max=0", "`scheduler.fires_per_step_max = 0` cannot be"),
        ("topics.partitions=-1", "`topics.partitions = -1` cannot be"),
        ("topics.prefix=a b", "`topics.prefix = \"a b\"` cannot be: a topic name has"),
        ("scheduler.assignor=rnge", "`scheduler.assignor = \"rnge\"` cannot be"),
        ("store.state_age_max=6d", "`store.state_age_max = \"6d\"` cannot be: it may be at most"),
        ("scheduler.instance_id=a/2", "`scheduler.instance_id = \"a/2\"` cannot be"),
        ("scheduler.session_timeout=150ms", "`scheduler.heartbeat_interval = \"100ms\"` cannot be"),
        ("timeouts.delivery=9s", "`timeouts.delivery = \"9s\"` cannot be: a record is sent again"),
        ("timeouts.fetch=1s", "`timeouts.fetch = \"1s\"` cannot be: write 2s to 5min: a broker"),
        (
            "scheduler.transaction_timeout=29s",
            "`scheduler.transaction_timeout = \"29s\"` cannot be: a transaction delivers",
        ),
        ("worker.allow_addresses=local", "cannot be: write \"public\", \"any\", or a list"),
        ("worker.allow_addresses=[\"10.1.2.3/8\"]", "10.1.2.3/8 is an address in 10.0.0.0/8"),
        ("worker.deny_addresses=[\"10.1\"]", "\"10.1\" is no network"),
        ("worker.deny_ports=[\"0-9\"]", "write ports as \"443\" or \"1024-65535\""),
        ("notifier.from=operator", "cannot be: write an address such as"),
        ("notifier.operator_email=[\"ops\"]", "cannot be: write name@host"),
        ("notifier.smtp_url=smtps://me:s3cret@h", "`notifier.smtp_url = \"***\"` cannot be: write"),
        ("trace.endpoint=localhost:4318", "`trace.endpoint = \"localhost:4318\"` cannot be"),
        ("worker.retry_delays=[\"0s\"]", "`worker.retry_delays = [\"0s\"]` cannot be"),
        ("worker.response_head_max=8191B", "`worker.response_head_max = \"8191B\"` cannot be: at"),
        (
            "worker.dns_lookups_max=501",
            "`worker.dns_lookups_max = 501` cannot be: each is a thread",
        ),
        ("worker.retry_jitter=101", "`worker.retry_jitter = 101` cannot be: write percent"),
        ("worker.final_statuses=[200]", "cannot be: write statuses from 300 to 599"),
        ("worker.timeout=31s", "`worker.timeout = \"31s\"` cannot be: what a trigger gets"),
        ("worker.pool=a.b", "`worker.pool = \"a.b\"` cannot be: a pool's name has"),
        ("topics.pools=[\"\"]", "`topics.pools = [\"\"]` cannot be: a pool's name has"),
    ] {
        let text = refusal(&[], &[assignment]);
        assert!(text.contains(expected), "{assignment}: {text}");
    }
}

/// The client refuses them under its own names, and only when it is created.
#[test]
fn a_duration_that_the_client_does_not_take_is_named_with_its_setting_and_the_way_out() {
    for (assignments, expected) in [
        (&["timeouts.connect=999ms"][..], "`timeouts.connect = \"999ms\"` cannot be: write 1s to"),
        (&["timeouts.connect=25d"], "`timeouts.connect = \"25d\"` cannot be: write 1s to 24d"),
        (&["timeouts.request=9ms"], "`timeouts.request = \"9ms\"` cannot be: write 10ms to 5min"),
        (
            &[
                "timeouts.request=6min",
                "timeouts.delivery=6min",
                "scheduler.transaction_timeout=1h",
            ],
            "`timeouts.request = \"6min\"` cannot be: write 10ms to 5min",
        ),
        (&["timeouts.fetch=301s"], "`timeouts.fetch = \"301s\"` cannot be: write 2s to 5min"),
        (
            &["timeouts.delivery=25d", "scheduler.transaction_timeout=26d"],
            "`timeouts.delivery = \"25d\"` cannot be: write at most 24d",
        ),
        (
            &["timeouts.metadata_refresh=3601s"],
            "`timeouts.metadata_refresh = \"3601s\"` cannot be: write at most 1h",
        ),
        (
            &["timeouts.metadata_refresh_producers=61min"],
            "`timeouts.metadata_refresh_producers = \"61min\"` cannot be: write at most 1h",
        ),
        (
            &[
                "timeouts.request=10ms",
                "timeouts.delivery=10ms",
                "scheduler.transaction_timeout=999ms",
            ],
            "`scheduler.transaction_timeout = \"999ms\"` cannot be: write 1s to 24d",
        ),
        (
            &["scheduler.transaction_timeout=25d"],
            "`scheduler.transaction_timeout = \"25d\"` cannot be: write 1s to 24d",
        ),
        (
            &["scheduler.session_timeout=301s"],
            "`scheduler.session_timeout = \"301s\"` cannot be: at most kafka.max.poll.interval.ms",
        ),
        (
            &["scheduler.session_timeout=61min", "kafka.max.poll.interval.ms=86400000"],
            "`scheduler.session_timeout = \"61min\"` cannot be: write at most 1h",
        ),
    ] {
        let text = refusal(&[], assignments);
        assert!(text.contains(expected), "{assignments:?}: {text}");
    }
}

#[test]
fn reserved_settings_cannot_be_set() {
    let text = refusal(&[("ORLOJ_KAFKA__SESSION_TIMEOUT_MS", "1")], &[]);
    assert!(text.contains("ORLOJ_KAFKA__SESSION_TIMEOUT_MS: `kafka.session.timeout.ms`"), "{text}");
    assert!(text.ends_with("use scheduler.session_timeout"), "{text}");
    let text = refusal(&[], &["kafka.socket.timeout.ms=60000"]);
    assert!(text.ends_with("use timeouts.request and timeouts.fetch"), "{text}");
    let text = refusal(&[], &["kafka.group.protocol=consumer"]);
    assert!(text.contains("brokers notice a dead scheduler after 45 s"), "{text}");
    assert!(matches!(load(&[], &["kafka.acks=1"]), Err(ConfigError::Reserved { .. })));
}

#[test]
fn passwords_are_not_printed() {
    let passwords = ["kafka.sasl.password=s3cret", "notifier.smtp_password=s3cret"];
    let settings = load(&[], &passwords).unwrap();
    assert_eq!(settings.kafka.get("sasl.password"), Some("s3cret"));
    assert_eq!(settings.notifier.smtp_password.as_str(), "s3cret");
    assert!(!format!("{settings:?}").contains("s3cret"));
}

#[test]
fn local_state_is_younger_than_the_ledger_tombstones_that_are_kept() {
    let ledger: toml::Table = toml::from_str(include_str!("../../topics/ledger.toml")).unwrap();
    let retention = ledger["at_least"]["delete.retention.ms"].as_integer().unwrap();
    let expected = Duration::from_millis(retention.unsigned_abs());
    assert_eq!(rules::LEDGER_TOMBSTONE_RETENTION, expected);
}
