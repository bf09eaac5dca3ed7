pub use tickfleet_core::knowledge::KeepResult;
use tickfleet_core::knowledge::{DropDocuments, KeepDocument};
use tickfleet_model::knowledge::{Document, Passages};
use tickfleet_model::{TenantId, limits};

use crate::reads::passages;
use crate::{Store, StoreError};

impl Store {
    /// Replaces a document with the same ID. After an error, the document may have been stored, and the caller can
    /// repeat the call.
    pub async fn keep_document(
        &self,
        tenant: &TenantId,
        document: &Document,
        passages: &Passages,
    ) -> Result<KeepResult, StoreError> {
        let passages = passages::write(passages).into();
        Ok(self.decide(KeepDocument { tenant: tenant.clone(), document: document.clone(), passages }).await?.result)
    }

    /// Works in bounded steps, so some documents may have been removed after an error.
    pub async fn drop_documents(&self, tenant: &TenantId, ids: &[String]) -> Result<u64, StoreError> {
        let mut removed = 0;
        for some in ids.chunks(limits::BATCH_ENTRIES_MAX) {
            let ids = some.iter().map(|id| id.as_str().into()).collect();
            removed += self.decide(DropDocuments { tenant: tenant.clone(), ids }).await?.result as u64;
        }
        Ok(removed)
    }
}
