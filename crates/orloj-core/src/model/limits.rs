//! Limits by which a record is checked. They are constants, not settings: a replay must check a
//! record exactly as its first reading did, whichever owner reads it and however it is configured.

use super::Millis;

/// Bytes of a trigger id: enough for any natural key, and short enough for an index.
pub const ID_BYTES_MAX: usize = 256;
/// Bytes of a caller's name: as long as an id.
pub const CALLER_BYTES_MAX: usize = 256;
/// Bytes of a payload: Kafka's default `message.max.bytes` (1 MiB), less room for our headers.
pub const PAYLOAD_BYTES_MAX: usize = 1_000_000;
/// Bytes of the reason why a record cannot be executed: a reader may repeat all of a record in it,
/// several times as long.
pub const REASON_BYTES_MAX: usize = 2_000;
/// For how long a trigger that was registered with an idempotency key is remembered once it has
/// settled, in ms: as long as clients usually repeat a request.
pub const KEY_RETENTION_MS: Millis = 24 * 3_600 * 1_000;
/// Requests with an idempotency key that a trigger remembers, the newest: they are part of its row.
pub const EXECUTED_REQUESTS_MAX: usize = 16;
/// Bytes of an idempotency key, and of what a writer recognises an outcome by: room for a digest
/// and a prefix.
pub const REQUEST_BYTES_MAX: usize = 64;
/// Bytes of a target topic's name: Kafka's own limit.
pub const TOPIC_BYTES_MAX: usize = 249;
/// Bytes of a callback URL: what servers and proxies commonly accept.
pub const URL_BYTES_MAX: usize = 2_048;
/// Headers that a trigger carries to its target.
pub const HEADERS_MAX: usize = 64;
/// Bytes of all carried headers together, names and values.
pub const HEADER_BYTES_MAX: usize = 16_384;
/// Pauses in a trigger's own retry policy; the last is repeated.
pub const RETRY_DELAYS_MAX: usize = 32;
/// Attempts that a trigger may ask for.
pub const RETRY_ATTEMPTS_MAX: u32 = 1_000;
/// Statuses after which a trigger may ask for no further attempt.
pub const FINAL_STATUSES_MAX: usize = 64;
/// Bytes of a pool's name: it becomes part of a topic's.
pub const POOL_BYTES_MAX: usize = 64;
/// The longest attempt that a trigger may ask for: an hour. The worker's own maximum is lower.
pub const TIMEOUT_MAX_MS: Millis = 3_600_000;
/// How far a trigger may be ahead of the broker's timestamp of its record: ten years of 366 days.
/// A time beyond it is nearly always microseconds where milliseconds are expected.
pub const FUTURE_MAX_MS: Millis = 10 * 366 * 24 * 3_600_000;
/// The longest single retry delay: 30 days.
pub const RETRY_DELAY_MAX_MS: Millis = 30 * 24 * 3_600_000;
/// Triggers that one trigger can wait for: each is a record to its owner and one back.
pub const AFTER_MAX: usize = 256;
/// Triggers that can wait for one trigger: the whole list is written again with each new one.
pub const WATCHERS_MAX: usize = 1_000;
/// Retries of one trigger that can be pending, each of another occurrence: they are in one row of
/// the index, which is written again with each of them.
pub const RETRIES_PENDING_MAX: usize = 1_000;
/// Registrations in one batch: all of them are written in one transaction.
pub const BATCH_MAX: usize = 1_000;
/// How long a settled trigger can be remembered: a year.
pub const RETAIN_MAX_MS: Millis = 366 * 24 * 3_600_000;
/// Bytes of a schedule as JSON: it is stored with each of its occurrences.
pub const SCHEDULE_BYTES_MAX: usize = 4_096;
/// The largest jitter of a schedule: half a day earlier or later covers a whole day.
pub const JITTER_MAX_MS: Millis = 12 * 3_600_000;
/// Missed occurrences of a schedule that can fire late: one day of one occurrence a second.
pub const MISFIRES_MAX: u32 = 86_400;
