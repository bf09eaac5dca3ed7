//! Local tools: the caller's process runs the function, and reports how the function ended.

use serde::{Deserialize, Serialize};

/// How a function in the caller's process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// The function returned this JSON.
    Output {
        json: String,
        /// True if the output was longer than its bound, so that `json` is not the whole output.
        #[serde(default)]
        is_cut: bool,
    },
    Failed {
        code: String,
        message: String,
        kind: FailureKind,
    },
    /// The process was silent for one lease.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The function refused the call, and had no effect.
    Permanent,
    /// The function failed for now. It may have had an effect.
    Transient,
    /// The function failed for now, and certainly had no effect.
    NotExecuted,
    /// The function failed unexpectedly. It may have had an effect.
    Unknown,
}
