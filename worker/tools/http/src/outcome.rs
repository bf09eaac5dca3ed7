//! Interprets a response as output, permanent failure or transient failure.

mod charset;

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::Response;
use reqwest::header::{self, HeaderMap};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_config::tools::AnswerMeaning;
use tickfleet_model::{CallId, Effect, limits};
use tickfleet_outbound::{Blocked, BodyError, read_body};
use tickfleet_tools::json::{repaired, with_numbers_as_text};

use super::client::UnfollowedRedirect;
use super::mapping::{Mapping, Rule, pointed};
use tickfleet_tools::{ContentBlock, Secrets, ToolFailure, ToolOutput, wording};

const ERROR_BODY_BYTES_MAX: usize = 64 * 1024;
const MESSAGE_BYTES_MAX: usize = 600;

const POINTER_BYTES_MAX: usize = 200;

#[derive(Debug, Clone)]
pub(super) struct OutcomeRules {
    /// The statuses that show that nothing took effect, in addition to 429.
    pub(super) not_executed: BTreeSet<u16>,
    /// A matching rule takes precedence over the status.
    pub(super) mapping: Mapping,
    /// A JSON pointer to the tool's result.
    pub(super) result: Option<String>,
    pub(super) response_bytes_max: usize,
    pub(super) effect: Effect,
}

pub(super) struct ToolResponse {
    pub(super) answer: Response,
    /// Why a redirect was not followed. `None` for any other response.
    unfollowed: Option<String>,
    call: Option<CallId>,
}

impl ToolResponse {
    pub(super) fn for_call(self, call: &CallId) -> Self {
        Self { call: Some(call.clone()), ..self }
    }
}

impl From<Response> for ToolResponse {
    fn from(answer: Response) -> Self {
        Self { answer, unfollowed: None, call: None }
    }
}

impl From<UnfollowedRedirect> for ToolResponse {
    fn from(UnfollowedRedirect { answer, why }: UnfollowedRedirect) -> Self {
        Self { answer, unfollowed: Some(why), call: None }
    }
}

impl OutcomeRules {
    /// Converts the response to the call's output or failure, without secrets.
    pub(super) async fn interpret(&self, answered: ToolResponse, secrets: &Secrets) -> Result<ToolOutput, ToolFailure> {
        let ToolResponse { mut answer, unfollowed, call } = answered;
        let status = answer.status().as_u16();
        let done = (200..300).contains(&status);
        // If the status alone decides the outcome, the body only explains a failure and may be lost.
        let needed = done || self.mapping.may_succeed(status);
        let bytes_max = if needed { self.response_bytes_max } else { ERROR_BODY_BYTES_MAX };
        let body = match read_body(&mut answer, bytes_max).await {
            Err(error) if needed => return self.unread(status, &error),
            body => body.unwrap_or_default(),
        };
        let headers = answer.headers();
        let text = charset::text(&body, headers).map(|text| secrets.scrub(&text));
        let json = text.as_deref().and_then(|text| as_raw(text.trim()));
        let rule = self.mapping.rule(status, json.as_deref());
        if rule.map_or(done, |rule| rule.meaning == AnswerMeaning::Ok) {
            return match text {
                Some(text) => self.output(&answer, &text, json, call.as_ref()),
                None => binary(&body, headers, secrets),
            };
        }
        let text = text.unwrap_or_else(|| secrets.scrub(&String::from_utf8_lossy(&body)));
        Err(match (rule, unfollowed) {
            (Some(rule), _) => mapped(rule, status, headers, &text),
            (None, Some(why)) => self.redirect_failure(why),
            (None, None) => self.failure(status, headers, &text),
        })
    }

    fn unread(&self, status: u16, error: &BodyError) -> Result<ToolOutput, ToolFailure> {
        let lost = |message: String| Err(ToolFailure::Transient { message, retry_after: None, not_executed: false });
        match error {
            // A rule depends on the unread body, so the outcome is unknown.
            BodyError::TooLarge if self.mapping.may_fail(status) => lost(format!(
                "The service answered (status {status}) with more than {} bytes, which were not read, so it is unknown \
                 whether the request succeeded. Ask for less at a time.",
                self.response_bytes_max
            )),
            BodyError::TooLarge if self.effect == Effect::Read => Err(permanent(format!(
                "The request succeeded (status {status}), but its answer has more than {} bytes and was not \
                 read. Ask for less at a time.",
                self.response_bytes_max
            ))),
            // The request took effect. A caller would repeat a failed call, so report an output.
            BodyError::TooLarge => {
                let note = format!(
                    "The request succeeded. Its answer has more than {} bytes and is not shown. Do not call \
                     this tool again to repeat it.",
                    self.response_bytes_max
                );
                raw(json!({ "executed": true, "status": status, "note": note }).to_string()).map(as_json)
            }
            BodyError::Lost(_) => {
                lost(format!("The connection was lost during the service's answer (status {status})."))
            }
        }
    }

    fn output(
        &self,
        answer: &Response,
        text: &str,
        whole: Option<Box<RawValue>>,
        call: Option<&CallId>,
    ) -> Result<ToolOutput, ToolFailure> {
        if text.trim().is_empty() {
            return raw("null".to_owned()).map(as_json);
        }
        if let Some(pointer) = self.result.as_deref().filter(|pointer| !pointer.is_empty()) {
            let part = whole.as_deref().and_then(|whole| pointed(whole, pointer));
            return part
                .map_or_else(|| self.missing_result(pointer, answer, call), |part| Ok(as_json(part.to_owned())));
        }
        match whole {
            Some(whole) => Ok(as_json(whole)),
            None => Ok(ToolOutput { json: raw(Value::from(text).to_string())?, content_type: "text/plain" }),
        }
    }

    /// The output for a response without a value at `pointer`. The declaration selects only a part, so the model must
    /// not receive the rest.
    fn missing_result(
        &self,
        pointer: &str,
        answer: &Response,
        call: Option<&CallId>,
    ) -> Result<ToolOutput, ToolFailure> {
        let status = answer.status().as_u16();
        let host = answer.url().host_str().unwrap_or_default();
        let call = call.map(tracing::field::display);
        tracing::warn!(call, host, status, pointer, "response has no value at the tool's result pointer");
        let nothing = format!("has no value at the result pointer {}", wording::cut(pointer, POINTER_BYTES_MAX));
        let output = match self.effect {
            Effect::Read => json!({ "status": status, "note": format!("The service's answer {nothing}.") }),
            Effect::Once | Effect::Idempotent => json!({ "executed": true, "status": status, "note": format!(
                "The request succeeded, but its answer {nothing}. Do not call this tool again to repeat it."
            ) }),
        };
        raw(output.to_string()).map(as_json)
    }

    /// The failure for a redirect that was not followed. The service may have executed the request, so the outcome is
    /// unknown if the tool must not run twice.
    fn redirect_failure(&self, why: String) -> ToolFailure {
        if self.effect != Effect::Once {
            return permanent(why);
        }
        let message = format!("{why} It does not show whether the request succeeded.");
        ToolFailure::Transient { message, retry_after: None, not_executed: false }
    }

    fn failure(&self, status: u16, headers: &HeaderMap, text: &str) -> ToolFailure {
        let body = as_value(text);
        let message = failure_message(status, message_of(body.as_ref(), text, headers));
        let not_executed = status == 429 || self.not_executed.contains(&status);
        match status {
            408 | 425 | 500..=599 => {}
            _ if not_executed => {}
            _ => return ToolFailure::permanent(message, Some(json!({ "status": status }))),
        }
        ToolFailure::Transient { message, retry_after: retry_after(headers, body.as_ref()), not_executed }
    }
}

fn binary(body: &[u8], headers: &HeaderMap, secrets: &Secrets) -> Result<ToolOutput, ToolFailure> {
    if let Some(image) = ContentBlock::image(body) {
        return Ok(ToolOutput::content(&[image]));
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("unknown");
    let note = json!({"note": "binary answer, not shown", "bytes": body.len(), "content_type": wording::cut(kind, 80)});
    raw(secrets.scrub(&note.to_string())).map(as_json)
}

fn mapped(rule: &Rule, status: u16, headers: &HeaderMap, text: &str) -> ToolFailure {
    let body = as_value(text);
    let service_message = rule.message(body.as_ref()).map(|service_message| clean(&service_message));
    let message = failure_message(status, service_message.or_else(|| message_of(body.as_ref(), text, headers)));
    let wished = rule.retry_after_s(body.as_ref()).map(Duration::from_secs);
    match rule.meaning {
        // Never used: such responses have already been returned as output.
        AnswerMeaning::Ok => ToolFailure::permanent(message, Some(json!({ "status": status }))),
        AnswerMeaning::Ended(outcome) => {
            ToolFailure::Ended { outcome, message, details: Some(json!({ "status": status })) }
        }
        AnswerMeaning::Transient | AnswerMeaning::NotExecuted => ToolFailure::Transient {
            message,
            retry_after: wished.or_else(|| retry_after(headers, body.as_ref())),
            not_executed: rule.meaning == AnswerMeaning::NotExecuted,
        },
    }
}

fn failure_message(status: u16, service_message: Option<String>) -> String {
    let message = match service_message {
        Some(service_message) => format!("The service answered with status {status}: {service_message}"),
        None => format!("The service answered with status {status}."),
    };
    wording::cut(&message, limits::ERROR_BYTES_MAX)
}

/// `None` if the text is not JSON or is nested too deeply. The caller sends such text as a string.
fn as_raw(text: &str) -> Option<Box<RawValue>> {
    let json = repaired(text, limits::JSON_DEPTH_MAX)?;
    RawValue::from_string(json.into_owned()).ok()
}

fn as_value(text: &str) -> Option<Value> {
    let json = repaired(text, limits::JSON_DEPTH_MAX)?;
    serde_json::from_str(&with_numbers_as_text(&json)).ok()
}

pub(super) fn blocked(refused: &Blocked) -> ToolFailure {
    permanent(format!("The call was not made: {refused}."))
}

pub(super) fn not_sent(host: &str, why: &str) -> ToolFailure {
    let message = format!("Could not connect to {host}: {why}.");
    ToolFailure::Transient { message, retry_after: None, not_executed: true }
}

/// For a request that was sent, or may have been sent.
pub(super) fn lost(host: &str, why: &str) -> ToolFailure {
    let message = format!("No answer from {host}: {why}.");
    ToolFailure::Transient { message, retry_after: None, not_executed: false }
}

pub(super) fn permanent(message: impl AsRef<str>) -> ToolFailure {
    ToolFailure::permanent(wording::cut(message.as_ref(), limits::ERROR_BYTES_MAX), None)
}

fn raw(json: String) -> Result<Box<RawValue>, ToolFailure> {
    RawValue::from_string(json).map_err(|e| ToolFailure::Internal { message: format!("not JSON: {e}") })
}

fn as_json(json: Box<RawValue>) -> ToolOutput {
    ToolOutput { json, content_type: "application/json" }
}

fn message_of(body: Option<&Value>, text: &str, headers: &HeaderMap) -> Option<String> {
    const PLACES: [&str; 9] = [
        "/description",
        "/error/message",
        "/error_description",
        "/message",
        "/detail",
        "/error",
        "/errors/0/message",
        "/errors/0",
        "/title",
    ];
    let service_message = body.and_then(|body| PLACES.iter().find_map(|place| body.pointer(place)?.as_str()));
    let html = headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"text/html"));
    let service_message = service_message
        .or((!html).then_some(text))
        .map(str::trim)
        .filter(|service_message| !service_message.is_empty())?;
    Some(clean(service_message))
}

fn clean(service_message: &str) -> String {
    let line: String = service_message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    wording::cut(&line, MESSAGE_BYTES_MAX)
}

/// `Retry-After`, or `parameters.retry_after` in the body, as Telegram sends it.
pub fn retry_after(headers: &HeaderMap, body: Option<&Value>) -> Option<Duration> {
    tickfleet_outbound::retry_after(headers)
        .or_else(|| body?.pointer("/parameters/retry_after")?.as_u64().map(Duration::from_secs))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn headers(list: &[(HeaderName, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    fn wait(list: &[(HeaderName, &'static str)], body: Option<Value>) -> Option<u64> {
        retry_after(&headers(list), body.as_ref()).map(|d| d.as_secs())
    }

    #[test]
    fn retry_after_is_parsed_in_every_form() {
        let after = header::RETRY_AFTER;
        let date = header::DATE;
        assert_eq!(wait(&[(after.clone(), "7")], None), Some(7));
        assert_eq!(wait(&[(after.clone(), "99999999999999999999")], None), Some(u64::from(u32::MAX)));
        let dated = [(after.clone(), "Wed, 21 Oct 2026 07:28:30 GMT"), (date.clone(), "Wed, 21 Oct 2026 07:28:00 GMT")];
        assert_eq!(wait(&dated, None), Some(30));
        let past = [(after.clone(), "Wed, 21 Oct 2026 07:27:00 GMT"), (date, "Wed, 21 Oct 2026 07:28:00 GMT")];
        assert_eq!(wait(&past, None), Some(0));
        assert_eq!(wait(&[], Some(json!({"ok": false, "parameters": {"retry_after": 35}}))), Some(35));
        assert_eq!(wait(&[(after.clone(), "1.5")], None), Some(1));
        for odd in ["", "-1", "soon"] {
            assert_eq!(wait(&[(after.clone(), odd)], None), None, "{odd}");
        }
    }

    #[test]
    fn each_status_maps_to_its_outcome() {
        let rules = OutcomeRules {
            not_executed: BTreeSet::from([409, 503]),
            mapping: Mapping::default(),
            result: None,
            response_bytes_max: 10,
            effect: Effect::Once,
        };
        let meaning = |status| match rules.failure(status, &HeaderMap::new(), "") {
            ToolFailure::Transient { not_executed, .. } => Some(not_executed),
            ToolFailure::Ended { .. } => None,
            other => panic!("{other:?}"),
        };
        for status in [400, 401, 403, 404, 422, 304] {
            assert_eq!(meaning(status), None, "{status}");
        }
        for status in [408, 425, 500, 502, 504, 599] {
            assert_eq!(meaning(status), Some(false), "{status}: may have taken effect");
        }
        for status in [429, 409, 503] {
            assert_eq!(meaning(status), Some(true), "{status}: certainly not");
        }
    }

    #[test]
    fn a_service_error_message_is_passed_on_and_bounded() {
        let not_executed = BTreeSet::new();
        let mapping = Mapping::default();
        let rules = OutcomeRules { not_executed, mapping, result: None, response_bytes_max: 10, effect: Effect::Once };
        let message_for = |text: &str, kind| match rules.failure(400, &headers(&[(header::CONTENT_TYPE, kind)]), text) {
            ToolFailure::Ended { message, .. } => message,
            other => panic!("{other:?}"),
        };
        let telegram = r#"{"ok":false,"error_code":400,"description":"Bad Request: chat not found"}"#;
        let expected = "The service answered with status 400: Bad Request: chat not found";
        assert_eq!(message_for(telegram, "application/json"), expected);
        assert!(message_for(r#"{"error":{"message":"No"}}"#, "application/json").ends_with(": No"));
        assert!(message_for("plain\nwords", "text/plain").ends_with(": plain words"));
        assert_eq!(message_for("<html>", "text/html; charset=utf-8"), "The service answered with status 400.");
        assert!(message_for(&"x".repeat(100_000), "text/plain").len() <= limits::ERROR_BYTES_MAX);
        assert!(message_for(&"[".repeat(60_000), "application/json").len() <= limits::ERROR_BYTES_MAX);
    }

    #[test]
    fn a_response_with_nonportable_json_is_normalized() {
        let rules = serde_json::from_value::<Vec<tickfleet_config::tools::OutcomeRule>>(json!([
            {"at": "/total", "present": false, "outcome": "transient"}, {"at": "/paid", "equals": false, "outcome": "permanent"}
        ]));
        let mapping = Mapping::new(&rules.unwrap());
        for (answer, read) in [
            (
                r#"{"paid": true, "total": 1, "memo": "caf\ud83d"}"#,
                r#"{"paid": true, "total": 1, "memo": "caf\ufffd"}"#,
            ),
            (r#"{"paid": true, "total": 1e400}"#, r#"{"paid": true, "total": 1e400}"#),
            (r#"{"paid": false, "total": 0.10, "paid": true}"#, r#"{"total":0.10,"paid":true}"#),
        ] {
            let json = as_raw(answer).unwrap();
            assert_eq!(json.get(), read);
            assert!(mapping.rule(200, Some(&json)).is_none(), "{answer}");
            assert!(as_value(answer).is_some());
        }
    }

    #[test]
    fn a_pointer_keeps_every_digit() {
        let whole = RawValue::from_string(r#"{"a/b":[{"n":123456789012345678901}],"s":"x"}"#.into()).unwrap();
        assert_eq!(pointed(&whole, "/a~1b/0/n").map(RawValue::get), Some("123456789012345678901"));
        for nothing in ["/a~1b/1", "/none", "/s/x", "/a~1b/x"] {
            assert!(pointed(&whole, nothing).is_none(), "{nothing}");
        }
    }
}
