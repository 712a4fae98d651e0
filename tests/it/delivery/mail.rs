//! Mail, taken by a real mail server: aiosmtpd, at the version that `tests/mail` pins, without TLS,
//! with STARTTLS, and with TLS from the start.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::command::run_to_end;
use crate::hostile::certificates;
use crate::kafka_server::free_ports;
use crate::notifications::write_letter;
use crate::test_cluster::{READY_DEADLINE, TestCluster};
use crate::wait::until;

const DEADLINE: Duration = Duration::from_secs(60);
/// Runs a program until standard input closes, which is at the latest when the test ends.
const WATCHDOG: &str = r#""$@" </dev/null & read -r order; kill $!"#;

/// It downloads a server: `make test` uses a small one of its own instead.
#[test]
#[ignore = "make test-delivery"]
fn mail_arrives_at_a_real_server() {
    let python = run_to_end(Command::new("scripts/packages.sh").args(["python", "mail"]));
    let folder = tempfile::tempdir().unwrap();
    let callers = folder.path().join("callers.toml");
    fs::write(&callers, "callers.billing.notify.email = [\"billing@example.com\"]").unwrap();
    let mut cluster = TestCluster::new("mail")
        .set("callers.file", callers.to_str().unwrap())
        .set("notifier.from", "Orloj at night <orloj@example.com>")
        .set("notifier.batch_delay", "100ms");
    let root = certificates::root();
    cluster.settings = cluster.settings.environment("SSL_CERT_FILE", root.to_str().unwrap());
    for (url, tls) in [("smtp://", ""), ("smtp://", "tls"), ("smtps://", "smtps")] {
        let server = Server::start(Path::new(python.trim()), tls);
        let query = if tls == "tls" { "?tls=required" } else { "" };
        cluster =
            cluster.set("notifier.smtp_url", format!("{url}127.0.0.1:{}{query}", server.port));
        let mut notifier = cluster.start("notifier", &format!("notifier-{tls}"));
        notifier.wait_until_ready(READY_DEADLINE);
        write_letter(&cluster, "billing");
        let mail = until("the mail", DEADLINE, || server.mails().pop());
        for line in [
            "X-MailFrom: orloj@example.com\n",
            "X-RcptTo: billing@example.com\n",
            "From: \"Orloj at night\" <orloj@example.com>\n",
            "To: billing@example.com\n",
            "Subject: 1 dead letter of billing\n",
            "\n       1  nothing says when\n",
        ] {
            assert!(mail.contains(line), "{line:?} in\n{mail}");
        }
        eprintln!("{}:\n{mail}", if tls.is_empty() { "no TLS" } else { tls });
        notifier.terminate();
        assert_eq!(server.mails().len(), 1);
    }
}

/// A running aiosmtpd, which keeps what it takes in a maildir.
struct Server {
    port: u16,
    kept: TempDir,
    watchdog: Child,
}

impl Server {
    fn start(python: &Path, tls: &str) -> Self {
        let ([port], kept) = (free_ports(), tempfile::tempdir().unwrap());
        let mut command = Command::new("sh");
        command.args(["-c", WATCHDOG, "watchdog"]).arg(python).args(["-m", "aiosmtpd", "-n"]);
        command.args(["-l", &format!("127.0.0.1:{port}")]);
        if !tls.is_empty() {
            let folder = certificates::root().with_file_name("");
            command.arg(format!("--{tls}cert")).arg(folder.join("good.pem"));
            command.arg(format!("--{tls}key")).arg(folder.join("key.pem"));
        }
        command.args(["-c", "aiosmtpd.handlers.Mailbox"]).arg(kept.path().join("mail"));
        let watchdog = command.stdin(Stdio::piped()).spawn().unwrap();
        let server = Self { port, kept, watchdog };
        until("aiosmtpd to listen", DEADLINE, || TcpStream::connect(("127.0.0.1", port)).ok());
        server
    }

    fn mails(&self) -> Vec<String> {
        let Ok(files) = fs::read_dir(self.kept.path().join("mail/new")) else { return Vec::new() };
        files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap()).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
        let _ = self.watchdog.wait();
    }
}
