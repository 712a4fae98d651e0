//! A mail server as small as one can be: it wants a name and a password, takes mail, refuses
//! addresses that begin with `unknown`, and defers those that begin with `later`.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use orloj::clock;

/// The name that the server wants.
pub(crate) const NAME: &str = "orloj@example.com";
/// The password that goes with it.
pub(crate) const PASSWORD: &str = "s3cret %41 \"é\"";

/// A mail that was taken.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedMail {
    pub(crate) to: String,
    /// All of it, its lines put together again as they were written.
    pub(crate) text: String,
    pub(crate) at: Instant,
}

/// A server at a port of its own, until the test process ends.
pub(crate) struct MailServer {
    port: u16,
    state: Arc<MailServerState>,
}

#[derive(Default)]
struct MailServerState {
    mails: Mutex<Vec<ReceivedMail>>,
    is_available: AtomicBool,
}

impl MailServer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(MailServerState::default());
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || state.serve(&connection));
            }
        });
        Self { port, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("smtp://127.0.0.1:{}", self.port)
    }

    /// From now on it has time for everyone.
    pub(crate) fn recover(&self) {
        self.state.is_available.store(true, SeqCst);
    }

    /// All mail to an address, in order of arrival.
    pub(crate) fn received_by(&self, address: &str) -> Vec<ReceivedMail> {
        let mails = self.state.mails.lock().unwrap();
        mails.iter().filter(|mail| mail.to == address).cloned().collect()
    }
}

impl MailServerState {
    fn serve(&self, connection: &TcpStream) -> io::Result<()> {
        let mut input = BufReader::new(connection);
        let say = |line: &str| write!(&mut &*connection, "{line}\r\n");
        let expected = STANDARD.encode(format!("\0{NAME}\0{PASSWORD}"));
        let (mut known, mut to) = (false, String::new());
        say("220 mail.example.com")?;
        loop {
            let mut line = String::new();
            if input.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let line = line.trim_end();
            let recipient = line.strip_prefix("RCPT TO:<").and_then(|rest| rest.split('>').next());
            match (line.split(' ').next().unwrap_or_default(), recipient) {
                ("EHLO", _) => say("250-mail.example.com\r\n250 AUTH PLAIN")?,
                ("AUTH", _) => {
                    known = line.strip_prefix("AUTH PLAIN ") == Some(&expected);
                    say(if known { "235 welcome" } else { "535 who is that?" })?;
                }
                (_, _) if !known => say("530 who are you?")?,
                (_, Some(user)) if user.starts_with("unknown") => say("550 no such user")?,
                (_, Some(later))
                    if later.starts_with("later") && !self.is_available.load(SeqCst) =>
                {
                    say("451 try again")?;
                }
                (_, Some(address)) => {
                    address.clone_into(&mut to);
                    say("250 ok")?;
                }
                ("MAIL", _) => say("250 ok")?,
                ("DATA", _) => {
                    say("354 go on")?;
                    let text = read_mail(&mut input)?;
                    let mail = ReceivedMail { to: to.clone(), text, at: clock::monotonic() };
                    self.mails.lock().unwrap().push(mail);
                    say("250 taken")?;
                }
                ("QUIT", _) => return say("221 bye"),
                _ => say("502 what?")?,
            }
        }
    }
}

fn read_mail(input: &mut BufReader<&TcpStream>) -> io::Result<String> {
    let mut text = String::new();
    loop {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match line.trim_end_matches(['\r', '\n']) {
            "." => return Ok(text),
            // Quoted-printable, of which our text needs this much.
            broken if broken.ends_with('=') => text += broken.trim_end_matches('='),
            whole => text += &format!("{}\n", whole.strip_prefix("..").unwrap_or(whole)),
        }
    }
}
