//! Every error of the API, by a code that programs can rely on.
//!
//! Invariant: this table is the source: the responses, the pages under `/problems/` and the OpenAPI
//! document are made from it. A code that was once served keeps its meaning.

use axum::http::StatusCode;

/// Which problem it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorCode {
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

/// The texts of a code.
struct ErrorCodeEntry {
    code: ErrorCode,
    name: &'static str,
    status: StatusCode,
    title: &'static str,
    /// What to do; empty if the detail says it.
    hint: &'static str,
}

const fn entry(
    code: ErrorCode,
    name: &'static str,
    status: StatusCode,
    title: &'static str,
    hint: &'static str,
) -> ErrorCodeEntry {
    ErrorCodeEntry { code, name, status, title, hint }
}

/// In the order of [`ErrorCode`].
const TABLE: [ErrorCodeEntry; 29] = [
    entry(
        ErrorCode::InvalidBody,
        "invalid-body",
        StatusCode::BAD_REQUEST,
        "The body is not what this route takes",
        "`errors` names each part by its JSON pointer; correct those and send it again",
    ),
    entry(
        ErrorCode::InvalidParameter,
        "invalid-parameter",
        StatusCode::BAD_REQUEST,
        "A parameter of the path, the query or a header is wrong",
        "",
    ),
    entry(
        ErrorCode::Contradiction,
        "contradiction",
        StatusCode::UNPROCESSABLE_ENTITY,
        "The body has the right form, and its values are not possible",
        "`errors` names each part by its JSON pointer; correct those and send it again",
    ),
    entry(
        ErrorCode::UnknownPageToken,
        "unknown-page-token",
        StatusCode::UNPROCESSABLE_ENTITY,
        "No list has given out this page_token, or another list has",
        "leave it out to start at the first page; a token is valid only for its own query",
    ),
    entry(
        ErrorCode::Unauthenticated,
        "unauthenticated",
        StatusCode::UNAUTHORIZED,
        "The request has no credential",
        "send Authorization: Bearer KEY, or X-Api-Key: KEY",
    ),
    entry(
        ErrorCode::Forbidden,
        "forbidden",
        StatusCode::FORBIDDEN,
        "The caller may not do this",
        "an operator can change what a caller may do in callers.toml",
    ),
    entry(
        ErrorCode::IdTaken,
        "id-taken",
        StatusCode::FORBIDDEN,
        "A trigger of another caller has this id",
        "ids are one namespace: begin yours with something of your own",
    ),
    entry(
        ErrorCode::NoSuchRoute,
        "no-such-route",
        StatusCode::NOT_FOUND,
        "There is nothing under this path",
        "/docs shows every path",
    ),
    entry(
        ErrorCode::UnknownTrigger,
        "unknown-trigger",
        StatusCode::NOT_FOUND,
        "No trigger of yours has this id",
        "it was never registered, or it settled longer ago than settled triggers are kept",
    ),
    entry(
        ErrorCode::UnknownDeadLetter,
        "unknown-dead-letter",
        StatusCode::NOT_FOUND,
        "No dead letter of yours has this id",
        "GET /v1/dead-letters lists them",
    ),
    entry(
        ErrorCode::MethodNotAllowed,
        "method-not-allowed",
        StatusCode::METHOD_NOT_ALLOWED,
        "This path does not take this method",
        "the header Allow names those that it takes",
    ),
    entry(
        ErrorCode::NotAcceptable,
        "not-acceptable",
        StatusCode::NOT_ACCEPTABLE,
        "The answer would be JSON, and the request takes none",
        "send Accept: application/json, or no Accept at all",
    ),
    entry(
        ErrorCode::NotPending,
        "not-pending",
        StatusCode::CONFLICT,
        "Nothing is pending under this id any more",
        "GET the trigger: its status says how it ended",
    ),
    entry(
        ErrorCode::Settled,
        "settled",
        StatusCode::CONFLICT,
        "The trigger has settled and cannot be changed",
        "register it again with POST /v1/triggers",
    ),
    entry(
        ErrorCode::NotReplayable,
        "not-replayable",
        StatusCode::CONFLICT,
        "The dead letter cannot be tried again",
        "archive it",
    ),
    entry(
        ErrorCode::CountDiffers,
        "count-differs",
        StatusCode::CONFLICT,
        "Another number of dead letters matches than the request says",
        "send the request with dryRun, and give that number",
    ),
    entry(
        ErrorCode::RequestInFlight,
        "request-in-flight",
        StatusCode::CONFLICT,
        "A request with this Idempotency-Key is in progress",
        "repeat it after Retry-After seconds: it will be answered as the first one was",
    ),
    entry(
        ErrorCode::Conflict,
        "conflict",
        StatusCode::CONFLICT,
        "The request conflicts with the current state",
        "",
    ),
    entry(
        ErrorCode::GenerationDiffers,
        "generation-differs",
        StatusCode::PRECONDITION_FAILED,
        "The trigger was changed or registered again in between",
        "GET it, and send the change again with its ETag in If-Match",
    ),
    entry(
        ErrorCode::PayloadTooLarge,
        "payload-too-large",
        StatusCode::PAYLOAD_TOO_LARGE,
        "The payload is larger than you may send",
        "store it elsewhere and send a reference, or write to the topic of triggers",
    ),
    entry(
        ErrorCode::UnsupportedMediaType,
        "unsupported-media-type",
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "The body is not JSON by its Content-Type",
        "send Content-Type: application/json (curl --json does)",
    ),
    entry(
        ErrorCode::Rejected,
        "rejected",
        StatusCode::UNPROCESSABLE_ENTITY,
        "The trigger's owner refuses it",
        "",
    ),
    entry(
        ErrorCode::TimePassed,
        "time-passed",
        StatusCode::UNPROCESSABLE_ENTITY,
        "The time has passed",
        "give a later one, or say \"late\": \"fire\" to have it fire at once",
    ),
    entry(
        ErrorCode::TargetForbidden,
        "target-forbidden",
        StatusCode::UNPROCESSABLE_ENTITY,
        "The target is not allowed",
        "docs/guides/callbacks.md says where callbacks may go, and targets.allow which topics",
    ),
    entry(
        ErrorCode::IdempotencyKeyReused,
        "idempotency-key-reused",
        StatusCode::UNPROCESSABLE_ENTITY,
        "This Idempotency-Key belongs to a request with another body",
        "make a new key for each trigger, and send the same body when you repeat a request",
    ),
    entry(
        ErrorCode::PendingLimit,
        "pending-limit",
        StatusCode::TOO_MANY_REQUESTS,
        "You have as many triggers pending as you may",
        "cancel some, or ask an operator for a higher limits.pending",
    ),
    entry(
        ErrorCode::TooManyRequests,
        "too-many-requests",
        StatusCode::TOO_MANY_REQUESTS,
        "More requests than you may make",
        "come back after Retry-After seconds",
    ),
    entry(
        ErrorCode::Internal,
        "internal",
        StatusCode::INTERNAL_SERVER_ERROR,
        "The gateway has failed",
        "an operator finds more in its log, under requestId",
    ),
    entry(
        ErrorCode::Unavailable,
        "unavailable",
        StatusCode::SERVICE_UNAVAILABLE,
        "The gateway cannot do this now",
        "try again after Retry-After seconds",
    ),
];

impl ErrorCode {
    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|entry| entry.code)
    }

    /// What programs compare.
    pub(crate) fn as_str(self) -> &'static str {
        self.entry().name
    }

    /// The status of its answers.
    pub(crate) fn status(self) -> StatusCode {
        self.entry().status
    }

    /// The same for every problem of this code, for people.
    pub(crate) fn title(self) -> &'static str {
        self.entry().title
    }

    /// What to do, unless the detail says it.
    pub(crate) fn hint(self) -> Option<&'static str> {
        Some(self.entry().hint).filter(|hint| !hint.is_empty())
    }

    /// Where it is explained: the `type` of its problems.
    pub(crate) fn page_path(self) -> String {
        format!("/problems/{}", self.as_str())
    }

    /// The code of that name.
    pub(crate) fn by_name(word: &str) -> Option<Self> {
        TABLE.iter().find(|entry| entry.name == word).map(|entry| entry.code)
    }

    /// The code of a status if nothing more specific is known.
    pub(crate) fn from_status(status: StatusCode) -> Self {
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

    fn entry(self) -> &'static ErrorCodeEntry {
        &TABLE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_table_has_each_code_at_its_index_and_each_name_once() {
        for (index, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.code as usize, index, "{}", entry.name);
            assert_eq!(ErrorCode::by_name(entry.name), Some(entry.code));
        }
        let words: BTreeSet<_> = ErrorCode::all().map(ErrorCode::as_str).collect();
        assert_eq!(words.len(), TABLE.len());
        let kebab = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(words.iter().all(kebab), "{words:?}");
    }

    #[test]
    fn a_status_of_several_codes_has_the_most_general_one() {
        for (status, code) in [
            (StatusCode::NOT_FOUND, ErrorCode::NoSuchRoute),
            (StatusCode::CONFLICT, ErrorCode::Conflict),
            (StatusCode::TOO_MANY_REQUESTS, ErrorCode::TooManyRequests),
            (StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::PayloadTooLarge),
            (StatusCode::LENGTH_REQUIRED, ErrorCode::InvalidBody),
            (StatusCode::BAD_GATEWAY, ErrorCode::Internal),
        ] {
            assert_eq!(ErrorCode::from_status(status), code, "{status}");
        }
    }

    #[test]
    fn a_code_without_a_hint_has_none() {
        assert_eq!(ErrorCode::Conflict.hint(), None);
        assert_eq!(ErrorCode::NotReplayable.hint(), Some("archive it"));
    }
}
