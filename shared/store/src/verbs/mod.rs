//! Operations of producers, schedulers and operators: methods of [`Store`](crate::Store) that run decisions of the
//! core.

pub(crate) mod turns {
    mod cancel;
    mod claim;
    pub(crate) mod inbound;
    mod progress;
    mod submit;

    pub use cancel::*;
    pub use claim::*;
    pub use inbound::UndecidedMessage;
    pub use submit::*;
    pub use tickfleet_core::turn::submit::Inbound;
}

pub(crate) mod approvals {
    mod notices;
    mod view;

    pub use notices::*;
    pub use view::*;
}

pub(crate) mod tasks {
    mod drop_queue;
    mod step;
}

pub(crate) mod conversations {
    mod messages;
    mod sessions;

    pub use messages::*;
    pub use sessions::*;
}

pub(crate) mod recovery {
    mod ensure_groups;
}

pub(crate) mod run_time {
    mod announce;
    mod run_time_config;

    pub use announce::*;
    pub use run_time_config::*;
}

pub(crate) mod knowledge {
    mod keep_document;
    mod remember;

    pub use keep_document::*;
    pub use remember::*;
}

pub(crate) mod dead {
    mod replay;

    pub use replay::*;
}

pub(crate) mod audit {
    mod checkpoint;
    mod roll_up;

    pub use checkpoint::*;
    pub use roll_up::Addition;
}

pub(crate) mod upkeep {
    mod check;
    mod grants;
    mod history;
    mod tool_lists;

    pub use check::*;
    pub use history::*;
    pub use tickfleet_core::audit::history::{EndedCalls, HistoryStep, Point};
    pub use tool_lists::*;
}
