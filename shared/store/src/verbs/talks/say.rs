//! Sessions: what a user and an agent have said to each other, an exchange at a time.

use std::collections::HashMap;

use crate::connection::question::Question;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, TenantId, limits};

/// Who says something in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Its user.
    User,
    /// Its agent.
    Agent,
}

/// The outcome of saying something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// It is written down.
    Ok,
    /// It was said before.
    Already,
    /// Something else was said there.
    Conflict,
    /// It is not the next exchange, or one that is no longer kept.
    Gap,
    /// The session is another agent's.
    Others,
}

/// What was said in a session, as far as it is kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionRecord {
    /// The agent that it is held with; none where nothing was said so far.
    pub agent: Option<String>,
    /// The number of the last exchange, from 1; 0 where there is none.
    pub last: u64,
    /// The exchanges that are kept, the oldest first: number, what the user said, what the agent answered.
    pub exchanges: Vec<(u64, String, Option<String>)>,
}

impl Store {
    /// Writes down what is said in a session.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be said again.
    pub async fn say(
        &self,
        (tenant, session): (&TenantId, &str),
        agent: &AgentId,
        number: u64,
        side: Side,
        text: &str,
    ) -> Result<Said, StoreError> {
        let side = match side {
            Side::User => "user",
            Side::Agent => "agent",
        };
        let mut args = self.args();
        args.show(format_args!("{tenant}:{session}")).show(agent).show(number).text(side).text(text);
        args.show(limits::SESSION_EXCHANGES_MAX).show(limits::SESSION_BYTES_MAX).show(limits::SESSION_KEPT_MS);
        let value = self.run(Verb::Say, args).await?;
        Ok(match text_of(&value).as_deref() {
            Some("OK") => Said::Ok,
            Some("ALREADY") => Said::Already,
            Some("CONFLICT") => Said::Conflict,
            Some("GAP") => Said::Gap,
            Some("OTHERS") => Said::Others,
            _ => return Err(unexpected(Verb::Say.as_str(), &value)),
        })
    }

    /// What was said in a session so far.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn session(&self, tenant: &TenantId, session: &str) -> Result<SessionRecord, StoreError> {
        let command = redis::cmd("HGETALL").arg(self.keys.session(tenant, session)).to_owned();
        let mut fields: HashMap<String, String> = self.connection.query(Question::Look, &command).await?;
        let number = |fields: &HashMap<String, String>, name: &str| fields.get(name).and_then(|n| n.parse().ok());
        let (first, last): (u64, u64) = (number(&fields, "first").unwrap_or(1), number(&fields, "last").unwrap_or(0));
        // A hand may have written any number there.
        let first = first.max(last.saturating_sub(limits::SESSION_EXCHANGES_MAX));
        let kept = (first..=last).filter_map(|n| {
            let user = fields.remove(&format!("user:{n}"))?;
            Some((n, user, fields.remove(&format!("agent:{n}"))))
        });
        let exchanges = kept.collect();
        Ok(SessionRecord { exchanges, last, agent: fields.remove("agent") })
    }
}
