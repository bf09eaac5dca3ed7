use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;
use tickfleet_sandbox::RunOutcome;
use tickfleet_tools::ToolFailure;

/// The result of a finished command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct CommandResult {
    /// The command's standard output.
    pub stdout: String,
    /// The command's standard error.
    pub stderr: String,
    /// The exit code; null if the command was killed.
    pub exit_code: Option<i32>,
    /// True if standard output or standard error was cut at its limit.
    pub truncated: bool,
    /// True if the command exceeded its time limit.
    pub timed_out: bool,
    /// The reason why the command was killed, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub killed: Option<String>,
}

impl From<RunOutcome> for CommandResult {
    fn from(outcome: RunOutcome) -> Self {
        let by_signal = outcome.signal.map(|signal| format!("signal {signal} ended it"));
        let stopped = outcome.stopped.map(|stop| stop.message().to_owned());
        Self {
            timed_out: outcome.timed_out(),
            stdout: String::from_utf8_lossy(&outcome.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&outcome.stderr).into_owned(),
            exit_code: outcome.exit_code.filter(|_| outcome.stopped.is_none()),
            truncated: outcome.truncated,
            killed: stopped.or(by_signal),
        }
    }
}

impl CommandResult {
    /// An exit code is a result, unless the declaration lists it as a failure.
    pub(crate) fn into_outcome(self, transient: &BTreeSet<u8>, permanent: &BTreeSet<u8>) -> Result<Self, ToolFailure> {
        let code = self.exit_code.and_then(|code| u8::try_from(code).ok());
        let is_in = |codes: &BTreeSet<u8>| code.is_some_and(|code| codes.contains(&code));
        let message = || {
            let output = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
            format!("The command ended with exit code {}: {}", code.unwrap_or_default(), output.trim())
        };
        if is_in(transient) {
            return Err(ToolFailure::Transient { message: message(), retry_after: None, not_executed: false });
        }
        if is_in(permanent) {
            return Err(ToolFailure::permanent(message(), serde_json::to_value(&self).ok()));
        }
        Ok(self)
    }
}
