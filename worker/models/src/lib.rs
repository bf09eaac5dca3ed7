//! Requests to models: one neutral request and answer, three providers' forms of them, and what to do when one fails.
//!
//! `message` is the neutral form, `wire` what each provider makes of it, `planner` the form for models without function
//! calling, `provider` one request over HTTP, `breaker` whether a provider is asked at all, and `fallbacks` the order
//! in which several are. Nothing here is repeated by itself: whoever asks decides when to ask again.

mod breaker;
mod environment;
mod error;
mod fallbacks;
mod message;
mod planner;
mod provider;
mod rate;
mod wire;

pub use environment::from_environment;
pub use error::{Class, Failure, ModelError};
pub use fallbacks::{Answered, Models, Unanswered};
pub use message::{Answer, Invalid, Message, Request, Stop, ToolCall, ToolDefinition, Usage};
pub use provider::{Provider, Settings};
pub use wire::Api;
