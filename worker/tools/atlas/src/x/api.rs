//! Requests to X, and the interpretation of X's responses.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::DateTime;
use reqwest::header::{self, HeaderMap, HeaderValue};
use reqwest::{Method, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tickfleet_outbound::read_body;
use tickfleet_tools::{CallContext, Secrets, ToolError, wording};
use tickfleet_tools_http::{Client, Request, SendError, retry_after};

use super::sign_in::Account;

/// A hundred posts with their authors take some hundred kilobytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;
const ERROR_TEXT_BYTES_MAX: usize = 600;

#[derive(Debug, Clone)]
pub(super) struct Api {
    base: Url,
    client: Arc<Client>,
    account: Account,
}

#[derive(Debug, Clone)]
pub(super) struct ApiRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) body: Option<(Bytes, String)>,
    /// True if the request has the tool's effect. Without a response, the outcome is then unknown.
    pub(super) is_effect: bool,
}

impl ApiRequest {
    pub(super) fn get(path: impl Into<String>, query: Vec<(&'static str, String)>) -> Self {
        Self { method: Method::GET, path: path.into(), query, body: None, is_effect: false }
    }

    pub(super) fn post(path: impl Into<String>, body: Bytes, content_type: impl Into<String>) -> Self {
        let body = Some((body, content_type.into()));
        Self { method: Method::POST, path: path.into(), query: Vec::new(), body, is_effect: false }
    }

    pub(super) fn post_json(path: impl Into<String>, body: &Value) -> Self {
        Self::post(path, Bytes::from(body.to_string()), "application/json")
    }

    fn lost(&self, message: String) -> ToolError {
        self.lost_for(message, None)
    }

    /// The error for a failed request. If the outcome is unknown, the wait that X requested is dropped.
    fn lost_for(&self, message: String, retry_after: Option<Duration>) -> ToolError {
        if self.is_effect { ToolError::Transient(message) } else { ToolError::NotExecuted { message, retry_after } }
    }
}

impl Api {
    pub(super) const fn new(base: Url, client: Arc<Client>, account: Account) -> Self {
        Self { base, client, account }
    }

    /// If X rejects the token, sends the request once more with a new token.
    pub(super) async fn send(&self, context: &CallContext, ask: &ApiRequest) -> Result<Value, ToolError> {
        let token = self.account.token(context).await?;
        let answered = self.send_as(ask, &token).await?;
        if answered.status != 401 {
            return answered.into_result(ask);
        }
        // X sends a 401 response before it executes the request, so a retry repeats nothing.
        match self.account.token_after_rejection(&token).await? {
            Some(newer) => self.send_as(ask, &newer).await?.into_result(ask),
            None => answered.into_result(ask),
        }
    }

    async fn send_as(&self, ask: &ApiRequest, token: &SecretString) -> Result<ApiResponse, ToolError> {
        let request = self.request(ask, token)?;
        let mut answer = match self.client.send(request, 0, &Secrets::default()).await {
            Ok(answer) => answer,
            Err(SendError::Blocked(why)) => return Err(ToolError::Permanent(format!("X was not called: {why}."))),
            // A redirect does not show whether the request took effect.
            Err(SendError::Redirect(redirect)) if ask.is_effect => return Err(ask.lost(redirect.why)),
            Err(SendError::Redirect(redirect)) => return Err(ToolError::Permanent(redirect.why)),
            Err(SendError::NotSent { host, why }) => {
                return Err(ToolError::NotExecuted {
                    message: format!("Could not connect to {host}: {why}."),
                    retry_after: None,
                });
            }
            Err(SendError::Lost { host, why }) => return Err(ask.lost(format!("No answer from {host}: {why}."))),
        };
        let status = answer.status().as_u16();
        let headers = answer.headers().clone();
        let body = read_body(&mut answer, ANSWER_BYTES_MAX).await.ok();
        // X's response may contain the token.
        let secrets = Secrets::default().with_token(token);
        let text = body.map(|body| secrets.scrub(&String::from_utf8_lossy(&body)));
        Ok(ApiResponse { status, headers, text })
    }

    fn request(&self, ask: &ApiRequest, token: &SecretString) -> Result<Request, ToolError> {
        let text = format!("{}{}", self.base.as_str().trim_end_matches('/'), ask.path);
        let mut url = Url::parse(&text).map_err(ToolError::internal)?;
        if !ask.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&ask.query);
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        let bearer = HeaderValue::try_from(format!("Bearer {}", token.expose_secret()));
        let mut bearer = bearer.map_err(|_| ToolError::Permanent("X's access token forms no valid header.".into()))?;
        bearer.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, bearer);
        if let Some((_, kind)) = &ask.body {
            headers.insert(header::CONTENT_TYPE, HeaderValue::try_from(kind).map_err(ToolError::internal)?);
        }
        let body = ask.body.as_ref().map(|(body, _)| body.clone());
        Ok(Request { method: ask.method.clone(), url, headers, body, body_is_secret: false })
    }
}

/// `text` is `None` if the body is incomplete or too large.
struct ApiResponse {
    status: u16,
    headers: HeaderMap,
    text: Option<String>,
}

impl ApiResponse {
    fn into_result(self, ask: &ApiRequest) -> Result<Value, ToolError> {
        let status = self.status;
        if (200..300).contains(&status) {
            let Some(text) = self.text else {
                return Err(ask.lost("X's answer is incomplete or too large.".into()));
            };
            if text.trim().is_empty() {
                return Ok(Value::Null);
            }
            return serde_json::from_str(&text).map_err(|_| ask.lost("X's response is not JSON.".into()));
        }
        let body: Option<Value> = self.text.as_deref().and_then(|text| serde_json::from_str(text).ok());
        let reason = body.as_ref().and_then(rejection_message).map(|reason| format!(": {reason}")).unwrap_or_default();
        let message = format!("X answered with status {status}{reason}");
        match status {
            429 => {
                let wait = retry_after(&self.headers, None).or_else(|| until_reset(&self.headers));
                let when = wait.map(|wait| format!(" It allows more in {} s.", wait.as_secs())).unwrap_or_default();
                let message = format!("{}.{when}", message.trim_end_matches('.'));
                Err(ToolError::NotExecuted { message, retry_after: wait })
            }
            408 | 425 | 500..=599 => Err(ask.lost_for(message, retry_after(&self.headers, None))),
            _ => Err(ToolError::Refused { message, details: json!({ "status": status }) }),
        }
    }
}

/// The time until X resets its rate limit (docs.x.com, Rate limits). The response's own `Date` counts, because the
/// local clock may be wrong.
fn until_reset(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let reset: i64 = text("x-rate-limit-reset")?.parse().ok()?;
    let now = DateTime::parse_from_rfc2822(text("date")?).ok()?.timestamp();
    // Both times are truncated to seconds, so add one second.
    u64::try_from(reset.saturating_sub(now).saturating_add(1).max(0)).ok().map(Duration::from_secs)
}

/// The error message in a response. The body contains a problem (RFC 7807), a list of errors, or both.
fn rejection_message(body: &Value) -> Option<String> {
    const PLACES: [&str; 5] = ["/errors/0/message", "/errors/0/detail", "/detail", "/error_description", "/title"];
    let detail =
        PLACES.iter().find_map(|place| body.pointer(place)?.as_str()).filter(|detail| !detail.trim().is_empty())?;
    let line: String = detail.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    Some(wording::cut(line.trim(), ERROR_TEXT_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_rate_limit_reset_counts_from_the_response_date() {
        let date = ("date", "Tue, 24 Nov 2026 21:00:00 GMT");
        let at = DateTime::parse_from_rfc2822(date.1).unwrap().timestamp();
        let wait = |reset: i64| until_reset(&headers(&[date, ("x-rate-limit-reset", &reset.to_string())]));
        assert_eq!(wait(at + 12), Some(Duration::from_secs(13)));
        assert_eq!(wait(at - 900), Some(Duration::ZERO), "long ago");
        assert_eq!(wait(i64::MAX).map(|wait| wait.as_secs() > 1_000_000), Some(true), "no overflow");
        assert_eq!(until_reset(&headers(&[("x-rate-limit-reset", "5")])), None, "without a date, nobody knows");
        assert_eq!(until_reset(&headers(&[date, ("x-rate-limit-reset", "soon")])), None);
    }

    #[test]
    fn an_unclear_response_means_not_executed_except_for_effects() {
        let answered = |status, text: Option<&str>| ApiResponse {
            status,
            headers: HeaderMap::new(),
            text: text.map(ToOwned::to_owned),
        };
        let harmless = ApiRequest::post_json("/2/media/upload/initialize", &json!({}));
        let effect = ApiRequest { is_effect: true, ..harmless.clone() };
        for (status, text) in [(201, None), (201, Some("<html>")), (500, Some("{}")), (503, None), (408, None)] {
            let of = |ask: &ApiRequest| answered(status, text).into_result(ask).unwrap_err();
            assert!(matches!(of(&effect), ToolError::Transient(_)), "{status}");
            assert!(matches!(of(&harmless), ToolError::NotExecuted { .. }), "{status}");
        }
        let busy = ApiResponse { headers: headers(&[("retry-after", "7")]), ..answered(503, Some("{}")) };
        let wait = |error| if let ToolError::NotExecuted { retry_after, .. } = error { retry_after } else { None };
        assert_eq!(wait(busy.into_result(&harmless).unwrap_err()), Some(Duration::from_secs(7)));
        let refused =
            answered(403, Some(r#"{"detail":"duplicate\ncontent","title":"Forbidden"}"#)).into_result(&effect);
        let expected = "X answered with status 403: duplicate content";
        assert!(matches!(refused, Err(ToolError::Refused { message, .. }) if message == expected));
        assert!(matches!(answered(429, None).into_result(&effect), Err(ToolError::NotExecuted { .. })));
    }
}
