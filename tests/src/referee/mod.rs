//! The referee: what the scripts in Redis must do, as pure functions over plain data.
//!
//! The scripts decide in production, the referee in tests: random sequences of events go through both, and the
//! two worlds must agree. So nothing here is written for speed; it is written to be read beside the design.
//!
//! - [`tickfleet_model::decision`]: how many calls of a turn fit the budgets of its chain, and its limits;
//! - [`state`]: the states of a turn, and what can happen to it;
//! - [`turn`]: what each event makes of each state.

pub mod state;
pub mod turn;

pub use tickfleet_model::decision::{admission, budget, limits};

pub use admission::{Chain, Rules, Verdict, decide};
pub use budget::{AgentBudgets, Budget, TaskBudget, window_end};
pub use state::{Answer, Effects, Ending, Event, Fence, Illegal, LaneMove, Live, Reason, Slice, State};
pub use turn::{Lease, next};

#[cfg(test)]
mod tests;
