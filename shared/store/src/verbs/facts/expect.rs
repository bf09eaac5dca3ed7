//! Turns that are about to be admitted, with calls that may set facts.

use tickfleet_model::policy::FactsSession;

use crate::keys::TurnName;
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// A turn that is about to be admitted.
#[derive(Debug, Clone)]
pub struct Expected {
    /// The turn.
    pub name: TurnName,
    /// Its deadline, ms of shard time.
    pub deadline_ms: i64,
    /// Its calls that may set facts.
    pub calls: Vec<ExpectedCall>,
}

/// A call that may set facts.
#[derive(Debug, Clone)]
pub struct ExpectedCall {
    /// Its position.
    pub position: usize,
    /// The session that it will enter.
    pub session: FactsSession,
    /// The facts as they are kept, and for how long, ms.
    pub sets: Vec<(String, i64)>,
}

impl Store {
    /// Says which calls may set facts before their turns are admitted. Nothing rests on it.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn expect(&self, turns: &[Expected]) -> Result<(), StoreError> {
        let mut args = self.args();
        args.show(turns.len());
        for turn in turns {
            args.show(&turn.name).show(turn.deadline_ms).show(turn.calls.len());
            for call in &turn.calls {
                args.show(call.position)
                    .show(format_args!("{}:{}", turn.name.tenant, call.session))
                    .show(call.sets.len());
                for (fact, kept_ms) in &call.sets {
                    args.text(fact.as_str()).show(kept_ms);
                }
            }
        }
        self.ask(Verb::Expect, args).await.map(drop)
    }
}
