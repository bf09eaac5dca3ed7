//! One module per API. A module writes requests and reads answers.

mod anthropic;
mod gemini;
mod openai;
mod responses;

use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::value::RawValue;
use tickfleet_model::limits;
use tickfleet_protocol::json::repaired;
use tickfleet_protocol::{cut_off, is_unfinished};

use crate::message::{ModelAnswer, ModelRequest, StopReason, ToolCall};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProviderApi {
    /// Also the API of many compatible servers.
    OpenAi,
    Responses,
    Anthropic,
    Gemini,
}

pub(crate) struct EncodedRequest {
    /// Relative to the base address.
    pub(crate) path: String,
    /// The header's name, and the prefix of its value.
    pub(crate) key: (&'static str, &'static str),
    pub(crate) headers: &'static [(&'static str, &'static str)],
    pub(crate) body: String,
}

impl ProviderApi {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Responses => "openai-responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    #[must_use]
    pub fn base_url(self) -> &'static str {
        match self {
            Self::OpenAi | Self::Responses => openai::BASE_URL,
            Self::Anthropic => "https://api.anthropic.com",
            Self::Gemini => "https://generativelanguage.googleapis.com",
        }
    }

    /// The caller must have checked the request.
    pub(crate) fn write(
        self,
        request: &ModelRequest,
        model: &str,
        base_url: &str,
    ) -> Result<EncodedRequest, serde_json::Error> {
        match self {
            Self::OpenAi => openai::write(request, model, base_url),
            Self::Responses => responses::write(request, model),
            Self::Anthropic => anthropic::write(request, model),
            Self::Gemini => gemini::write(request, model),
        }
    }

    /// The error message repeats no part of the body.
    pub(crate) fn read(self, request: &ModelRequest, body: &[u8]) -> Result<ModelAnswer, String> {
        // A cut-off answer can end in the middle of a character.
        let body = String::from_utf8_lossy(body);
        let body = repaired(&body, limits::JSON_DEPTH_MAX).unwrap_or(std::borrow::Cow::Borrowed(&body));
        match self {
            Self::OpenAi => openai::read(request, &body),
            Self::Responses => responses::read(request, &body),
            Self::Anthropic => anthropic::read(request, &body),
            Self::Gemini => gemini::read(request, &body),
        }
    }
}

/// Accepts every JSON value, because some servers write null or another value instead of text. Null becomes empty.
#[derive(Debug, Default)]
struct LooseText(String);

impl<'de> Deserialize<'de> for LooseText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(from)?;
        Ok(Self(match raw.get() {
            "null" => String::new(),
            text if text.starts_with('"') => serde_json::from_str(text).map_err(D::Error::custom)?,
            text => text.to_owned(),
        }))
    }
}

fn call(
    request: &ModelRequest,
    index: usize,
    name: LooseText,
    arguments: LooseText,
    signature: Option<String>,
) -> ToolCall {
    // Providers reject a conversation that contains a call without a name.
    let tool = if name.0.is_empty() { "unnamed".to_owned() } else { name.0 };
    // Some servers send empty arguments for a call without arguments.
    let arguments = if arguments.0.trim().is_empty() { "{}".to_owned() } else { arguments.0 };
    ToolCall { id: request.call_id(index), tool, arguments, signature }
}

/// If the answer was cut off and ends with a call, this marks the call so that it is never carried out.
fn stop(word: Option<&str>, is_refused: bool, calls: &mut [ToolCall], ends_with_call: bool) -> StopReason {
    if is_refused {
        return StopReason::Refused;
    }
    if word.is_some_and(is_unfinished) {
        if let Some(last) = calls.last_mut().filter(|_| ends_with_call) {
            cut_off(&mut last.arguments);
        }
        return StopReason::Length;
    }
    if calls.is_empty() { StopReason::Answer } else { StopReason::Calls }
}

fn unexpected(error: &serde_json::Error) -> String {
    format!("the response does not have this provider's format (line {}, column {})", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::Value;

    use super::*;

    fn api(word: &str) -> ProviderApi {
        let all = [ProviderApi::OpenAi, ProviderApi::Responses, ProviderApi::Anthropic, ProviderApi::Gemini];
        all.into_iter().find(|api| api.as_str() == word).unwrap()
    }

    #[test]
    fn truncated_or_odd_answers_are_parsed_call_by_call() {
        let cases = include_str!("../../../../tests/data/trouble/model-answers.json");
        for case in serde_json::from_str::<Vec<Box<RawValue>>>(cases).unwrap() {
            // Parsed values would round the numbers of the body.
            let members: std::collections::BTreeMap<String, Box<RawValue>> = serde_json::from_str(case.get()).unwrap();
            let read = |name: &str| serde_json::from_str::<Value>(members[name].get()).unwrap();
            let about = read("about");
            let answer =
                api(read("api").as_str().unwrap()).read(&ModelRequest::default(), members["body"].get().as_bytes());
            let answer = answer.unwrap_or_else(|why| panic!("{about}: {why}"));
            let calls: Vec<_> = answer.calls.iter().map(|call| [call.tool.clone(), call.arguments.clone()]).collect();
            assert_eq!(serde_json::to_value(calls).unwrap(), read("calls"), "{about}");
            let expected = if read("stop") == "length" { StopReason::Length } else { StopReason::Calls };
            assert_eq!(answer.stop, expected, "{about}");
        }
        let half = br#"{"choices":[{"finish_reason":"length","message":{"content":"caf\ud83d"}}]}"#;
        let answer = ProviderApi::OpenAi.read(&ModelRequest::default(), half).unwrap();
        assert_eq!((answer.text.as_str(), answer.stop), ("caf\u{fffd}", StopReason::Length));
    }
}
