//! The policy in force, and the policy that each scheduler decides by. See `docs/adr/0007`.
//!
//! A new policy takes effect at once. A policy that was in force before takes effect again only if no living scheduler
//! decides by the policy in force. A scheduler decides by its announced policy until it announces another policy,
//! leaves, or loses its lease.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tickfleet_model::ConsumerId;

use super::next_generation;
use crate::decision::{Context, Decision, Step};
use crate::record::Record;
use crate::transaction::{RecordKey, Transaction, Write};
use crate::view::{Query, Undecided, View};
use crate::workers::{self, Liveness};

/// The policy that was in force longest ago is dropped first. If a dropped policy returns, it counts as new.
const KNOWN_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policies {
    /// All schedulers must have the same number, because it decides the shard of each tenant.
    #[serde(rename = "sh")]
    pub shards: u32,
    #[serde(rename = "in")]
    pub in_force: String,
    #[serde(rename = "g")]
    pub generation: u64,
    /// Digest → last generation.
    #[serde(rename = "k")]
    pub known: BTreeMap<String, u64>,
    /// Some of them may have crashed.
    #[serde(rename = "by")]
    pub schedulers: BTreeSet<ConsumerId>,
}

impl Record for Policies {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn key() -> RecordKey {
    RecordKey::new("policy")
}

#[derive(Debug, Clone)]
pub struct Announce {
    pub digest: String,
    pub shards: u32,
    /// `None` for an operator. A scheduler must have sent a heartbeat.
    pub scheduler: Option<ConsumerId>,
    /// True to ignore schedulers with an ended lease that did not shut down.
    pub ignore_silent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Announcement {
    InForce {
        generation: u64,
    },
    /// Other schedulers decide by the newer policy.
    Older {
        generation: u64,
        /// True if all other schedulers are silent.
        silent: bool,
    },
    OtherShards {
        stored: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Others {
    None,
    Silent,
    Alive,
}

impl Announce {
    /// Guards that no scheduler with an ended lease sends a heartbeat before the commit.
    fn find_other_schedulers(
        &self,
        policies: &mut Policies,
        view: &View,
        now_ms: i64,
        transaction: &mut Transaction,
    ) -> Result<Others, Undecided> {
        let mut found = Others::None;
        for (scheduler, liveness) in self.others(policies, view, now_ms)? {
            found = found.max(match liveness {
                Liveness::Alive { .. } => Others::Alive,
                Liveness::Silent { .. } => Others::Silent,
                Liveness::Gone => Others::None,
            });
            if !liveness.is_alive() {
                liveness.guard_dead(&scheduler, transaction);
            }
            if liveness == Liveness::Gone {
                policies.schedulers.remove(&scheduler);
            }
        }
        Ok(found)
    }

    fn others(&self, policies: &Policies, view: &View, now_ms: i64) -> Result<Vec<(ConsumerId, Liveness)>, Undecided> {
        let others = || policies.schedulers.iter().filter(|name| Some(*name) != self.scheduler.as_ref());
        view.need(others().map(|name| Query::Record(workers::key(name.as_str()))))?;
        others().map(|name| Ok((name.clone(), Liveness::of(name, view, now_ms)?))).collect()
    }

    fn activate_policy(&self, policies: &mut Policies, context: &Context, transaction: &mut Transaction) {
        if !policies.known.contains_key(&self.digest) && policies.known.len() >= KNOWN_MAX {
            let others = policies.known.iter().filter(|(digest, _)| **digest != policies.in_force);
            if let Some(oldest) = others.min_by_key(|(_, generation)| **generation).map(|(digest, _)| digest.clone()) {
                policies.known.remove(&oldest);
            }
        }
        policies.in_force.clone_from(&self.digest);
        policies.generation = next_generation(policies.generation, context);
        policies.known.insert(self.digest.clone(), policies.generation);
        transaction.write(Write::PolicyGeneration(policies.generation));
        policies.schedulers = self.scheduler.iter().cloned().collect();
    }

    /// Also removes dead schedulers. If one comes back, the generation shows whether its policy is still in force.
    fn join_schedulers(&self, policies: &mut Policies, view: &View, now_ms: i64) -> Result<(), Undecided> {
        let Some(scheduler) = &self.scheduler else { return Ok(()) };
        if !policies.schedulers.contains(scheduler) {
            let others = self.others(policies, view, now_ms)?;
            policies.schedulers = others.into_iter().filter(|(_, it)| it.is_alive()).map(|(name, _)| name).collect();
            policies.schedulers.insert(scheduler.clone());
        }
        Ok(())
    }
}

impl Decision for Announce {
    type Output = Announcement;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(key())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Announcement>, Undecided> {
        let (mut transaction, before) = context.update::<Policies>(view, &key())?;
        transaction.dedupe_record = Some(key());
        let mut policies = before.clone().unwrap_or_else(|| Policies {
            shards: self.shards,
            in_force: String::new(),
            generation: 0,
            known: BTreeMap::new(),
            schedulers: BTreeSet::new(),
        });
        if policies.shards != self.shards {
            return Ok(Step::Return(Announcement::OtherShards { stored: policies.shards }));
        }
        let mut announcement = Announcement::InForce { generation: policies.generation };
        if policies.in_force == self.digest {
            self.join_schedulers(&mut policies, view, context.now_ms)?;
        } else {
            let others = self.find_other_schedulers(&mut policies, view, context.now_ms, &mut transaction)?;
            let must_wait = others == Others::Alive || others == Others::Silent && !self.ignore_silent;
            if policies.known.contains_key(&self.digest) && must_wait {
                if let Some(scheduler) = &self.scheduler {
                    policies.schedulers.remove(scheduler);
                }
                announcement =
                    Announcement::Older { generation: policies.generation, silent: others == Others::Silent };
            } else {
                self.activate_policy(&mut policies, context, &mut transaction);
                announcement = Announcement::InForce { generation: policies.generation };
            }
        }
        if before.as_ref() == Some(&policies) {
            return Ok(Step::Return(announcement));
        }
        transaction.put(&key(), &policies);
        Ok(Step::Commit(transaction, announcement))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trial::Trial;
    use crate::view::READS_MAX;
    use crate::workers::{EndLease, Heartbeat, RemoveDeadConsumer, Role};

    fn id(scheduler: &str) -> ConsumerId {
        ConsumerId::new(scheduler).unwrap()
    }

    fn announce(scheduler: &str, digest: &str) -> Announce {
        Announce { digest: digest.into(), shards: 4, scheduler: Some(id(scheduler)), ignore_silent: false }
    }

    fn heartbeat(scheduler: &str) -> Heartbeat {
        Heartbeat { consumer: id(scheduler), role: Role::Scheduler, lease_ms: 800, policy: String::new() }
    }

    fn end_lease(scheduler: &str) -> EndLease {
        EndLease { consumer: id(scheduler), role: Role::Scheduler }
    }

    fn start(shard: &mut Trial, scheduler: &str, digest: &str) -> Announcement {
        shard.receipt(&heartbeat(scheduler));
        shard.run(&announce(scheduler, digest))
    }

    const fn older(generation: u64, silent: bool) -> Announcement {
        Announcement::Older { generation, silent }
    }

    #[test]
    fn a_new_policy_is_in_force_at_once() {
        let mut shard = Trial::at(1_000);
        assert_eq!(start(&mut shard, "a", "p1"), Announcement::InForce { generation: 1_000 });
        assert_eq!(start(&mut shard, "b", "p1"), Announcement::InForce { generation: 1_000 });
        assert_eq!(start(&mut shard, "c", "p2"), Announcement::InForce { generation: 1_001 });
        assert_eq!(shard.policy, 1_001);
        let other = Announce { shards: 5, ..announce("c", "p2") };
        assert_eq!(shard.run(&other), Announcement::OtherShards { stored: 4 });
        assert!(matches!(shard.step(&announce("c", "p2")), Step::Return(_)), "nothing is new");
    }

    #[test]
    fn an_older_policy_returns_when_no_scheduler_uses_the_newer_one() {
        let mut shard = Trial::at(1_000);
        start(&mut shard, "a", "p1");
        start(&mut shard, "b", "p2");
        assert_eq!(start(&mut shard, "a", "p1"), older(1_001, false));
        shard.receipt(&end_lease("b"));
        assert_eq!(start(&mut shard, "a", "p1"), Announcement::InForce { generation: 1_002 });
    }

    #[test]
    fn an_older_policy_waits_for_a_silent_scheduler() {
        let mut shard = Trial::at(1_000);
        start(&mut shard, "a", "p1");
        start(&mut shard, "b", "p2");
        shard.pass(900);
        shard.receipt(&RemoveDeadConsumer { consumer: id("b") });
        assert_eq!(start(&mut shard, "a", "p1"), older(1_001, true));
        let take = Announce { ignore_silent: true, ..announce("a", "p1") };
        assert_eq!(shard.run(&take), Announcement::InForce { generation: 1_900 });
        assert_eq!(start(&mut shard, "b", "p2"), older(1_900, false));
        shard.pass(25 * 3_600_000);
        shard.receipt(&heartbeat("b"));
        assert_eq!(shard.run(&announce("b", "p2")), Announcement::InForce { generation: shard.policy }, "a is gone");
    }

    #[test]
    fn a_concurrent_heartbeat_prevents_a_policy_takeover() {
        let mut shard = Trial::at(1_000);
        start(&mut shard, "a", "p1");
        start(&mut shard, "b", "p2");
        shard.pass(900);
        shard.receipt(&heartbeat("a"));
        let take = Announce { ignore_silent: true, ..announce("a", "p1") };
        let decided = shard.step(&take);
        shard.receipt(&heartbeat("b"));
        assert_eq!(shard.finish(&take, decided).result, older(1_001, false));
        shard.receipt(&end_lease("b"));
        let decided = shard.step(&take);
        shard.receipt(&heartbeat("b"));
        assert_eq!(shard.finish(&take, decided).result, older(1_001, false));
    }

    #[test]
    fn the_oldest_policy_is_evicted() {
        let mut shard = Trial::at(1_000);
        for number in 0..=KNOWN_MAX {
            start(&mut shard, "a", &format!("p{number}"));
        }
        let policies: Policies = shard.record(&key()).unwrap();
        assert_eq!(policies.known.len(), KNOWN_MAX);
        assert!(!policies.known.contains_key("p0"));
        assert!(matches!(start(&mut shard, "b", "p0"), Announcement::InForce { .. }), "it counts as new");
    }

    #[test]
    fn many_dead_schedulers_do_not_block_a_decision() {
        let mut shard = Trial::at(1_000);
        start(&mut shard, "a", "p1");
        for number in 0..3 * READS_MAX {
            start(&mut shard, &format!("b{number}"), "p2");
        }
        let named = |shard: &Trial| shard.record::<Policies>(&key()).unwrap().schedulers.len();
        assert_eq!(named(&shard), 3 * READS_MAX);
        shard.pass(2_000);
        assert_eq!(start(&mut shard, "a", "p1"), older(1_001, true));
        start(&mut shard, "c", "p2");
        assert_eq!(named(&shard), 1, "the living one");
        assert_eq!(start(&mut shard, "a", "p1"), older(1_001, false));
    }

    proptest! {
        #[test]
        fn no_older_policy_replaces_a_live_schedulers_policy(
            steps in prop::collection::vec((0..3usize, 0..3usize, 0..6u8, 0..3i64, any::<bool>()), 1..50),
        ) {
            let mut shard = Trial::at(1_000);
            let mut seen: BTreeMap<u64, String> = BTreeMap::new();
            let mut decided: Option<(Step<Announcement>, Announce)> = None;
            for (who, what, act, time, ignore_silent) in steps {
                let name = ["a", "b", "c"][who];
                let next = Announce { ignore_silent, ..announce(name, ["p1", "p2", "p3"][what]) };
                shard.pass(time * 450);
                match act {
                    0 => drop(shard.receipt(&heartbeat(name))),
                    1 => drop(shard.receipt(&end_lease(name))),
                    2 => decided = Some((shard.step(&next), next)),
                    _ => {
                        let taken = if act == 3 { decided.take() } else { None };
                        let (old, step) = taken.unwrap_or_else(|| (shard.step(&next), next));
                        let before: Option<Policies> = shard.record(&key());
                        let now_ms = shard.now_ms;
                        let alive = |name: &ConsumerId| {
                            let stored = shard.record::<crate::workers::Consumer>(&crate::workers::key(name.as_str()));
                            stored.is_some_and(|one| one.lease_ends_ms > now_ms)
                        };
                        let is_kept = before.as_ref().is_some_and(|before| {
                            let others = before.schedulers.iter().filter(|name| Some(*name) != step.scheduler.as_ref());
                            let is_older = before.known.contains_key(&step.digest) && before.in_force != step.digest;
                            is_older && others.into_iter().any(alive)
                        });
                        let receipt = shard.finish(&step, old);
                        if let Announcement::InForce { generation } = receipt.result {
                            prop_assert!(!is_kept || receipt.committed.is_none(), "{:?}", step);
                            prop_assert_eq!(seen.entry(generation).or_insert_with(|| step.digest.clone()), &step.digest);
                        }
                    }
                }
            }
        }
    }
}
