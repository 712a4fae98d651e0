//! Every error that the API knows, by a word that programs can rely on.
//!
//! Law: this table is the source: the answers, the pages under `/problems/` and the description
//! are made from it. A word that was once served keeps its meaning.

use axum::http::StatusCode;

/// Which problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    InvalidBody,
    InvalidParameter,
    Contradiction,
    UnknownPageToken,
    Unauthenticated,
    Forbidden,
    IdTaken,
    NoSuchRoute,
    UnknownTrigger,
    UnknownDeadLetter,
    MethodNotAllowed,
    NotAcceptable,
    NotPending,
    Settled,
    NotReplayable,
    CountDiffers,
    RequestInFlight,
    Conflict,
    GenerationDiffers,
    PayloadTooLarge,
    UnsupportedMediaType,
    Rejected,
    TimePassed,
    TargetForbidden,
    IdempotencyKeyReused,
    PendingLimit,
    TooManyRequests,
    Internal,
    Unavailable,
}

/// What is said of a code.
struct Entry {
    code: Code,
    word: &'static str,
    status: StatusCode,
    title: &'static str,
    /// What to do; empty if the detail says all there is.
    hint: &'static str,
}

const fn entry(
    code: Code,
    word: &'static str,
    status: StatusCode,
    title: &'static str,
    hint: &'static str,
) -> Entry {
    Entry { code, word, status, title, hint }
}

/// In the order of [`Code`].
const TABLE: [Entry; 29] = [
    entry(
        Code::InvalidBody,
        "invalid-body",
        StatusCode::BAD_REQUEST,
        "The body is not what this route takes",
        "errors names each part by its JSON pointer; mend those and send it again",
    ),
    entry(
        Code::InvalidParameter,
        "invalid-parameter",
        StatusCode::BAD_REQUEST,
        "A parameter of the path, the query or a header is wrong",
        "",
    ),
    entry(
        Code::Contradiction,
        "contradiction",
        StatusCode::UNPROCESSABLE_ENTITY,
        "The body has the right form, and what it asks for cannot be",
        "errors names each part by its JSON pointer; mend those and send it again",
    ),
    entry(
        Code::UnknownPageToken,
        "unknown-page-token",
        StatusCode::UNPROCESSABLE_ENTITY,
        "No list has given out this page_token, or another list has",
        "leave it out to begin anew; a token goes with the very query that it came from",
    ),
    entry(
        Code::Unauthenticated,
        "unauthenticated",
        StatusCode::UNAUTHORIZED,
        "The request does not say who asks",
        "send Authorization: Bearer KEY, or X-Api-Key: KEY",
    ),
    entry(
        Code::Forbidden,
        "forbidden",
        StatusCode::FORBIDDEN,
        "Who asks may not do this",
        "an operator can change what a caller may do in callers.toml",
    ),
    entry(
        Code::IdTaken,
        "id-taken",
        StatusCode::FORBIDDEN,
        "A trigger of another caller has this id",
        "ids are one namespace: begin yours with something of your own",
    ),
    entry(
        Code::NoSuchRoute,
        "no-such-route",
        StatusCode::NOT_FOUND,
        "There is nothing under this path",
        "/docs shows every path",
    ),
    entry(
        Code::UnknownTrigger,
        "unknown-trigger",
        StatusCode::NOT_FOUND,
        "No trigger of yours has this id",
        "it was never registered, or it settled longer ago than settled triggers are kept",
    ),
    entry(
        Code::UnknownDeadLetter,
        "unknown-dead-letter",
        StatusCode::NOT_FOUND,
        "No dead letter of yours has this id",
        "GET /v1/dead-letters lists them",
    ),
    entry(
        Code::MethodNotAllowed,
        "method-not-allowed",
        StatusCode::METHOD_NOT_ALLOWED,
        "This path does not take this method",
        "the header Allow names those that it takes",
    ),
    entry(
        Code::NotAcceptable,
        "not-acceptable",
        StatusCode::NOT_ACCEPTABLE,
        "The answer would be JSON, and the request takes none",
        "send Accept: application/json, or no Accept at all",
    ),
    entry(
        Code::NotPending,
        "not-pending",
        StatusCode::CONFLICT,
        "Nothing is pending under this id any more",
        "GET the trigger: its status says how it ended",
    ),
    entry(
        Code::Settled,
        "settled",
        StatusCode::CONFLICT,
        "The trigger has settled and cannot be changed",
        "register it anew with POST /v1/triggers",
    ),
    entry(
        Code::NotReplayable,
        "not-replayable",
        StatusCode::CONFLICT,
        "The dead letter cannot be tried again",
        "archive it",
    ),
    entry(
        Code::CountDiffers,
        "count-differs",
        StatusCode::CONFLICT,
        "Another number of dead letters matches than the request says",
        "ask again with dryRun, and say that number",
    ),
    entry(
        Code::RequestInFlight,
        "request-in-flight",
        StatusCode::CONFLICT,
        "A request with this Idempotency-Key is being worked on",
        "repeat it after Retry-After seconds: it will be answered as the first one was",
    ),
    entry(Code::Conflict, "conflict", StatusCode::CONFLICT, "What is there stands against it", ""),
    entry(
        Code::GenerationDiffers,
        "generation-differs",
        StatusCode::PRECONDITION_FAILED,
        "The trigger was registered anew in between",
        "GET it, and send the change again with its ETag in If-Match",
    ),
    entry(
        Code::PayloadTooLarge,
        "payload-too-large",
        StatusCode::PAYLOAD_TOO_LARGE,
        "The payload is larger than you may send",
        "store it elsewhere and send a reference, or write to the topic of triggers",
    ),
    entry(
        Code::UnsupportedMediaType,
        "unsupported-media-type",
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "The body is not JSON by its Content-Type",
        "send Content-Type: application/json (curl --json does)",
    ),
    entry(
        Code::Rejected,
        "rejected",
        StatusCode::UNPROCESSABLE_ENTITY,
        "The trigger's owner refuses it",
        "",
    ),
    entry(
        Code::TimePassed,
        "time-passed",
        StatusCode::UNPROCESSABLE_ENTITY,
        "The time has passed",
        "give a later one, or say \"late\": \"fire\" to have it fire at once",
    ),
    entry(
        Code::TargetForbidden,
        "target-forbidden",
        StatusCode::UNPROCESSABLE_ENTITY,
        "Nothing may be fired at this target",
        "docs/callbacks.md says where callbacks may go, and targets.allow which topics",
    ),
    entry(
        Code::IdempotencyKeyReused,
        "idempotency-key-reused",
        StatusCode::UNPROCESSABLE_ENTITY,
        "This Idempotency-Key belongs to a request with another body",
        "make a new key for each trigger, and send the same body when you repeat a request",
    ),
    entry(
        Code::PendingLimit,
        "pending-limit",
        StatusCode::TOO_MANY_REQUESTS,
        "You have as many triggers pending as you may",
        "cancel some, or ask an operator for a higher limits.pending",
    ),
    entry(
        Code::TooManyRequests,
        "too-many-requests",
        StatusCode::TOO_MANY_REQUESTS,
        "More requests than you may make",
        "come back after Retry-After seconds",
    ),
    entry(
        Code::Internal,
        "internal",
        StatusCode::INTERNAL_SERVER_ERROR,
        "The gateway has failed",
        "an operator finds more in its log, under requestId",
    ),
    entry(
        Code::Unavailable,
        "unavailable",
        StatusCode::SERVICE_UNAVAILABLE,
        "It cannot be done just now",
        "come back after Retry-After seconds; with the same triggerId a request can be repeated",
    ),
];

impl Code {
    /// All of them.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|entry| entry.code)
    }

    /// What programs go by.
    pub(super) fn word(self) -> &'static str {
        self.entry().word
    }

    /// The status of its answers.
    pub(super) fn status(self) -> StatusCode {
        self.entry().status
    }

    /// The same for every problem of this code, for people.
    pub(super) fn title(self) -> &'static str {
        self.entry().title
    }

    /// What to do, unless the detail says all there is.
    pub(super) fn hint(self) -> Option<&'static str> {
        Some(self.entry().hint).filter(|hint| !hint.is_empty())
    }

    /// Where it is explained: the `type` of its problems.
    pub(super) fn page(self) -> String {
        format!("/problems/{}", self.word())
    }

    /// The code called `word`.
    pub(super) fn by_word(word: &str) -> Option<Self> {
        TABLE.iter().find(|entry| entry.word == word).map(|entry| entry.code)
    }

    /// What a status means if nothing more is known.
    pub(super) fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::NOT_FOUND => Self::NoSuchRoute,
            StatusCode::CONFLICT => Self::Conflict,
            StatusCode::FORBIDDEN => Self::Forbidden,
            StatusCode::TOO_MANY_REQUESTS => Self::TooManyRequests,
            status => {
                let found = TABLE.iter().find(|entry| entry.status == status);
                let otherwise =
                    if status.is_client_error() { Self::InvalidBody } else { Self::Internal };
                found.map_or(otherwise, |entry| entry.code)
            }
        }
    }

    fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_has_each_code_in_its_place_and_each_word_once() {
        for (index, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.code as usize, index, "{}", entry.word);
            assert_eq!(Code::by_word(entry.word), Some(entry.code));
        }
        let words: BTreeSet<_> = Code::all().map(Code::word).collect();
        assert_eq!(words.len(), TABLE.len());
        let kebab = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(words.iter().all(kebab), "{words:?}");
    }

    #[test]
    fn a_status_of_several_codes_is_the_one_that_says_least() {
        for (status, code) in [
            (StatusCode::NOT_FOUND, Code::NoSuchRoute),
            (StatusCode::CONFLICT, Code::Conflict),
            (StatusCode::TOO_MANY_REQUESTS, Code::TooManyRequests),
            (StatusCode::PAYLOAD_TOO_LARGE, Code::PayloadTooLarge),
            (StatusCode::LENGTH_REQUIRED, Code::InvalidBody),
            (StatusCode::BAD_GATEWAY, Code::Internal),
        ] {
            assert_eq!(Code::of_status(status), code, "{status}");
        }
    }

    #[test]
    fn a_code_without_a_hint_has_none() {
        assert_eq!(Code::Conflict.hint(), None);
        assert_eq!(Code::NotReplayable.hint(), Some("archive it"));
    }
}
