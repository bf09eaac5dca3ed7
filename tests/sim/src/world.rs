//! What is true in the simulated world, whatever Redis says: which calls took effect, what was accepted, what was told.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tickfleet_model::Effect;
use tickfleet_proof::anchor::Anchor;

/// The world. Clones are the same one.
#[derive(Debug, Clone, Default)]
pub(crate) struct World(Arc<Mutex<Facts>>);

/// `<tenant>:<turn>`.
pub(crate) type Name = String;

/// What the ledger calls a runtime outside.
pub(crate) const OUTSIDE: &str = "outside";

/// Everything that is true.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    /// The true time, µs.
    pub(crate) now_us: i64,
    /// Runs of handlers, in the order of their beginnings.
    pub(crate) runs: Vec<Run>,
    /// Turns by name.
    pub(crate) turns: BTreeMap<Name, Made>,
    /// When slices of a turn were put on a queue, µs.
    pub(crate) dispatches: BTreeMap<Name, Vec<i64>>,
    /// What workers have read from the queues of suspects: who, which turn, and from which shard.
    pub(crate) suspects: BTreeMap<(String, Name), u32>,
    /// Replies that were written, by turn.
    pub(crate) replies: BTreeMap<Name, Vec<Told>>,
    /// Times in which Redis lost what was written: from the state that it came back with to its restart, µs.
    pub(crate) lost: Vec<(i64, i64)>,
    /// Ends of processes by force, and stops beyond a lease: who, when, µs.
    pub(crate) deaths: Vec<(String, i64)>,
    /// Times in which leases may end although their holders live: from, to, µs.
    pub(crate) upsets: Vec<(i64, i64)>,
    /// Agents (`tenant:agent`) whose budgets a hand has spoiled, and the day on which it did, by its beginning, ms.
    pub(crate) spoiled: BTreeMap<String, i64>,
    /// What people have said.
    pub(crate) votes: Vec<Vote>,
    /// Remittances by their references: the runs that each was asked for by.
    pub(crate) remitted: BTreeMap<String, Vec<usize>>,
    /// How often it was asked whether one was made.
    pub(crate) looked_up: BTreeMap<String, u32>,
    /// When Redis' clock stepped ahead, µs: whoever waits by it waits no longer.
    pub(crate) leaps: Vec<i64>,
    /// Whether Redis has died and come back.
    pub(crate) has_restarted: bool,
    /// What the audit log came to, and calls that were found out.
    pub(crate) audited: Audited,
    /// Heads of chains that were kept outside of Redis.
    pub(crate) anchors: Vec<Anchor>,
    /// The log, as it was exported when the game was over.
    pub(crate) export: Option<Vec<String>>,
    /// For how long answers are kept, where any are, µs.
    pub(crate) kept_us: Option<i64>,
    /// What is wrong, in words.
    pub(crate) violations: Vec<String>,
    /// What happened last.
    pub(crate) story: VecDeque<String>,
    /// Whether the story is told.
    pub(crate) is_told: bool,
}

/// What came of looking at the audit log of a game that seals it.
#[derive(Debug, Clone, Copy, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Audited {
    /// Entries that seals stand for, in the export.
    pub(crate) sealed: u64,
    /// Ways of changing the export that were tried.
    pub(crate) changed: u64,
    /// Calls that were decided anew.
    pub(crate) anew: u64,
    /// Those among them that were decided by facts, and those that could not be.
    pub(crate) by_facts: u64,
    pub(crate) by_no_facts: u64,
    /// Calls of which nobody knew, and it was found out that they had taken effect, or not.
    pub(crate) found_out: u64,
}

impl std::ops::AddAssign for Audited {
    fn add_assign(&mut self, other: Self) {
        self.sealed += other.sealed;
        self.changed += other.changed;
        self.anew += other.anew;
        self.by_facts += other.by_facts;
        self.by_no_facts += other.by_no_facts;
        self.found_out += other.found_out;
    }
}

/// A turn as its producer made it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Made {
    pub(crate) agent: String,
    /// The tools of its calls.
    pub(crate) tools: Vec<String>,
    pub(crate) parallel_reads: bool,
    /// Whether it is a task: a turn of one call, whose tool is its agent's handler.
    pub(crate) is_task: bool,
    /// Whether a call has delegated it: Redis may lose it with its last writes, and nobody asks for it again.
    pub(crate) is_child: bool,
    /// The task that it runs under, and how many calls that grants.
    pub(crate) under: Option<(Name, u32)>,
    /// When it was accepted first, µs.
    pub(crate) accepted_us: Option<i64>,
    /// Whether its producer has its reply.
    pub(crate) is_answered: bool,
    /// Whether strangers wrote it: nobody waits for its reply.
    pub(crate) is_odd: bool,
    /// When it was sent first, µs.
    pub(crate) sent_us: Option<i64>,
    /// Where its calls are governed: whose facts they go by, and what each is about.
    pub(crate) session: String,
    pub(crate) keys: Vec<u32>,
    pub(crate) takes_ms: Vec<u64>,
}

/// What somebody has said about a call that people have to agree to.
#[derive(Debug, Clone)]
pub(crate) struct Vote {
    pub(crate) who: &'static str,
    /// Of which tenant's approval, and of which call.
    pub(crate) approval: String,
    pub(crate) turn: Name,
    pub(crate) position: usize,
    pub(crate) agrees: bool,
    /// When it was sent, µs.
    pub(crate) at_us: i64,
    /// When it was told that it counts, µs.
    pub(crate) counts_us: Option<i64>,
    /// Whether it was told that it does not.
    pub(crate) is_refused: bool,
}

/// A reply that was written.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) at_us: i64,
    /// Whether it refused: it may be submitted again, and is answered again then.
    pub(crate) is_refusal: bool,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Running,
    Returned,
    Failed,
    /// Its worker died, was stopped, or took the time to be over.
    BrokenOff,
}

/// One run of a handler.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub(crate) turn: Name,
    pub(crate) position: usize,
    pub(crate) effect: Effect,
    pub(crate) worker: String,
    pub(crate) began_us: i64,
    /// When the world changed by it, µs.
    pub(crate) effect_us: Option<i64>,
    pub(crate) end: End,
    /// The shard from whose queue of suspects its worker had read it.
    pub(crate) suspect_of: Option<u32>,
}

/// Lines of the story that are kept.
const STORY_MAX: usize = 1_000_000;

impl World {
    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        self.0.lock()
    }

    /// A line of the story.
    pub(crate) fn tell(&self, line: impl FnOnce() -> String) {
        let mut facts = self.facts();
        if facts.is_told {
            let now_us = facts.now_us;
            facts.line(now_us, line());
        }
    }

    /// Something is wrong.
    pub(crate) fn wrong(&self, what: String) {
        let mut facts = self.facts();
        let now_us = facts.now_us;
        if facts.is_told {
            facts.line(now_us, format!("VIOLATION {what}"));
        }
        facts.violations.push(what);
    }

    /// A turn is sent.
    pub(crate) fn sent(&self, name: &str) {
        let mut facts = self.facts();
        let now_us = facts.now_us;
        if let Some(made) = facts.turns.get_mut(name) {
            made.sent_us.get_or_insert(now_us);
        }
    }

    /// A turn or task is known to be taken in.
    pub(crate) fn accepted(&self, name: &str) {
        let mut facts = self.facts();
        let now_us = facts.now_us;
        if let Some(made) = facts.turns.get_mut(name) {
            made.accepted_us.get_or_insert(now_us);
        }
    }

    /// A handler begins. Gives the run's number.
    pub(crate) fn begin(&self, turn: Name, position: usize, effect: Effect, worker: &str) -> usize {
        let mut facts = self.facts();
        let began_us = facts.now_us;
        let suspect_of = facts.suspects.get(&(worker.to_owned(), turn.clone())).copied();
        let worker = worker.to_owned();
        let run = Run { turn, position, effect, worker, began_us, effect_us: None, end: End::Running, suspect_of };
        let beside = facts.beside(&run).map(|other| format!("{} and {}", run.turn, other.turn));
        facts.runs.push(run);
        let number = facts.runs.len() - 1;
        drop(facts);
        if let Some(both) = beside {
            self.wrong(format!("a worker runs two suspects at a time: {both}"));
        }
        number
    }
}

impl Facts {
    fn line(&mut self, now_us: i64, line: String) {
        if self.story.len() >= STORY_MAX {
            self.story.pop_front();
        }
        self.story.push_back(format!("{:>10.4} {line}", now_us as f64 / 1e6));
    }

    /// Until when Redis may have forgotten what it had forgotten by then and was told again, for it lost its last writes
    /// once more within the grace that workers need to tell it.
    pub(crate) fn forgets_until(&self, upto_us: i64, grace_us: i64) -> i64 {
        let next =
            self.lost.iter().filter(|(from, to)| *from <= upto_us + grace_us && *to > upto_us).map(|(_, to)| *to);
        next.max().map_or(upto_us, |to| self.forgets_until(to, grace_us))
    }

    /// Another suspect that its worker runs: one at a time in a process (rules 12 and 23).
    fn beside(&self, run: &Run) -> Option<&Run> {
        let is_beside = |other: &&Run| {
            let is_another = other.turn != run.turn && other.worker == run.worker;
            is_another && other.end == End::Running && other.suspect_of.is_some()
        };
        run.suspect_of.and_then(|_| self.runs.iter().find(is_beside))
    }

    /// The runs of one call.
    pub(crate) fn runs_of<'a>(&'a self, turn: &'a str, position: usize) -> impl Iterator<Item = (usize, &'a Run)> {
        let of = move |(_, run): &(usize, &Run)| run.turn == turn && run.position == position;
        self.runs.iter().enumerate().filter(of)
    }
}
