//! How calls are governed in a game: by rules, facts and people, by the ledger of effects, by kept answers, and by the
//! breaker of loops.

use std::collections::BTreeSet;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tickfleet_model::policy::{Fact, FactChange, FactCondition, FactRow, Rule, RuleMode, ToolGrant};
use tickfleet_model::{ApprovalDemand, Effect, Outcome, Policy};
use tickfleet_store::RowBounds;
use worker::LoopOptions;

use super::one_of;
use super::sealed::REMIT;
use crate::trouble::Kind;

/// The people who decide about calls.
pub(crate) const APPROVERS: [&str; 2] = ["ann", "bob"];

/// The tools that are governed, each for its own way.
pub(crate) const TOOLS: [(&str, Effect); 9] = [
    // Its answers are kept.
    ("fetch", Effect::Read),
    // It always says the same.
    ("poll", Effect::Read),
    // After it, nothing is posted in its session any more; and of each lot, one thing at most.
    ("mail", Effect::Read),
    ("post", Effect::Once),
    // It opens what is walked through.
    ("open", Effect::Idempotent),
    ("walk", Effect::Once),
    // A rule says how long it may take.
    ("spend", Effect::Idempotent),
    // People agree to it.
    ("wire", Effect::Once),
    // Of equal ones, one takes effect.
    ("transfer", Effect::Once),
];

/// For how long facts, and what came of an effect, are kept: longer than any game.
pub(crate) const KEPT: Duration = Duration::from_secs(86_400);

/// How calls are governed.
#[derive(Debug, Clone)]
pub(crate) struct Governed {
    /// Of each configuration, how many people have to agree to a wire.
    quorum: [u32; 2],
    /// Of each, for how long a call may spend, ms.
    longest_ms: [u64; 2],
    /// For how long people may decide, and what they have said counts, ms.
    expires_ms: i64,
    /// For how long answers are kept.
    pub(crate) kept: Duration,
    /// After so many equal calls in a row one is refused.
    pub(crate) refused_after: u32,
}

/// Whether a trouble may strike where calls are governed. What a hand removes, and memory that is short, lets fewer calls
/// wait for what is about to come: nothing rests on that.
pub(crate) fn may_be(kind: &Kind) -> bool {
    !["remove", "memory"].contains(&kind.word())
}

fn fact(name: &str) -> Fact {
    // The names stand below, and are fit to be facts.
    Fact::parse(name).unwrap_or_else(|| Fact { name: name.to_owned(), arguments: Vec::new() })
}

fn sets(name: &str) -> FactRow {
    let kept_ms = KEPT.as_millis() as i64;
    FactRow { sets: vec![FactChange { fact: fact(name), on: [Outcome::Ok].into(), kept_ms }], ..FactRow::default() }
}

fn condition(name: &str) -> Vec<FactCondition> {
    vec![FactCondition { fact: fact(name), mode: RuleMode::Enforce, message: None }]
}

fn rule(name: &str, require: &str) -> Rule {
    Rule { name: Some(name.into()), require: require.into(), ..Rule::default() }
}

impl Governed {
    /// Draws it.
    pub(super) fn draw(chance: &mut StdRng) -> Self {
        let first = one_of(chance, &[1, 2]);
        Self {
            quorum: [first, one_of(chance, &[first, 1, 2])],
            longest_ms: [200, one_of(chance, &[200, 1_000])],
            expires_ms: one_of(chance, &[2_000, 8_000]),
            kept: Duration::from_secs(chance.random_range(1..6)),
            refused_after: one_of(chance, &[2, 3]),
        }
    }

    /// All configurations as the first one.
    pub(super) const fn united(mut self) -> Self {
        self.quorum = [self.quorum[0]; 2];
        self.longest_ms = [self.longest_ms[0]; 2];
        self
    }

    /// A configuration with what governs its calls.
    pub(super) fn over(&self, mut policy: Policy, version: usize, is_sealed: bool) -> Policy {
        let (quorum, longest_ms) = (self.quorum[version % 2], self.longest_ms[version % 2]);
        for (name, _) in TOOLS {
            let facts = match name {
                "mail" => sets("tainted"),
                "open" => sets("opened(/lot)"),
                "post" => FactRow {
                    forbid: [condition("tainted"), condition("posted(/lot)")].concat(),
                    ..sets("posted(/lot)")
                },
                "walk" => FactRow { require: condition("opened(/lot)"), ..FactRow::default() },
                _ => FactRow::default(),
            };
            let demand = ApprovalDemand { quorum, expires_ms: Some(self.expires_ms), ..ApprovalDemand::default() };
            let rules = match name {
                "spend" => vec![
                    rule("short", &format!("args.ms <= {longest_ms}")),
                    Rule { mode: RuleMode::Shadow, ..rule("never", "args.ms < 0") },
                ],
                "wire" => vec![Rule { otherwise_ask: Some(demand), ..rule("asks", "args.ms < 0") }],
                _ => Vec::new(),
            };
            let row = ToolGrant { everyone: true, rules, facts, ..ToolGrant::default() };
            policy.permissions.matrix.insert(name.to_owned(), row);
        }
        if is_sealed {
            policy.permissions.matrix.insert(REMIT.to_owned(), ToolGrant { everyone: true, ..ToolGrant::default() });
        }
        policy.permissions.approvers = APPROVERS.map(|name| (name.to_owned(), BTreeSet::new())).into();
        policy
    }

    /// So many people have to agree at least, whichever configuration decides.
    pub(crate) fn quorum_min(&self) -> usize {
        self.quorum.iter().min().map_or(1, |quorum| *quorum as usize)
    }

    /// For so long a call may spend, ms: by every configuration, and by one of them.
    pub(crate) fn spends_ms(&self) -> (u64, u64) {
        let [one, other] = self.longest_ms;
        (one.min(other), one.max(other))
    }

    /// When an agent goes in circles.
    pub(crate) fn loops(&self) -> LoopOptions {
        let bounds = RowBounds {
            refused_after: self.refused_after,
            refused_for: Duration::from_secs(5),
            forgotten_after: Duration::from_secs(600),
        };
        LoopOptions { tell_after: 2, bounds, except: std::sync::Arc::default() }
    }
}
