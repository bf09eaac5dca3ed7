use serde_json::{Map, Value};
use tickfleet_core::CounterKey;
pub use tickfleet_core::settings::reset::ResetCounter;
use tickfleet_core::settings::reset::ResetLimit;

use crate::keys::CounterName;
use crate::{Store, StoreError};

impl Store {
    /// Sets a counter to zero, and evaluates the turns that wait for it. `entry`, a JSON object, goes into the audit
    /// log. Its object `meta` gets the fields `used_before` and `window_ends_ms`. If the shard has no such counter,
    /// returns `None` and writes nothing.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reset_limit(
        &self,
        name: &CounterName,
        entry: Map<String, Value>,
    ) -> Result<Option<ResetCounter>, StoreError> {
        let counter = CounterKey::new(&name.limit, &name.counter);
        let audit_entries_max = self.options().audit_entries_max;
        Ok(self.decide(ResetLimit { counter, entry, audit_entries_max }).await?.result)
    }
}
