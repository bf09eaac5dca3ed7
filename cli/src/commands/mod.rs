//! The commands: each with its arguments and `run`.

pub(crate) mod answer;
pub(crate) mod approvals;
pub(crate) mod bench;
pub(crate) mod cancel;
pub(crate) mod chat;
pub(crate) mod config;
pub(crate) mod delegate;
pub(crate) mod demo;
pub(crate) mod deploy;
pub(crate) mod dev;
pub(crate) mod dev_socket;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod import;
pub(crate) mod kb;
pub(crate) mod limits;
pub(crate) mod mcp;
pub(crate) mod memory;
pub(crate) mod reply;
pub(crate) mod submit;
pub(crate) mod tasks;
pub(crate) mod tenant;
pub(crate) mod tools;
pub(crate) mod top;
pub(crate) mod try_tool;
pub(crate) mod usage;
