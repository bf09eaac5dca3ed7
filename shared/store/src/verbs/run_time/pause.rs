//! Tenants and agents whose calls do not go out for a while.

use tickfleet_model::policy::{Pause, Paused};
use tickfleet_model::{AgentId, TenantId, limits};

use crate::verbs::Verb;
use crate::{Store, StoreError};

/// Whether a pause changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseSet {
    /// It did.
    Ok,
    /// It was so already.
    None,
    /// There are too many pauses.
    Full,
}

/// A pause by its name in Redis: `tenant:agent`, or `tenant:` of a whole tenant. None where it is none.
pub(crate) fn paused(name: &str) -> Option<Paused> {
    let (tenant, agent) = name.split_once(':')?;
    let agent = if agent.is_empty() { None } else { Some(AgentId::new(agent).ok()?) };
    Some(Paused { tenant: TenantId::new(tenant).ok()?, agent })
}

impl Store {
    /// Lets no call of `who` go out any more; `entry` goes into the audit log. From the answer on, none is admitted.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pause(&self, who: &Paused, pause: &Pause, entry: &str) -> Result<PauseSet, StoreError> {
        self.change_pause("pause", who, Some(pause), entry).await
    }

    /// Lets calls of `who` go out again; `entry` goes into the audit log.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn resume(&self, who: &Paused, entry: &str) -> Result<PauseSet, StoreError> {
        self.change_pause("resume", who, None, entry).await
    }

    /// Puts a pause back that the shard has lost.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn restore_pause(&self, who: &Paused, pause: &Pause) -> Result<PauseSet, StoreError> {
        self.change_pause("restore", who, Some(pause), "").await
    }

    async fn change_pause(
        &self,
        what: &str,
        who: &Paused,
        pause: Option<&Pause>,
        entry: &str,
    ) -> Result<PauseSet, StoreError> {
        let note = pause.map(|pause| serde_json::to_string(pause).unwrap_or_default()).unwrap_or_default();
        let agent = who.agent.as_ref().map_or("", AgentId::as_str);
        let mut args = self.args();
        args.text(what).text(format!("{}:{agent}", who.tenant)).text(note).show(limits::PAUSES_MAX).text(entry);
        let mut reply = self.ask(Verb::Pause, args).await?;
        Ok(match reply.text()?.as_str() {
            "OK" => PauseSet::Ok,
            "FULL" => PauseSet::Full,
            _ => PauseSet::None,
        })
    }
}
