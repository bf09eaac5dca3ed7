//! A call that goes by the facts of its session enters it before it begins.

use std::fmt::Write as _;

use tickfleet_model::policy::{Becomes, FactsSession};
use tickfleet_model::{TenantId, TurnId, limits};

use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// A call that is about to enter its session.
#[derive(Debug, Clone)]
pub struct FactsEntry {
    /// The turn.
    pub name: TurnName,
    /// The fence of the slice.
    pub fence: String,
    /// Position of the call.
    pub position: usize,
    /// Digest of the turn's content.
    pub digest: String,
    /// The session.
    pub session: FactsSession,
    /// What has to be so.
    pub conditions: Vec<AskedFact>,
    /// What its end may do.
    pub changes: Vec<MayChange>,
    /// The Redis (its `run_id`) that the worker has told of what it knows; none where it knows none.
    pub knows: Option<String>,
    /// When the turn was submitted, ms by Redis' clock; 0 where that is not known.
    pub submitted_ms: i64,
    /// True if it only asks whether it might begin: it enters nothing.
    pub looks: bool,
}

/// A fact that a call requires or forbids.
#[derive(Debug, Clone)]
pub struct AskedFact {
    /// The fact as it is kept.
    pub fact: String,
    /// True if it has to be so, false if it may not.
    pub required: bool,
    /// True if the condition only says what it would have stopped.
    pub shadow: bool,
}

/// A fact that a call may set or clear.
#[derive(Debug, Clone)]
pub struct MayChange {
    /// The fact as it is kept.
    pub fact: String,
    /// True if it sets it, false if it clears it.
    pub sets: bool,
    /// For how long that is kept, ms.
    pub kept_ms: i64,
}

/// What the end of a call does to the facts of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FactsEnd {
    /// The session.
    pub session: FactsSession,
    /// What becomes of facts; none where nothing does.
    pub changes: Vec<ChangedFact>,
}

/// One change of a fact.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedFact {
    /// The fact as it is kept.
    pub fact: String,
    /// What becomes of it.
    pub becomes: Becomes,
    /// For how long that is kept, ms.
    pub kept_ms: i64,
}

impl ChangedFact {
    /// The change as scripts read it.
    pub(crate) fn letter(&self) -> char {
        match self.becomes {
            Becomes::Set => 'S',
            Becomes::MaybeSet => 's',
            Becomes::Cleared => 'C',
            Becomes::MaybeCleared => 'c',
        }
    }
}

impl FactsEnd {
    /// Adds the changes as `settle.lua` reads them.
    pub(crate) fn write(&self, position: usize, tenant: &TenantId, to: &mut String) {
        let session = &self.session;
        for changed in &self.changes {
            let (letter, fact, kept_ms) = (changed.letter(), &changed.fact, changed.kept_ms);
            // Writing to a String cannot fail.
            let _ = write!(to, "{position} {tenant}:{session} {letter} {fact} {kept_ms} ");
        }
        if self.changes.is_empty() {
            let _ = write!(to, "{position} {tenant}:{session} . - 0 ");
        }
    }
}

/// What is known of a fact that is not as a call needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFact {
    /// Its state.
    pub state: FactState,
    /// Since when, ms of shard time; none where it was never set.
    pub since_ms: Option<i64>,
    /// The call that made it so, `<turn>/<position>`.
    pub by: Option<String>,
    /// When it ends or ended, ms of shard time.
    pub until_ms: Option<i64>,
}

/// The state of a fact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FactState {
    /// Nobody has set it, or that was long ago.
    Never,
    /// It is so.
    Set,
    /// It may be so: how the call ended that sets it is not known.
    Perhaps,
    /// It was cleared.
    Cleared,
    /// It was so, until its time was over.
    Over,
    /// A call is under way that may change it, and that call waits for this one.
    Undecided,
}

/// The outcome of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entered {
    /// The call may begin. The conditions in shadow that would have stopped it, by their position.
    Ok(Vec<usize>),
    /// The condition at this position is not met.
    Unmet(usize, KnownFact),
    /// A call of this turn is under way that may change what stops it, or what does not yet.
    Waits(TurnId),
    /// This very call was begun before: `begin` says what is known of it.
    Begun,
    /// Its session has no room for what it would set.
    Full,
    /// Somebody else holds the turn now.
    Stale,
    /// Redis restarted less than a lease ago, or is another than the worker knows: enter again later.
    Hold,
}

/// The outcome of an entry, and when it was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnteredAt {
    /// The outcome.
    pub entered: Entered,
    /// When conditions were held against facts for it, ms of shard time; none where they were not.
    pub at_ms: Option<i64>,
}

impl Store {
    /// Calls that are about to begin enter their sessions.
    ///
    /// # Errors
    /// [`StoreError`]; the same entry may be repeated.
    pub async fn enter(&self, calls: &[FactsEntry]) -> Result<Vec<EnteredAt>, StoreError> {
        let mut args = self.args();
        args.show(self.options.lease_ms).show(limits::FACTS_PER_SESSION_MAX).show(calls.len());
        for call in calls {
            let (tenant, session) = (&call.name.tenant, &call.session);
            args.show(&call.name).text(call.fence.as_str()).show(call.position).text(call.digest.as_str());
            args.show(format_args!("{tenant}:{session}")).maybe(call.knows.as_ref());
            args.show(call.submitted_ms).flag(call.looks).show(call.conditions.len()).show(call.changes.len());
            for asked in &call.conditions {
                let kind = match (asked.required, asked.shadow) {
                    (true, false) => "R",
                    (true, true) => "r",
                    (false, false) => "F",
                    (false, true) => "f",
                };
                args.text(kind).text(asked.fact.as_str());
            }
            for change in &call.changes {
                args.text(if change.sets { "S" } else { "C" }).text(change.fact.as_str()).show(change.kept_ms);
            }
        }
        let mut reply = self.ask(Verb::Enter, args).await?;
        reply.rest().iter().map(entered).collect()
    }
}

fn entered(value: &redis::Value) -> Result<EnteredAt, StoreError> {
    let texts: Vec<String> = match value {
        redis::Value::Array(values) => values.iter().map(|value| text_of(value).unwrap_or_default()).collect(),
        word => text_of(word).into_iter().collect(),
    };
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let bad = || unexpected(Verb::Enter.as_str(), value);
    let place = |text: &str| text.parse::<usize>().ok().and_then(|number| number.checked_sub(1)).ok_or_else(bad);
    let at_ms = match texts[..] {
        ["ENTERED" | "UNMET", at_ms, ..] => at_ms.parse().ok(),
        _ => None,
    };
    let entered = match texts[..] {
        ["ENTERED", _, ref shadow @ ..] => Entered::Ok(shadow.iter().map(|at| place(at)).collect::<Result<_, _>>()?),
        ["UNMET", _, at, state, since, by, until] => {
            let state = match state {
                "-" => FactState::Never,
                "y" => FactState::Set,
                "m" => FactState::Perhaps,
                "n" => FactState::Cleared,
                "x" => FactState::Over,
                "w" => FactState::Undecided,
                _ => return Err(bad()),
            };
            let by = Some(by.to_owned()).filter(|by| !by.is_empty());
            let known = KnownFact { state, since_ms: since.parse().ok(), by, until_ms: until.parse().ok() };
            Entered::Unmet(place(at)?, known)
        }
        ["WAITS", turn] => Entered::Waits(TurnId::new(turn).map_err(|_| bad())?),
        ["BEGUN"] => Entered::Begun,
        ["FULL"] => Entered::Full,
        ["STALE"] => Entered::Stale,
        ["HOLD"] => Entered::Hold,
        _ => return Err(bad()),
    };
    Ok(EnteredAt { entered, at_ms })
}
