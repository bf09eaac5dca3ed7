//! The actions that audit entries record.

/// One table, so that the enum and its words cannot differ.
macro_rules! actions {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)+) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum AuditAction {
            $($(#[$doc])* $variant,)+
        }

        impl AuditAction {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

actions! {
    /// A call of a tool, or a task.
    ToolCall = "TOOL_CALL",
    Approval = "APPROVAL",
    Pause = "PAUSE",
    Resume = "RESUME",
    PauseTool = "PAUSE_TOOL",
    ResumeTool = "RESUME_TOOL",
    DisableTool = "DISABLE_TOOL",
    EnableTool = "ENABLE_TOOL",
    Cancel = "CANCEL",
    Replay = "REPLAY",
    Drop = "DROP",
    DrainWorker = "DRAIN_WORKER",
    ResumeWorker = "RESUME_WORKER",
    SetTenant = "SET_TENANT",
    UnsetTenant = "UNSET_TENANT",
    LimitReset = "LIMIT_RESET",
    Repair = "REPAIR",
}
