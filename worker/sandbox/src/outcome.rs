//! How a run ended.

use serde::{Deserialize, Serialize};

/// The limit that ended a run. All processes of the run were killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    /// The run exceeded its wall time.
    Wall,
    /// The run exceeded its processor time.
    Cpu,
    /// The run used too much memory.
    Memory,
    /// The run had too many processes.
    Processes,
    /// The run's workspace grew too big.
    WorkspaceBytes,
    /// The run's workspace has too many files.
    WorkspaceFiles,
    /// A part of the run's workspace cannot be counted, which counts as exceeding the limits.
    WorkspaceUncountable,
    /// The caller canceled the run.
    Cancelled,
}

impl StopCause {
    /// The message for the model.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Wall => "it ran longer than its time limit",
            Self::Cpu => "it used more processor time than it may",
            Self::Memory => "it used more memory than it may",
            Self::Processes => "it started more processes than it may",
            Self::WorkspaceBytes => "the files of the workspace grew beyond its size limit",
            Self::WorkspaceFiles => "the workspace has more files than it may",
            Self::WorkspaceUncountable => {
                "a folder of the workspace cannot be counted: its mode forbids it, or folders were moved meanwhile"
            }
            Self::Cancelled => "it was cancelled",
        }
    }
}

/// The end of a command that was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOutcome {
    /// Standard output, cut at the limit.
    pub stdout: Vec<u8>,
    /// Standard error, cut at the limit.
    pub stderr: Vec<u8>,
    /// The exit code; `None` if a signal ended the command.
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// True if standard output or error was cut.
    pub truncated: bool,
    /// The limit that was exceeded.
    pub stopped: Option<StopCause>,
}

impl RunOutcome {
    /// Returns true if the command exceeded its wall time.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.stopped == Some(StopCause::Wall)
    }
}

/// Why a command was not started, or why its outcome is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The specification of the run is invalid. Nothing ran.
    #[error("{0}")]
    Spec(String),
    /// The machine does not support what the run demands. Nothing ran.
    #[error("{0}")]
    Machine(String),
    /// The program does not exist or cannot be executed. Nothing ran.
    #[error("{0}")]
    NotStarted(String),
    /// The launcher was lost. The command may have run.
    #[error("{0}")]
    Lost(String),
}
