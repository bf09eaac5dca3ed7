//! Tools that are switched off for everybody.

use crate::verbs::Verb;
use crate::{Store, StoreError};

impl Store {
    /// Takes a tool away from everybody, by name or id, or gives it back where it was switched off at run time; `entry` goes
    /// into the audit log, where it is not empty. False where it was so already.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn switch_tool(&self, tool: &str, on: bool, entry: &str) -> Result<bool, StoreError> {
        let mut args = self.args();
        args.text(if on { "on" } else { "off" }).text(tool).text(entry);
        let mut reply = self.ask(Verb::SwitchTool, args).await?;
        Ok(reply.text()? == "OK")
    }
}
