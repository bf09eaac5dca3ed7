//! The route of a verb: `POST /v1/operate/<name>`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::routing::post;
use tickfleet_client::verbs::OperatorVerb;
use utoipa::ToSchema;
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::path::{HttpMethod, OperationBuilder, PathItem, PathsBuilder};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Required, ResponseBuilder, Schema};
use utoipa_axum::router::UtoipaMethodRouter;

use super::{Operator, body};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::verbs::Verb;

pub(super) fn route<V>() -> UtoipaMethodRouter<Arc<Shared>>
where
    V: OperatorVerb + ToSchema,
    V::Report: ToSchema,
{
    let mut text = String::new();
    let mut request = V::schema();
    if let RefOr::T(Schema::Object(object)) = &mut request {
        text = object.description.replace(format!("Body of `POST /v1/operate/{}`.", V::NAME)).unwrap_or_default();
    }
    let mut schemas = vec![(V::name().into_owned(), request), schema::<V::Report>(), schema::<ProblemBody>()];
    V::schemas(&mut schemas);
    V::Report::schemas(&mut schemas);
    ProblemBody::schemas(&mut schemas);
    let (summary, description) = text.split_once("\n\n").unwrap_or((&text, ""));
    let scope = if V::IS_OF_FLEET { " Requires a key of all tenants." } else { "" };
    let request = RequestBodyBuilder::new().content("application/json", content::<V>()).required(Some(Required::True));
    let done = ResponseBuilder::new().description("The result").content("application/json", content::<V::Report>());
    let mut operation = OperationBuilder::new()
        .tag("operators")
        .operation_id(Some(V::NAME.replace('/', "_")))
        .summary(Some(one_line(summary) + scope))
        .description(Some(one_line(description)).filter(|text| !text.is_empty()))
        .request_body(Some(request.build()))
        .extensions(Some(Extensions::builder().add("x-permission", Verb::Operate.as_str()).build()))
        .response("200", done);
    for (status, description) in V::ERRORS {
        let response =
            ResponseBuilder::new().description(*description).content("application/json", content::<ProblemBody>());
        operation = operation.response(status.to_string(), response);
    }
    let path = PathItem::new(HttpMethod::Post, operation);
    (schemas, PathsBuilder::new().path(format!("/v1/operate/{}", V::NAME), path).build(), post(run::<V>))
}

fn schema<T: ToSchema>() -> (String, RefOr<Schema>) {
    (T::name().into_owned(), T::schema())
}

fn content<T: ToSchema>() -> utoipa::openapi::Content {
    ContentBuilder::new().schema(Some(Ref::from_schema_name(T::name()))).build()
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

async fn run<V: OperatorVerb>(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<V::Report>, Problem> {
    operator.require_permission(Verb::Operate)?;
    if V::IS_OF_FLEET {
        operator.require_all_tenants()?;
    }
    let request: V = body(bytes)?;
    let report = request.run(&operator.context(&shared).await?).await?;
    tracing::info!(key = operator.by(), verb = V::NAME, "operator's verb done");
    Ok(Json(report))
}
