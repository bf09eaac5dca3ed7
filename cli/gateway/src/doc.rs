//! The OpenAPI document, generated from the handlers.

use std::sync::Arc;

use axum::Json;
use serde_json::Value;
use utoipa::openapi::path::{Operation, Parameter};
use utoipa::openapi::security::{Http, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, ResponseBuilder};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;

use crate::Shared;

#[derive(OpenApi)]
#[openapi(
    info(title = "Tickfleet", description = "Turns, tasks, conversations, tools and operator actions of a Tickfleet fleet. The optional header `Tickfleet-Tenant` names the tenant; a key of another tenant is rejected with 403."),
    security(("key" = []), ("token" = []))
)]
struct Api;

struct SecuritySchemes;

impl Modify for SecuritySchemes {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_with(Default::default);
        components.add_security_scheme("key", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
        let token = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .bearer_format("JWT")
            .description(Some("Token of the identity provider (`--oidc-issuer`)"));
        components.add_security_scheme("token", SecurityScheme::Http(token.build()));
    }
}

#[allow(clippy::type_complexity, reason = "a table")]
const COMMON: [(&str, &str, fn(&Operation) -> bool); 7] = [
    ("400", "Invalid name, parameter or body, or a missing reason", takes_input),
    ("401", "Missing or invalid API key or token", |_| true),
    ("403", "The key lacks the permission", |_| true),
    ("404", "No match, and a name in the filter does not exist", filters_by_name),
    ("413", "The body is too large", |operation| operation.request_body.is_some()),
    (
        "429",
        "A queue is full, too many requests wait, or the key exceeds its rate. Retry after `Retry-After` seconds",
        |_| true,
    ),
    ("503", "Redis or the identity provider is unavailable, or Redis is nearly full", |_| true),
];

fn takes_input(operation: &Operation) -> bool {
    operation.request_body.is_some() || operation.parameters.iter().flatten().next().is_some()
}

fn filters_by_name(operation: &Operation) -> bool {
    let is_name = |parameter: &RefOr<Parameter>| match parameter {
        RefOr::T(parameter) => matches!(parameter.name.as_str(), "tenant" | "tool"),
        RefOr::Ref(_) => false,
    };
    operation.parameters.iter().flatten().any(is_name)
}

/// Adds the common error responses to operations. If an operation describes a status itself, its description stays.
struct CommonResponses;

impl Modify for CommonResponses {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        for path in openapi.paths.paths.values_mut() {
            for operation in [&mut path.get, &mut path.post].into_iter().flatten() {
                for (status, description, applies) in COMMON {
                    if applies(operation) && !operation.responses.responses.contains_key(status) {
                        let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ProblemBody"))).build();
                        let response =
                            ResponseBuilder::new().description(description).content("application/json", body);
                        operation.responses.responses.insert(status.to_owned(), RefOr::T(response.build()));
                    }
                }
            }
        }
    }
}

#[must_use]
pub fn openapi() -> Value {
    let mut document = routes().into_openapi();
    SecuritySchemes.modify(&mut document);
    CommonResponses.modify(&mut document);
    serde_json::to_value(document).unwrap_or_default()
}

/// All routes of the document.
pub(crate) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::with_openapi(Api::openapi())
        .merge(crate::turns::routes())
        .merge(crate::progress::routes())
        .merge(crate::local::routes())
        .merge(crate::tasks::routes())
        .merge(crate::tools::routes())
        .merge(crate::chat::routes())
        .merge(crate::agui::routes())
        .merge(crate::operate::routes())
}

pub(crate) async fn document() -> Json<Value> {
    Json(openapi())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn every_documented_path_has_a_summary() {
        let document = openapi();
        let paths = document["paths"].as_object().unwrap();
        assert!(paths.len() > 40, "{:?}", paths.keys());
        assert_eq!(document["security"], serde_json::json!([{"key": []}, {"token": []}]), "one of the two");
        for (path, methods) in paths {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(operation["summary"].as_str().is_some_and(|summary| !summary.is_empty()), "{method} {path}");
            }
        }
    }
}
