//! Whole recoveries: workers crash with poison slices, and reapers redeliver groups.

use super::*;
use crate::recovery::regroup::{SuspectCapacity, TakenSuspect, choose};

struct Fleet {
    trial: Trial,
    bounds: Bounds,
    slots: usize,
    poison: BTreeSet<TurnName>,
    crashes: u32,
    groups: u32,
    settled: BTreeSet<TurnName>,
    quarantined: BTreeSet<TurnName>,
}

impl Fleet {
    fn new(slices: usize, slots: usize, poison: impl IntoIterator<Item = usize>) -> Self {
        let mut trial = Trial::at(LEASE);
        let bounds = Bounds::default();
        for at in 0..slices {
            let mut turn = admitted(1);
            turn.destination = Destination::Workers(if at % 5 == 4 { Priority::High } else { Priority::Normal });
            trial.dispatch(&named(&format!("t{at}")), turn);
        }
        for queue in queues() {
            trial.take(&queue, "w0", slices);
        }
        let poison = poison.into_iter().map(|at| named(&format!("t{}", at % slices))).collect();
        let settled = BTreeSet::new();
        let quarantined = BTreeSet::new();
        let mut fleet = Self { trial, bounds, slots, poison, crashes: 0, groups: 0, settled, quarantined };
        fleet.crash("w0");
        fleet
    }

    fn crash(&mut self, consumer: &str) {
        self.crashes += 1;
        let (_, quarantined) = reap(&mut self.trial, consumer, &self.bounds);
        self.quarantined.extend(quarantined);
    }

    fn run_group(&mut self, consumer: &str) -> bool {
        let Some(queue) = queues().into_iter().find(|queue| !self.trial.clone().take(queue, "look", 1).is_empty())
        else {
            return false;
        };
        self.groups += 1;
        let mut taken = self.trial.slices(&queue, consumer, 1);
        let group_max = taken[0].turn.suspect.unwrap().group_max;
        taken.extend(self.trial.slices(&queue, consumer, group_max as usize - 1));
        let suspects: Vec<_> = taken
            .iter()
            .map(|slice| TakenSuspect { tenant: &slice.name.tenant, group_max: slice.turn.suspect.unwrap().group_max })
            .collect();
        let chosen = choose(&suspects, SuspectCapacity { slots: self.slots, tenant_slots: self.slots });
        let mut is_poison = false;
        let mut others = Vec::new();
        for (at, slice) in taken.iter().enumerate() {
            if chosen.contains(&at) {
                self.trial.begin(slice).unwrap();
                is_poison |= self.poison.contains(&slice.name);
            } else {
                others.push(slice.name.clone());
            }
        }
        if is_poison {
            // The other suspects had not begun, so no crash counts against them.
            let before: Vec<_> = others.iter().map(|name| self.trial.turn(name).unwrap().value.suspect).collect();
            self.crash(consumer);
            let after: Vec<_> = others.iter().map(|name| self.trial.turn(name).unwrap().value.suspect).collect();
            assert_eq!(before, after);
            return true;
        }
        for (at, slice) in taken.iter().enumerate() {
            if chosen.contains(&at) {
                self.trial.settle(slice).unwrap();
                self.settled.insert(slice.name.clone());
            }
        }
        // This reap simulates the release of suspects that the worker does not run.
        reap(&mut self.trial, consumer, &self.bounds);
        true
    }

    fn run_all(&mut self) {
        for worker in 1..10_000 {
            if !self.run_group(&format!("w{worker}")) {
                return;
            }
        }
        panic!("it does not end");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn poison_is_isolated_and_innocents_settle(
        slices in 1_usize..40,
        slots in 1_usize..40,
        poison in prop::collection::btree_set(0_usize..40, 0..4),
    ) {
        let mut fleet = Fleet::new(slices, slots, poison);
        fleet.run_all();
        prop_assert_eq!(&fleet.quarantined, &fleet.poison);
        prop_assert_eq!(fleet.settled.len() + fleet.poison.len(), slices);
        let log2 = slices.next_power_of_two().trailing_zeros();
        let poison = u32::try_from(fleet.poison.len()).unwrap();
        prop_assert!(fleet.crashes <= 1 + poison * (log2 + fleet.bounds.crashes_max), "{} crashes", fleet.crashes);
    }
}

#[test]
fn slices_of_a_killed_worker_settle_in_three_groups() {
    let mut fleet = Fleet::new(32, 32, []);
    fleet.run_all();
    assert_eq!((fleet.settled.len(), fleet.crashes), (32, 1));
    // 26 slices of one priority in groups of 16, and 6 slices of another priority.
    assert_eq!(fleet.groups, 3);
}
