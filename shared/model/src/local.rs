//! Local tools: the caller's process runs the function, and reports how the function ended.

use serde::{Deserialize, Serialize};

/// How a function in the caller's process ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// The function returned an output, as JSON.
    Output {
        json: String,
        /// True if the output exceeded the maximum length, so that `json` is not the whole output.
        #[serde(default)]
        is_cut: bool,
    },
    Failed {
        code: String,
        message: String,
        kind: FailureKind,
    },
    /// The process did not renew its lease, so the end of the function is unknown.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The function refused the call, and had no effect.
    Permanent,
    /// The function failed temporarily. It may have had an effect.
    Transient,
    /// The function failed temporarily, and certainly had no effect.
    NotExecuted,
    /// The function failed unexpectedly. It may have had an effect.
    Unknown,
}
