//! Grants of token services. A refresh token is valid for one use, so all workers share the newest one. The store
//! cannot read grants, because tools encrypt them.

use bytes::Bytes;

use crate::decision::{Context, Decision, Step};
use crate::record::Present;
use crate::transaction::{Conflict, Guard, RecordKey, Transaction, Write};
use crate::view::{Undecided, View};

pub const GRANT_PART: &str = "grant";

#[must_use]
pub fn key(id: &str) -> RecordKey {
    RecordKey::new(format!("grant:{id}"))
}

#[must_use]
pub fn renewal_key(id: &str) -> RecordKey {
    RecordKey::new(format!("grant:{id}:renewal"))
}

#[derive(Debug, Clone)]
pub struct KeepGrant<'a> {
    pub id: &'a str,
    pub sealed: Bytes,
    pub ttl_ms: i64,
}

impl Decision for KeepGrant<'_> {
    type Output = ();

    fn decide(&self, _: &View, context: &Context) -> Result<Step<()>, Undecided> {
        let key = key(self.id);
        let mut transaction = Transaction::new(context.version.clone());
        transaction.write(Write::PutPart(key.clone(), GRANT_PART.into(), self.sealed.clone()));
        transaction.put_for(&key, &Present {}, self.ttl_ms);
        Ok(Step::Commit(transaction, ()))
    }
}

/// Takes the right to renew a grant for `lease_ms`, even if the renewal fails. So a token service that refuses every
/// request receives at most one request per `lease_ms`.
#[derive(Debug, Clone, Copy)]
pub struct RenewGrant<'a> {
    pub id: &'a str,
    pub lease_ms: i64,
}

impl Decision for RenewGrant<'_> {
    type Output = bool;

    fn decide(&self, _: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        let key = renewal_key(self.id);
        if context.failed(|conflict| matches!(conflict, Conflict::Record { .. })) {
            return Ok(Step::Return(false));
        }
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(Guard::Absent(key.clone()));
        transaction.dedupe_record = Some(key.clone());
        transaction.put_for(&key, &Present {}, self.lease_ms);
        Ok(Step::Commit(transaction, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Trial;

    #[test]
    fn one_worker_at_a_time_renews_a_grant() {
        let mut shard = Trial::at(1_000);
        let renew = RenewGrant { id: "x", lease_ms: 500 };
        assert!(shard.run(&renew));
        assert!(!shard.run(&renew));
        shard.receipt(&KeepGrant { id: "x", sealed: Bytes::from_static(b"sealed"), ttl_ms: 9_000 });
        assert_eq!(shard.record(&key("x")), Some(Present {}));
    }
}
