//! Grants of token services whose refresh token is good for one use: the next one has to be known to every worker, and
//! to those that come after a restart. What is kept is sealed by whoever keeps it; Redis cannot read it.

use crate::connection::question::Question;
use crate::{Store, StoreError};

impl Store {
    /// Reads the grant that is kept under `id`, as it was sealed.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn kept_grant(&self, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let key = self.keys.key(format_args!("grant:{id}"));
        self.connection.query(Question::Grants, redis::cmd("GET").arg(key)).await
    }

    /// Keeps a sealed grant for `ttl_ms`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn keep_grant(&self, id: &str, sealed: &[u8], ttl_ms: u64) -> Result<(), StoreError> {
        let key = self.keys.key(format_args!("grant:{id}"));
        self.connection.query(Question::Grants, redis::cmd("SET").arg(key).arg(sealed).arg("PX").arg(ttl_ms)).await
    }

    /// Answers whether the caller may ask for the next grant: nobody else may for the next `lease_ms`. The right is not
    /// given back, so that a service that refuses everything is not asked more often than that.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn may_renew_grant(&self, id: &str, lease_ms: u64) -> Result<bool, StoreError> {
        let key = self.keys.key(format_args!("grant:{id}:renewal"));
        let command = redis::cmd("SET").arg(key).arg(1).arg("NX").arg("PX").arg(lease_ms).to_owned();
        let set: Option<String> = self.connection.query(Question::Grants, &command).await?;
        Ok(set.is_some())
    }
}
