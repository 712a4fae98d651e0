//! What a receiver can do to us, and what must come of it.

use super::certificates::TestCertificate::{Expired, Good, GoodForHttp2, OtherHost, SelfSigned};
use super::receiver::ConnectionMode::{self, Full, Http, NoTls, Tls};
use super::receiver::ScriptStep::{self, Drip, Flood, Hang, Repeat, Reset, Say, Take, TakeHead};

/// One behaviour.
#[derive(Debug)]
pub(crate) struct HostileCase {
    pub(crate) name: &'static str,
    pub(crate) connection: ConnectionMode,
    pub(crate) script: &'static [ScriptStep],
    pub(crate) end: ExpectedEnd,
    /// Whether the callback carries as much as a trigger may.
    pub(crate) is_huge: bool,
}

/// How an attempt ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpectedEnd {
    /// With this status, at once.
    Answered(u16),
    /// With this status, when the attempt's time is up.
    AnsweredLate(u16),
    /// Without an answer, at once; the reason has these words.
    Silent(&'static str),
    /// Without an answer, when the attempt's time is up.
    TimedOut,
    /// With a 200 or without an answer, at once: who is first?
    Race,
}
use ExpectedEnd::{Answered, AnsweredLate, Race, Silent, TimedOut};

impl HostileCase {
    /// Whether it shows a certificate of the tests' root.
    pub(crate) fn needs_root(&self) -> bool {
        matches!(self.connection, Tls(Good | GoodForHttp2 | Expired | OtherHost))
    }

    const fn huge(self) -> Self {
        Self { is_huge: true, ..self }
    }
}

const fn case(
    name: &'static str,
    door: ConnectionMode,
    script: &'static [ScriptStep],
    end: ExpectedEnd,
) -> HostileCase {
    HostileCase { name, connection: door, script, end, is_huge: false }
}

const fn http(name: &'static str, script: &'static [ScriptStep], end: ExpectedEnd) -> HostileCase {
    case(name, Http, script, end)
}

/// Answers with these bytes, and hangs up.
macro_rules! says {
    ($name:literal, $words:expr, $end:expr) => {
        http($name, &[Take, Say($words)], $end)
    };
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
const OPEN: &[u8] = b"HTTP/1.1 200 OK\r\n";
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// What is said of one that would go on for ever before its answer.
const ENDLESS: &str = "head of the response was not complete";
const LONG: &[u8] = b"HTTP/1.1 503 No\r\ncontent-length: 10000000000\r\n\r\n";
const CHUNKED: &[u8] = b"HTTP/1.1 503 No\r\ntransfer-encoding: chunked\r\n\r\n";
const GZIP: &[u8] = b"HTTP/1.1 503 No\r\ncontent-encoding: gzip\r\nconnection: close\r\n\r\n";
const DEFLATE: &[u8] = b"HTTP/1.1 503 No\r\ncontent-encoding: deflate\r\nconnection: close\r\n\r\n";
const BROTLI: &[u8] = b"HTTP/1.1 503 No\r\ncontent-encoding: br\r\nconnection: close\r\n\r\n";
const ZSTD: &[u8] = b"HTTP/1.1 503 No\r\ncontent-encoding: zstd\r\nconnection: close\r\n\r\n";
/// 64 KiB of nothing, as gzip: a stream may have as many of them as it likes.
const GZIP_MEMBER: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\x02\x03\xed\xc1\x01\x01\0\0\0\x80\x90\xfe\xaf\
    \xee\x08\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x6a\xeb\x8e\x97\xd7\0\0\x01\0";
/// 64 KiB of nothing, as deflate.
const DEFLATED: &[u8] = b"\x78\xda\xed\xc1\x01\x01\0\0\0\x80\x90\xfe\xaf\xee\x08\x0a\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
    \0\0\0\0\0\0\0\0\0\x6a\0\x0f\0\x01";
/// 16 MiB of nothing, as brotli.
const BROTLIED: &[u8] = b"\xcb\xff\xff\x3f\xf8\x27\0\xe2\xb1\x40\x20\xf7\xfe\x2f\xff\xff\xff\xf0\
    \x4f\0\xc4\x61\x11\x80\xee\xfd\x1f";
/// A frame of zstd without a size, and a block that stands for 128 KiB of nothing.
const ZSTD_FRAME: &[u8] = b"\x28\xb5\x2f\xfd\0\x88";
const ZSTD_BLOCK: &[u8] = b"\x02\0\x10\0";

/// Everything that is tried.
pub(crate) const CASES: &[HostileCase] = &[
    // It hangs.
    case("never accepts", Full, &[], TimedOut),
    http("accepts and hangs", &[Hang], TimedOut),
    http("hangs before its answer", &[Take, Hang], TimedOut),
    http("hangs in the status", &[Take, Say(b"HTTP/1.1 20"), Hang], TimedOut),
    http("hangs in the headers", &[Take, Say(OPEN), Say(b"x-a: b\r\nx-"), Hang], TimedOut),
    http("hangs after the headers", &[Take, Say(LONG), Hang], AnsweredLate(503)),
    http("hangs in the body", &[Take, Say(LONG), Say(b"We are"), Hang], AnsweredLate(503)),
    http("hangs in a chunk", &[Take, Say(CHUNKED), Say(b"9\r\nWe"), Hang], AnsweredLate(503)),
    http("drips its status", &[Take, Drip(b"HTTP/1.1 200 ")], TimedOut),
    http("drips headers", &[Take, Say(OPEN), Drip(b"x-a: b\r\n")], TimedOut),
    http("drips a body", &[Take, Say(LONG), Drip(b"x")], AnsweredLate(503)),
    http("drips chunks", &[Take, Say(CHUNKED), Drip(b"1\r\nx\r\n")], AnsweredLate(503)),
    http("takes nothing in", &[Hang], TimedOut).huge(),
    // It does not stop.
    http("has a body of 10 GB", &[Take, Say(LONG), Flood(b"nonsense ")], Answered(503)),
    http(
        "has a body without end",
        &[Take, Say(b"HTTP/1.1 503 No\r\n\r\n"), Flood(b"nonsense ")],
        Answered(503),
    ),
    http("sends chunks without end", &[Take, Say(CHUNKED), Flood(b"1\r\nx\r\n")], Answered(503)),
    http("extends a chunk", &[Take, Say(CHUNKED), Say(b"1;"), Flood(b"a=b;")], Answered(503)),
    http("has trailers", &[Take, Say(CHUNKED), Say(b"0\r\n"), Flood(b"x-a: b\r\n")], Answered(503)),
    http(
        "has 100,000 headers",
        &[Take, Say(OPEN), Repeat(100_000, b"x-a: b\r\n"), Say(b"\r\n"), Hang],
        Silent("too large"),
    ),
    http(
        "has 101 headers",
        &[Take, Say(OPEN), Repeat(101, b"x-a: b\r\n"), Say(b"\r\n"), Hang],
        Silent("too large"),
    ),
    http(
        "has a header of 100 MB",
        &[Take, Say(OPEN), Say(b"x: "), Flood(b"a")],
        Silent("too large"),
    ),
    http("gives a long reason", &[Take, Say(b"HTTP/1.1 200 "), Flood(b"a")], Silent("too large")),
    http("continues", &[Take, Flood(CONTINUE)], Silent(ENDLESS)),
    case("continues over TLS", Tls(Good), &[Take, Flood(CONTINUE)], Silent(ENDLESS)),
    http(
        "gives early hints",
        &[Take, Flood(b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n")],
        Silent(ENDLESS),
    ),
    http("is processing", &[Take, Flood(b"HTTP/1.1 102\r\n\r\n")], Silent(ENDLESS)),
    http("answers, then continues", &[Take, Say(OK), Take, Flood(CONTINUE)], Race),
    http("bombs with gzip", &[Take, Say(GZIP), Repeat(4_000, GZIP_MEMBER)], Answered(503)),
    http("bombs with deflate", &[Take, Say(DEFLATE), Say(DEFLATED)], Answered(503)),
    http("bombs with brotli", &[Take, Say(BROTLI), Say(BROTLIED)], Answered(503)),
    http(
        "bombs with zstd",
        &[Take, Say(ZSTD), Say(ZSTD_FRAME), Repeat(10_000, ZSTD_BLOCK)],
        Answered(503),
    ),
    // It breaks off.
    http("resets at once", &[Reset], Silent("no answer")),
    http("resets before its answer", &[Take, Reset], Silent("no answer")),
    http("resets in the status", &[Take, Say(b"HTTP/1.1 20"), Reset], Silent("no answer")),
    http("resets in the headers", &[Take, Say(OPEN), Reset], Silent("no answer")),
    http("hangs up at once", &[], Silent("no answer")),
    http("hangs up before its answer", &[Take], Silent("no answer")),
    says!("hangs up in the headers", OPEN, Silent("no answer")),
    says!("hangs up after the headers", LONG, Answered(503)),
    says!(
        "has less than it says",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok",
        Answered(200)
    ),
    says!(
        "ends in a chunk",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\n",
        Answered(200)
    ),
    // It is not HTTP.
    says!("speaks HTTP/0.9", b"<html>Hello</html>", Silent("no answer")),
    says!("speaks HTTP/3.7", b"HTTP/3.7 200 OK\r\n\r\n", Silent("no answer")),
    says!("speaks HTTP/2", b"\0\0\x06\x04\0\0\0\0\0\0\x03\0\0\0\x64", Silent("no answer")),
    says!("speaks SMTP", b"220 mail.example.com ESMTP\r\n", Silent("no answer")),
    says!("speaks SSH", b"SSH-2.0-OpenSSH_9.2\r\n", Silent("no answer")),
    says!("speaks in zeros", &[0; 64], Silent("no answer")),
    says!("has no status", b"HTTP/1.1 OK\r\n\r\n", Silent("no answer")),
    says!("has a status of 99", b"HTTP/1.1 99 Low\r\n\r\n", Silent("no answer")),
    says!("has a status of 1000", b"HTTP/1.1 1000 High\r\n\r\n", Silent("no answer")),
    says!("has a status of 999", b"HTTP/1.1 999 Odd\r\n\r\n", Answered(999)),
    says!("names a header badly", b"HTTP/1.1 200 OK\r\nx y: z\r\n\r\n", Silent("no answer")),
    says!("is HTTP/1.0", b"HTTP/1.0 200 OK\r\n\r\nok", Answered(200)),
    says!(
        "has two lengths",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nok!",
        Silent("no answer")
    ),
    says!(
        "has a negative length",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nok",
        Silent("no answer")
    ),
    says!(
        "has an enormous length",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999999\r\n\r\nok",
        Silent("no answer")
    ),
    says!(
        "has a chunk of a negative size",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\nok",
        Answered(200)
    ),
    // It wants us elsewhere.
    says!(
        "redirects to itself",
        b"HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n",
        Answered(302)
    ),
    says!(
        "redirects inside",
        b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://169.254.169.254/\r\n\
          content-length: 0\r\n\r\n",
        Answered(307)
    ),
    says!("changes protocols", b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\nx", Answered(101)),
    says!(
        "continues once",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        Answered(200)
    ),
    // It plays with the connection.
    http("answers, and goes on", &[Take, Say(OK), Say(b"nonsense"), Hang], Answered(200)),
    http(
        "answers twice",
        &[
            Take,
            Say(OK),
            Say(b"HTTP/1.1 418 Tea\r\ncontent-length: 0\r\n\r\n"),
            Take,
            Say(OK),
            Hang,
        ],
        Race,
    ),
    http("answers unasked", &[Say(OK), Take], Race),
    http("answers, and hangs up", &[Take, Say(OK)], Race),
    http("answers every other time", &[Take, Say(OK), Take], Race),
    http("answers every other time, and resets", &[Take, Say(OK), Take, Reset], Race),
    http(
        "answers a head",
        &[
            TakeHead,
            Say(b"HTTP/1.1 413 No\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
            Hang,
        ],
        Answered(413),
    )
    .huge(),
    // Its TLS is bad.
    case("has no TLS", NoTls, &[Say(b"HTTP/1.1 400 Bad Request\r\n\r\n")], Silent("no answer")),
    case("hangs in the handshake", NoTls, &[Hang], TimedOut),
    case("drips a handshake", NoTls, &[Drip(b"\x16\x03\x03\x3f\xff\x02\0\x3f\xfb")], TimedOut),
    case(
        "floods the handshake",
        NoTls,
        &[Flood(b"\x16\x03\x03\0\x04\0\0\0\0")],
        Silent("no answer"),
    ),
    case("resets the handshake", NoTls, &[Reset], Silent("no answer")),
    case("has a good certificate", Tls(Good), &[Take, Say(OK)], Answered(200)),
    case("signed itself", Tls(SelfSigned), &[Take, Say(OK)], Silent("certificate")),
    case("has expired", Tls(Expired), &[Take, Say(OK)], Silent("expired")),
    case("is another", Tls(OtherHost), &[Take, Say(OK)], Silent("not valid for name")),
    case("insists on HTTP/2", Tls(GoodForHttp2), &[Take, Say(OK)], Silent("no answer")),
];
