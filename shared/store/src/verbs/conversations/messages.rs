use tickfleet_core::conversation::{ReceiveMessages, SendMessage};
pub use tickfleet_core::conversation::{ReceivedMessage, SendResult};
use tickfleet_model::{AgentId, TenantId};

use crate::{Store, StoreError};

impl Store {
    /// A message with the same ID is sent only once, so the caller may repeat the call after an error.
    pub async fn send_message(
        &self,
        tenant: &TenantId,
        to: &AgentId,
        id: &str,
        message: &str,
    ) -> Result<SendResult, StoreError> {
        let tenant = tenant.clone();
        let to = to.clone();
        let text = message.to_owned().into();
        Ok(self.decide(SendMessage { tenant, to, id: id.into(), text }).await?.result)
    }

    /// Marks the messages as read. A repeated call with the same `name` returns the same messages, so the caller should
    /// repeat the call after an error.
    pub async fn receive_messages(
        &self,
        tenant: &TenantId,
        agent: &AgentId,
        name: &str,
        count: usize,
    ) -> Result<Vec<ReceivedMessage>, StoreError> {
        let tenant = tenant.clone();
        let agent = agent.clone();
        let name = name.to_owned();
        Ok(self.decide(ReceiveMessages { tenant, agent, name, count }).await?.result)
    }
}
