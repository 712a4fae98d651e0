//! The OpenAPI 3.1 document, made from the handlers and their types.
//!
//! Invariant: what all routes have in common is described here once: authentication, and every
//! error.

use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::OpenApi as _;
use utoipa::openapi::schema::{Schema, SchemaType, Type};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ObjectBuilder, OpenApi, RefOr};

use crate::gateway::http::ErrorCode;

const API_DESCRIPTION: &str = "\
Register triggers, see their outcomes, change and cancel them.

A write is a record in Kafka. Its response is what the trigger's owner committed in its own \
transaction: 200 and 201 mean that it is done. 202 means that the record is written and the owner \
has not answered yet; Location says where to look.

After 202, after 503 with `mayBeWritten`, and after a connection that broke, a write may be done \
all the same. Each operation says what its repetition does. With the same `Idempotency-Key` a \
repetition never fires a second time, where an operation takes one.

A read is answered from a view of the topics. `asOf` and `Orloj-View-As-Of` say up to when it is \
complete, and a gateway always shows what it has itself confirmed.

An error is a problem (RFC 9457). Programs compare its `code`; `errors` names parts of the body by \
JSON pointer. A field that is null counts as absent; an unknown field is refused.";

/// What every route has in common.
#[derive(Debug, utoipa::OpenApi)]
#[openapi(
    info(
        title = "Orloj",
        description = API_DESCRIPTION,
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    tags(
        (name = "triggers", description = "What will fire, and what has fired"),
        (name = "schedules", description = "When a recurring trigger fires"),
        (name = "dead letters", description = "What failed and is not retried automatically"),
        (name = "operation", description = "For operators")
    ),
    components(schemas(ProblemDetails))
)]
struct OpenApiBase;

/// Why the request failed: RFC 9457. Some problems have further members.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
struct ProblemDetails {
    /// A page about the code.
    #[schema(examples("/problems/not-pending"))]
    r#type: String,
    /// The same for every problem of this code.
    title: String,
    status: u16,
    /// What is wrong in this request.
    detail: String,
    code: ProblemCode,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// What is wrong, for each part of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<Vec<ProblemPart>>,
    /// Whether a write that was answered 503 may be executed all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    may_be_written: Option<bool>,
    /// The id of the request; the same as X-Request-Id.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<String>,
}

/// What is wrong with one part of the body.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct ProblemPart {
    /// RFC 6901; empty for the whole.
    #[schema(format = JsonPointer)]
    pointer: String,
    detail: String,
}

/// What programs compare.
#[derive(Debug, Serialize)]
struct ProblemCode;

impl utoipa::PartialSchema for ProblemCode {
    fn schema() -> RefOr<Schema> {
        let words = ErrorCode::all().map(|code| json!(code.as_str()));
        let schema = ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
        schema.enum_values(Some(words)).into()
    }
}

impl utoipa::ToSchema for ProblemCode {
    fn name() -> std::borrow::Cow<'static, str> {
        "ProblemCode".into()
    }
}

/// The document without routes.
pub(super) fn base_document() -> OpenApi {
    let mut api = OpenApiBase::openapi();
    let components = api.components.get_or_insert_default();
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some("An API key, or a JWT of an issuer that the gateway trusts."));
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer.build()));
    let key = ApiKeyValue::with_description("X-Api-Key", "An API key.");
    components.add_security_scheme("apiKey", SecurityScheme::ApiKey(ApiKey::Header(key)));
    api
}

/// The complete document, from one that has every route.
pub(super) fn complete_document(api: &OpenApi) -> Value {
    let mut document = serde_json::to_value(api).expect("a description is JSON");
    // Without a file of callers no key is needed.
    document["security"] = json!([{ "bearer": [] }, { "apiKey": [] }, {}]);
    document["components"]["responses"] = problem_responses();
    let paths = document["paths"].as_object_mut().into_iter().flatten();
    for (path, methods) in paths {
        for (method, operation) in methods.as_object_mut().into_iter().flatten() {
            let errors = error_responses(path, method, operation.get("requestBody").is_some());
            let responses = operation["responses"].as_object_mut();
            responses.into_iter().for_each(|responses| responses.extend(errors.clone()));
            let parameters = operation.get_mut("parameters").and_then(Value::as_array_mut);
            for parameter in parameters.into_iter().flatten() {
                parameter.get_mut("schema").into_iter().for_each(remove_null);
            }
        }
    }
    document
}

/// A parameter is present or absent; it is never null.
fn remove_null(schema: &mut Value) {
    let is_null = |schema: &Value| schema["type"] == "null";
    if let Some(types) = schema.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|name| name != "null");
        if let [only] = &types[..] {
            schema["type"] = only.clone();
        }
    }
    if let Some(kinds) = schema.get_mut("oneOf").and_then(Value::as_array_mut) {
        kinds.retain(|kind| !is_null(kind));
        if let [only] = &kinds[..] {
            *schema = only.clone();
        }
    }
}

/// A response for each status that is a problem.
fn problem_responses() -> Value {
    let mut responses = Map::new();
    for code in ErrorCode::all() {
        let status = code.status();
        let name = format!("Problem{}", status.as_u16());
        let response = responses.entry(name).or_insert_with(|| {
            let reference = json!({ "$ref": "#/components/schemas/ProblemDetails" });
            json!({
                "description": "",
                "headers": { "X-Request-Id": { "schema": { "type": "string" } } },
                "content": { "application/problem+json": { "schema": reference, "examples": {} } },
            })
        });
        let description = response["description"].as_str().unwrap_or_default();
        let line = format!("`{}`: {}", code.as_str(), code.title());
        let description =
            if description.is_empty() { line } else { format!("{description}; {line}") };
        response["description"] = json!(description);
        if matches!(status.as_u16(), 429 | 503) {
            response["headers"]["Retry-After"] = json!({
                "description": "Seconds after which to try again",
                "schema": { "type": "integer", "minimum": 0 },
            });
        }
        response["content"]["application/problem+json"]["examples"][code.as_str()] = json!({
            "value": {
                "type": code.page_path(), "title": code.title(), "status": status.as_u16(),
                "code": code.as_str(), "detail": code.title(),
                "hint": code.hint().unwrap_or_default(),
            },
        });
    }
    responses.into()
}

/// The error responses of a route.
fn error_responses(path: &str, method: &str, has_body: bool) -> Map<String, Value> {
    let mut statuses = vec![400, 401, 403, 406, 422, 429, 500, 503];
    if has_body {
        statuses.extend([413, 415]);
    }
    if path.contains("{id}") {
        statuses.push(404);
    }
    if method != "get" && path != "/v1/schedules:next" {
        statuses.push(409);
    }
    if method == "patch" {
        statuses.push(412);
    }
    let reference =
        |status: u16| json!({ "$ref": format!("#/components/responses/Problem{status}") });
    statuses.into_iter().map(|status| (status.to_string(), reference(status))).collect()
}
