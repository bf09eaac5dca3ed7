//! Tasks: a task is a turn with one call, the work that the agent's handler runs.
//!
//! [`delegate`] writes a task and offers it to workers, or to an external runtime ([`external`]). A task that a model
//! runs has a history ([`step`]). Each model request of such a task is debited before the request is sent ([`spend`]).
//! [`cancel`] ends a turn or task, and [`cascade`] ends its descendants.

pub mod cancel;
pub mod cascade;
pub mod delegate;
pub mod external;
pub mod lists;
mod refusal;
pub mod spend;
pub mod step;

#[cfg(test)]
mod tests;
