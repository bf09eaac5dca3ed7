//! Documents come into a tenant's knowledge base.

use tickfleet_model::knowledge::{Document, Passages};
use tickfleet_model::{TenantId, limits};

use crate::records::passages;
use crate::script::reply::unexpected;
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// What became of a document that was to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// It is there, in place of what was there before.
    Ok,
    /// Redis' memory is short; what was there before is there still.
    Pressure,
    /// The base has as many documents as it may have.
    TooManyDocuments,
    /// The base has as many bytes as it may have.
    TooManyBytes,
}

impl Store {
    /// Keeps a document, whole or not at all.
    ///
    /// # Errors
    /// [`StoreError`]; whether it is there is unknown then, and it may be kept again.
    pub async fn keep_document(
        &self,
        tenant: &TenantId,
        document: &Document,
        passages: &Passages,
    ) -> Result<Kept, StoreError> {
        let mut args = self.args();
        args.text(tenant.as_str()).text(document.id.as_str());
        args.text(serde_json::to_vec(document).unwrap_or_default()).text(passages::write(passages));
        args.show(limits::DOCUMENTS_MAX).show(limits::KNOWLEDGE_BYTES_MAX);
        let reply = self.ask(Verb::KeepDocument, args).await;
        match reply {
            Ok(mut reply) => match reply.text()?.as_str() {
                "OK" => Ok(Kept::Ok),
                "PRESSURE" => Ok(Kept::Pressure),
                "DOCUMENTS" => Ok(Kept::TooManyDocuments),
                "BYTES" => Ok(Kept::TooManyBytes),
                other => Err(unexpected("keep_document", &redis::Value::SimpleString(other.to_owned()))),
            },
            Err(error) if error.is_out_of_memory() => Ok(Kept::Pressure),
            Err(error) => Err(error),
        }
    }
}
