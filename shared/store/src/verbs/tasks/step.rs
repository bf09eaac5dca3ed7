use std::ops::Range;

use tickfleet_core::task::step::{History, part};
use tickfleet_core::{Query, Value, keys};

use crate::keys::TurnName;
use crate::{Store, StoreError};

const PAGE: u64 = 32;

impl Store {
    /// Oldest first; empty if the history is no longer kept. Reads in pages, so that no reply is large.
    pub async fn steps(&self, task: &TurnName, from: usize) -> Result<Vec<String>, StoreError> {
        let key = keys::steps(task);
        let entries = self.record_of::<History>(&key).await?.map_or(0, |stored| stored.value.entries);
        let mut all = Vec::new();
        let mut at = from as u64;
        while at < entries {
            let page = self.page(task, at..entries.min(at + PAGE)).await?;
            let is_short = (page.len() as u64) < entries.min(at + PAGE) - at;
            all.extend(page);
            if is_short {
                break;
            }
            at += PAGE;
        }
        Ok(all)
    }

    async fn page(&self, task: &TurnName, numbers: Range<u64>) -> Result<Vec<String>, StoreError> {
        match self.query(Query::Parts(keys::steps(task), numbers.map(part).collect())).await? {
            Value::Parts(parts) => {
                let text = |bytes: bytes::Bytes| String::from_utf8_lossy(&bytes).into_owned();
                Ok(parts.into_iter().map_while(|entry| entry.map(text)).collect())
            }
            _ => Ok(Vec::new()),
        }
    }
}
