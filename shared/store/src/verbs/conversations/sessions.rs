//! Sessions: the messages between a user and an agent, grouped into exchanges.

use tickfleet_core::conversation::{AddMessage, Session, message_part, session_key};
pub use tickfleet_core::conversation::{MessageResult, Side};
use tickfleet_core::{Query, Stored, Value};
use tickfleet_model::{AgentId, SessionName, TenantId};

use crate::{Store, StoreError};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionRecord {
    pub agent: Option<AgentId>,
    /// From 1; 0 if the session has no messages.
    pub last: u64,
    /// Oldest first: number, the user's message, the agent's answer if there is one.
    pub exchanges: Vec<(u64, String, Option<String>)>,
}

impl Store {
    pub async fn add_message(
        &self,
        tenant: &TenantId,
        session: &SessionName,
        agent: &AgentId,
        number: u64,
        side: Side,
        text: &str,
    ) -> Result<MessageResult, StoreError> {
        let tenant = tenant.clone();
        let session = session.clone();
        let agent = agent.clone();
        let text = text.to_owned().into();
        Ok(self.decide(AddMessage { tenant, session, agent, number, side, text }).await?.result)
    }

    pub async fn session(&self, tenant: &TenantId, session: &SessionName) -> Result<SessionRecord, StoreError> {
        let key = session_key(tenant, session);
        let found = self.seam().read(&[Query::Record(key.clone()), Query::AllParts(key.clone())]).await?;
        let [Value::Record(Some(stored)), Value::AllParts(parts)] = found.as_slice() else {
            return Ok(SessionRecord::default());
        };
        let stored: Stored<Session> =
            Stored::read(stored).map_err(|why| StoreError::Undecided(format!("record {key} cannot be read: {why}")))?;
        let text = |side, number| {
            let name = message_part(side, number);
            let (_, text) = parts.iter().find(|(part, _)| *part == name)?;
            Some(String::from_utf8_lossy(text).into_owned())
        };
        let session = stored.value;
        let kept = session.first..session.next();
        let exchanges =
            kept.filter_map(|number| Some((number, text(Side::User, number)?, text(Side::Agent, number)))).collect();
        Ok(SessionRecord { last: session.next() - 1, agent: Some(session.agent), exchanges })
    }
}
