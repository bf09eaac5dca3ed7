//! Requests to models: one neutral request and answer, the providers' formats for them, and how to handle failures.
//!
//! `message` is the neutral form, `wire` has each provider's format, `planner` has the form for models without function
//! calling, `provider` sends one request over HTTP, `breaker` decides whether a provider is asked at all, and
//! `fallbacks` has the order in which providers are asked. This crate never retries by itself: the caller decides when
//! to ask again.

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
