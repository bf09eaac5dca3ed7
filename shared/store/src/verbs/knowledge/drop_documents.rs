//! Documents leave a tenant's knowledge base.

use tickfleet_model::{TenantId, limits};

use crate::verbs::Verb;
use crate::{Store, StoreError};

impl Store {
    /// Takes documents out of a tenant's knowledge base, in bounded steps; answers how many there were.
    ///
    /// # Errors
    /// [`StoreError`]; some may be gone.
    pub async fn drop_documents(&self, tenant: &TenantId, ids: &[String]) -> Result<u64, StoreError> {
        let mut gone = 0;
        for some in ids.chunks(limits::BATCH_ENTRIES_MAX) {
            let mut args = self.args();
            args.text(tenant.as_str());
            for id in some {
                args.text(id.as_str());
            }
            let mut reply = self.ask(Verb::DropDocuments, args).await?;
            reply.text()?;
            gone += reply.number()?.unsigned_abs();
        }
        Ok(gone)
    }
}
