use tickfleet_core::call::progress::{CallProgress, ReportProgress};

use crate::{Store, StoreError, TurnName};

impl Store {
    /// False if the turn has ended.
    pub async fn report_progress(&self, name: &TurnName, progress: &CallProgress) -> Result<bool, StoreError> {
        Ok(self.decide(ReportProgress { name: name.clone(), progress }).await?.result)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use tickfleet_core::turn::end::parts;
    use tickfleet_core::{Query, Value};
    use tickfleet_model::{TenantId, TurnId};

    use super::*;
    use crate::StoreOptions;
    use crate::seam::memory::MemoryStore;

    #[tokio::test]
    async fn a_report_for_an_absent_turn_writes_nothing() {
        let store = Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default()));
        let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new("t1").unwrap() };
        let progress = CallProgress { position: 0, fraction: Some(0.5), message: "half".into() };
        assert!(!store.report_progress(&name, &progress).await.unwrap());
        let left = store.query(Query::Parts(name.record(), vec![parts::progress()])).await.unwrap();
        assert_eq!(left, Value::Parts(vec![None]));
    }
}
