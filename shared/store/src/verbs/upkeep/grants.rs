//! Grants from token services with single-use refresh tokens, see [`tickfleet_core::grants`].

use tickfleet_core::grants::{GRANT_PART, KeepGrant, RenewGrant, key};
use tickfleet_core::{Query, Value};

use crate::{Store, StoreError};

impl Store {
    pub async fn load_grant(&self, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        match self.query(Query::Parts(key(id), vec![GRANT_PART.into()])).await? {
            Value::Parts(parts) => Ok(parts.into_iter().flatten().next().map(Vec::from)),
            _ => Ok(None),
        }
    }

    pub async fn keep_grant(&self, id: &str, sealed: &[u8], ttl_ms: u64) -> Result<(), StoreError> {
        let sealed = sealed.to_vec().into();
        self.decide(KeepGrant { id, sealed, ttl_ms: ttl_ms.cast_signed() }).await?;
        Ok(())
    }

    /// Returns false if another worker has the right to renew the grant. The right expires after `lease_ms`.
    pub async fn may_renew_grant(&self, id: &str, lease_ms: u64) -> Result<bool, StoreError> {
        Ok(self.decide(RenewGrant { id, lease_ms: lease_ms.cast_signed() }).await?.result)
    }
}
