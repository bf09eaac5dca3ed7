//! Headers that may occur only once, because a proxy and the gateway could use different values.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::problem::Problem;

/// Header names with a prefix in `FAMILIES` may occur only once, too.
const ONCE: [&str; 5] = ["authorization", "content-type", "idempotency-key", "last-event-id", "origin"];
const FAMILIES: [&str; 2] = ["mcp-", "tickfleet-"];

pub(crate) async fn once(request: Request, next: Next) -> Response {
    match repeated(request.headers()) {
        Some(name) => {
            Problem::invalid(format!("{name}: found more than one such header; send it once")).into_response()
        }
        None => next.run(request).await,
    }
}

fn repeated(headers: &HeaderMap) -> Option<&HeaderName> {
    let counts_once = |name: &str| ONCE.contains(&name) || FAMILIES.iter().any(|family| name.starts_with(family));
    headers.keys().find(|name| counts_once(name.as_str()) && headers.get_all(*name).iter().nth(1).is_some())
}

/// `None` if there are several values, because no value can be preferred.
pub(crate) fn only<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(found: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut headers = HeaderMap::new();
        for (name, value) in found.iter().map(pair) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn a_repeated_singleton_header_is_detected_even_with_equal_values() {
        for name in [
            "authorization",
            "content-type",
            "idempotency-key",
            "last-event-id",
            "mcp-protocol-version",
            "mcp-session-id",
            "origin",
            "tickfleet-tenant",
        ] {
            assert_eq!(repeated(&headers(&[(name, "a")])), None, "{name}");
            assert_eq!(repeated(&headers(&[(name, "a"), (name, "a")])).map(HeaderName::as_str), Some(name));
        }
        assert_eq!(repeated(&headers(&[("accept", "a"), ("accept", "b")])), None, "a list, which may come in parts");
    }

    #[test]
    fn two_traceparent_headers_count_as_none() {
        assert!(only(&headers(&[("traceparent", "a")]), "traceparent").is_some());
        assert!(only(&headers(&[("traceparent", "a"), ("traceparent", "b")]), "traceparent").is_none());
        assert!(only(&headers(&[]), "traceparent").is_none());
    }
}
