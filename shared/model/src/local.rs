//! Local tools run in the caller's process.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    Output {
        json: String,
        /// True if `json` was cut at the maximum length.
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
    Permanent,
    /// The function may have had an effect.
    Transient,
    /// The failure is temporary, and the function had no effect.
    NotExecuted,
    /// The function may have had an effect.
    Unknown,
}
