//! The verbs, by subject: each script lies beside the method that calls it.

pub(crate) mod ending;
pub(crate) mod turns {
    pub(crate) mod admit;
    pub(crate) mod submit;
}
pub(crate) mod slices {
    pub(crate) mod assert;
    pub(crate) mod begin;
    pub(crate) mod settle;
}
pub(crate) mod tasks {
    pub(crate) mod delegate;
}
pub(crate) mod recovery {
    pub(crate) mod reap;
}
pub(crate) mod run_time {
    pub(crate) mod at_run_time;
}
pub(crate) mod upkeep {
    pub(crate) mod housekeep;
    pub(crate) mod tool_lists;
}
