//! Checks a whole shard: [`Store::check`] finds the records, timers and queues, and the core checks each of them.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{Hash as _, Hasher as _};

use tickfleet_core::check::{Check, Fault, Recount, Subject, TenantCounts};
use tickfleet_core::turn::{State, Turn};
use tickfleet_core::{CounterKey, Query, Stored, View, keys};
use tickfleet_model::TenantId;

use crate::seam::RunError;
use crate::{Store, StoreError, TurnName};

const PAGE: usize = 128;
/// The number of consecutive checks that must find a fault before it is reported. One check may see two states of a
/// turn.
const LOOKS: usize = 3;
const FAULTS_MAX: usize = 1_000;
const COUNTED_MAX: usize = 200_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    Found(Fault),
    /// The counters of a tenant differ from the sums over its records.
    TenantMiscounted {
        counted: TenantCounts,
        stored: TenantCounts,
    },
    Unreadable {
        why: String,
    },
}

impl FaultKind {
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Found(fault) => fault.word(),
            Self::TenantMiscounted { .. } => "tenant_miscounted",
            Self::Unreadable { .. } => "unreadable",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultFound {
    pub kind: FaultKind,
    pub subject: String,
    pub repaired: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardCheck {
    pub faults: Vec<FaultFound>,
    pub more: usize,
    pub checked: usize,
    /// False if there were too many unfinished turns, or if turns of a tenant changed during the comparison.
    pub compared: bool,
}

type CheckResult = Result<Vec<Fault>, FaultFound>;

fn is_faulty((_, found): &(Subject, CheckResult)) -> bool {
    found.as_ref().map_or(true, |faults| !faults.is_empty())
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    counts: TenantCounts,
    /// Does not depend on the order of the records.
    fingerprint: u64,
}

impl Sums {
    fn add(&mut self, name: &TurnName, stored: &Stored<Turn>) {
        self.counts.add(&stored.value);
        let mut hash = DefaultHasher::new();
        (name.turn.as_str(), stored.version.as_str()).hash(&mut hash);
        self.fingerprint = self.fingerprint.wrapping_add(hash.finish());
    }
}

struct Checker<'a> {
    store: &'a Store,
    repair: bool,
    report: ShardCheck,
    /// A scan may return a turn twice, but each turn counts only once.
    seen: HashSet<TurnName>,
    sums: BTreeMap<TenantId, Sums>,
    /// Tenants with an unreadable turn. Their counters cannot be compared.
    uncounted: BTreeSet<TenantId>,
    queues: BTreeSet<CounterKey>,
}

impl Store {
    /// The fleet keeps working. With `repair`, also repairs the faults that a transition can repair. After an error,
    /// these repairs remain.
    pub async fn check(&self, repair: bool) -> Result<ShardCheck, StoreError> {
        let report = ShardCheck { faults: Vec::new(), more: 0, checked: 0, compared: true };
        let mut checker = Checker {
            store: self,
            repair,
            report,
            seen: HashSet::new(),
            sums: BTreeMap::new(),
            uncounted: BTreeSet::new(),
            queues: BTreeSet::new(),
        };
        checker.turns().await?;
        checker.timers().await?;
        let queues = std::mem::take(&mut checker.queues).into_iter().map(Subject::ThrottleQueue);
        checker.check_all(queues.collect()).await?;
        checker.tenants().await?;
        Ok(checker.report)
    }

    async fn turns_of(&self, names: &[TurnName]) -> Result<Vec<(TurnName, Option<Stored<Turn>>)>, StoreError> {
        let queries: Vec<Query> = names.iter().map(|name| Query::Record(name.record())).collect();
        let found = self.values(&queries).await?;
        let mut turns = Vec::with_capacity(names.len());
        for (name, value) in names.iter().zip(found) {
            match crate::reads::stored::<Turn>(&name.record(), Some(value)) {
                Ok(None) => {}
                Ok(Some(turn)) => turns.push((name.clone(), Some(turn))),
                Err(_) => turns.push((name.clone(), None)),
            }
        }
        Ok(turns)
    }

    async fn tenant_counts(&self, tenant: &TenantId) -> Result<TenantCounts, StoreError> {
        Ok(self.evaluate(&mut View::default(), |view, _| TenantCounts::stored(tenant, view)).await?)
    }

    async fn sums_of(&self, tenant: &TenantId) -> Result<Option<Sums>, StoreError> {
        let mut sums = Sums::default();
        let mut seen = HashSet::new();
        let mut cursor = 0;
        loop {
            let (next, names) = self.scan_turns(Some(tenant), cursor).await?;
            let new: Vec<TurnName> = names.into_iter().filter(|name| seen.insert(name.clone())).collect();
            for (name, turn) in self.turns_of(&new).await? {
                let Some(turn) = turn else { return Ok(None) };
                sums.add(&name, &turn);
            }
            cursor = next;
            if cursor == 0 {
                return Ok(Some(sums));
            }
        }
    }
}

impl Checker<'_> {
    async fn turns(&mut self) -> Result<(), StoreError> {
        let mut cursor = 0;
        loop {
            let (next, names) = self.store.scan_turns(None, cursor).await?;
            let new: Vec<TurnName> = names.into_iter().filter(|name| !self.seen.contains(name)).collect();
            for (name, turn) in self.store.turns_of(&new).await? {
                self.count(&name, turn.as_ref());
            }
            self.check_all(new.into_iter().map(Subject::Turn).collect()).await?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    fn count(&mut self, name: &TurnName, turn: Option<&Stored<Turn>>) {
        if self.seen.len() < COUNTED_MAX {
            self.seen.insert(name.clone());
        } else {
            self.report.compared = false;
        }
        let Some(turn) = turn else {
            self.uncounted.insert(name.tenant.clone());
            return;
        };
        self.sums.entry(name.tenant.clone()).or_default().add(name, turn);
        if let State::Throttled { counter, .. } = &turn.value.state {
            self.queues.insert(counter.clone());
        }
    }

    async fn timers(&mut self) -> Result<(), StoreError> {
        let mut cursor = 0;
        loop {
            let (page, next) = self.store.seam().scan_members(&keys::timers(), "", cursor, PAGE).await?;
            let mut subjects = Vec::new();
            for (timer, _) in page {
                if let Some(name) = timer.strip_prefix("turn:").and_then(TurnName::parse) {
                    subjects.push(Subject::TurnTimer(name));
                } else if let Some((limit, counter)) = timer.strip_prefix("throttle:").and_then(|q| q.split_once('@')) {
                    self.queues.insert(CounterKey::new(limit, counter));
                }
            }
            self.check_all(subjects).await?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Skips a tenant if its turns changed during the comparison.
    async fn tenants(&mut self) -> Result<(), StoreError> {
        if !self.report.compared {
            return Ok(());
        }
        for tenant in std::mem::take(&mut self.uncounted) {
            self.sums.remove(&tenant);
            self.report.compared = false;
        }
        for (tenant, first) in std::mem::take(&mut self.sums) {
            let before = self.store.tenant_counts(&tenant).await?;
            if before == first.counts {
                continue;
            }
            let Some(sums) = self.store.sums_of(&tenant).await? else { continue };
            let after = self.store.tenant_counts(&tenant).await?;
            if after == sums.counts {
                continue;
            }
            if before != after || sums != first {
                self.report.compared = false;
                continue;
            }
            let recount = Recount { tenant: tenant.clone(), counted: sums.counts, stored: after };
            let repaired = self.repair && self.store.decide(recount).await?.result;
            let kind = FaultKind::TenantMiscounted { counted: sums.counts, stored: after };
            self.report(FaultFound { kind, subject: tenant.to_string(), repaired });
        }
        Ok(())
    }

    async fn check_all(&mut self, subjects: Vec<Subject>) -> Result<(), StoreError> {
        self.report.checked += subjects.len();
        for page in subjects.chunks(PAGE) {
            self.check_page(page).await?;
        }
        Ok(())
    }

    async fn check_page(&mut self, subjects: &[Subject]) -> Result<(), StoreError> {
        let found = self.check_subjects(subjects, false).await?;
        let mut faulty: Vec<(Subject, CheckResult)> = subjects.iter().cloned().zip(found).filter(is_faulty).collect();
        for _ in 1..LOOKS {
            if faulty.is_empty() {
                return Ok(());
            }
            let subjects: Vec<Subject> = faulty.iter().map(|(subject, _)| subject.clone()).collect();
            let again = self.check_subjects(&subjects, false).await?;
            let both = faulty.into_iter().zip(again).map(|((subject, before), now)| match (before, now) {
                (Ok(before), Ok(now)) => {
                    (subject, Ok(now.into_iter().filter(|fault| before.contains(fault)).collect()))
                }
                (_, now) => (subject, now),
            });
            faulty = both.filter(is_faulty).collect();
        }
        if self.repair {
            let subjects: Vec<Subject> = faulty.into_iter().map(|(subject, _)| subject).collect();
            let repaired = self.check_subjects(&subjects, true).await?;
            faulty = subjects.into_iter().zip(repaired).collect();
        }
        for (subject, found) in faulty {
            self.report_all(&subject, found);
        }
        Ok(())
    }

    async fn check_subjects(&self, subjects: &[Subject], repair: bool) -> Result<Vec<CheckResult>, StoreError> {
        let checks: Vec<Check> =
            subjects.iter().map(|subject| Check { subject: subject.clone(), apply_repairs: repair }).collect();
        let mut found = Vec::with_capacity(checks.len());
        for result in self.store.decide_all(&checks).await? {
            found.push(match result {
                Ok(receipt) => Ok(receipt.result),
                Err(RunError::Unreadable { key, why }) => {
                    let kind = FaultKind::Unreadable { why: why.to_string() };
                    Err(FaultFound { kind, subject: key.to_string(), repaired: false })
                }
                // If a record changes all the time, it is in use, not faulty.
                Err(RunError::Contended(_)) => Ok(Vec::new()),
                Err(error) => return Err(error.into()),
            });
        }
        Ok(found)
    }

    fn report_all(&mut self, subject: &Subject, found: CheckResult) {
        match found {
            Ok(faults) => {
                for fault in faults {
                    let kind = FaultKind::Found(fault);
                    let subject = name_of(subject);
                    self.report(FaultFound { kind, subject, repaired: self.repair });
                }
            }
            Err(unreadable) => self.report(unreadable),
        }
    }

    fn report(&mut self, found: FaultFound) {
        if self.report.faults.contains(&found) {
            return;
        }
        if self.report.faults.len() < FAULTS_MAX {
            self.report.faults.push(found);
        } else {
            self.report.more += 1;
        }
    }
}

fn name_of(subject: &Subject) -> String {
    match subject {
        Subject::Turn(name) | Subject::TurnTimer(name) => name.to_string(),
        Subject::ThrottleQueue(counter) => format!("{}@{}", counter.limit, counter.counter),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::Arc;

    use tickfleet_core::transaction::TimerRule;
    use tickfleet_core::{Record as _, Transaction};

    use super::*;
    use crate::StoreOptions;
    use crate::seam::memory::MemoryStore;

    const READY: &str = r#"1{"h":{"ag":"kelly","dl":9000,"dg":"d","n":1},"q":{"r":"normal"},"pl":7,"t":1,"b":10,"s":{"s":"ready","upto":1}}"#;

    fn name() -> TurnName {
        TurnName::parse("acme:t1").unwrap()
    }

    async fn commit(store: &Store, write: impl FnOnce(&mut Transaction)) {
        let mut transaction = Transaction::new(store.versions().draw());
        write(&mut transaction);
        store.seam().commit(&[transaction]).await.unwrap();
    }

    fn words(check: &ShardCheck) -> Vec<(&'static str, &str, bool)> {
        check.faults.iter().map(|found| (found.kind.word(), found.subject.as_str(), found.repaired)).collect()
    }

    #[tokio::test]
    async fn faults_are_found_and_repaired() {
        let store = Store::in_memory(MemoryStore::default(), 0, Arc::new(StoreOptions::default()));
        assert_eq!(
            (store.check(false).await.unwrap().faults, store.check(true).await.unwrap().compared),
            (vec![], true)
        );
        let turn = Turn::decode(READY.as_bytes()).unwrap();
        let ghost = TurnName::parse("acme:ghost").unwrap();
        commit(&store, |transaction| {
            transaction.put(&name().record(), &turn).timer(ghost.timer(), 1 << 50, TimerRule::Earlier);
        })
        .await;
        let found =
            [("turn_without_timer", "acme:t1"), ("timer_without_turn", "acme:ghost"), ("tenant_miscounted", "acme")];
        let all = |repaired| -> Vec<_> { found.iter().map(|(word, subject)| (*word, *subject, repaired)).collect() };
        assert_eq!(words(&store.check(false).await.unwrap()), all(false));
        assert_eq!(words(&store.check(true).await.unwrap()), all(true));
        let left = store.check(false).await.unwrap();
        assert_eq!((left.faults, left.compared), (vec![], true));
    }
}
