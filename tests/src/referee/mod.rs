//! The referee: what the scripts in Redis must do, as pure functions over plain data.
//!
//! The scripts decide in production, the referee in tests: random sequences of events go through both, and the
//! two worlds must agree. So nothing here is written for speed; it is written to be read beside the design.
//!
//! - [`budget`]: counters that know their end, and the arithmetic of windows;
//! - [`admission`]: how many calls of a turn fit the budgets of its chain;
//! - [`limits`]: the same for counters that are data;
//! - [`state`]: the states of a turn, and what can happen to it;
//! - [`turn`]: what each event makes of each state.

pub mod admission;
pub mod budget;
pub mod limits;
pub mod state;
pub mod turn;

pub use admission::{Chain, Rules, Verdict, decide};
pub use budget::{AgentBudgets, Budget, TaskBudget, window_end};
pub use state::{Answer, Effects, Ending, Event, Fence, Illegal, LaneMove, Live, Reason, Slice, State};
pub use turn::{Lease, next};

#[cfg(test)]
mod tests;
