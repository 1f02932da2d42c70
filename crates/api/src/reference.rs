//! The reference of the interface: an OpenAPI document made from the routes and their types, and a
//! page that shows it without any network.

use attune_api_types::ErrorBody;
use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use utoipa::openapi::path::{Operation, ParameterIn, PathItem};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{
    Components, ContentBuilder, InfoBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder,
};
use utoipa::{PartialSchema as _, ToSchema as _};

/// The page; it reads the document from this server and nothing from anywhere else.
const PAGE: &str = include_str!("reference.html");
/// What the page may load and do.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src \
                           'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'";

/// What any request may be answered with, whatever it asks.
const ALWAYS: [(&str, &str); 6] = [
    (
        "401",
        "`UNAUTHENTICATED`: no key, or one that is not accepted, where one is needed.",
    ),
    (
        "403",
        "`FORBIDDEN`: the key lacks the permission that the message names, or is not for this action, pool or \
         user. `FOREIGN_ORIGIN`: where no key is asked for: `Host` or `Origin` names another machine.",
    ),
    (
        "405",
        "`METHOD_NOT_ALLOWED`; the header `Allow` says which methods there are.",
    ),
    (
        "429",
        "`RATE_LIMITED`: more was asked for with this key than its rate allows, or too many keys that are not \
         good came from this address; nothing was done.",
    ),
    (
        "500",
        "`INTERNAL`: a fault of the server; its log says more.",
    ),
    (
        "503",
        "`OVERLOADED`, `STORE_UNAVAILABLE`, `NO_OWNER`, `TIMEOUT`: nothing was done; try again \
         later. `OUTCOME_UNKNOWN` (only where something is changed): no answer in time; repeat it.",
    ),
];
/// What a request with a path parameter may be answered with.
const OF_PATHS: [(&str, &str); 1] = [(
    "404",
    "`UNKNOWN_EXECUTION`, `UNKNOWN_ACTION`, `NOT_FOUND`: there is nothing of this name.",
)];
/// What a request with parameters may be answered with.
const OF_PARAMETERS: [(&str, &str); 1] = [(
    "422",
    "`INVALID_INPUT`: the body names the parameter or the field.",
)];
/// What a request with a body may be answered with; nothing was done.
const OF_BODIES: [(&str, &str); 5] = [
    ("400", "`MALFORMED_JSON` or `BODY_INCOMPLETE`."),
    (
        "408",
        "`BODY_TIMEOUT`: the body did not arrive within 10 s.",
    ),
    ("413", "`TOO_LARGE`: more bytes than `api.max_body_bytes`."),
    (
        "415",
        "`UNSUPPORTED_MEDIA_TYPE`: the body must be `application/json`, without a `Content-Encoding` (but `identity`).",
    ),
    ("422", "`INVALID_INPUT`: the body names the field."),
];

/// The document and the page.
pub(crate) fn routes(described: OpenApi) -> Router {
    let text = complete(described)
        .to_pretty_json()
        .expect("the document has text keys only");
    let document = Bytes::from(text);
    Router::new()
        .route(
            "/api/v1/openapi.json",
            get(async move || ([(header::CONTENT_TYPE, "application/json")], document)),
        )
        .route("/docs", get(page))
}

async fn page() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, PAGE)
}

/// Adds what holds for the whole interface to what the routes say of themselves.
fn complete(mut document: OpenApi) -> OpenApi {
    document.info = InfoBuilder::new()
        .title("Attune")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Queues with limits: submit executions, look at queues and holders, change actions. \
             Every answer that is not a success has the body `ErrorBody`; programs act on its \
             `code`. Times are RFC 3339 in UTC. Lists come in pages: `next` of an answer is a \
             parameter of the next request. A connection on which nothing is asked for 10 s, or on \
             which an answer is not read for 30 s, is closed; an address with too many connections \
             is answered with 503 `TOO_MANY_CONNECTIONS`.",
        ))
        .build();
    let components = document.components.get_or_insert_with(Components::new);
    let mut schemas = vec![(ErrorBody::name().into_owned(), ErrorBody::schema())];
    ErrorBody::schemas(&mut schemas);
    components.schemas.extend(schemas);
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description = Some(
        "A key, as `attune keys create` makes it. Where the server asks for none (on loopback, `api.auth: \
         off`) it may be left out."
            .to_owned(),
    );
    components.add_security_scheme("key", SecurityScheme::Http(bearer));
    let none: [&str; 0] = [];
    document.security = Some(vec![
        SecurityRequirement::new("key", none),
        SecurityRequirement::default(),
    ]);
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
            add_errors(operation);
        }
    }
    document
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [
        &mut item.get,
        &mut item.put,
        &mut item.post,
        &mut item.delete,
    ]
    .into_iter()
    .filter_map(Option::as_mut)
}

fn add_errors(operation: &mut Operation) {
    let mut found: Vec<(&str, &str)> = ALWAYS.to_vec();
    let parameters = operation.parameters.iter().flatten();
    let places: Vec<&ParameterIn> = parameters
        .filter_map(|parameter| match parameter {
            RefOr::T(parameter) => Some(&parameter.parameter_in),
            RefOr::Ref(_) => None,
        })
        .collect();
    if places.contains(&&ParameterIn::Path) {
        found.extend(OF_PATHS);
    }
    if !places.is_empty() {
        found.extend(OF_PARAMETERS);
    }
    if operation.request_body.is_some() {
        found.extend(OF_BODIES);
    }
    for (status, description) in found {
        // What the route says itself is more exact.
        let responses = &mut operation.responses.responses;
        responses
            .entry(status.to_owned())
            .or_insert_with(|| RefOr::T(refusal(description)));
    }
}

fn refusal(description: &str) -> Response {
    let body = Ref::from_schema_name(ErrorBody::name());
    ResponseBuilder::new()
        .description(description)
        .content(
            "application/json",
            ContentBuilder::new().schema(Some(body)).build(),
        )
        .build()
}
