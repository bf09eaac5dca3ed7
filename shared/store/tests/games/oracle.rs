//! The invariants of every game. The oracle checks them from the traffic over the seam and from the tools.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tickfleet_core::turn::Slice;
use tickfleet_core::{Committed, ConditionalDebit, CounterKey, EntryId, Guard, Transaction, Window, Write};

pub struct Debit {
    at_ms: i64,
    amount: u64,
    max: u64,
    window: Window,
}

#[derive(Debug, Clone)]
pub struct Execution {
    pub number: u64,
    pub by: String,
    pub tool: String,
    pub agent: String,
    pub at_ms: i64,
    pub completed: bool,
}

pub struct Loss {
    pub at_ms: i64,
    lost_ms: i64,
    /// These workers reported their journal within a lease after the restart.
    reported: BTreeSet<String>,
}

#[derive(Default)]
pub struct Oracle {
    pub losses: Vec<Loss>,
    number: u64,
    pub people: crate::governed::ApproverDecisions,
    known: BTreeSet<(String, usize)>,
    /// The first dispatch of each call: time, agent and tool.
    dispatches: Vec<(i64, String, String)>,
    pub commits: u64,
    /// Batches with a lost reply. If such a batch dispatched a call, the oracle sees the call only when its slice is
    /// redelivered.
    pub unseen: u64,
    pub conflicts: u64,
    pub debits: HashMap<CounterKey, Vec<Debit>>,
    pub executions: BTreeMap<(String, usize), Vec<Execution>>,
    /// Turns that a producer knows to be accepted, with the number of their calls.
    pub accepted: BTreeMap<String, usize>,
    pub violations: Vec<String>,
}

impl Oracle {
    pub fn see(&mut self, transaction: &Transaction, committed: &Committed) {
        for write in &transaction.writes {
            if let Write::Enqueue(queue, fields) = write
                && let Ok(slice) = Slice::read(queue.clone(), EntryId::new("0-0"), fields)
            {
                self.dispatched(&slice, committed.now_ms);
            }
        }
        for guard in &transaction.guards {
            let Guard::Debit(debit) = guard else { continue };
            if debit.amount == 0 || debit.shadow || &*debit.counter.counter == ConditionalDebit::OTHERS {
                continue;
            }
            self.debits.entry(debit.counter.clone()).or_default().push(Debit {
                at_ms: committed.now_ms,
                amount: debit.amount,
                max: debit.max,
                window: debit.window,
            });
        }
    }

    /// `losses` is the number of restarts of the store before the request.
    pub fn accepted(&mut self, turn: String, calls: usize, losses: usize) {
        if losses == self.losses.len() {
            self.accepted.insert(turn, calls);
        }
    }

    /// Accepted turns may be lost, so producers submit all turns again.
    pub fn lost(&mut self, at_ms: i64, lost_ms: i64) {
        self.accepted.clear();
        self.losses.push(Loss { at_ms, lost_ms, reported: BTreeSet::new() });
    }

    /// `losses` is the number of restarts before the report.
    pub fn reported(&mut self, by: &str, losses: usize, at_ms: i64) {
        let Some(at) = losses.checked_sub(1) else { return };
        for loss in self.losses.iter_mut().take(at + 1).skip(at) {
            if at_ms < loss.at_ms + crate::fleet::LEASE_MS {
                loss.reported.insert(by.to_owned());
            }
        }
    }

    /// The numbers of executions by workers that did not report their journal in time after a restart. The period is
    /// from one lease before the lost writes to one lease after the restart.
    pub fn excused(&self) -> BTreeSet<u64> {
        let is_excused = |one: &&Execution| {
            self.losses.iter().any(|loss| {
                let around = loss.at_ms - loss.lost_ms - crate::fleet::LEASE_MS..loss.at_ms + crate::fleet::LEASE_MS;
                around.contains(&one.at_ms) && !loss.reported.contains(&one.by)
            })
        };
        self.executions.values().flatten().filter(is_excused).map(|one| one.number).collect()
    }

    fn dispatched(&mut self, slice: &Slice, at_ms: i64) {
        for (position, call) in (slice.turn.position..).zip(&slice.calls) {
            if self.known.insert((slice.name.turn.to_string(), position)) {
                self.dispatches.push((at_ms, slice.turn.head.agent.to_string(), call.tool.clone()));
            }
        }
    }

    /// In any period as long as a tick, an agent makes at most the calls of two ticks. In any period as long as the
    /// limit's window, there are at most as many payments as the limit allows.
    fn check_dispatches(&mut self) {
        for (at_ms, agent, tool) in &self.dispatches {
            let within = |length_ms: i64| {
                let all = self.dispatches.iter();
                all.filter(move |one| (*at_ms..*at_ms + length_ms).contains(&one.0))
            };
            let of_agent = within(crate::fleet::TICK_MS).filter(|one| one.1 == *agent).count();
            // After a lost reply, the oracle sees a dispatch only when its slice is redelivered.
            if self.unseen == 0 && of_agent > 2 * crate::fleet::CALLS_PER_TICK as usize {
                self.violations.push(format!("{of_agent} calls of {agent} within a tick from {at_ms}"));
            }
            let payments = within(crate::fleet::PAYMENTS_MS).filter(|one| one.2 == "pay").count();
            let is_exact = self.losses.is_empty() && self.unseen == 0;
            if tool == "pay" && is_exact && payments > crate::fleet::PAYMENTS_MAX as usize {
                self.violations.push(format!("{payments} payments from {at_ms}"));
            }
        }
    }

    pub fn check_caps(&mut self) {
        self.check_dispatches();
        for (counter, debits) in &self.debits {
            for debit in debits {
                let (from, to) = match debit.window {
                    Window::Fixed { start_ms, end_ms, .. } | Window::Day { start_ms, end_ms } => (start_ms, end_ms),
                    // A restart blocks only fixed windows of at most 60 s, so a rolling window may exceed its bound.
                    Window::Rolling { .. } if !self.losses.is_empty() => continue,
                    Window::Rolling { length_ms } => (debit.at_ms - length_ms + 1, debit.at_ms + 1),
                    Window::Concurrency | Window::Total => continue,
                };
                let within = debits.iter().filter(|one| (from..to).contains(&one.at_ms));
                let sum: u64 = within.map(|one| one.amount).sum();
                if sum > debit.max {
                    let text = format!("{counter:?}: {sum} of {} in [{from}, {to})", debit.max);
                    if !self.violations.contains(&text) {
                        self.violations.push(text);
                    }
                }
            }
        }
    }

    pub fn executed(&mut self, turn: &str, position: usize, tool: &str, agent: &str, by: &str, at_ms: i64) -> usize {
        self.number += 1;
        let number = self.number;
        let executions = self.executions.entry((turn.to_owned(), position)).or_default();
        executions.push(Execution {
            number,
            by: by.to_owned(),
            tool: tool.to_owned(),
            agent: agent.to_owned(),
            at_ms,
            completed: false,
        });
        executions.len() - 1
    }

    /// Turn, position, tool, agent.
    pub fn in_order(&self) -> Vec<(String, usize, String, String)> {
        let all = self.executions.iter().flat_map(|(call, all)| all.iter().map(move |one| (one.number, call, one)));
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|(number, ..)| *number);
        all.into_iter().map(|(_, (turn, at), one)| (turn.clone(), *at, one.tool.clone(), one.agent.clone())).collect()
    }

    pub fn completed(&mut self, turn: &str, position: usize, execution: usize) {
        if let Some(one) = self.executions.get_mut(&(turn.to_owned(), position)).and_then(|all| all.get_mut(execution))
        {
            one.completed = true;
        }
    }

    pub fn violate(&mut self, text: String) {
        self.violations.push(text);
    }
}

pub type SharedOracle = Arc<std::sync::Mutex<Oracle>>;
