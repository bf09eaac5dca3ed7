//! A task is a turn with one call: the work that an agent's handler runs.

pub mod cancel;
pub mod cascade;
pub mod delegate;
pub mod external;
pub mod lists;
pub mod refusal;
pub mod spend;
pub mod step;

#[cfg(test)]
mod tests;
