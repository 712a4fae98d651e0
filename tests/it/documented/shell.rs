//! A shell that runs commands as they are printed.
//!
//! Invariant: the text of a command is not changed, only what its words lead to: `orloj` is the one
//! that is tested, a role becomes a process that the test watches, what prints for ever ends with
//! its first line, and Kafka's tools are the classes of the jars.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::kafka_server::{free_ports, libraries};
use crate::process::OrlojProcess;

const READY_DEADLINE: Duration = Duration::from_secs(60);
/// How long a block may take, in seconds, as `timeout` takes it.
const DEADLINE: &str = "120";

/// $1 is the role or another command of `orloj`.
const ORLOJ: &str = r#"#!/bin/sh
case $1 in
scheduler | worker | gateway | notifier | dev)
    role=$ROLES/$(ls "$ROLES" | wc -l)
    mkdir "$role"
    printf '%s\0' "$@" >"$role/arguments"
    env -0 >"$role/environment"
    ;;
tail) exec first-line "$ORLOJ" "$@" ;;
*) exec "$ORLOJ" "$@" ;;
esac
"#;

/// A consumer without an end prints a line, and ends. `-u`: that line at once.
const KCAT: &str = r#"#!/bin/sh
ends=yes
for word; do
    case $word in
    -C) ends=no ;;
    -e | -c*) ends=yes && break ;;
    esac
done
[ $ends = no ] || exec "$KCAT" "$@"
exec first-line "$KCAT" -u "$@"
"#;

const FIRST_LINE: &str = r#"#!/bin/sh
lines=$(mktemp -u)
mkfifo "$lines"
"$@" >"$lines" &
head -n 1 <"$lines"
kill $!
rm "$lines"
"#;

/// Says on standard error what status each answer had.
const CURL: &str = r#"#!/bin/sh
exec "$CURL" --silent --show-error --write-out '%{stderr}HTTP %{http_code}\n' "$@"
"#;

/// Targets must exist; what they do is not done: one of them runs this very test.
const MAKE: &str = r#"#!/bin/sh
exec "$MAKE" --dry-run --directory "$REPOSITORY" "$@" >/dev/null
"#;

const KAFKA_TOOLS: [(&str, &str); 5] = [
    ("kafka-topics.sh", "org.apache.kafka.tools.TopicCommand"),
    ("kafka-configs.sh", "kafka.admin.ConfigCommand"),
    ("kafka-consumer-groups.sh", "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"),
    ("kafka-console-consumer.sh", "org.apache.kafka.tools.consumer.ConsoleConsumer"),
    ("kafka-console-producer.sh", "org.apache.kafka.tools.ConsoleProducer"),
];

/// What commands share: a folder, what they export, the roles that they started.
pub(crate) struct Shell {
    folder: TempDir,
    environment: Vec<(String, OsString)>,
    roles: Vec<(RoleStart, OrlojProcess)>,
    ports: [u16; 4],
}

/// How a role was started.
pub(crate) struct RoleStart {
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
}

/// The result of a block.
#[derive(Debug)]
pub(crate) struct ShellResult {
    /// Whether each of its commands succeeded.
    pub(crate) is_success: bool,
    pub(crate) printed: String,
    pub(crate) complaint: String,
    /// Of what it asked over HTTP.
    pub(crate) statuses: Vec<u16>,
}

impl Shell {
    /// A shell in an empty folder.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["bin", "roles", "work"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let programs =
            [("orloj", ORLOJ), ("kcat", KCAT), ("first-line", FIRST_LINE), ("curl", CURL)];
        for (name, text) in programs.into_iter().chain([("make", MAKE)]) {
            write_program(folder.path(), name, text);
        }
        for (name, class) in KAFKA_TOOLS {
            let text = format!(
                "#!/bin/sh\nexec java -Xmx256m -Dorg.apache.logging.log4j.level=WARN \
                 -cp \"$KAFKA_LIBRARIES/*\" {class} \"$@\"\n"
            );
            write_program(folder.path(), name, &text);
        }
        let mut shell =
            Self { folder, environment: Vec::new(), roles: Vec::new(), ports: free_ports() };
        shell.prepare_environment();
        shell
    }

    fn prepare_environment(&mut self) {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut all = self.folder.path().join("bin").into_os_string();
        all.push(":");
        all.push(&path);
        self.set("PATH", all);
        self.set("ROLES", self.folder.path().join("roles"));
        self.set("ORLOJ", env!("CARGO_BIN_EXE_orloj"));
        self.set("REPOSITORY", env!("CARGO_MANIFEST_DIR"));
        for (variable, program) in [("KCAT", "kcat"), ("CURL", "curl"), ("MAKE", "make")] {
            // The command that needs an absent one reports it.
            let found = find(program, &path).unwrap_or_else(|| PathBuf::from(program));
            self.set(variable, found);
        }
        self.set("KAFKA_LIBRARIES", libraries());
        for (at, role) in ["GATEWAY", "SCHEDULER", "WORKER", "NOTIFIER"].into_iter().enumerate() {
            self.set(&format!("ORLOJ_{role}__LISTEN"), self.address(at));
        }
    }

    /// A variable of the environment of all commands.
    pub(crate) fn set(&mut self, name: &str, value: impl Into<OsString>) {
        self.environment.push((name.to_owned(), value.into()));
    }

    /// Where the roles listen, by the port that a page has for them.
    pub(crate) fn addresses(&self) -> [(&'static str, String); 4] {
        let printed = ["localhost:8470", "localhost:8471", "localhost:8472", "localhost:8473"];
        std::array::from_fn(|at| (printed[at], self.address(at)))
    }

    fn address(&self, at: usize) -> String {
        format!("127.0.0.1:{}", self.ports[at])
    }

    /// Puts a file where the commands look for it.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join("work").join(name), text).unwrap();
    }

    /// Runs a block of commands after what the blocks before have exported, and waits until the
    /// roles that it started are ready.
    pub(crate) fn run(&mut self, block: &str) -> ShellResult {
        let at = |name: &str| self.folder.path().join(name);
        let exported = at("exported");
        let script =
            format!("[ ! -e '{0}' ] || . '{0}'\n{block}\nexport -p >'{0}'\n", exported.display());
        fs::write(at("script"), script).unwrap();
        let status = Command::new("timeout")
            .args(["--kill-after=5", DEADLINE, "sh", "-e"])
            .arg(at("script"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(at("work"))
            .stdin(Stdio::null())
            .stdout(File::create(at("printed")).unwrap())
            .stderr(File::create(at("complaint")).unwrap())
            .status()
            .unwrap();
        let read = |name| String::from_utf8_lossy(&fs::read(at(name)).unwrap()).into_owned();
        let (printed, complaint) = (read("printed"), read("complaint"));
        let statuses =
            complaint.lines().filter_map(|line| line.strip_prefix("HTTP ")?.parse().ok());
        let statuses = statuses.collect();
        let is_success = status.success();
        self.start_roles();
        ShellResult { is_success, printed, complaint, statuses }
    }

    /// Ends all roles, as an operator would; how they were started.
    pub(crate) fn stop_roles(&mut self) -> Vec<RoleStart> {
        let roles = std::mem::take(&mut self.roles);
        let end = |(start, role): (RoleStart, OrlojProcess)| {
            role.terminate();
            start
        };
        roles.into_iter().map(end).collect()
    }

    fn start_roles(&mut self) {
        let requested = self.folder.path().join("roles");
        for at in self.roles.len().. {
            let role = requested.join(at.to_string());
            if !role.exists() {
                return;
            }
            let words = |name| split(&fs::read(role.join(name)).unwrap());
            let environment = words("environment").into_iter().filter_map(|pair| {
                let pair = pair.into_vec();
                let middle = pair.iter().position(|byte| *byte == b'=')?;
                let (name, value) = (pair[..middle].to_vec(), pair[middle + 1..].to_vec());
                Some((OsString::from_vec(name), OsString::from_vec(value)))
            });
            let environment = environment.collect();
            self.start_role(RoleStart { arguments: words("arguments"), environment });
        }
    }

    /// Starts a role and waits until it is ready.
    pub(crate) fn start_role(&mut self, start: RoleStart) {
        let name = start.arguments[0].to_str().unwrap().to_owned();
        let role = ["gateway", "scheduler", "worker", "notifier"].iter().position(|r| *r == name);
        let port = self.ports[role.unwrap_or(0)];
        let mut program = Command::new(env!("CARGO_BIN_EXE_orloj"));
        program.args(&start.arguments).env_clear();
        program.envs(start.environment.iter().map(|(name, value)| (name, value)));
        program.current_dir(self.folder.path().join("work"));
        let log = self.folder.path().join(format!("{name}-{}.log", self.roles.len()));
        let mut process = OrlojProcess::watched(&name, program, port, log);
        process.wait_until_ready(READY_DEADLINE);
        self.roles.push((start, process));
    }
}

fn write_program(folder: &Path, name: &str, text: &str) {
    let path = folder.join("bin").join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn find(program: &str, path: &OsString) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// What is separated by zero bytes.
fn split(bytes: &[u8]) -> Vec<OsString> {
    let words = bytes.split(|byte| *byte == 0);
    let words = words.map(|word| OsString::from_vec(word.to_vec()));
    words.filter(|word| !word.is_empty()).collect()
}
