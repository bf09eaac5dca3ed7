//! Actions of operators that consist of several decisions, with one entry of the audit log.

use tickfleet_core::audit::Report;

use crate::{Store, StoreError};

impl Store {
    pub async fn record_action(&self, entry: &str) -> Result<(), StoreError> {
        self.decide(Report(self.audit_entry(entry))).await?;
        Ok(())
    }
}
