//! A process that is measured: the scheduler, or this program in another part.
//!
//! Law: it ends with its value, even if the measuring process is killed: a small shell kills it
//! when its standard input closes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::wait::until;

/// Joining the group and taking over takes about a second; a loaded machine much longer.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// Arguments: the command. Its standard output stays open only as long as it runs.
const WATCHDOG: &str = r#"
trap '' INT TERM HUP
"$@" </dev/null &
exec >/dev/null
read -r _
kill -9 $! 2>/dev/null
wait
"#;

/// A running process.
pub(crate) struct Contender {
    watchdog: Child,
    says: BufReader<ChildStdout>,
}

impl Contender {
    /// This program as `part`, which handles `count` records.
    pub(crate) fn of_this_program(part: &str, config: &Path, count: u32) -> Self {
        let program = std::env::current_exe().unwrap();
        Self::start(Command::new(program).arg(part).arg(config).arg(count.to_string()))
    }

    /// The scheduler as users run it.
    pub(crate) fn scheduler(config: &Path) -> Self {
        let program = env!("CARGO_BIN_EXE_orloj");
        Self::start(Command::new(program).args(["scheduler", "--config"]).arg(config))
    }

    fn start(command: &Command) -> Self {
        let mut watchdog = Command::new("sh")
            .args(["-c", WATCHDOG, "watchdog"])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(watchdog.stdout.take().unwrap());
        Self { watchdog, says }
    }

    /// Waits for the line by which a part of this program says that it has its partitions.
    pub(crate) fn announce_ready(&mut self) {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the process ended before it was ready");
    }

    /// Waits until the scheduler says over HTTP that it has its partitions.
    pub(crate) fn answer_ready(&self, listen: SocketAddr) {
        until("the scheduler to be ready", READY_DEADLINE, || is_ready(listen).then_some(()));
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        drop(self.watchdog.stdin.take());
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
