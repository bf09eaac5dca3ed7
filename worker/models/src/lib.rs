//! Requests to models: one request and answer for all providers, the providers' formats, and the handling of failures.
//!
//! - `message`: the common form of requests and answers.
//! - `wire`: each provider's format.
//! - `planner`: the form for models without function calling.
//! - `provider`: sends one request over HTTP.
//! - `breaker`: decides whether a provider is asked.
//! - `model_chain`: the order in which providers are asked.
//!
//! This crate never repeats a request: the caller decides when to ask again.

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
pub use model_chain::{ModelChain, ModelChainError, ProviderAnswer};
pub use provider::{Provider, ProviderSettings};
pub use wire::ProviderApi;
