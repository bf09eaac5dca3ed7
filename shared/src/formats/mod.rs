//! How turns, tasks and results look on the wire. Pure: text in, values out, and back.
//!
//! [`json`] reads hostile text under bounds; [`turn`] and [`task`] make validated messages of it, or a
//! [`Refusal`] that still knows whom to answer; [`result`] and [`definitions`] dress what goes back for
//! each dialect; [`audit`] writes the audit log.

pub mod audit;
pub mod cut;
pub mod definitions;
mod fields;
pub mod json;
pub mod names;
#[cfg(test)]
mod protocol_doc;
pub mod refusal;
pub mod result;
pub mod task;
pub mod turn;
mod write;

pub use audit::{AuditInput, audit_entry};
pub use cut::cut_output;
pub use definitions::define;
pub use names::{NameMap, mangle, unmangle};
pub use refusal::{Refusal, RefusedCall};
pub use result::{messages, messages_frame, rejected_reply, result_json, tool_message};
pub use task::{CancelTarget, Leased, TaskMessage, parse_task_message, write_task};
pub use turn::{parse_turn, write_turn};
