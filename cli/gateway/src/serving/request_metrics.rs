//! Metrics of requests.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use futures::StreamExt;
use tickfleet_ops::metrics::Metrics;
use tokio::time::Instant;

use super::public::METADATA;
use crate::problem::RateRejection;

/// Counts a request even if the client disconnects before the response begins.
struct RequestInFlight<'a> {
    metrics: &'a Metrics,
    request: &'static str,
    has_response: bool,
}

impl Drop for RequestInFlight<'_> {
    fn drop(&mut self) {
        if !self.has_response {
            self.metrics.gateway.gone(self.request);
        }
    }
}

/// A stream of events is counted while it is sent.
pub(crate) async fn observe(State(metrics): State<Arc<Metrics>>, request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let name = operation_label(request.method(), path.unwrap_or_default(), request.uri().query().unwrap_or_default());
    let (mut in_flight, began) =
        (RequestInFlight { metrics: &metrics, request: name, has_response: false }, Instant::now());
    let response = next.run(request).await;
    in_flight.has_response = true;
    metrics.gateway.answered(name, response.status().as_u16(), began.elapsed());
    match response.extensions().get::<RateRejection>() {
        Some(RateRejection::Rate) => metrics.gateway.over_rate(),
        Some(RateRejection::WrongKeys) => metrics.gateway.auth_failure_rate(),
        None => metrics.gateway.refused(response.status().as_u16()),
    }
    let kind = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    if !kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
        return response;
    }
    let stream = metrics.gateway.stream();
    response.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |chunk| {
            // The closure owns the guard `stream`, so the guard lives until the body ends or the reader disconnects.
            let _ = &stream;
            chunk
        }))
    })
}

fn operation_label(method: &Method, path: &str, query: &str) -> &'static str {
    let is_get = method == Method::GET || method == Method::HEAD;
    if let Some(verb) = path.strip_prefix("/v1/operate/") {
        let decides = verb.starts_with("approvals/");
        return match (is_get, decides) {
            (true, _) => "view",
            (false, true) => "approve",
            (false, false) => "operate",
        };
    }
    let waits = query.split('&').any(|pair| pair.strip_prefix("wait=").is_some_and(|seconds| seconds != "0"));
    match path {
        "/v1/turns" if waits => "submit_wait",
        "/v1/turns" | "/v1/turns/{turn_id}/conclude" => "submit",
        "/v1/turns/{turn_id}" | "/v1/turns/{turn_id}/claim" if waits => "reply_wait",
        "/v1/turns/{turn_id}" | "/v1/turns/{turn_id}/claim" => "reply",
        "/v1/turns/{turn_id}/cancel" => "cancel",
        "/v1/tasks" if is_get => "tasks",
        "/v1/tasks" => "delegate",
        "/v1/tasks/{task_id}" => "task",
        "/v1/tasks/{task_id}/events" | "/v1/turns/{turn_id}/events" => "events",
        "/v1/tasks/{task_id}/cancel" => "cancel_task",
        "/v1/agents/{agent}/tools" => "tools",
        "/v1/agents/{agent}/chat" | "/v1/agents/{agent}/chat/{session_id}" | "/v1/agents/{agent}/ag-ui" => "chat",
        "/v1/agents/{agent}/mcp" => "mcp",
        path if path == "/v1/openapi.json" || path.starts_with(METADATA) => "document",
        path if path.starts_with("/console") => "console",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn every_documented_path_has_a_metric_label() {
        let document = crate::openapi();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys() {
                let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
                assert_ne!(operation_label(&method, path, ""), "other", "{method} {path}");
            }
        }
    }

    #[test]
    fn labels_distinguish_waits_and_operator_actions() {
        assert_eq!(operation_label(&Method::POST, "/v1/turns", "wait=30"), "submit_wait");
        assert_eq!(operation_label(&Method::POST, "/v1/turns", "wait=0"), "submit");
        assert_eq!(operation_label(&Method::GET, "/v1/turns/{turn_id}", "a=b&wait=60"), "reply_wait");
        assert_eq!(operation_label(&Method::GET, "/v1/operate/approvals/{id}", ""), "view");
        assert_eq!(operation_label(&Method::POST, "/v1/operate/approvals/{id}/deny", ""), "approve");
        assert_eq!(operation_label(&Method::POST, "/v1/operate/pause", ""), "operate");
        assert_eq!(operation_label(&Method::GET, "", ""), "other");
    }
}
