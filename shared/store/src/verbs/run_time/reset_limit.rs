use serde_json::{Map, Value};
use tickfleet_core::CounterKey;
pub use tickfleet_core::settings::reset::ResetCounter;
use tickfleet_core::settings::reset::ResetLimit;

use crate::keys::CounterName;
use crate::{Store, StoreError};

impl Store {
    /// Sets a counter to zero, and evaluates the turns that wait for it. The JSON object `entry` goes into the audit
    /// log, and its `meta` gets the fields `used_before` and `window_ends_ms`. If there is no such counter, returns
    /// `None` and writes nothing.
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
