use tickfleet_core::settings::{ChangeSetting, Origin, Setting, SettingResult};

use crate::{Store, StoreError};

impl Store {
    /// `tool` is a name or ID. An `entry` that is not empty goes into the audit log. Returns false if the tool already
    /// had the requested state.
    pub async fn switch_tool(&self, tool: &str, on: bool, entry: &str) -> Result<bool, StoreError> {
        let entry = self.audit_entry(entry);
        let change = if on {
            ChangeSetting::remove(Setting::ToolOff(tool.to_owned()), entry)
        } else {
            ChangeSetting::switch_off(tool.to_owned(), Origin::Operator(entry))
        };
        match self.decide(change).await?.result {
            SettingResult::Done { .. } => Ok(true),
            SettingResult::Unchanged { .. } => Ok(false),
            SettingResult::Full => Err(StoreError::Undecided("too many tools are switched off at run time".to_owned())),
        }
    }
}
