//! Tenants and agents whose calls do not go out for a while, and tools that are not called.

use tickfleet_model::policy::{Pause, Paused, PausedTool};
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

impl PauseSet {
    pub(crate) fn of(word: &str) -> Self {
        match word {
            "OK" => Self::Ok,
            "FULL" => Self::Full,
            _ => Self::None,
        }
    }
}

/// A pause by its name in Redis: `tenant:agent`, or `tenant:` of a whole tenant. None where it is none.
pub(crate) fn paused(name: &str) -> Option<Paused> {
    let (tenant, agent) = name.split_once(':')?;
    let agent = if agent.is_empty() { None } else { Some(AgentId::new(agent).ok()?) };
    Some(Paused { tenant: TenantId::new(tenant).ok()?, agent })
}

/// A tool's pause by its name in Redis: `!tenant:tool`, or `!:tool` for all tenants. No tenant's name begins so, and builds
/// that know of no paused tools take it for none.
pub(crate) fn paused_tool(name: &str) -> Option<PausedTool> {
    let (tenant, tool) = name.strip_prefix('!')?.split_once(':')?;
    let tenant = if tenant.is_empty() { None } else { Some(TenantId::new(tenant).ok()?) };
    Some(PausedTool { tenant, tool: tool.to_owned() })
}

/// The name of a pause in Redis.
trait Named {
    fn name(&self) -> String;
}

impl Named for Paused {
    fn name(&self) -> String {
        format!("{}:{}", self.tenant, self.agent.as_ref().map_or("", AgentId::as_str))
    }
}

impl Named for PausedTool {
    fn name(&self) -> String {
        format!("!{}:{}", self.tenant.as_ref().map_or("", TenantId::as_str), self.tool)
    }
}

impl Store {
    /// Lets no call go to `tool` any more; `entry` goes into the audit log. Workers hear of it with their next heartbeat.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn pause_tool(&self, tool: &PausedTool, pause: &Pause, entry: &str) -> Result<PauseSet, StoreError> {
        self.change_pause("pause", tool, Some(pause), entry).await
    }

    /// Lets calls go to `tool` again; `entry` goes into the audit log.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn resume_tool(&self, tool: &PausedTool, entry: &str) -> Result<PauseSet, StoreError> {
        self.change_pause("resume", tool, None, entry).await
    }

    /// Puts a tool's pause back that the shard has lost.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn restore_tool_pause(&self, tool: &PausedTool, pause: &Pause) -> Result<PauseSet, StoreError> {
        self.change_pause("restore", tool, Some(pause), "").await
    }

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
        who: &impl Named,
        pause: Option<&Pause>,
        entry: &str,
    ) -> Result<PauseSet, StoreError> {
        let note = pause.map(|pause| serde_json::to_string(pause).unwrap_or_default()).unwrap_or_default();
        let mut args = self.args();
        args.text(what).text(who.name()).text(note).show(limits::PAUSES_MAX).text(entry);
        let mut reply = self.ask(Verb::Pause, args).await?;
        Ok(PauseSet::of(&reply.text()?))
    }
}
