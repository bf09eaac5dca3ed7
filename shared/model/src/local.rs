//! Local tools: the caller's process runs the function, and reports how the function ended.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    Output {
        json: String,
        /// True if the output exceeded the maximum length, so `json` is not the whole output.
        #[serde(default)]
        is_cut: bool,
    },
    Failed {
        code: String,
        message: String,
        kind: FailureKind,
    },
    /// The process did not renew its lease, so it is unknown how the function ended.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    Permanent,
    /// The function may have had an effect.
    Transient,
    /// The failure is temporary, and the function certainly had no effect.
    NotExecuted,
    /// The function may have had an effect.
    Unknown,
}
