//! What has happened to approvals, for whoever tells others.

use std::collections::BTreeMap;

use redis::Value;
use tickfleet_model::TenantId;

use crate::script::reply::{Reply, into_text};
use crate::verbs::Verb;
use crate::verbs::audit::Follower;
use crate::{Store, StoreError};

/// Something that happened to an approval.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notice {
    /// The id of its entry, which stays.
    pub id: String,
    /// What it says, by name; nothing where the entry is gone.
    pub fields: BTreeMap<String, String>,
}

/// The answer to whoever tells others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notices {
    /// What is to be told of each tenant.
    Found {
        /// Shard time, ms.
        now_ms: i64,
        /// In the order of the tenants; of each the oldest first.
        of: Vec<Vec<Notice>>,
    },
    /// Another tells.
    Held,
}

impl Store {
    /// Notes what was told of these tenants, by the ids of entries, and reads up to `most` entries of each that were not.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn notices(
        &self,
        teller: Follower<'_>,
        most: usize,
        told: &[(TenantId, Vec<String>)],
    ) -> Result<Notices, StoreError> {
        let mut args = self.args();
        args.text(teller.name).text(teller.process.as_str()).show(teller.lease_ms).show(most).show(told.len());
        for (tenant, ids) in told {
            args.text(tenant.as_str()).show(ids.len());
            for id in ids {
                args.text(id.as_str());
            }
        }
        let mut reply = self.ask(Verb::Notices, args).await?;
        let word = reply.text()?;
        match word.as_str() {
            "HELD" => Ok(Notices::Held),
            "OK" => {
                let now_ms = reply.number()?;
                let of = reply.list()?.rest().into_iter().map(notices).collect::<Result<_, _>>()?;
                Ok(Notices::Found { now_ms, of })
            }
            _ => Err(StoreError::Reply { verb: Verb::Notices.as_str(), found: word }),
        }
    }
}

fn notices(entries: Value) -> Result<Vec<Notice>, StoreError> {
    let notice = |entry: Value| {
        let mut entry = Reply::new(Verb::Notices.as_str(), entry)?;
        let id = entry.text()?;
        let Some(Value::Array(fields)) = entry.next_value() else { return Ok(Notice { id, ..Notice::default() }) };
        let mut values = fields.into_iter().map(|value| into_text(value).unwrap_or_default());
        let mut fields = BTreeMap::new();
        while let (Some(name), Some(value)) = (values.next(), values.next()) {
            fields.insert(name, value);
        }
        Ok(Notice { id, fields })
    };
    Reply::new(Verb::Notices.as_str(), entries)?.rest().into_iter().map(notice).collect()
}
