//! Games whose audit log is sealed, and whose lost answers are looked up: how often it is sealed, by how many keys, and how
//! long a bank takes a request.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tickfleet_model::tool::{Reconcile, ReconcileArgument};
use tickfleet_proof::seal::{BadSeal, Signer};

use super::{millis, one_of};

/// From this seed on, games are governed and their log is sealed.
pub(crate) const SEALED_FROM: u64 = 3_000_000;
/// What is paid from afar; its answers get lost.
pub(crate) const REMIT: &str = "remit";
/// What finds out whether it was.
pub(crate) const FIND: &str = "find_remit";

/// How the log is sealed, and what is looked up.
#[derive(Debug, Clone)]
pub(crate) struct Sealed {
    /// How often new entries are sealed.
    pub(crate) every: Duration,
    /// Keys that sign: with two, a scheduler that starts with the second configuration has the second one.
    pub(crate) keys: usize,
    /// Whether all configurations have one policy, and nobody sets anything at run time: decided anew, nothing differs.
    pub(crate) is_one_policy: bool,
    /// How often it is asked whether a remittance was made.
    pub(crate) tries: u32,
    /// For how long the bank takes a request, ms.
    pub(crate) grace_ms: i64,
}

impl Sealed {
    /// Draws it.
    pub(super) fn draw(chance: &mut StdRng) -> Self {
        Self {
            every: millis(one_of(chance, &[200, 1_000, 3_000])),
            keys: one_of(chance, &[1, 1, 1, 2]),
            is_one_policy: chance.random_bool(0.6),
            tries: chance.random_range(1..5),
            grace_ms: one_of(chance, &[1_000, 3_000]),
        }
    }

    /// Who signs, of the schedulers that start with this configuration.
    ///
    /// # Errors
    /// None: the secrets are fit to be keys.
    pub(crate) fn signer(&self, version: usize) -> Result<Arc<Signer>, BadSeal> {
        let number = version % self.keys + 1;
        Signer::new(&format!("k{number}"), &format!("{number:02}").repeat(32)).map(Arc::new)
    }

    /// How it is found out whether a remittance was made.
    pub(crate) fn reconcile(&self) -> Reconcile {
        Reconcile {
            tool: FIND.to_owned(),
            arguments: [("reference".to_owned(), ReconcileArgument::IdempotencyKey)].into(),
            happened: "/found".to_owned(),
            output: Some("/made".to_owned()),
            tries: self.tries,
            grace_ms: self.grace_ms,
        }
    }
}
