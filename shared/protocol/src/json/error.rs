//! The error for a text that is not valid JSON, with its position.

use std::fmt;

use tickfleet_model::RejectionCode;

use super::strings::bounded;

/// Errors must stay short, because they go to models, logs and replies.
pub(super) const ECHO_BYTES_MAX: usize = 120;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonProblem {
    TooLarge {
        bytes: usize,
        max: usize,
    },
    TooDeep {
        max: usize,
    },
    NotUtf8,
    Ended {
        /// The syntax that should have followed.
        expected: &'static str,
    },
    Syntax {
        expected: &'static str,
        found: char,
    },
    Trailing,
    /// An object has a key twice. Parsers disagree on which of the two values counts.
    DuplicateKey(String),
    LoneSurrogate,
}

impl JsonProblem {
    #[must_use]
    pub const fn code(&self) -> RejectionCode {
        match self {
            Self::TooLarge { .. } => RejectionCode::TooLarge,
            Self::TooDeep { .. } => RejectionCode::TooDeep,
            Self::DuplicateKey(_) => RejectionCode::DuplicateKey,
            Self::NotUtf8 | Self::Ended { .. } | Self::Syntax { .. } | Self::Trailing | Self::LoneSurrogate => {
                RejectionCode::MalformedJson
            }
        }
    }
}

impl fmt::Display for JsonProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge { bytes, max } => write!(f, "the text has {bytes} bytes; at most {max} are allowed"),
            Self::TooDeep { max } => write!(f, "arrays and objects nest deeper than {max} levels"),
            Self::NotUtf8 => f.write_str("the bytes are not UTF-8"),
            Self::Ended { expected } => write!(f, "the text ends where {expected} was expected"),
            Self::Syntax { expected, found } => write!(f, "expected {expected}, found {found:?}"),
            Self::Trailing => f.write_str("more text follows the JSON value"),
            Self::DuplicateKey(key) => write!(f, "the key {key:?} occurs twice in one object"),
            Self::LoneSurrogate => {
                f.write_str("a \\u escape is a lone surrogate; write a surrogate pair or the character itself")
            }
        }
    }
}

/// The length of the error's text is bounded for any input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem} (at {place}line {line}, column {column})", place = PathPrefix(path))]
pub struct JsonError {
    pub problem: JsonProblem,
    /// Such as `calls[0].arguments`; empty for the whole text.
    pub path: String,
    pub byte: usize,
    /// From 1.
    pub line: usize,
    /// In bytes, from 1.
    pub column: usize,
}

struct PathPrefix<'a>(&'a str);

impl fmt::Display for PathPrefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{}, ", self.0) }
    }
}

impl JsonError {
    pub(super) fn at(problem: JsonProblem, path: &str, bytes: &[u8], byte: usize) -> Self {
        let before = bytes.get(..byte).unwrap_or(bytes);
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        let column = 1 + before.iter().rev().take_while(|b| **b != b'\n').count();
        Self { problem, path: bounded(path, ECHO_BYTES_MAX).into_owned(), byte, line, column }
    }

    pub(super) fn too_large(bytes: usize, max: usize) -> Self {
        Self { problem: JsonProblem::TooLarge { bytes, max }, path: String::new(), byte: max, line: 1, column: 1 }
    }

    pub(super) fn not_utf8(bytes: &[u8], byte: usize) -> Self {
        Self::at(JsonProblem::NotUtf8, "", bytes, byte)
    }
}
