//! Pauses of tenants and agents stop the admission of their calls. Pauses of tools make calls wait.

use tickfleet_core::settings::{ChangeSetting, Origin, Setting, SettingResult};
use tickfleet_model::policy::{Pause, Paused, PausedTool};

use crate::{Store, StoreError};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PauseResult {
    Ok,
    /// The pause already had the requested state.
    None,
    Full,
}

impl From<SettingResult> for PauseResult {
    fn from(result: SettingResult) -> Self {
        match result {
            SettingResult::Done { .. } => Self::Ok,
            SettingResult::Unchanged { .. } => Self::None,
            SettingResult::Full => Self::Full,
        }
    }
}

impl Store {
    /// Workers read the pause with their next heartbeat. An `entry` that is not empty goes into the audit log.
    pub async fn pause_tool(&self, tool: &PausedTool, pause: &Pause, entry: &str) -> Result<PauseResult, StoreError> {
        let origin = Origin::Operator(self.audit_entry(entry));
        self.change_pause(ChangeSetting::pause_tool(tool.clone(), pause, origin)).await
    }

    pub async fn resume_tool(&self, tool: &PausedTool, entry: &str) -> Result<PauseResult, StoreError> {
        let entry = self.audit_entry(entry);
        self.change_pause(ChangeSetting::remove(Setting::ToolPause(tool.clone()), entry)).await
    }

    /// After the response, no call of the tenant or agent is admitted. An `entry` that is not empty goes into the audit
    /// log.
    pub async fn pause(&self, who: &Paused, pause: &Pause, entry: &str) -> Result<PauseResult, StoreError> {
        let origin = Origin::Operator(self.audit_entry(entry));
        self.change_pause(ChangeSetting::pause(who.clone(), pause, origin)).await
    }

    pub async fn resume(&self, who: &Paused, entry: &str) -> Result<PauseResult, StoreError> {
        let entry = self.audit_entry(entry);
        self.change_pause(ChangeSetting::remove(Setting::Pause(who.clone()), entry)).await
    }

    async fn change_pause(&self, change: ChangeSetting) -> Result<PauseResult, StoreError> {
        Ok(self.decide(change).await?.result.into())
    }
}
