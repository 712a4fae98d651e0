//! Limits by which a record is judged. They are constants, not settings: a replay must judge a
//! record exactly as its first reading did, whichever owner reads it and however it is configured.

use super::Millis;

/// Bytes of a trigger id: long enough for any natural key, short enough to index.
pub const ID_BYTES_MAX: usize = 256;
/// Bytes of a caller's name: as long as an id.
pub const CALLER_BYTES_MAX: usize = 256;
/// Bytes of a payload: Kafka's default `message.max.bytes` (1 MiB) less headroom for our headers.
pub const PAYLOAD_BYTES_MAX: usize = 1_000_000;
/// Bytes of a target topic's name: Kafka's own limit.
pub const TOPIC_BYTES_MAX: usize = 249;
/// Bytes of a callback URL: what servers and proxies commonly accept.
pub const URL_BYTES_MAX: usize = 2_048;
/// Headers a trigger may carry to its target.
pub const HEADERS_MAX: usize = 64;
/// Bytes of all carried headers together, names and values.
pub const HEADER_BYTES_MAX: usize = 16_384;
/// Pauses in a trigger's own retry policy; the last can be repeated.
pub const RETRY_DELAYS_MAX: usize = 32;
/// Attempts a trigger may ask for: more are not a retry but a job of their own.
pub const RETRY_ATTEMPTS_MAX: u32 = 1_000;
/// Statuses that a trigger may call final.
pub const FINAL_STATUSES_MAX: usize = 64;
/// Bytes of a pool's name: it becomes part of a topic's.
pub const POOL_BYTES_MAX: usize = 64;
/// The longest attempt that a trigger may ask for: an hour. The worker's own maximum is lower.
pub const TIMEOUT_MAX_MS: Millis = 3_600_000;
/// The farthest a trigger may lie ahead of its record's broker timestamp: ten years of 366 days.
/// A time beyond it is nearly always seconds or microseconds taken for milliseconds.
pub const FUTURE_MAX_MS: Millis = 10 * 366 * 24 * 3_600_000;
/// The longest single retry delay: 30 days.
pub const RETRY_DELAY_MAX_MS: Millis = 30 * 24 * 3_600_000;
/// Triggers that one can wait for: each is a record to its owner and one back.
pub const AFTER_MAX: usize = 256;
/// Triggers that wait for one: each is written again with each that comes.
pub const WATCHERS_MAX: usize = 1_000;
/// Registrations in one record: all of them go out in the transaction that reads it.
pub const BATCH_MAX: usize = 1_000;
/// The longest that a settled trigger is remembered: a year.
pub const RETAIN_MAX_MS: Millis = 366 * 24 * 3_600_000;
/// Bytes of a schedule as JSON: it travels with each of its occurrences.
pub const SCHEDULE_BYTES_MAX: usize = 4_096;
/// The largest jitter of a schedule: half a day either way spreads over a whole one.
pub const JITTER_MAX_MS: Millis = 12 * 3_600_000;
/// Missed occurrences of a schedule that can be made up for: a day of one a second.
pub const MISFIRES_MAX: u32 = 86_400;
