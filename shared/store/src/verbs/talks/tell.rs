//! Messages between agents: one tells, and it is there for the other to hear.

use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, TenantId, limits};

/// The outcome of telling something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// It is there.
    Ok,
    /// It was told before.
    Already,
    /// Too many messages of that agent are unread.
    Full,
}

impl Store {
    /// Puts a message where agent `to` finds it. The same message is told once, however often this is repeated: it holds
    /// an id of its own.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be told again.
    pub async fn tell(&self, tenant: &TenantId, to: &AgentId, message: &str) -> Result<Told, StoreError> {
        let mut args = self.args();
        args.show(format_args!("{tenant}:{to}")).text(message);
        args.show(limits::MESSAGES_UNREAD_MAX).show(limits::MESSAGES_READ_MAX).show(limits::MESSAGES_KEPT_MS);
        let value = self.run(Verb::Tell, args).await?;
        Ok(match text_of(&value).as_deref() {
            Some("OK") => Told::Ok,
            Some("ALREADY") => Told::Already,
            Some("FULL") => Told::Full,
            _ => return Err(unexpected(Verb::Tell.as_str(), &value)),
        })
    }
}
