use super::*;

#[derive(Debug, Clone)]
pub(super) enum Op {
    Take {
        worker: usize,
    },
    /// `pick` selects one of all slices that workers hold.
    HeldSlice {
        pick: usize,
        act: Act,
    },
    Crash {
        worker: usize,
    },
    Release {
        turn: usize,
        calls: usize,
    },
    Look {
        turn: usize,
    },
    Fire {
        turn: usize,
    },
    FireStale {
        turn: usize,
    },
    Cancel {
        turn: usize,
    },
    Pass {
        ms: i64,
    },
    Restart {
        lost_ms: i64,
    },
}

#[derive(Debug, Clone)]
pub(super) enum Act {
    Run {
        sent: bool,
    },
    RunBeside {
        offset: usize,
    },
    Settle {
        results: usize,
    },
    Retry,
    Wait {
        for_turn: usize,
        begins: bool,
    },
    Rest,
    Requeue,
    /// The worker cannot read the slice, or has no record of it.
    RequeueUntouched {
        unreadable: bool,
    },
    /// The worker counts as dead, but continues to run.
    Outlive,
}

pub(super) fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => prop::bool::weighted(0.8).prop_map(|sent| Act::Run { sent }),
        2 => (1..4_usize).prop_map(|offset| Act::RunBeside { offset }),
        7 => (1..4_usize).prop_map(|results| Act::Settle { results }),
        3 => Just(Act::Retry),
        4 => (0..TURNS, any::<bool>()).prop_map(|(for_turn, begins)| Act::Wait { for_turn, begins }),
        1 => Just(Act::Rest),
        2 => Just(Act::Requeue),
        1 => any::<bool>().prop_map(|unreadable| Act::RequeueUntouched { unreadable }),
        1 => Just(Act::Outlive),
    ]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let turn = 0..TURNS;
    prop_oneof![
        12 => (0..WORKERS).prop_map(|worker| Op::Take { worker }),
        40 => (0..4_usize, act()).prop_map(|(pick, act)| Op::HeldSlice { pick, act }),
        2 => (0..WORKERS).prop_map(|worker| Op::Crash { worker }),
        12 => (turn.clone(), 1..5_usize).prop_map(|(turn, calls)| Op::Release { turn, calls }),
        6 => turn.clone().prop_map(|turn| Op::Look { turn }),
        10 => turn.clone().prop_map(|turn| Op::Fire { turn }),
        6 => turn.clone().prop_map(|turn| Op::FireStale { turn }),
        2 => turn.prop_map(|turn| Op::Cancel { turn }),
        8 => prop_oneof![6 => Just(10_i64), 4 => Just(60), 1 => Just(700)].prop_map(|ms| Op::Pass { ms }),
        1 => prop_oneof![Just(0), Just(30), Just(LOST_MS_MAX)].prop_map(|lost_ms| Op::Restart { lost_ms }),
    ]
}

impl Game {
    pub(super) fn act(&mut self, worker: usize, held: usize, act: &Act) {
        let one = self.workers[worker][held].clone();
        let has_run = one.ran.contains(&one.slice.turn.position);
        match *act {
            Act::Run { sent } => self.run_call(worker, held, is_once(one.slice.turn.position), sent),
            Act::RunBeside { offset } => self.run_beside(worker, held, offset),
            Act::Settle { results } => self.settle(worker, held, results),
            Act::Retry if has_run && one.begun.is_none() => {
                let attempts = one.slice.turn.attempts + 1;
                let cause = "cut".to_owned();
                self.park(worker, held, &ParkReason::Retry { attempts, delay_ms: 50, cause, keeps_begun: false });
            }
            Act::Wait { for_turn, begins } => self.wait(worker, held, for_turn, begins),
            Act::Rest if !has_run && one.begun.is_none() => {
                let since_ms = one.slice.turn.unavailable_since("open").unwrap_or_else(|| self.shard().now_ms);
                let reason = WaitReason::Breaker { since_ms };
                let cause = "open".to_owned();
                self.park(worker, held, &ParkReason::Wait { reason, most_ms: 30, has_begun: false, cause });
            }
            Act::Retry | Act::Rest => {}
            Act::Requeue => self.requeue(worker, held),
            Act::RequeueUntouched { unreadable } => {
                if one.ran.is_empty() && one.slice.turn.entry.is_none() {
                    self.requeue_untouched(worker, held, unreadable);
                }
            }
            Act::Outlive => self.crash(worker),
        }
    }

    pub(super) fn play(&mut self, op: &Op) {
        match *op {
            Op::Take { worker } => self.take(worker),
            Op::HeldSlice { pick, ref act } => {
                let holders = self.workers.iter().enumerate();
                let all: Vec<(usize, usize)> =
                    holders.flat_map(|(worker, held)| (0..held.len()).map(move |held| (worker, held))).collect();
                if let Some((worker, held)) = all.get(pick % all.len().max(1)) {
                    self.act(*worker, *held, act);
                }
            }
            Op::Crash { worker } => {
                self.crash(worker);
                self.workers[worker].clear();
            }
            Op::Release { turn, calls } => self.release(turn, calls),
            Op::Look { turn } => self.look(turn),
            Op::Fire { turn } => {
                if self.is_due(turn) {
                    self.fire(turn, None);
                }
            }
            Op::FireStale { turn } => {
                if let Some(stale) = self.stale.remove(&turn) {
                    self.fire(turn, Some(stale));
                }
            }
            Op::Cancel { turn } => self.cancel(turn),
            Op::Pass { ms } => self.clock.step(ms),
            Op::Restart { lost_ms } => self.restart(lost_ms),
        }
    }
}
