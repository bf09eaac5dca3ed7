use serde_json::{Map, Value};
use tickfleet_core::CounterKey;
pub use tickfleet_core::settings::reset::ResetCounter;
use tickfleet_core::settings::reset::ResetLimit;

use crate::keys::CounterName;
use crate::{Store, StoreError};

impl Store {
    /// The store adds `used_before` and `window_ends_ms` to the `meta` of `entry`. Writes nothing if there is no such
    /// counter.
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
