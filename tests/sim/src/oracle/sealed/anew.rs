//! The log, decided anew by the policy that decided it: nothing may differ.

use std::collections::BTreeMap;
use std::sync::Arc;

use scheduler::policy::{counter_stagger_ms, stagger_ms};
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_proof::lines::Line;
use tickfleet_proof::whatif::Difference;
use tickfleet_proof::whatif::facts::replay::FactReplay;
use tickfleet_proof::whatif::facts::{FactCall, FactTurn, Guarded, Kept, Row};
use tickfleet_proof::whatif::recorded::{Arguments, Began, Fate, Operated, Read, Recorded};
use tickfleet_proof::whatif::replay::{Fleet, Replay};
use tickfleet_proof::whatif::turns::Turn;
use tickfleet_tools::Registry;
use worker::calls::recalled::{Recall, Recalled, facts};

use crate::parts::Site;

/// What came of deciding the log anew.
#[derive(Default)]
pub(super) struct Anew {
    /// So many calls were.
    pub(super) calls: u64,
    /// So many of them by facts, and so many could not be.
    pub(super) by_facts: (u64, u64),
    /// What would be decided otherwise.
    pub(super) wrong: Vec<String>,
}

/// Decides the log anew, where one policy was in force throughout and nobody has set anything at run time.
pub(super) fn decided(lines: &[String], site: &Site) -> anyhow::Result<Anew> {
    if site.settings.sealed.as_ref().is_none_or(|sealed| !sealed.is_one_policy) {
        return Ok(Anew::default());
    }
    let (calls, operated) = gathered(lines);
    let (mut wrong, mut said) = (judged(&calls, site)?, (0, 0));
    // After a restart, calls wait for windows in which nothing is lost.
    if !site.world.facts().has_restarted {
        let others = replayed(&calls, &operated, site).into_iter().filter(|other| !is_left_out(other, site));
        wrong.extend(others.map(|other| format!("decided anew: {other:?}")));
        let differences;
        (differences, said) = by_facts(&calls, site)?;
        wrong.extend(differences.into_iter().map(|other| format!("by facts: {other:?}")));
    }
    Ok(Anew { calls: calls.values().map(|calls| calls.len() as u64).sum(), by_facts: said, wrong })
}

/// Calls by the shard, the tenant and the turn that they belong to.
type Calls = BTreeMap<(u32, String, String), Vec<Recorded>>;

/// The calls of the log by their turns, and what operators did.
fn gathered(lines: &[String]) -> (Calls, Operated) {
    let (mut calls, mut operated) = (BTreeMap::<_, Vec<Recorded>>::new(), Operated::default());
    for line in lines {
        let Some(Line::Entry(entry)) = Line::read(line) else { continue };
        match Read::entry(&entry) {
            Read::Call(call) => {
                calls.entry((call.shard, call.tenant.clone(), call.turn.clone())).or_default().push(*call);
            }
            Read::Reset(reset) => operated.resets.push(reset),
            Read::Pause(pause) => operated.pauses.push(pause),
            Read::Other => {}
        }
    }
    calls.values_mut().for_each(|calls| calls.sort_by_key(|call| (call.position, call.written_ms)));
    (calls, operated)
}

/// What the log does not say: that a hand has spoiled an agent's budgets.
fn is_left_out(other: &Difference, site: &Site) -> bool {
    let agent = format!("{}:{}", other.tenant, other.agent);
    site.world.facts().spoiled.contains_key(&agent)
}

/// Caps and limits.
fn replayed(calls: &Calls, operated: &Operated, site: &Site) -> Vec<Difference> {
    let (policy, mut differences) = (site.settings.policy(0), Vec::new());
    let fleet = Fleet {
        policy: &policy,
        shards: site.settings.store.shards,
        slots: None,
        one_tenant: false,
        agent_stagger: stagger_ms,
        counter_stagger: counter_stagger_ms,
    };
    let mut turns: Vec<Turn> = calls.values().filter_map(|calls| Turn::of(calls)).collect();
    turns.sort_by_key(|turn| turn.at_ms().unwrap_or(0));
    let began = Began::default();
    let mut replay = Replay::new(fleet, operated, &began, |difference| differences.push(difference));
    turns.into_iter().for_each(|turn| replay.turn(turn));
    let _not_decidable = replay.finish();
    differences
}

/// Conditions on facts; with how many could be decided, and how many could not.
fn by_facts(calls: &Calls, site: &Site) -> anyhow::Result<(Vec<Difference>, (u64, u64))> {
    let active = Arc::new(PolicyHandle::new(site.active(0)));
    let store = site.stores(usize::MAX).into_iter().next();
    let store = store.ok_or_else(|| anyhow::anyhow!("there is no shard"))?;
    let registry = site.registry("nobody", &store, &active);
    let active = active.load();
    let kept = Kept::of(&active.policy.permissions);
    let turn = |calls: &Vec<Recorded>| {
        let mut before_ms = None;
        let one = |call: &Recorded| {
            let before_ms = before_ms.replace(call.ended_ms);
            let (tool, facts, effect) = facts(&call.tool, &active, &registry)?;
            FactCall::of(call, &Row { tool, facts, effect }, &kept, Guarded::Same, before_ms)
        };
        let by_facts = calls.iter().filter_map(one).collect();
        FactTurn::of(calls.first()?, by_facts)
    };
    let mut turns: Vec<FactTurn> = calls.values().filter_map(turn).collect();
    turns.sort_by_key(|turn| turn.at_ms);
    let (began, mut differences) = (Began::default(), Vec::new());
    let mut replay = FactReplay::new(&began, |difference| differences.push(difference));
    turns.into_iter().for_each(|turn| replay.turn(turn));
    let (decided, said) = replay.finish();
    Ok((differences, (decided, said.not_decidable.values().sum())))
}

/// Permission, arguments, rules, consent.
fn judged(calls: &Calls, site: &Site) -> anyhow::Result<Vec<String>> {
    let active = Arc::new(PolicyHandle::new(site.active(0)));
    let store = site.stores(usize::MAX).into_iter().next();
    let store = store.ok_or_else(|| anyhow::anyhow!("there is no shard"))?;
    let registry = Arc::new(site.registry("nobody", &store, &active));
    let active = active.load();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut wrong = Vec::new();
    for call in calls.values().flatten().filter(|call| !call.is_task) {
        if let Some(recall) = runtime.block_on(otherwise(call, &active, &registry)) {
            let (turn, at, was) = (&call.turn, call.position, call.fate.words());
            wrong.push(format!("{turn}/{at} ({}): {was}, and decided anew {recall:?}", call.tool));
        }
    }
    Ok(wrong)
}

/// What guards say of a call, where that is not what they said.
async fn otherwise(call: &Recorded, active: &Arc<ActivePolicy>, registry: &Arc<Registry>) -> Option<Recall> {
    let (tenant, agent) = (TenantId::new(call.tenant.as_str()).ok()?, AgentId::new(call.agent.as_str()).ok()?);
    let arguments = match &call.arguments {
        Arguments::Whole(text) => Some(text.as_str()),
        Arguments::Hidden(_) | Arguments::Cut(_) => None,
    };
    let premises = call.premises.as_ref();
    let recalled = Recalled { tenant: &tenant, agent: &agent, tool: &call.tool, arguments, premises };
    let recall = recalled.judge(active, registry).await;
    let is_same = match (&call.fate, &recall) {
        (Fate::NotReached, _) | (_, Recall::Unknown(_)) => true,
        (Fate::Stopped { .. } | Fate::Passed, Recall::Passes) => true,
        (Fate::Stopped { .. } | Fate::Asked, Recall::Asks(_)) => true,
        (Fate::Ended { outcome, reason, rule }, Recall::Ends { outcome: now, reason: why, rule: by }) => {
            (outcome.as_str(), reason, rule) == (*now, why, by)
        }
        // What is no JSON was refused as that.
        (Fate::Ended { outcome, .. }, _) => outcome == "invalid_arguments" && arguments.is_none(),
        _ => false,
    };
    (!is_same).then_some(recall)
}
