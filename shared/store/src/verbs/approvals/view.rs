use bytes::Bytes;
use tickfleet_core::call::CallName;
use tickfleet_core::call::approval::{Approval, ApprovalState, EXACT, key, waiting_of};
use tickfleet_core::turn::Turn;
use tickfleet_core::{Query, Stored, Value};
use tickfleet_model::{TenantId, limits};

use crate::{Store, StoreError, TurnName};

#[derive(Debug, Clone)]
pub struct ApprovalView {
    pub id: String,
    pub record: Approval,
    /// The complete arguments as JSON. If `record` has only abridged arguments, this is `None` in lists and after the
    /// approval has ended.
    pub exact: Option<String>,
}

impl ApprovalView {
    fn read(id: &str, stored: &Bytes, exact: Option<&Bytes>) -> Option<Self> {
        let record: Approval = Stored::read(stored).ok()?.value;
        let exact = match exact {
            Some(exact) => Some(String::from_utf8_lossy(exact).into_owned()),
            None => (!record.shown.abridged).then(|| record.shown.arguments.clone()),
        };
        Some(Self { id: id.to_owned(), record, exact })
    }
}

/// Per round trip of a search for one approval.
const TENANTS_TOGETHER: usize = 1_000;

impl Store {
    pub async fn approval(&self, tenant: &TenantId, id: &str) -> Result<Option<ApprovalView>, StoreError> {
        Ok(self.approval_of_any(&[tenant], id).await?.map(|(_, found)| found))
    }

    pub async fn approval_of_any<'a>(
        &self,
        tenants: &[&'a TenantId],
        id: &str,
    ) -> Result<Option<(&'a TenantId, ApprovalView)>, StoreError> {
        for some in tenants.chunks(TENANTS_TOGETHER) {
            let of = |tenant: &&TenantId| {
                let key = key(tenant, id);
                [Query::Record(key.clone()), Query::Parts(key, vec![EXACT.into()])]
            };
            let found = self.seam().read(&some.iter().flat_map(of).collect::<Vec<_>>()).await?;
            let view = |found: &[Value]| {
                let [Value::Record(Some(stored)), Value::Parts(exact)] = found else { return None };
                ApprovalView::read(id, stored, exact.first().and_then(Option::as_ref))
            };
            let mut found = some.iter().zip(found.chunks(2));
            if let Some(found) = found.find_map(|(tenant, found)| Some((*tenant, view(found)?))) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The earliest deadline first. Reads at most `count`, and omits an approval if its call has ended or changed.
    pub async fn approvals(&self, tenant: &TenantId, count: usize) -> Result<Vec<ApprovalView>, StoreError> {
        Ok(self.approvals_from(tenant, 0, 0, count).await?.1)
    }

    /// Skips the first `skip` approvals with deadlines at or after `from_ms`. Also returns the number of approvals that
    /// were read, which is less than `count` at the end.
    pub async fn approvals_from(
        &self,
        tenant: &TenantId,
        from_ms: i64,
        skip: usize,
        count: usize,
    ) -> Result<(usize, Vec<ApprovalView>), StoreError> {
        // The set may exceed the bound by a few approvals, because new requests replace lost ones.
        let most = 2 * usize::try_from(limits::APPROVALS_WAITING_MAX).unwrap_or(usize::MAX);
        let all = self.query(Query::First { set: waiting_of(tenant), upto: None, count: most }).await?;
        let Value::Members(all) = all else { return Ok((0, Vec::new())) };
        let from = u64::try_from(from_ms).unwrap_or(0);
        let ids = all.into_iter().filter(|(_, until)| *until >= from).map(|(id, _)| id).skip(skip).take(count);
        let ids: Vec<_> = ids.collect();
        if ids.is_empty() {
            return Ok((0, Vec::new()));
        }
        let records: Vec<Query> = ids.iter().map(|id| Query::Record(key(tenant, id))).collect();
        let records = self.seam().read(&records).await?;
        let waiting: Vec<ApprovalView> = ids
            .iter()
            .zip(&records)
            .filter_map(|(id, stored)| {
                let Value::Record(Some(stored)) = stored else { return None };
                let view = ApprovalView::read(id, stored, None)?;
                matches!(view.record.state, ApprovalState::Waiting { .. }).then_some(view)
            })
            .collect();
        let turns = waiting.iter().map(|view| Query::Record(record_of(tenant, &view.record.call)));
        let turns = self.seam().read(&turns.collect::<Vec<_>>()).await?;
        let waits = |(view, turn): (ApprovalView, Value)| {
            let Value::Record(Some(turn)) = turn else { return None };
            let turn: Turn = Stored::read(&turn).ok()?.value;
            (turn.approval.as_deref() == Some(view.id.as_str())).then_some(view)
        };
        Ok((ids.len(), waiting.into_iter().zip(turns).filter_map(waits).collect()))
    }
}

fn record_of(tenant: &TenantId, call: &CallName) -> tickfleet_core::RecordKey {
    TurnName { tenant: tenant.clone(), turn: call.turn.clone() }.record()
}
