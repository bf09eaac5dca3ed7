//! Checks the placement of a fleet's shards in a cluster. This module does no I/O.

use tickfleet_store::{ClusterView, HolderView};

use crate::checks::CheckResult;

/// With fewer shards, the next primary that is added might get none.
const SHARDS_PER_PRIMARY_MIN: usize = 4;

pub(super) fn check(view: &ClusterView) -> Vec<CheckResult> {
    [agreement(view), placement(view)].into_iter().chain(check_shard_count(view)).collect()
}

fn agreement(view: &ClusterView) -> CheckResult {
    const ADVICE: &str = "start or repair the node; after a failover or a slot migration, views differ for a moment";
    let first = view.nodes.iter().find_map(|node| node.primaries.as_ref().ok());
    let odd = view.nodes.iter().find_map(|node| match &node.primaries {
        Ok(primaries) if Some(primaries) == first => None,
        Ok(_) => Some(format!("{} reports other slot owners", node.node)),
        Err(why) => Some(format!("{}: {why}", node.node)),
    });
    let agree = view.nodes.iter().filter(|node| node.primaries.as_ref().ok() == first && first.is_some()).count();
    let text = format!("{agree} of {} nodes agree on the slot owners", view.nodes.len());
    match odd {
        None => CheckResult::ok("cluster", text),
        Some(odd) => CheckResult::warn("cluster", format!("{text}; {odd}"), ADVICE),
    }
}

fn placement(view: &ClusterView) -> CheckResult {
    let named = |shard: &u32| {
        let slot = view.slots.get(*shard as usize).copied().unwrap_or_default();
        format!("{shard} (slot {slot})")
    };
    let of = |holder: &HolderView| match holder.shards.len() {
        0 => format!("{}: none", holder.address),
        _ => format!("{}: {}", holder.address, holder.shards.iter().map(named).collect::<Vec<_>>().join(", ")),
    };
    let says = format!("shards on {}", view.holders.iter().map(of).collect::<Vec<_>>().join("; "));
    let homeless =
        (0_u32..).take(view.slots.len()).find(|shard| !view.holders.iter().any(|h| h.shards.contains(shard)));
    if let Some(shard) = homeless {
        return CheckResult::fail(
            "placement",
            format!("no node owns the slot of shard {}", named(&shard)),
            "repair the cluster",
        );
    }
    match moves(view) {
        moves if moves.is_empty() => CheckResult::ok("placement", says),
        moves => CheckResult::warn("placement", says, format!("for balance, move {}", moves.join(", "))),
    }
}

fn moves(view: &ClusterView) -> Vec<String> {
    let mut held: Vec<(&str, Vec<u32>)> = view.holders.iter().map(|h| (h.address.as_str(), h.shards.clone())).collect();
    let mut moves = Vec::new();
    for _ in 0..view.slots.len() {
        let counts = || held.iter().enumerate().map(|(index, (_, shards))| (shards.len(), index));
        let (Some((most, from)), Some((least, to))) = (counts().max(), counts().min()) else { break };
        if most <= least + 1 {
            break;
        }
        let Some(shard) = held.get_mut(from).and_then(|(_, shards)| shards.pop()) else { break };
        let slot = view.slots.get(shard as usize).copied().unwrap_or_default();
        let address = held.get(to).map_or("", |(address, _)| address);
        moves.push(format!("slot {slot} (shard {shard}) to {address}"));
        if let Some((_, shards)) = held.get_mut(to) {
            shards.push(shard);
        }
    }
    moves
}

fn check_shard_count(view: &ClusterView) -> Option<CheckResult> {
    let shards = view.slots.len();
    let primaries = view.holders.len();
    let advice = "a running fleet keeps its number of shards: choose redis.shards for the primaries you plan for";
    (primaries > 0 && shards < primaries * SHARDS_PER_PRIMARY_MIN).then(|| {
        let says = format!("{shards} shards over {primaries} primaries: fewer than {SHARDS_PER_PRIMARY_MIN} for each");
        CheckResult::warn("shards", says, advice)
    })
}

#[cfg(test)]
mod tests {
    use tickfleet_store::NodeReport;

    use super::*;
    use crate::checks::Level;

    fn view(shards: [&[u32]; 2]) -> ClusterView {
        let holders = [("a:1", shards[0]), ("b:1", shards[1])].map(|(address, shards)| HolderView {
            address: address.into(),
            slots: 8_192,
            shards: shards.to_vec(),
        });
        let primaries = Ok(vec![Some("a:1".to_owned())]);
        ClusterView {
            slots: (100..108).collect(),
            holders: holders.into(),
            nodes: vec![NodeReport { node: "a:1".into(), primaries }],
        }
    }

    #[test]
    fn an_uneven_shard_placement_is_reported_with_slot_moves() {
        let even = check(&view([&[0, 1, 2, 3], &[4, 5, 6, 7]]));
        assert!(even.iter().all(|finding| finding.level == Level::Ok), "{even:?}");
        let uneven = placement(&view([&[0, 1, 2, 3, 4, 5], &[6, 7]]));
        assert_eq!(uneven.level, Level::Warn);
        let advice = "for balance, move slot 105 (shard 5) to b:1, slot 104 (shard 4) to b:1";
        assert_eq!(uneven.advice.as_deref(), Some(advice));
        let lost = placement(&view([&[0, 1, 2], &[4, 5, 6, 7]]));
        assert_eq!((lost.level, lost.says.as_str()), (Level::Fail, "no node owns the slot of shard 3 (slot 103)"));
    }

    #[test]
    fn disagreeing_or_silent_nodes_and_too_few_shards_are_reported() {
        let mut odd = view([&[0, 1], &[]]);
        odd.slots.truncate(2);
        odd.nodes.push(NodeReport { node: "b:1".into(), primaries: Err("no answer".into()) });
        let findings = check(&odd);
        assert!(
            findings.iter().any(|f| f.says == "1 of 2 nodes agree on the slot owners; b:1: no answer"),
            "{findings:?}"
        );
        assert!(findings.iter().any(|f| f.says == "2 shards over 2 primaries: fewer than 4 for each"), "{findings:?}");
    }
}
