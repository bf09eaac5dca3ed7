//! The pure data model: no Redis, no tokio, no clock and no randomness. Functions take times and random values as
//! arguments.

pub mod admission;
pub mod approval;
pub mod day;
pub mod digest;
pub mod hidden;
pub mod ids;
pub mod knowledge;
pub mod limit;
pub mod limits;
pub mod local;
pub mod number;
pub mod numbers;
pub mod outcome;
pub mod policy;
pub mod redaction;
pub mod rejection;
pub mod reserved;
pub mod retry;
pub mod suggest;
pub mod task;
pub mod tool;
pub mod turn;
mod words;

pub use admission::{AdmissionNote, DebitNote, DebitNotes, PermitsNote, WaitCause, WaitNote};
pub use approval::{ApprovalBinding, ApprovalDemand, ApprovalReason};
pub use digest::{content_digest, hex, idempotency_key, task_digest};
pub use ids::{AgentId, CallId, ConsumerId, EntryId, IdError, InboxName, SessionName, TaskId, TenantId, TurnId};
pub use limit::Limit;
pub use local::{Conclusion, FailureKind};
pub use outcome::{CacheHit, CallError, CallResult, Outcome};
pub use policy::{AgentPolicy, Caps, DayCapAction, Policy, TenantUser};
pub use redaction::Redactor;
pub use rejection::RejectionCode;
pub use task::{Task, TaskGrant};
pub use tool::version;
pub use tool::{Durability, Effect, EffectKey, EffectNote, ToolId, ToolSpec};
pub use turn::loops;
pub use turn::{Call, Context, Dialect, Priorities, Priority, Turn};
