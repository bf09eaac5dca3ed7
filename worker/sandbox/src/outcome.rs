use serde::{Deserialize, Serialize};

/// The reason for stopping a run. All processes of the run were killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopCause {
    Wall,
    Cpu,
    Memory,
    Processes,
    WorkspaceBytes,
    WorkspaceFiles,
    /// Treated as if the workspace exceeded its limits.
    WorkspaceUncountable,
    Cancelled,
}

impl StopCause {
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Wall => "it ran longer than its time limit",
            Self::Cpu => "it exceeded its limit of processor time",
            Self::Memory => "it exceeded its memory limit",
            Self::Processes => "it exceeded its limit of processes",
            Self::WorkspaceBytes => "the files of the workspace grew beyond its size limit",
            Self::WorkspaceFiles => "the workspace exceeded its limit of files",
            Self::WorkspaceUncountable => {
                "a folder of the workspace cannot be counted: its mode forbids it, or folders were moved meanwhile"
            }
            Self::Cancelled => "it was canceled",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunOutcome {
    /// Cut at the limit `output_bytes`.
    pub stdout: Vec<u8>,
    /// Cut at the limit `output_bytes`.
    pub stderr: Vec<u8>,
    /// `None` if a signal ended the command.
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub truncated: bool,
    pub stopped: Option<StopCause>,
}

impl RunOutcome {
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.stopped == Some(StopCause::Wall)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// The specification cannot be used. Nothing ran.
    #[error("{0}")]
    Spec(String),
    /// The machine lacks a feature that the run demands. Nothing ran.
    #[error("{0}")]
    Machine(String),
    /// The program cannot be executed. Nothing ran.
    #[error("{0}")]
    NotStarted(String),
    /// The command may have run.
    #[error("{0}")]
    Lost(String),
}
