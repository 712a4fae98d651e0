//! The first steps of a new user, on the broker of `orloj dev` and on Kafka: a trigger in each
//! form, the list, a cancel, a recurring trigger, a callback, a dead letter.
//!
//! Invariant: the answers are the same on both. What `orloj dev` prints is run as it is printed.

use std::process::Command;
use std::time::Duration;

use apache_avro::Schema;
use apache_avro::rabin::Rabin;
use apache_avro::types::Value as Avro;
use apache_avro::writer::datum::GenericDatumWriter;
use orloj::clock;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::message::{Header, Message as _, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::documented::shell::Shell;
use crate::endpoint::Endpoint;
use crate::kafka_server::{KafkaServer, Options};
use crate::process::{OrlojProcess, ProcessSettings};
use crate::records;
use crate::skip::skip;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::test_producer::TARGET_TOPIC_HEADER;
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
/// No answer takes as long as a call that the broker does not answer.
const QUICK: Duration = Duration::from_secs(3);
/// Longer than whatever makes a client slow that has nothing to do.
const IDLE: Duration = Duration::from_secs(5);

const FOREIGN: std::ops::Range<usize> = 0..8;

/// An installation that was just started.
struct Place {
    dev: OrlojProcess,
    kafka: String,
    topic: String,
    triggers: String,
    shell: Shell,
    endpoint: Endpoint,
    runtime: Runtime,
}

#[test]
fn the_first_steps_work_on_the_broker_of_dev() {
    let dev = OrlojProcess::start_dev("dev", &ProcessSettings::default(), &[]);
    take_the_first_steps(dev, "playground", "orloj.triggers");
}

#[test]
fn the_first_steps_work_on_kafka() {
    let stage = TestCluster::new("first-steps");
    let kafka = stage.kafka().get("bootstrap.servers").unwrap();
    let settings = stage.settings.clone().set("worker.allow_addresses", "any");
    let arguments = ["--join", "--bootstrap-servers", kafka];
    let dev = OrlojProcess::start_dev("dev-on-kafka", &settings, &arguments);
    take_the_first_steps(dev, stage.target().1, &stage.names.triggers());
}

/// On a cluster on which Orloj may be in production.
#[test]
fn dev_on_kafka_has_its_own_names_and_the_guard_of_the_settings_unless_it_joins() {
    let server = KafkaServer::start(&Options::default());
    let settings = ProcessSettings::default();
    let start = |name: &str, arguments: &[&str]| {
        let arguments = [arguments, &["--bootstrap-servers", server.bootstrap()]].concat();
        let mut dev = OrlojProcess::start_dev(name, &settings, &arguments);
        dev.wait_until_ready(READY_DEADLINE);
        dev.wait_for_log("Orloj runs", READY_DEADLINE);
        dev
    };
    let own = start("dev-own", &[]);
    let groups = groups_on(&server);
    assert!(groups.iter().any(|group| group.ends_with(".schedulers")), "{groups:?}");
    assert!(groups.iter().all(|group| group.starts_with("orloj-dev-")), "{groups:?}");
    let said = own.log_text();
    assert!(groups.iter().all(|group| said.contains(group)), "{said}");
    assert!(said.contains("to public addresses"), "{said}");
    own.terminate();
    let joined = start("dev-joined", &["--join"]);
    assert!(groups_on(&server).contains(&"orloj.schedulers".to_owned()));
    assert!(joined.log_text().contains("orloj.schedulers"));
    joined.terminate();
}

fn groups_on(server: &KafkaServer) -> Vec<String> {
    let consumer: BaseConsumer = server.client().create().unwrap();
    let found = consumer.fetch_group_list(None, DEADLINE).unwrap();
    found.groups().iter().map(|group| group.name().to_owned()).collect()
}

fn take_the_first_steps(mut dev: OrlojProcess, topic: &str, triggers: &str) {
    if Command::new("kcat").arg("-V").output().is_err() {
        skip("kcat is not installed; scripts/prerequisites.sh test installs it");
        return;
    }
    dev.wait_until_ready(READY_DEADLINE);
    dev.wait_for_log("  kcat -C -b", READY_DEADLINE);
    let said = dev.log_text();
    let kafka = said.lines().find_map(|line| line.strip_prefix("  Kafka  ")).unwrap().to_owned();
    let place = Place {
        dev,
        kafka,
        topic: topic.to_owned(),
        triggers: triggers.to_owned(),
        shell: Shell::new(),
        endpoint: Endpoint::start(),
        runtime: Runtime::new().unwrap(),
    };
    place.walk(&said);
}

impl Place {
    fn walk(mut self, said: &str) {
        self.every_answer_is_quick();
        self.what_is_printed_works(said);
        self.each_form_fires();
        self.a_cancelled_one_does_not_fire();
        self.a_recurring_one_fires_again_and_again();
        self.a_callback_is_made();
        self.what_fails_is_a_dead_letter();
        self.each_fired_once();
        self.dev.terminate();
    }

    /// The first registration, one after a while without any, and the hundredth; the first to be
    /// due goes to a topic that the scheduler has never seen.
    fn every_answer_is_quick(&mut self) {
        let now = json!({ "topic": self.topic, "delaySeconds": 0, "payload": "first" });
        self.register("first", now);
        let started = clock::monotonic();
        until("nothing to happen for a while", DEADLINE, || {
            (clock::monotonic() - started > IDLE).then_some(())
        });
        for n in 0..100 {
            let body = json!({ "topic": self.topic, "delaySeconds": 3_600 });
            self.register(&format!("quick-{n}"), body);
        }
        self.is("first", "FIRED");
        self.is("quick-0", "PENDING");
    }

    /// The commands are run where a user would run them: in a shell, one after the other.
    fn what_is_printed_works(&mut self, said: &str) {
        let lines: Vec<_> = said.lines().filter_map(|line| line.strip_prefix("  ")).collect();
        let is_command = |line: &&&str| {
            ["echo ", "curl ", "kcat ", "orloj ", "    "]
                .iter()
                .any(|begin| line.starts_with(begin))
        };
        let lines: Vec<_> = lines.iter().filter(is_command).copied().collect();
        let commands = lines.join("\n").replace("YOUR_TOPIC", &self.topic);
        assert!(commands.matches("kcat ").count() >= 2 && commands.contains("curl "), "{said}");
        let outcome = self.shell.run(&commands);
        let is_refused = outcome.statuses.iter().any(|status| *status >= 300);
        assert!(outcome.is_success && !is_refused, "{commands}\n{outcome:?}");
        let last = outcome.printed.lines().last().unwrap_or_default();
        assert!(last.ends_with("\"first\""), "kcat prints what fired: {outcome:?}");
        self.is("tea", "FIRED");
        self.is("egg", "FIRED");
        self.a_foreign_hash_does_no_harm(&commands);
    }

    /// kcat's own hash puts most of these into a wrong partition.
    fn a_foreign_hash_does_no_harm(&mut self, commands: &str) {
        let kcat = commands.split("\ncurl").next().unwrap();
        let foreign = kcat.replace(" -X partitioner=murmur2_random", "");
        assert_ne!(foreign, kcat);
        for n in FOREIGN {
            let outcome = self.shell.run(&foreign.replace("'tea:", &format!("'foreign-{n}:")));
            assert!(outcome.is_success, "{outcome:?}");
        }
        for n in FOREIGN {
            until("all of them to fire", DEADLINE, || {
                (self.fires(&format!("foreign-{n}")) == 1).then_some(())
            });
        }
    }

    fn each_form_fires(&self) {
        self.register("http", json!({ "topic": self.topic, "delaySeconds": 1, "payload": 1 }));
        let in_json = json!({ "topic": self.topic, "delay": "1s", "payload": 2 }).to_string();
        self.write("json", Some(in_json.as_bytes()), &[]);
        self.write("avro", Some(&self.in_avro()), &[]);
        let delay_and_target = [("orloj-delay", "1s"), (TARGET_TOPIC_HEADER, self.topic.as_str())];
        self.write("headers", Some(b"4"), &delay_and_target);
        for id in ["http", "json", "avro", "headers"] {
            self.is(id, "FIRED");
        }
        let pending = self.list("/v1/triggers?status=PENDING&page_size=200");
        assert_eq!(pending.len(), 100, "none of those that fired is pending");
    }

    fn a_cancelled_one_does_not_fire(&self) {
        for id in ["cancelled", "tombstoned"] {
            self.register(id, json!({ "topic": self.topic, "delaySeconds": 3_600 }));
        }
        let (status, answer) = self.ask("DELETE", "/v1/triggers/cancelled", None);
        assert_eq!(status, 200, "{answer:#}");
        self.write("tombstoned", None, &[]);
        for id in ["cancelled", "tombstoned"] {
            self.is(id, "CANCELLED");
        }
    }

    fn a_recurring_one_fires_again_and_again(&self) {
        let schedule = json!({ "every": "1s" });
        self.register("recurring", json!({ "topic": self.topic, "schedule": schedule }));
        until("it to fire twice", DEADLINE, || (self.fires("recurring") >= 2).then_some(()));
        self.is("recurring", "SCHEDULED");
        let (status, answer) = self.ask("POST", "/v1/triggers/recurring:pause", None);
        assert_eq!(status, 200, "{answer:#}");
        self.is("recurring", "PAUSED");
        let (status, answer) = self.ask("DELETE", "/v1/triggers/recurring", None);
        assert_eq!(status, 200, "{answer:#}");
        self.is("recurring", "CANCELLED");
    }

    fn a_callback_is_made(&self) {
        let url = self.endpoint.url("fine");
        self.register("callback", json!({ "callbackUrl": url, "delaySeconds": 0 }));
        self.is("callback", "COMPLETED");
        assert_eq!(self.endpoint.requests_for("callback").len(), 1);
    }

    fn what_fails_is_a_dead_letter(&self) {
        let (url, retry) = (self.endpoint.url("broken"), json!({ "attempts": 1 }));
        self.register("failing", json!({ "callbackUrl": url, "delaySeconds": 1, "retry": retry }));
        self.is("failing", "FAILED");
        let letters = until("the dead letter", DEADLINE, || {
            let letters = self.list("/v1/dead-letters?trigger=failing");
            (!letters.is_empty()).then_some(letters)
        });
        assert_eq!(letters.len(), 1, "{letters:#?}");
    }

    fn each_fired_once(&self) {
        for id in ["first", "tea", "egg", "http", "json", "avro", "headers"] {
            assert_eq!(self.fires(id), 1, "{id}");
        }
        for id in ["quick-0", "quick-99", "cancelled", "tombstoned"] {
            assert_eq!(self.fires(id), 0, "{id}");
        }
    }

    /// Registers over HTTP; the owner must have answered.
    fn register(&self, id: &str, mut body: Value) {
        crate::endpoint::merge(&mut body, json!({ "triggerId": id }));
        let started = clock::monotonic();
        let (status, answer) = self.ask("POST", "/v1/triggers", Some(&body));
        let took = clock::monotonic() - started;
        assert!(status == 201 && took < QUICK, "{id} after {took:?}: {status} {answer:#}");
    }

    /// Waits until a trigger has this status, in the list too.
    fn is(&self, id: &str, status: &str) {
        until(&format!("{id} to be {status}"), DEADLINE, || {
            let trigger = self.get(&format!("/v1/triggers/{id}"));
            (trigger["status"] == status).then_some(())
        });
        let listed = self.list(&format!("/v1/triggers?status={status}&page_size=200"));
        assert!(listed.iter().any(|trigger| trigger["triggerId"] == id), "{id} is not listed");
    }

    fn get(&self, path: &str) -> Value {
        self.ask("GET", path, None).1
    }

    /// What is listed.
    fn list(&self, path: &str) -> Vec<Value> {
        self.get(path)["items"].as_array().cloned().unwrap_or_default()
    }

    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let url = format!("http://{}{path}", self.dev.address());
        let request = reqwest::Client::new().request(method.parse().unwrap(), url);
        let request = body.iter().fold(request, |request, body| request.json(body));
        self.runtime.block_on(async {
            let response = request.send().await.unwrap();
            let status = response.status().as_u16();
            let body = response.bytes().await.unwrap();
            (status, serde_json::from_slice(&body).unwrap_or_default())
        })
    }

    /// How often it has fired into the topic.
    fn fires(&self, id: &str) -> usize {
        let records = records::read_all(&self.client(), &self.topic);
        records.iter().filter(|record| record.key() == Some(id.as_bytes())).count()
    }

    /// Writes a record of `triggers`; a tombstone without a value.
    fn write(&self, id: &str, value: Option<&[u8]>, headers: &[(&str, &str)]) {
        let header = |all: OwnedHeaders, (key, value): &(&str, &str)| {
            all.insert(Header { key, value: Some(*value) })
        };
        let headers = headers.iter().fold(OwnedHeaders::new(), header);
        let mut config = self.client();
        config.set("partitioner", "murmur2_random");
        let producer: BaseProducer = config.create().unwrap();
        let mut record = BaseRecord::to(&self.triggers).key(id).headers(headers);
        record.payload = value;
        producer.send(record).map_err(|(error, _)| error).unwrap();
        producer.flush(DEADLINE).unwrap();
    }

    fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.kafka);
        config
    }

    /// A registration in Avro: a single object, by the schema that we ship.
    fn in_avro(&self) -> Vec<u8> {
        let schema = Schema::parse_str(include_str!("../../schemas/trigger.avsc")).unwrap();
        let fields = [
            ("delayMs", Avro::Long(1_000)),
            ("topic", Avro::String(self.topic.clone())),
            ("payload", Avro::Bytes(b"3".to_vec())),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value)).into();
        let value = Avro::Record(fields).resolve(&schema).unwrap();
        let writer = GenericDatumWriter::builder(&schema).build().unwrap();
        let datum = writer.write_value_to_vec(value).unwrap();
        let fingerprint = schema.fingerprint::<Rabin>();
        [&[0xC3, 0x01], fingerprint.bytes.as_slice(), &datum].concat()
    }
}
