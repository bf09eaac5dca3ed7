//! Messages between agents. An agent that is run by a model receives its messages with its next step.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_model::{AgentId, Effect, limits, suggest};
use tickfleet_store::{SendResult, Store, StoreError};

use crate::tools::{CallContext, ToolError, TypedTool};

const READ_MAX: usize = 20;

#[derive(Serialize, Deserialize)]
struct AgentMessage {
    /// Derived from the key of the sending call, so that a repeated call sends only one message.
    id: String,
    from: String,
    text: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct SendMessage {
    /// Name of the agent that should receive the message.
    recipient_agent: String,
    /// The message.
    message_body: String,
}

#[derive(Serialize, JsonSchema)]
struct Sent {
    /// The message's ID.
    message_id: String,
    /// The recipient.
    recipient_agent: String,
    /// What happened, as text.
    message: &'static str,
}

#[must_use]
pub fn send_mcp_message(store: Store, active: Arc<PolicyHandle>) -> TypedTool {
    TypedTool::new(
        "send_mcp_message",
        "Sends a message to an agent of your team. The agent reads it at its next step or task and does not answer at \
         once. To give it work, use delegate_task.",
        Effect::Idempotent,
        move |context: CallContext, args: SendMessage| {
            let store = store.clone();
            let active = active.clone();
            async move { send(&store, &active, &context, args).await }
        },
    )
    .category("messages")
}

async fn send(
    store: &Store,
    active: &PolicyHandle,
    context: &CallContext,
    args: SendMessage,
) -> Result<Sent, ToolError> {
    let refused = |message: String| Err(ToolError::Permanent(message));
    let bytes = args.message_body.len();
    if args.message_body.trim().is_empty() || bytes > limits::MESSAGE_BYTES_MAX {
        let max = limits::MESSAGE_BYTES_MAX;
        return refused(format!("A message must have 1 to {max} bytes and not only blanks; this message has {bytes}."));
    }
    let active = active.load();
    let to = AgentId::new(&args.recipient_agent).ok();
    let Some(to) = to.filter(|agent| active.policy.look_up(&context.tenant, agent).is_ok()) else {
        let agents = active.policy.agents.keys();
        let names: Vec<&str> =
            agents.filter(|agent| active.policy.look_up(&context.tenant, agent).is_ok()).map(AgentId::as_str).collect();
        let list = suggest::list(names.iter().copied());
        return refused(format!("There is no agent {:?}. Agents: {list}.", short(&args.recipient_agent)));
    };
    let id = format!("m-{}", &context.idempotency_key[..32.min(context.idempotency_key.len())]);
    let message = AgentMessage { id, from: context.agent.to_string(), text: args.message_body };
    let json = serde_json::to_string(&message).map_err(ToolError::internal)?;
    match store.send_message(&context.tenant, &to, &message.id, &json).await.map_err(store_error)? {
        SendResult::Done | SendResult::Already => Ok(Sent {
            message_id: message.id,
            recipient_agent: to.to_string(),
            message: "The message is delivered. It is read with the agent's next step or task.",
        }),
        SendResult::Full => refused(format!("{to} has too many unread messages. Try again when it has read some.")),
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadMessages {}

#[derive(Serialize, JsonSchema)]
struct Received {
    /// The messages, oldest first.
    messages: Vec<OneMessage>,
}

#[derive(Serialize, JsonSchema)]
struct OneMessage {
    /// The sender.
    from: String,
    /// When the message arrived.
    at: String,
    /// The text.
    text: String,
}

/// A repeated call returns the same messages again.
#[must_use]
pub fn read_messages(store: Store) -> TypedTool {
    TypedTool::new(
        "read_messages",
        "Returns your unread messages from other agents, at most 20. The returned messages are marked \
         as read.",
        Effect::Idempotent,
        move |context: CallContext, _: ReadMessages| {
            let store = store.clone();
            async move {
                let name = &context.idempotency_key;
                let unread = store
                    .receive_messages(&context.tenant, &context.agent, name, READ_MAX)
                    .await
                    .map_err(store_error)?;
                let read = unread.into_iter().filter_map(|unread| {
                    let message: AgentMessage = serde_json::from_slice(&unread.text).ok()?;
                    let at = tickfleet_engine::time::rfc3339(unread.at_ms);
                    Some(OneMessage { from: message.from, at, text: message.text })
                });
                Ok::<_, ToolError>(Received { messages: read.collect() })
            }
        },
    )
    .category("messages")
}

fn store_error(error: StoreError) -> ToolError {
    ToolError::Transient(error.to_string())
}

fn short(name: &str) -> String {
    name.chars().take(limits::NAME_BYTES_MAX).collect()
}
