//! What does not agree in a shard: told by kind, with who mends it; and mended, where that was asked for.

use std::collections::BTreeMap;

use tickfleet_protocol::{ShardRepair, repair_entry};
use tickfleet_store::{Fault, FaultFound, Repaired, Store, StoreError};

use super::{Finding, Level};
use crate::setup::Setup;

/// Things that are named of one fault.
const NAMED_MAX: usize = 5;

/// Looks at a shard, and mends what can be mended where somebody, `by`, asks for it.
///
/// # Errors
/// [`StoreError`] while mending; what only looks says that it could not.
pub(super) async fn shard(setup: &Setup, store: &Store, by: Option<&str>) -> Result<Vec<Finding>, StoreError> {
    let entry = match by {
        None => None,
        Some(by) => {
            let (timestamp_ms, shard) = (store.now_ms().await?, store.shard());
            Some(repair_entry(&ShardRepair { timestamp_ms, by, shard, redactor: &setup.report().redactor }))
        }
    };
    match store.faults(entry.as_deref()).await {
        Ok(repaired) => Ok(told(&repaired)),
        Err(error) if entry.is_none() => {
            let advice = error.remedy().unwrap_or("check the Redis server's log and run it again");
            Ok(vec![Finding::warn("repair", format!("check failed: {error}"), advice)])
        }
        Err(error) => Err(error),
    }
}

/// The findings, one a fault.
fn told(repaired: &Repaired) -> Vec<Finding> {
    let mut by_fault: BTreeMap<(bool, Fault), Vec<&FaultFound>> = BTreeMap::new();
    for found in &repaired.found {
        by_fault.entry((found.mended, found.fault)).or_default().push(found);
    }
    let mut findings: Vec<Finding> =
        by_fault.iter().filter_map(|((mended, fault), all)| one(*mended, *fault, all)).collect();
    if repaired.more > 0 {
        let says = format!("{} more inconsistencies are not listed", repaired.more);
        findings.push(Finding::warn("repair", says, "run it again when these are fixed"));
    }
    if findings.is_empty() {
        let uncounted =
            if repaired.counted { "" } else { "; tenant counters were not compared: too much work is in progress" };
        findings.push(Finding::ok("repair", format!("{} records checked, all consistent{uncounted}", repaired.looked)));
    }
    findings
}

/// One fault, with what has it. A missing group is told among the streams while it is missing.
fn one(mended: bool, fault: Fault, all: &[&FaultFound]) -> Option<Finding> {
    let name = |found: &&FaultFound| match found.more.as_str() {
        "" => found.item.clone(),
        more => format!("{} ({more})", found.item),
    };
    let mut named: Vec<String> = all.iter().take(NAMED_MAX).map(name).collect();
    if all.len() > NAMED_MAX {
        named.push(format!("and {} more", all.len() - NAMED_MAX));
    }
    let says = format!("{} {}: {}", all.len(), fault.as_str(), named.join(", "));
    if mended {
        return Some(Finding::ok("repaired", says));
    }
    let (level, advice) = who_mends(fault)?;
    Some(Finding { level, what: "repair", says, advice: Some(advice.to_owned()) })
}

/// How bad a fault is, and who mends it. FAIL is what nobody mends without being asked.
const fn who_mends(fault: Fault) -> Option<(Level, &'static str)> {
    Some(match fault {
        Fault::StreamWithoutGroup => return None,
        Fault::LaneWithoutTimer
        | Fault::LeaseEndless
        | Fault::PlaceNotCounted
        | Fault::TenantMiscounted
        | Fault::ApprovalUnlisted => (Level::Fail, "not repaired automatically: tickfleet doctor --repair"),
        Fault::TurnLost => (
            Level::Fail,
            "its record was deleted, so it gets no reply: submit it under another id. tickfleet doctor --repair frees this id after retention.dedupe_for or retention.records, whichever is longer",
        ),
        Fault::TurnWithoutTimer => {
            (Level::Warn, "a scheduler repairs it within minutes; tickfleet doctor --repair does so now")
        }
        Fault::TimerWithoutTurn => {
            (Level::Warn, "a scheduler removes it when it is due; tickfleet doctor --repair does so now")
        }
        Fault::EntryStranded => (Level::Warn, "its reader discards it; if it has no reader: tickfleet doctor --repair"),
        Fault::PlaceLeaked => {
            (Level::Warn, "reclaimed when all slots of the limit are taken; tickfleet doctor --repair does so now")
        }
        Fault::RuntimeWithoutGroup => {
            (Level::Warn, "timers offer its tasks again and create the group; no action needed")
        }
        Fault::ClaimWithoutTurn => (
            Level::Ok,
            "its call ended without recording an outcome and its record has expired: equal calls end as outcome_unknown until the claim expires",
        ),
        Fault::TurnUnreadable => (
            Level::Warn,
            "its record was changed by hand: inspect it with HGETALL, inform its producer, then delete it. Until then, its tenant's turns are not recounted",
        ),
        Fault::Unreadable => (
            Level::Warn,
            "it was changed by hand: it counts as used up until its window ends, so its calls wait. To end that now, delete the field",
        ),
        Fault::Foreign => (
            Level::Fail,
            "another client wrote a value of another type there, and dependent work is stopped: find that client and delete the key",
        ),
        Fault::ParkedNot
        | Fault::RuntimeUnlisted
        | Fault::NodeWithoutLease
        | Fault::LimitUnlisted
        | Fault::IdWithoutEntry
        | Fault::IdEndless
        | Fault::ClaimEndless => (Level::Warn, "harmless; it stays until tickfleet doctor --repair"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(fault: Fault, mended: bool) -> FaultFound {
        FaultFound { fault, item: "acme:t".into(), mended, more: String::new() }
    }

    #[test]
    fn what_was_mended_is_told_and_is_no_fault_any_more() {
        let told = told(&Repaired { found: vec![found(Fault::TurnLost, true); 7], ..Repaired::default() });
        assert_eq!((told.len(), told[0].level, told[0].what), (1, Level::Ok, "repaired"));
        assert!(told[0].says.starts_with("7 turn_lost: acme:t, ") && told[0].says.ends_with("and 2 more"), "{told:?}");
    }

    #[test]
    fn what_nobody_mends_fails_and_what_the_fleet_mends_warns() {
        let faults = [found(Fault::TenantMiscounted, false), found(Fault::TimerWithoutTurn, false)];
        let told = told(&Repaired { found: faults.into(), ..Repaired::default() });
        let levels: Vec<Level> = told.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Warn, Level::Fail]);
    }
}
