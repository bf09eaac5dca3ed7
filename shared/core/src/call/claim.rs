//! Idempotency claims: the first of several equal calls runs, and the others return its result.
//!
//! The transaction that begins a call claims the call's effect. The transaction that settles the call ends the claim.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_model::{TenantId, TurnId};

use super::{CallName, due_at_once, wake};
use crate::decision::{Context, Decision, Step};
use crate::keys::TurnName;
use crate::mutant;
use crate::record::{Record, Stored};
use crate::section::Section;
use crate::transaction::{Conflict, Guard, RecordKey, Transaction, Write};
use crate::turn::Turn;
use crate::turn::end::parts;
use crate::turn::state::Finished;
use crate::view::{Undecided, View};

/// While memory is short, longer results are dropped.
const SMALL_RESULT_BYTES: usize = 1_000;

/// A claim does not wake further turns. They check again when their own timers fire.
const WAITERS_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EffectName {
    pub tenant: TenantId,
    pub tool: String,
    pub hash: String,
}

impl EffectName {
    #[must_use]
    pub fn key(&self) -> RecordKey {
        RecordKey::new(format!("effect:{}:{}:{}", self.tenant, self.tool, self.hash))
    }
}

/// Identifies a call even if a later turn receives the same ID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimant {
    #[serde(rename = "c")]
    pub call: CallName,
    #[serde(rename = "d")]
    pub digest: String,
    #[serde(rename = "t")]
    pub admitted_ms: i64,
}

impl Claimant {
    fn is_of(&self, digest: &str, admitted_ms: i64) -> bool {
        self.digest == digest && self.admitted_ms == admitted_ms
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    #[serde(rename = "by")]
    pub by: Claimant,
    #[serde(rename = "u")]
    pub until_ms: i64,
    #[serde(rename = "s")]
    pub state: ClaimState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimState {
    Open {
        #[serde(rename = "w", default, skip_serializing_if = "BTreeSet::is_empty")]
        waiters: BTreeSet<TurnId>,
    },
    Ended {
        /// JSON. Empty if memory was short. Equal calls then end with an unknown outcome.
        #[serde(rename = "r")]
        result: String,
    },
}

impl Record for Claim {
    const SCHEMA: u32 = 1;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimResult {
    Ours,
    /// The claimant can be this call itself, if its worker crashed after the commit.
    Ended {
        by: Claimant,
        /// JSON.
        result: String,
    },
    Waits {
        by: Claimant,
    },
    /// The equal call is over, but its claim is open. If it certainly had no effect, claim again with
    /// [`ClaimEffect::nothing`]. Otherwise run [`EndClaim`].
    Abandoned {
        by: Claimant,
        /// JSON; `None` if unknown.
        result: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimEffect {
    pub effect: EffectName,
    pub by: Claimant,
    /// How long equal calls receive the result.
    pub window_ms: i64,
    pub nothing: Option<Claimant>,
}

impl ClaimEffect {
    /// The claim expires one window after `deadline_ms`, the turn's deadline.
    pub fn add_to(
        &self,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
        deadline_ms: i64,
    ) -> Result<ClaimResult, Undecided> {
        let key = self.effect.key();
        let stored = view.record::<Claim>(&key)?;
        let mut waiters = BTreeSet::new();
        if let Some(claim) = in_force(stored.as_ref(), context.now_ms) {
            if claim.by == self.by {
                if let ClaimState::Ended { result } = &claim.state {
                    return Ok(ClaimResult::Ended { by: claim.by.clone(), result: result.clone() });
                }
                transaction.guard_read(&key, stored.as_ref());
                return Ok(ClaimResult::Ours);
            }
            let found = find(view, &self.effect.tenant, claim)?;
            let is_void = self.nothing.as_ref() == Some(&claim.by) && matches!(found, ClaimResult::Abandoned { .. });
            if !is_void {
                return Ok(found);
            }
            guard_gone(transaction, view, &self.effect.tenant, &claim.by)?;
            // Turns that wait for the abandoned claim now wait for the new claim.
            if let ClaimState::Open { waiters: inherited } = &claim.state {
                waiters.clone_from(inherited);
                waiters.remove(&self.by.call.turn);
            }
        }
        if !mutant!("claim_guards_its_record") {
            transaction.guard_read(&key, stored.as_ref());
        }
        let lives_ms = (deadline_ms - context.now_ms).max(0) + self.window_ms;
        let claim =
            Claim { by: self.by.clone(), until_ms: context.now_ms + lives_ms, state: ClaimState::Open { waiters } };
        transaction.put_for(&key, &claim, lives_ms);
        Ok(ClaimResult::Ours)
    }
}

/// If the equal call has already ended, the turn is due at once.
#[derive(Debug, Clone, Copy)]
pub struct WaitForClaim<'a>(pub &'a ClaimEffect);

impl Section for WaitForClaim<'_> {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        let ClaimEffect { effect, by, .. } = self.0;
        let key = effect.key();
        let stored = view.record::<Claim>(&key)?;
        if !mutant!("wait_for_claim_guards_the_claim") {
            transaction.guard_read(&key, stored.as_ref());
        }
        let claim = in_force(stored.as_ref(), context.now_ms).filter(|claim| claim.by != *by);
        let mut claim = match claim {
            Some(claim) if matches!(find(view, &effect.tenant, claim)?, ClaimResult::Waits { .. }) => claim.clone(),
            _ => {
                due_at_once(transaction, &effect.tenant, &by.call.turn, context.now_ms);
                return Ok(());
            }
        };
        if let ClaimState::Open { waiters } = &mut claim.state
            && waiters.len() < WAITERS_MAX
            && waiters.insert(by.call.turn.clone())
        {
            transaction.put_for(&key, &claim, claim.until_ms - context.now_ms);
        }
        Ok(())
    }
}

fn in_force(stored: Option<&Stored<Claim>>, now_ms: i64) -> Option<&Claim> {
    stored.map(|stored| &stored.value).filter(|claim| claim.until_ms > now_ms)
}

fn live_turn(view: &View, tenant: &TenantId, by: &Claimant) -> Result<(Option<Stored<Turn>>, bool), Undecided> {
    let stored = view.record::<Turn>(&turn_name(tenant, by).record())?;
    let stored = stored.filter(|stored| by.is_of(&stored.value.head.digest, stored.value.admitted_ms));
    let is_live = stored.as_ref().is_some_and(|stored| stored.value.position <= by.call.position);
    Ok((stored, is_live))
}

fn turn_name(tenant: &TenantId, by: &Claimant) -> TurnName {
    TurnName { tenant: tenant.clone(), turn: by.call.turn.clone() }
}

fn find(view: &View, tenant: &TenantId, claim: &Claim) -> Result<ClaimResult, Undecided> {
    let by = claim.by.clone();
    if let ClaimState::Ended { result } = &claim.state {
        return Ok(ClaimResult::Ended { by, result: result.clone() });
    }
    let (stored, is_live) = live_turn(view, tenant, &by)?;
    if is_live {
        return Ok(ClaimResult::Waits { by });
    }
    let result = match stored {
        Some(_) => result_part(view, tenant, &by)?,
        None => finished_result(view, tenant, &by)?,
    };
    Ok(ClaimResult::Abandoned { by, result })
}

fn result_part(view: &View, tenant: &TenantId, by: &Claimant) -> Result<Option<String>, Undecided> {
    let found = view.parts(&turn_name(tenant, by).record(), vec![parts::result(by.call.position)])?;
    let part = found.first().and_then(Option::as_ref);
    Ok(part.and_then(|part| String::from_utf8(part.to_vec()).ok()))
}

fn finished_result(view: &View, tenant: &TenantId, by: &Claimant) -> Result<Option<String>, Undecided> {
    #[derive(Deserialize)]
    struct Reply {
        results: Vec<Box<RawValue>>,
    }
    let stored = view.record::<Finished>(&turn_name(tenant, by).finished())?;
    let finished = stored.map(|stored| stored.value);
    let Some(finished) = finished.filter(|finished| by.is_of(&finished.digest, finished.admitted_ms)) else {
        return Ok(None);
    };
    let reply = serde_json::from_str::<Reply>(&finished.reply).ok();
    Ok(reply.and_then(|reply| reply.results.get(by.call.position).map(|result| result.get().to_owned())))
}

/// Guards that the earlier call is still over. Otherwise, its turn could begin the call again before the commit.
fn guard_gone(transaction: &mut Transaction, view: &View, tenant: &TenantId, by: &Claimant) -> Result<(), Undecided> {
    let key = turn_name(tenant, by).record();
    let stored = view.record::<Turn>(&key)?;
    if !mutant!("claim_guards_that_the_claimant_is_gone") {
        transaction.guard_read(&key, stored.as_ref());
    }
    Ok(())
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EffectEnd {
    /// JSON.
    Ended(String),
    /// JSON. The call may have taken effect. Does not replace a known end.
    Unknown(String),
    /// The next equal call runs.
    Undone,
    /// If the store lost the claim, the claim is written again.
    Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndClaimResult {
    Done,
    Known,
    Others,
}

/// Ends a claim when its call settles. Also a separate decision, for [`ClaimResult::Abandoned`] and after a restart of
/// the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndClaim {
    pub effect: EffectName,
    pub by: Claimant,
    pub end: EffectEnd,
    pub window_ms: i64,
}

impl EndClaim {
    pub fn end_claim(
        &self,
        transaction: &mut Transaction,
        view: &View,
        context: &Context,
    ) -> Result<EndClaimResult, Undecided> {
        let key = self.effect.key();
        let stored = view.record::<Claim>(&key)?;
        if !mutant!("end_claim_guards_its_record") {
            transaction.guard_read(&key, stored.as_ref());
        }
        let claim = in_force(stored.as_ref(), context.now_ms);
        if claim.is_some_and(|claim| claim.by != self.by) {
            return Ok(EndClaimResult::Others);
        }
        let is_ended = claim.is_some_and(|claim| matches!(claim.state, ClaimState::Ended { .. }));
        if is_ended && !matches!(self.end, EffectEnd::Ended(_)) {
            return Ok(EndClaimResult::Known);
        }
        let state = match &self.end {
            EffectEnd::Ended(result) | EffectEnd::Unknown(result) => {
                ClaimState::Ended { result: kept(result, transaction, context) }
            }
            EffectEnd::Open if claim.is_some() => return Ok(EndClaimResult::Known),
            EffectEnd::Open => ClaimState::Open { waiters: BTreeSet::new() },
            EffectEnd::Undone => {
                if stored.is_some() {
                    transaction.write(Write::Delete(key));
                }
                self.wake_waiters(transaction, claim, context.now_ms);
                return Ok(EndClaimResult::Done);
            }
        };
        let ended = Claim { by: self.by.clone(), until_ms: context.now_ms + self.window_ms, state };
        transaction.put_for(&key, &ended, self.window_ms);
        self.wake_waiters(transaction, claim, context.now_ms);
        Ok(EndClaimResult::Done)
    }

    fn wake_waiters(&self, transaction: &mut Transaction, claim: Option<&Claim>, now_ms: i64) {
        if let Some(ClaimState::Open { waiters }) = claim.map(|claim| &claim.state) {
            waiters.iter().for_each(|waiter| wake(transaction, &self.effect.tenant, waiter, now_ms));
        }
    }
}

/// Returns an empty text if memory is short and the result is large.
fn kept(result: &str, transaction: &mut Transaction, context: &Context) -> String {
    if result.len() <= SMALL_RESULT_BYTES {
        return result.to_owned();
    }
    if context.failed(|conflict| *conflict == Conflict::Pressure) {
        return String::new();
    }
    transaction.guard(Guard::MemoryAvailable);
    result.to_owned()
}

impl Section for EndClaim {
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided> {
        self.end_claim(transaction, view, context).map(drop)
    }
}

impl Decision for EndClaim {
    type Output = EndClaimResult;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<EndClaimResult>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        let result = self.end_claim(&mut transaction, view, context)?;
        if result != EndClaimResult::Done {
            return Ok(Step::Return(result));
        }
        Ok(Step::Commit(transaction, result))
    }
}
