//! Counts of the calls of each day, as `roll_up` keeps them.

use redis::Value;

use crate::connection::question::Question;
use crate::script::reply::{number_of, text_of};
use crate::{Store, StoreError};

/// Fields that one step of reading a day's counts asks for.
const STEP: usize = 1_000;

impl Store {
    /// The entry of the audit log up to which it is counted; none where nobody has counted yet.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn rolled_upto(&self) -> Result<Option<String>, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys.key("rolled")).arg("upto").to_owned();
        self.connection.query(Question::AuditLog, &command).await
    }

    /// The counts of a day (days since the epoch), by their fields.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn day_counts(&self, day: i64) -> Result<Vec<(String, u64)>, StoreError> {
        let key = self.keys.key(format_args!("stats:{day}"));
        let (mut counts, mut cursor) = (Vec::new(), "0".to_owned());
        loop {
            let mut command = redis::cmd("HSCAN");
            command.arg(&key).arg(&cursor).arg("COUNT").arg(STEP);
            let (next, found): (String, Vec<Value>) = self.connection.query(Question::AuditLog, &command).await?;
            let count = |pair: &[Value]| Some((text_of(&pair[0])?, u64::try_from(number_of(&pair[1])?).ok()?));
            counts.extend(found.chunks_exact(2).filter_map(count));
            if next == "0" {
                // A field may come more than once while the hash grows.
                counts.sort();
                counts.dedup_by(|one, other| one.0 == other.0);
                return Ok(counts);
            }
            cursor = next;
        }
    }
}
