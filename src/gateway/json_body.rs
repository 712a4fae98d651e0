//! The JSON body of a request: one extractor for every route that has one.
//!
//! Invariant: the caller is known before its body is read, and a body of another content type or
//! above the limit of its route is refused before it is parsed.

use std::fmt;
use std::marker::PhantomData;

use axum::extract::{FromRef, FromRequest, FromRequestParts as _, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::auth::{Authenticator, Viewer};
use super::http::{ParseError, json};
use crate::callers::CallerLimits;

/// A type that a body is read as.
pub(super) trait RequestBody {
    /// The largest body that a caller with these limits may send, in bytes.
    fn bytes_max(limits: &CallerLimits) -> u64;
}

/// The body of a request, whose content type and size are those of a `T`.
pub(super) struct JsonBody<T> {
    bytes: Bytes,
    read_as: PhantomData<fn() -> T>,
}

impl<T> fmt::Debug for JsonBody<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonBody").field("bytes", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl<T> JsonBody<T> {
    /// The body as it was received.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl<T: DeserializeOwned> JsonBody<T> {
    /// The body as a `T`.
    pub(super) fn parse(&self) -> Result<T, ParseError> {
        json::parse_json(&self.bytes)
    }

    /// The same, where an empty body and `null` are the default.
    pub(super) fn parse_or_default(&self) -> Result<T, ParseError>
    where
        T: Default,
    {
        if self.bytes.is_empty() || *self.bytes == *b"null" {
            return Ok(T::default());
        }
        self.parse()
    }
}

impl<S: Send + Sync, T: RequestBody> FromRequest<S> for JsonBody<T>
where
    Authenticator: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let caller = Viewer::from_request_parts(&mut parts, state).await;
        let Viewer(caller) = caller.map_err(IntoResponse::into_response)?;
        let request = Request::from_parts(parts, body);
        let bytes = json::read_bytes(request, T::bytes_max(&caller.limits)).await;
        let bytes = bytes.map_err(IntoResponse::into_response)?;
        Ok(Self { bytes, read_as: PhantomData })
    }
}
