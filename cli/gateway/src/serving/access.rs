//! The access log: one line per request, with the request id that the response returns.

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use ring::rand::{SecureRandom as _, SystemRandom};
use tickfleet_model::hex;
use tickfleet_protocol::trace_id;
use tokio::time::Instant;

use super::headers::only;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
pub(crate) const TRACEPARENT: &str = "traceparent";
const ID_CHARS_MAX: usize = 128;

/// Probes can request the OpenAPI document often, so these requests are logged at debug level.
pub(crate) async fn log(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = valid_request_id(request.headers()).unwrap_or_else(random_id);
    let trace = only(request.headers(), TRACEPARENT).and_then(|value| value.to_str().ok()).and_then(trace_id);
    let trace = trace.map(str::to_owned);
    let method = request.method().clone();
    // Log the route instead of the path: paths contain ids of turns and agents, but there are only a few routes.
    let route =
        request.extensions().get::<MatchedPath>().map_or_else(|| "other".to_owned(), |path| path.as_str().into());
    let mut response = next.run(request).await;
    let status = response.status().as_u16();
    let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    if route == "/v1/openapi.json" {
        tracing::debug!(%method, route, status, duration_ms = ms, request_id = id, trace_id = trace, "request");
    } else {
        tracing::info!(%method, route, status, duration_ms = ms, request_id = id, trace_id = trace, "request");
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

fn valid_request_id(headers: &HeaderMap) -> Option<String> {
    let text = only(headers, REQUEST_ID.as_str())?.to_str().ok()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '+' | '=');
    (!text.is_empty() && text.len() <= ID_CHARS_MAX && text.chars().all(plain)).then(|| text.to_owned())
}

fn random_id() -> String {
    let mut bytes = [0_u8; 16];
    // Without random numbers, all requests share one id, which only affects the log.
    let _ = SystemRandom::new().fill(&mut bytes);
    hex(&bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn an_id_that_would_break_a_log_line_is_replaced() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_static(text));
            valid_request_id(&headers)
        };
        assert_eq!(of("3f2a-1/b.c:d"), Some("3f2a-1/b.c:d".into()));
        assert_eq!((of(""), of("a b"), of("a\tb")), (None, None, None));
        assert_eq!(valid_request_id(&HeaderMap::new()), None);
        let one = random_id();
        let other = random_id();
        assert!(one.len() == 32 && one != other, "{one} {other}");
    }
}
