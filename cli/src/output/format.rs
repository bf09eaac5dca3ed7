//! The dialects, as options of the command line name them.

use clap::ValueEnum;
use tickfleet_model::Dialect;

/// The dialects, as options name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// OpenAI's Chat Completions.
    #[value(alias = "openai_chat", alias = "openai-chat")]
    Openai,
    /// OpenAI's Responses.
    #[value(alias = "openai_responses")]
    OpenaiResponses,
    /// Anthropic's Messages.
    Anthropic,
    /// MCP: tools as `tools/list` gives them, calls as `tools/call` takes them.
    Mcp,
    /// Everything that a program wants to know.
    Raw,
    /// Plain text, for a model without function calling.
    Text,
}

impl Format {
    pub(crate) const fn dialect(self) -> Dialect {
        match self {
            Self::Openai => Dialect::OpenaiChat,
            Self::OpenaiResponses => Dialect::OpenaiResponses,
            Self::Anthropic => Dialect::Anthropic,
            Self::Mcp => Dialect::Mcp,
            Self::Raw => Dialect::Raw,
            Self::Text => Dialect::Text,
        }
    }
}
