//! The fleet and its parts: store, client, caps, tasks, inboxes, settings.

mod agents;
mod bytes;
mod client;
mod concurrency;
mod delegation;
mod governance;
mod inboxes;
mod limits;
mod policy;
mod pools;
mod settings;
mod shares;
mod tasks;
