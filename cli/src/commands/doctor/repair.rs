//! Checks the consistency of a shard's records for `doctor`, and repairs them for `doctor --repair`.

use std::collections::BTreeMap;

use tickfleet_core::audit::Report;
use tickfleet_core::check::Fault;
use tickfleet_protocol::{AuditAction, AuditValue, Operator, OperatorAct};
use tickfleet_store::{FaultFound, FaultKind, ShardCheck, Store, StoreError};

use crate::checks::{CheckResult, Level};
use crate::setup::Setup;

const NAMED_MAX: usize = 5;
const BY_REQUEST: &str = "not repaired automatically: tickfleet doctor --repair";
const AUDITED_MAX: usize = 50;

/// Repairs the shard if `by` is given. Without a repair, an error becomes a finding.
pub(super) async fn shard(setup: &Setup, store: &Store, by: Option<&str>) -> Result<Vec<CheckResult>, StoreError> {
    let check = match store.check(by.is_some()).await {
        Ok(check) => check,
        Err(error) if by.is_none() => {
            let advice = error.remedy().unwrap_or("check the Redis server's log and run it again");
            return Ok(vec![CheckResult::warn("repair", format!("check failed: {error}"), advice)]);
        }
        Err(error) => return Err(error),
    };
    if let Some(by) = by {
        audit(setup, store, by, &check.faults).await?;
    }
    Ok(findings(&check))
}

async fn audit(setup: &Setup, store: &Store, by: &str, faults: &[FaultFound]) -> Result<(), StoreError> {
    let repaired: Vec<&FaultFound> = faults.iter().filter(|found| found.repaired).collect();
    let shard = store.shard();
    let operator = Operator { by, reason: "", redactor: &setup.report().redactor };
    for part in repaired.chunks(AUDITED_MAX) {
        let named: Vec<String> = part.iter().map(|found| format!("{} {}", found.kind.word(), found.subject)).collect();
        let act = OperatorAct {
            action: AuditAction::Repair,
            entity_type: "shard",
            entity_id: &shard.to_string(),
            did: &format!("repaired shard {shard}"),
            tenant: None,
            details: &[
                ("shard", AuditValue::Number(shard.into())),
                ("repaired", AuditValue::Number(i64::try_from(part.len()).unwrap_or(i64::MAX))),
                ("named", AuditValue::Texts(&named)),
            ],
        };
        let now_ms = store.now_ms().await?;
        store.decide(Report(store.audit_append(&act, operator, now_ms))).await?;
    }
    Ok(())
}

fn findings(check: &ShardCheck) -> Vec<CheckResult> {
    let mut by_kind: BTreeMap<(bool, &'static str), Vec<&FaultFound>> = BTreeMap::new();
    for found in &check.faults {
        by_kind.entry((found.repaired, found.kind.word())).or_default().push(found);
    }
    let mut findings: Vec<CheckResult> =
        by_kind.iter().filter_map(|((repaired, word), all)| finding(*repaired, word, all)).collect();
    if check.more > 0 {
        let says = format!("{} more inconsistencies are not listed", check.more);
        findings.push(CheckResult::warn("repair", says, "run it again when these are fixed"));
    }
    if findings.is_empty() {
        let uncounted =
            if check.compared { "" } else { "; tenant counters were not compared: too much work is in progress" };
        findings
            .push(CheckResult::ok("repair", format!("{} records checked, all consistent{uncounted}", check.checked)));
    }
    findings
}

fn finding(repaired: bool, word: &str, all: &[&FaultFound]) -> Option<CheckResult> {
    let mut named: Vec<String> = all.iter().take(NAMED_MAX).map(|found| subject(found)).collect();
    if all.len() > NAMED_MAX {
        named.push(format!("and {} more", all.len() - NAMED_MAX));
    }
    let says = format!("{} {word}: {}", all.len(), named.join(", "));
    if repaired {
        return Some(CheckResult::ok("repaired", says));
    }
    let (level, advice) = advice(&all.first()?.kind);
    Some(CheckResult { level, what: "repair", says, advice: Some(advice.to_owned()) })
}

fn subject(found: &FaultFound) -> String {
    let details = match &found.kind {
        FaultKind::Found(Fault::MemberNotThrottled { member }) => member.to_string(),
        FaultKind::Unreadable { why } => why.clone(),
        FaultKind::TenantMiscounted { counted, stored } => format!(
            "{} turns with {} bytes and {} slices, but its counters have {}, {} and {}",
            counted.unfinished, counted.bytes, counted.in_flight, stored.unfinished, stored.bytes, stored.in_flight
        ),
        FaultKind::Found(_) => return found.subject.clone(),
    };
    format!("{} ({details})", found.subject)
}

/// A harmful fault is FAIL if only `--repair` repairs it.
const fn advice(kind: &FaultKind) -> (Level, &'static str) {
    let fault = match kind {
        FaultKind::Found(fault) => fault,
        FaultKind::TenantMiscounted { .. } => return (Level::Fail, BY_REQUEST),
        FaultKind::Unreadable { .. } => {
            return (
                Level::Warn,
                "another client or version wrote it: inspect it, inform its producer, then delete it. Until then, the numbers of its tenant are not compared",
            );
        }
    };
    match fault {
        Fault::TurnWithoutTimer | Fault::SliceLost | Fault::TurnNotQueued | Fault::QueueWithoutTimer => {
            (Level::Fail, BY_REQUEST)
        }
        Fault::TimerWithoutTurn => {
            (Level::Warn, "a scheduler removes it when it is due; tickfleet doctor --repair does so now")
        }
        Fault::MemberNotThrottled { .. } => {
            (Level::Warn, "a scheduler removes it when its queue is due; tickfleet doctor --repair does so now")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(faults: Vec<FaultFound>) -> ShardCheck {
        ShardCheck { faults, more: 0, checked: 9, compared: true }
    }

    fn found(fault: Fault, repaired: bool) -> FaultFound {
        FaultFound { kind: FaultKind::Found(fault), subject: "acme:t".into(), repaired }
    }

    #[test]
    fn a_repaired_fault_is_reported_as_ok() {
        let found_all = findings(&check(vec![found(Fault::TimerWithoutTurn, true); 7]));
        assert_eq!((found_all.len(), found_all[0].level, found_all[0].what), (1, Level::Ok, "repaired"));
        let says = &found_all[0].says;
        assert!(says.starts_with("7 timer_without_turn: acme:t, ") && says.ends_with("and 2 more"), "{found_all:?}");
    }

    #[test]
    fn a_fault_fails_unless_the_fleet_repairs_it() {
        let faults = [found(Fault::TurnWithoutTimer, false), found(Fault::TimerWithoutTurn, false)];
        let found_all = findings(&check(faults.into()));
        let levels: Vec<Level> = found_all.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Warn, Level::Fail]);
        assert_eq!(findings(&check(Vec::new()))[0].level, Level::Ok);
    }
}
