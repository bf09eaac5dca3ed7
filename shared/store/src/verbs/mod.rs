//! What producers, schedulers and operators ask a shard to do: methods of [`Store`](crate::Store) over decisions of the core.

/// Turns come in, and are decided, refused or asked to end.
pub(crate) mod turns {
    mod cancel;
    pub(crate) mod inbound;
    mod submit;

    pub use cancel::*;
    pub use inbound::Waits;
    pub use submit::*;
    pub use tickfleet_core::turn::submit::Inbound;
}

/// Approvals: what people are asked about calls, what they say, and what comes of that.
pub(crate) mod approvals {
    mod notices;
    mod view;

    pub use notices::*;
    pub use view::*;
}

/// Tasks, and the runtimes outside that carry them out.
pub(crate) mod tasks {
    mod retire;
    mod step;
    mod touch;

    pub use touch::*;
}

/// What is said: between people and agents in sessions, and from agent to agent.
pub(crate) mod talks {
    mod say;
    mod tell;

    pub use say::*;
    pub use tell::*;
}

/// Signs of life, and what happens when they stop.
pub(crate) mod recovery {
    mod drain;
    mod ensure_groups;
}

/// What is done while the fleet runs: the policy in force, tenants, tools that are switched off, counters that are set to
/// zero.
pub(crate) mod run_time {
    mod announce;
    mod at_run_time;
    mod note_act;
    mod pause;
    mod reset_limit;
    mod set_tenant;
    mod switch_tool;

    pub use announce::*;
    pub use at_run_time::*;
    pub use pause::PauseSet;
    pub use reset_limit::*;
}

/// What agents may look up: documents and memories.
pub(crate) mod knowledge {
    mod keep_document;
    mod remember;

    pub use keep_document::*;
    pub use remember::*;
}

/// What was put aside, and what operators do with it.
pub(crate) mod dead {
    mod replay;

    pub use replay::*;
}

/// The audit log is sealed, and followed.
pub(crate) mod audit {
    mod checkpoint;
    mod roll_up;

    pub use checkpoint::*;
    pub use roll_up::Addition;
}

/// Bounds that are kept once in a while.
pub(crate) mod upkeep {
    mod check;
    mod grants;
    mod tool_lists;

    pub use check::*;
    pub use tool_lists::*;
}
