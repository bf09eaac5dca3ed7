//! Requests to models of all providers. This crate never repeats a request: the caller decides when to ask again.

mod breaker;
mod environment;
mod error;
mod message;
mod model_chain;
mod planner;
mod provider;
mod rate;
mod wire;

pub use environment::from_environment;
pub use error::{FailureClass, ModelError, ModelFailure};
pub use message::{
    ChatMessage, InvalidRequest, ModelAnswer, ModelRequest, StopReason, TokenUsage, ToolCall, ToolDefinition,
};
pub use model_chain::{ModelChain, ModelChainError};
pub use provider::{Provider, ProviderSettings};
pub use wire::ProviderApi;
