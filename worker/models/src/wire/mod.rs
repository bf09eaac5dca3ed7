//! One module per provider: how a request is written for it, and how its answer is read.

mod anthropic;
mod gemini;
mod openai;
mod responses;

use crate::message::{Answer, Request};

/// A form of requests and answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// Chat Completions, of OpenAI and of the many servers that answer alike.
    OpenAi,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's `generateContent`.
    Gemini,
}

/// A request as it is sent.
pub(crate) struct Written {
    /// What follows the base address.
    pub(crate) path: String,
    /// The header that the key goes into, and what stands before it.
    pub(crate) key: (&'static str, &'static str),
    /// Other headers.
    pub(crate) headers: &'static [(&'static str, &'static str)],
    pub(crate) body: String,
}

impl Api {
    /// The word that configuration and metrics name it by.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Responses => "openai-responses",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
        }
    }

    /// The address of the provider itself.
    #[must_use]
    pub fn base_url(self) -> &'static str {
        match self {
            Self::OpenAi | Self::Responses => openai::BASE_URL,
            Self::Anthropic => "https://api.anthropic.com",
            Self::Gemini => "https://generativelanguage.googleapis.com",
        }
    }

    /// Writes a request that has been checked.
    pub(crate) fn write(self, request: &Request, model: &str, base_url: &str) -> Result<Written, serde_json::Error> {
        match self {
            Self::OpenAi => openai::write(request, model, base_url),
            Self::Responses => responses::write(request, model),
            Self::Anthropic => anthropic::write(request, model),
            Self::Gemini => gemini::write(request, model),
        }
    }

    /// Reads the body of a success.
    ///
    /// # Errors
    /// What is wrong with it, in words that repeat nothing of it.
    pub(crate) fn read(self, request: &Request, body: &[u8]) -> Result<Answer, String> {
        match self {
            Self::OpenAi => openai::read(request, body),
            Self::Responses => responses::read(request, body),
            Self::Anthropic => anthropic::read(request, body),
            Self::Gemini => gemini::read(request, body),
        }
    }
}

/// Why JSON is not what was expected, without a word of it.
fn unexpected(error: &serde_json::Error) -> String {
    format!("the answer is not what this provider answers (line {}, column {})", error.line(), error.column())
}
