//! The effects of ended calls on other records. All effects are committed together with the results.

use tickfleet_core::call::approval::{self, LeaveApproval};
use tickfleet_core::call::cache::{Fill, FillCache};
use tickfleet_core::call::claim::EndClaim;
use tickfleet_core::call::facts::{EndCalls, EndedCall, SessionName};
use tickfleet_core::call::streak::{CountCalls, Repeat, StreakBounds, StreakName};
use tickfleet_core::recovery::epoch::ConfirmedUnrunCalls;
use tickfleet_core::view::Undecided;
use tickfleet_core::{Context, Query, RecordKey, Section, Transaction, View};
use tickfleet_model::TenantId;

#[derive(Debug, Clone, Default)]
pub(crate) struct EndEffects {
    pub(crate) facts: Option<(SessionName, EndedCall)>,
    pub(crate) claim: Option<EndClaim>,
    pub(crate) repeat: Option<(StreakName, StreakBounds, Repeat)>,
    pub(crate) fill: Option<Fill>,
    /// The approval that was requested for the call, if the call ends without using it.
    pub(crate) unused: Option<(TenantId, String)>,
    /// Only for a call that ends without running: proof that no other attempt has begun the call.
    pub(crate) unrun: Option<ConfirmedUnrunCalls>,
}

#[derive(Debug)]
struct UnusedApproval {
    tenant: TenantId,
    id: String,
}

impl Section for UnusedApproval {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        LeaveApproval { tenant: &self.tenant, id: &self.id }.add_to(transaction, view, context)
    }
}

#[derive(Debug, Default)]
pub(crate) struct SettleSections {
    facts: Vec<EndCalls>,
    claims: Vec<EndClaim>,
    counts: Vec<CountCalls>,
    cache: FillCache,
    unused: Vec<UnusedApproval>,
    unrun: Vec<ConfirmedUnrunCalls>,
}

impl SettleSections {
    pub(crate) fn of(ends: impl IntoIterator<Item = EndEffects>) -> Self {
        let mut all = Self::default();
        for EndEffects { facts, claim, repeat, fill, unused, unrun } in ends {
            if let Some((session, ended)) = facts {
                match all.facts.iter_mut().find(|one| one.session == session) {
                    Some(one) => one.calls.push(ended),
                    None => all.facts.push(EndCalls { session, calls: vec![ended] }),
                }
            }
            if let Some((name, bounds, repeat)) = repeat {
                match all.counts.iter_mut().find(|one| one.name == name) {
                    Some(one) => one.calls.push(repeat),
                    None => all.counts.push(CountCalls { name, bounds, calls: vec![repeat] }),
                }
            }
            all.claims.extend(claim);
            all.cache.results.extend(fill);
            if let Some(unrun) = unrun.filter(|unrun| !all.unrun.contains(unrun)) {
                all.unrun.push(unrun);
            }
            all.unused.extend(unused.map(|(tenant, id)| UnusedApproval { tenant, id }));
        }
        all
    }

    pub(crate) fn all(&self) -> Vec<&dyn Section> {
        let mut all: Vec<&dyn Section> = Vec::new();
        all.extend(self.facts.iter().map(|section| section as &dyn Section));
        all.extend(self.claims.iter().map(|section| section as &dyn Section));
        all.extend(self.counts.iter().map(|section| section as &dyn Section));
        all.extend(self.unused.iter().map(|section| section as &dyn Section));
        all.extend(self.unrun.iter().map(|section| section as &dyn Section));
        if !self.cache.results.is_empty() {
            all.push(&self.cache);
        }
        all
    }

    pub(crate) fn records(&self) -> Vec<RecordKey> {
        let facts = self.facts.iter().map(|one| one.session.key());
        let claims = self.claims.iter().map(|one| one.effect.key());
        let counts = self.counts.iter().map(|one| one.name.key());
        let buckets = self.cache.results.iter().map(|fill| fill.name.key());
        facts.chain(claims).chain(counts).chain(buckets).collect()
    }

    pub(crate) fn queries(&self) -> Vec<Query> {
        let approvals = self.unused.iter().map(|unused| approval::key(&unused.tenant, &unused.id));
        self.records().into_iter().chain(approvals).map(Query::Record).collect()
    }
}
