/// The single list of dialects: documentation, variant, module of `tickfleet-protocol`, and name in messages.
#[macro_export]
macro_rules! for_each_dialect {
    ($with:ident) => {
        $with! {
            /// `{id, name, arguments}` with arguments as a JSON value.
            Raw: raw = "raw",
            /// OpenAI Chat Completions `tool_calls`.
            OpenaiChat: openai_chat = "openai_chat",
            /// OpenAI Responses `function_call` items.
            OpenaiResponses: openai_responses = "openai_responses",
            /// Anthropic Messages `tool_use` blocks.
            Anthropic: anthropic = "anthropic",
            /// MCP `tools/call` parameters.
            Mcp: mcp = "mcp",
            /// Gemini `functionCall` parts.
            Gemini: gemini = "gemini",
            /// MCP `tools/call` parameters of the revision 2026-07-28.
            Mcp2026_07_28: mcp_2026_07_28 = "mcp_2026_07_28",
            /// A plain-text answer of a model without function calling.
            Text: text = "text",
        }
    };
}

macro_rules! dialects {
    ($($(#[$doc:meta])* $variant:ident: $module:ident = $word:literal,)+) => {
        /// The format of incoming calls and of results.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum Dialect {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)+
        }

        impl Dialect {
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

for_each_dialect!(dialects);

/// A message that names no dialect uses the first dialect of the list.
impl Default for Dialect {
    fn default() -> Self {
        let [first, ..] = Self::ALL;
        first
    }
}

impl Dialect {
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.as_str() == text)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_dialect_uses_the_same_word_in_messages_and_json() {
        for dialect in Dialect::ALL {
            assert_eq!(Dialect::parse(dialect.as_str()), Some(dialect));
            let json = serde_json::to_string(&dialect).unwrap();
            assert_eq!(json, format!("\"{}\"", dialect.as_str()));
            assert_eq!(serde_json::from_str::<Dialect>(&json).unwrap(), dialect);
        }
        assert_eq!(Dialect::parse("cobol"), None);
        assert_eq!(Dialect::default(), Dialect::Raw);
    }
}
