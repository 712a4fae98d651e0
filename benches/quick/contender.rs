//! A process that is measured: the scheduler, or this program in another part.
//!
//! Law: it ends with its value, even if the measuring process is killed: a small shell kills it
//! when its standard input closes.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::wait::until;

/// Joining the group and taking over takes about a second; a loaded machine much longer.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// $1: the process id. It dies with the measuring process, unless that says that it is gone.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
read -r order
[ "$order" = gone ] || kill -9 "$1"
"#;

/// A running process.
pub(crate) struct Contender {
    process: Child,
    watchdog: Child,
}

impl Contender {
    /// This program as `part`, which handles `count` records.
    pub(crate) fn of_this_program(part: &str, config: &Path, count: u32) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg(part).arg(config).arg(count.to_string());
        Self::start(command.stdout(Stdio::piped()))
    }

    /// The scheduler as users run it.
    pub(crate) fn scheduler(config: &Path) -> Self {
        let program = env!("CARGO_BIN_EXE_orloj");
        Self::start(Command::new(program).args(["scheduler", "--config"]).arg(config))
    }

    fn start(command: &mut Command) -> Self {
        let process = command.stdin(Stdio::null()).spawn().unwrap();
        let watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog", &process.id().to_string()])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        Self { process, watchdog }
    }

    /// Waits for the line by which a part of this program says that it has its partitions.
    pub(crate) fn announce_ready(&mut self) {
        let mut line = String::new();
        let mut says = BufReader::new(self.process.stdout.take().unwrap());
        says.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the process ended before it was ready");
    }

    /// Waits until the scheduler says over HTTP that it has its partitions.
    pub(crate) fn answer_ready(&mut self, listen: SocketAddr) {
        until("the scheduler to be ready", READY_DEADLINE, || {
            let ended = self.process.try_wait().unwrap();
            assert!(ended.is_none(), "the scheduler ended by itself: {}", ended.unwrap());
            is_ready(listen).then_some(())
        });
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let _killed = self.process.kill();
        let _ended = self.process.wait();
        // Only now may its process id become another's.
        if let Some(mut orders) = self.watchdog.stdin.take() {
            let _told = orders.write_all(b"gone\n");
        }
        let _ended = self.watchdog.wait();
    }
}

fn is_ready(listen: SocketAddr) -> bool {
    let ask = || {
        let mut connection = TcpStream::connect(listen)?;
        connection.set_read_timeout(Some(Duration::from_secs(1)))?;
        connection.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).map(|_| answer)
    };
    ask().is_ok_and(|answer: String| answer.split(' ').nth(1) == Some("200"))
}
