//! Events of approvals, which notifiers deliver.

use std::collections::BTreeMap;

use tickfleet_core::call::approval::notify::{Notified, Notify, key};
use tickfleet_core::leases::Candidate;
use tickfleet_core::{EntryId, Query, Stored, Value};
use tickfleet_model::TenantId;

use crate::verbs::audit::Follower;
use crate::{Store, StoreError};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notice {
    pub id: String,
    pub fields: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notices {
    Found {
        now_ms: i64,
        /// Tenants are in the order of the request, events the oldest first.
        of: Vec<Vec<Notice>>,
    },
    Held,
}

impl Store {
    /// First records `delivered` (IDs of entries). Then reads up to `most` undelivered events of each tenant.
    pub async fn notices(
        &self,
        notifier: Follower<'_>,
        most: usize,
        delivered: &[(TenantId, Vec<String>)],
    ) -> Result<Notices, StoreError> {
        let entries =
            |(tenant, ids): &(TenantId, Vec<String>)| (tenant.clone(), ids.iter().map(EntryId::new).collect());
        let candidate = Candidate { process: notifier.process.clone(), lease_ms: notifier.lease_ms() };
        let delivered_entries = delivered.iter().map(entries).collect();
        if !self.decide(Notify { name: notifier.name.into(), candidate, delivered: delivered_entries }).await?.result {
            return Ok(Notices::Held);
        }
        let keys = delivered.iter().map(|(tenant, _)| key(notifier.name, tenant));
        let records = self.seam().read(&keys.map(Query::Record).collect::<Vec<_>>()).await?;
        let progress: Vec<Notified> = records.iter().map(notified).collect();
        let queries: Vec<Query> =
            delivered.iter().zip(&progress).map(|((tenant, _), notified)| notified.query(tenant, most)).collect();
        let found = self.seam().read(&queries).await?;
        let of = found.into_iter().zip(&progress).map(|(found, notified)| notices(found, notified, most)).collect();
        Ok(Notices::Found { now_ms: self.state().now_ms, of })
    }
}

/// If the record is unreadable, all events are delivered again.
fn notified(value: &Value) -> Notified {
    match value {
        Value::Record(Some(stored)) => Stored::read(stored).map(|stored| stored.value).unwrap_or_default(),
        _ => Notified::default(),
    }
}

fn notices(found: Value, notified: &Notified, most: usize) -> Vec<Notice> {
    let Value::Entries(entries) = found else { return Vec::new() };
    let new = entries.into_iter().filter(|(entry, _)| !notified.later.contains(entry)).take(most);
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    new.map(|(entry, fields)| Notice {
        id: entry.as_str().to_owned(),
        fields: fields.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
    })
    .collect()
}
