//! How a run ended.

use serde::{Deserialize, Serialize};

/// The bound that ended a run. The whole tree of processes was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// Its wall time was over.
    Wall,
    /// Its time on processors was used up.
    Cpu,
    /// It used too much memory.
    Memory,
    /// It had too many processes.
    Processes,
    /// Its workspace grew too big.
    WorkspaceBytes,
    /// Its workspace has too many files.
    WorkspaceFiles,
    /// A part of its workspace cannot be counted, which counts as over the limits.
    WorkspaceUncountable,
    /// The caller cancelled it.
    Cancelled,
}

impl Stop {
    /// What a model is told.
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
pub struct Outcome {
    /// Standard output, cut at the limit.
    pub stdout: Vec<u8>,
    /// Standard error, cut at the limit.
    pub stderr: Vec<u8>,
    /// The exit code; none where a signal ended the command.
    pub exit_code: Option<i32>,
    /// The signal that ended the command.
    pub signal: Option<i32>,
    /// True if standard output or error was cut.
    pub truncated: bool,
    /// The bound that was crossed.
    pub stopped: Option<Stop>,
}

impl Outcome {
    /// Returns true if the command's wall time was over.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.stopped == Some(Stop::Wall)
    }
}

/// Why a command was not started, or what became of it is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The description of the run is wrong. Nothing ran.
    #[error("{0}")]
    Spec(String),
    /// The machine cannot hold what is demanded. Nothing ran.
    #[error("{0}")]
    Machine(String),
    /// There is no such program, or it cannot be executed. Nothing ran.
    #[error("{0}")]
    NotStarted(String),
    /// The launcher was lost: the command may have run.
    #[error("{0}")]
    Lost(String),
}
