//! The wire format of turns, tasks and results. The functions are pure: they convert text to values and values to text.

pub mod audit;
pub mod content;
pub mod cut;
pub mod definitions;
mod dialects;
pub mod json;
mod message;
pub mod names;
#[cfg(test)]
mod odd_messages;
#[cfg(test)]
mod pairing;
#[cfg(test)]
mod protocol_doc;
pub mod rejected_message;
mod rejection_reply;
pub mod result;
pub mod shared_list;
pub mod strict;
pub mod task;
pub mod text;
mod traceparent;
pub mod turn;
mod write;

pub use audit::{
    AuditAction, AuditEffect, AuditEntry, AuditInput, AuditMeta, AuditValue, Operator, OperatorAct, audit_entry,
    operator_entry,
};
pub use content::{
    CONTENT_BLOCKS, ContentBlock, bounded_content, content_blocks, content_text, usable_blocks, write_blocks,
};
pub use cut::{bounded_output, cut_output};
pub use definitions::{define, define_strict};
pub use dialects::{
    Definitions, DialectInfo, RejectedCall, cut_off, cut_response, dialect_info, is_cut, is_unfinished,
};
pub use message::glance;
pub use message::owner::{with_owner, with_turn};
pub use names::{NameMap, demangle, mangle};
pub use rejected_message::RejectedMessage;
pub use rejection_reply::{RejectedId, RejectionStatus, rejection_reply};
pub use result::{messages, messages_frame, result_json, tool_message};
pub use shared_list::{define_shared, shared_list};
pub use strict::{NotStrict, without_nulls};
pub use task::{CancelTarget, ClaimedCall, DELEGATE_FIELDS, LeasedTask, TaskMessage, parse_task_message, write_task};
pub use text::Prompts;
pub use traceparent::trace_id;
pub use turn::{TURN_FIELDS, call_fields, parse_turn, write_turn};
