//! The referee: what the scripts in Redis must do, as pure functions over plain data.
//!
//! The scripts decide in production, the referee in tests: random sequences of events go through both, and the
//! two worlds must agree. So nothing here is written for speed; it is written to be read beside the design.
//!
//! - [`budget`]: counters that know their end, and the arithmetic of windows;
//! - [`admission`]: how many calls of a turn fit the budgets of its chain;
//! - [`turn`]: the states of a turn, and what each event makes of them.

pub mod admission;
pub mod budget;
pub mod turn;

pub use admission::{Chain, Rules, Verdict, decide};
pub use budget::{AgentBudgets, Budget, TaskBudget, window_end};
pub use turn::{Answer, Effects, Ending, Event, Fence, Illegal, Live, Reason, Slice, State, next};

#[cfg(test)]
mod tests;
