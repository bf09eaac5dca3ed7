//! Audit log: entries about operators' actions, followers, seals, statistics.
//!
//! | Key | Holds |
//! |---|---|
//! | log `audit` | the entries, in the field `audit` |
//! | record `follow:<name>` | the position of an exporter, and its lease, see [`follow`] |
//! | record `sealing` | progress, lease and keys of the sealer; part `head:<tenant>`: head of a chain, see [`seal`] |
//! | logs `seals`, `anchors` | the seals; copies of chain heads, if they are stored in the shard |
//! | record `statistics` | the last counted entry of the log, see [`statistics`] |
//! | counters of the limit `_calls:<day>` | the counts of a day |
//! | records `history`, `history:minutes:<hour>`, `history:hours:<day>` | figures over time, see [`history`] |

pub mod admitted;
pub mod follow;
pub mod history;
pub mod seal;
pub mod statistics;

use bytes::Bytes;
use tickfleet_protocol::audit::with_meta;

use crate::decision::{Context, Decision, Step};
use crate::keys;
use crate::transaction::{Transaction, Write};
use crate::view::{Undecided, View};

/// An entry that a decision appends in the transaction of its change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditAppend {
    /// An empty text logs nothing: an action on several shards is logged in only one shard.
    pub text: Bytes,
    pub entries_max: u64,
}

impl AuditAppend {
    /// `members` are pairs of name and JSON.
    #[must_use]
    pub fn with_meta(&self, members: &[(&str, String)]) -> Self {
        Self { text: with_meta(&self.text, members).into(), ..self.clone() }
    }

    /// The log entry is in the transaction of the change, so the log misses no change.
    pub fn append_to(&self, transaction: &mut Transaction) {
        if self.text.is_empty() {
            return;
        }
        let fields = vec![("audit".into(), self.text.clone())];
        transaction.write(Write::Append { log: keys::audit(), fields, max_entries: self.entries_max });
    }
}

#[derive(Debug, Clone)]
pub struct Report(pub AuditAppend);

impl Decision for Report {
    type Output = ();

    fn decide(&self, _: &View, context: &Context) -> Result<Step<()>, Undecided> {
        let mut transaction = Transaction::new(context.version.clone());
        self.0.append_to(&mut transaction);
        Ok(Step::Commit(transaction, ()))
    }
}
