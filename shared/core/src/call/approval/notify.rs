//! Notifiers: processes that deliver the events of approvals, each event at least once.
//!
//! | Key | Holds |
//! |---|---|
//! | record `follow:<name>` | the lease of the notifier, see [`crate::audit::follow`] |
//! | record `notified:<name>:<tenant>` | the delivered events of a tenant |
//!
//! A receiver can refuse an event and accept later events. So the record also lists the delivered events after the
//! first undelivered event.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tickfleet_model::TenantId;

use super::events;
use crate::audit::follow::{self, Followed};
use crate::decision::{Context, Decision, Step};
use crate::leases::Candidate;
use crate::record::{Record, Stored};
use crate::transaction::{EntryId, RecordKey};
use crate::view::{Fields, Query, Undecided, Value, View};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notified {
    /// The last event before the first undelivered event.
    #[serde(rename = "to", default, skip_serializing_if = "Option::is_none")]
    pub upto: Option<EntryId>,
    /// Delivered events after `upto`.
    #[serde(rename = "l", default, skip_serializing_if = "BTreeSet::is_empty")]
    pub later: BTreeSet<EntryId>,
}

impl Record for Notified {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn key(name: &str, tenant: &TenantId) -> RecordKey {
    RecordKey::new(format!("notified:{name}:{tenant}"))
}

impl Notified {
    #[must_use]
    pub fn query(&self, tenant: &TenantId, count: usize) -> Query {
        Query::Entries { stream: events(tenant), after: self.upto.clone(), count: self.later.len() + count }
    }

    /// `log` has the events after [`Self::upto`].
    fn add(&mut self, delivered: &[EntryId], log: &[(EntryId, Fields)]) {
        self.later.extend(delivered.iter().cloned());
        for (entry, _) in log {
            if !self.later.remove(entry) {
                break;
            }
            self.upto = Some(entry.clone());
        }
        if !log.is_empty() {
            self.later.retain(|entry| log.iter().any(|(present, _)| present == entry));
        }
    }
}

#[derive(Debug, Clone)]
pub struct Notify {
    pub name: Arc<str>,
    pub candidate: Candidate,
    pub delivered: Vec<(TenantId, Vec<EntryId>)>,
}

impl Decision for Notify {
    /// False if another process has the lease.
    type Output = bool;

    fn reads(&self) -> Vec<Query> {
        let tenants = self.delivered.iter().filter(|(_, events)| !events.is_empty());
        let progress = tenants.map(|(tenant, _)| Query::Record(key(&self.name, tenant)));
        std::iter::once(Query::Record(follow::key(&self.name))).chain(progress).collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        let lease_key = follow::key(&self.name);
        let (mut transaction, stored) = context.update::<Followed>(view, &lease_key)?;
        let present = stored.as_ref().map(|stored| &stored.lease);
        let Some(lease) = self.candidate.take(present, context.now_ms, &mut transaction) else {
            return Ok(Step::Return(false));
        };
        let mut progress = Vec::new();
        for (tenant, delivered) in self.delivered.iter().filter(|(_, events)| !events.is_empty()) {
            let key = key(&self.name, tenant);
            let stored: Option<Stored<Notified>> = view.record(&key)?;
            transaction.guard_read(&key, stored.as_ref());
            progress.push((key, tenant, delivered, stored.map(|stored| stored.value).unwrap_or_default()));
        }
        view.need(progress.iter().map(|(_, tenant, delivered, it)| it.query(tenant, delivered.len() + 1)))?;
        for (key, tenant, delivered, mut notified) in progress {
            if let Value::Entries(log) = view.get(&notified.query(tenant, delivered.len() + 1))? {
                notified.add(delivered, log);
            }
            transaction.put(&key, &notified);
        }
        transaction.put(&lease_key, &Followed { lease, position: String::new() });
        transaction.dedupe_record = Some(lease_key);
        Ok(Step::Commit(transaction, true))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tickfleet_model::ConsumerId;

    use super::*;
    use crate::Transaction;
    use crate::transaction::Write;
    use crate::trial::Trial;

    fn acme() -> TenantId {
        TenantId::new("acme").unwrap()
    }

    fn event(shard: &mut Trial, text: &str) -> EntryId {
        let mut transaction = Transaction::new(shard.context().version);
        let fields = vec![("event".into(), Bytes::from(text.to_owned()))];
        shard.commit(transaction.write(Write::Append { log: events(&acme()), fields, max_entries: 10 })).unwrap();
        shard.log(&events(&acme())).last().unwrap().0.clone()
    }

    fn notify(process: &str, delivered: &[&EntryId]) -> Notify {
        let candidate = Candidate { process: ConsumerId::new(process).unwrap(), lease_ms: 100 };
        let delivered = delivered.iter().map(|&entry| entry.clone()).collect();
        Notify { name: "webhook".into(), candidate, delivered: vec![(acme(), delivered)] }
    }

    #[test]
    fn an_undelivered_event_does_not_block_later_events() {
        let mut shard = Trial::at(1_000);
        let [a, b, c] = ["a", "b", "c"].map(|text| event(&mut shard, text));
        assert!(shard.run(&notify("p", &[])));
        assert!(shard.run(&notify("p", &[&b, &c])));
        let notified = |shard: &Trial| shard.record::<Notified>(&key("webhook", &acme())).unwrap();
        assert_eq!(notified(&shard), Notified { upto: None, later: [b, c.clone()].into() });
        assert!(shard.run(&notify("p", &[&a])));
        assert_eq!(notified(&shard), Notified { upto: Some(c), later: BTreeSet::new() });
    }

    #[test]
    fn one_decision_records_the_events_of_many_tenants() {
        let mut shard = Trial::at(1_000);
        let a = event(&mut shard, "a");
        let tenants = (0..100).map(|number| TenantId::new(format!("t{number}")).unwrap());
        let delivered = tenants.chain([acme()]).map(|tenant| (tenant, vec![a.clone()])).collect();
        assert!(shard.run(&Notify { delivered, ..notify("p", &[]) }));
        assert_eq!(shard.record::<Notified>(&key("webhook", &acme())).unwrap().upto, Some(a));
    }

    #[test]
    fn only_the_lease_holder_records_deliveries() {
        let mut shard = Trial::at(1_000);
        let a = event(&mut shard, "a");
        assert!(shard.run(&notify("p", &[])));
        assert!(!shard.run(&notify("q", &[&a])));
        assert_eq!(shard.record::<Notified>(&key("webhook", &acme())), None);
        shard.pass(100);
        assert!(shard.run(&notify("q", &[&a])));
    }
}
