//! Caps and limits, decided anew: at each moment at which the fleet decided about a turn, the policy is asked with the counters
//! as they would be then.
//!
//! Where it says the same, the turn goes on as recorded. Where it makes calls wait that went out, they go when there is room,
//! in the order in which they came; where it lets calls go that waited or were refused, they go at once, and debit.

mod ask;
mod held_up;
mod pauses;
mod places;
mod told;
mod unknown;
mod waiting;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use tickfleet_model::limit::LimitBound;
use tickfleet_model::policy::Unknown;
use tickfleet_model::{AgentId, Limit, TenantId, limits};

use self::ask::{Said, Verdict};
use self::held_up::HeldUp;
use self::pauses::Pauses;
use self::unknown::{cut_by_others, waits_for_unknown};
pub use super::counters::Fleet;
use super::counters::{Books, SHARE, Side, Whose};
use super::recorded::{Began, Operated};
use super::tasks::Tasks;
use super::turns::{Decision, EARLIER, ROOM, Turn, What};
use super::{DAY, Difference, Summary, TASK, TICK};

/// Turns that wait under the policy at once, at most; what comes beyond is told as not decidable.
const WAITING_MAX: usize = 100_000;
/// A turn that would wait for longer would have expired, ms.
const WAIT_MS_MAX: i64 = limits::DEADLINE_DEFAULT_MS;

/// A limit that cut a slice short: which, the log does not say.
const LIMIT: &str = "a limit";

const NOT_ADMITTED: &str = "its admission is not in the log (audit.admissions)";
const OPEN_BEFORE: &str = "the window that stopped it began before the log";
const NO_TASK: &str = "the budget of its task rejected it, and the used part is not in the log";
const GAVE_BACK: &str = "the log does not show when waiting calls of these limits held slots";
/// Why a difference is not told where both hold calls up: which of the turns that wait for either goes first, and when it is looked
/// at again, follows from what the log does not have.
const LIMITS_BESIDE_CAPS: &str = "a limit and a cap both delayed calls of its agent, or of agents that wait for the \
                                  same limit: this cannot be evaluated again";
const TOO_MANY: &str = "more calls would wait than this command tracks";

/// What happens next.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    /// An operator sets a counter to zero.
    Reset(String),
    /// Places are given back.
    Free(String, u64),
    /// Places are taken again by calls that gave them back while they waited.
    Take(String, u64),
    /// Somebody stands in line for a counter who gave a place back, or does so no more.
    Line(String, bool),
    /// The fleet decided about a turn.
    Decision(u64, usize),
    /// There may be room for those that wait only here.
    Room(String),
}

/// When something happens, ms; its place among what happens then: its class, a tie, and the order in which it was said.
type Event = (i64, u8, i64, u64, Next);

/// A turn of which something is still to come.
struct Live {
    turn: Turn,
    /// The first call that is not decided.
    next: usize,
    /// It waits here and did not in the fleet, or for longer or shorter: what for, on which lane, since when.
    apart: Option<Apart>,
    /// Decisions that are still to come.
    left: usize,
    /// When its last slice here ends, ms.
    busy_ms: i64,
    /// The lane on which it waits, as it did in the fleet.
    parked: Option<String>,
}

struct Apart {
    by: String,
    lane: String,
    since_ms: i64,
}

/// Whether a window has no room left; 0 allowed means that the log does not say.
const fn is_full(used: u32, allowed: u32) -> bool {
    allowed > 0 && used >= allowed
}

/// Decides anew.
pub struct Replay<'a> {
    fleet: Fleet<'a>,
    books: Books,
    tasks: Tasks,
    /// Whose calls operators kept from going out, and when.
    pauses: Pauses,
    turns: HashMap<u64, Live>,
    next_turn: u64,
    order: u64,
    events: BinaryHeap<Reverse<Event>>,
    /// Turns that wait only here, by lane, in the order in which they came.
    lanes: HashMap<String, BTreeMap<u64, ()>>,
    waiting: usize,
    /// How many turns wait on a lane as they did in the fleet.
    parked: HashMap<String, u64>,
    /// Agents about whose calls something was decided otherwise: what the log says of their counters no longer holds.
    apart: HashSet<String>,
    /// What held up calls of whom.
    held_up: HeldUp,
    /// Agents whose counters are known from what the log says of an admission.
    anchored: HashSet<String>,
    /// From when on the log has everything.
    began: &'a Began,
    tell: Box<dyn FnMut(Difference) + 'a>,
    summary: Summary,
}

impl<'a> Replay<'a> {
    /// Decides by `fleet`, and tells what differs.
    ///
    /// `operated`: what operators did meanwhile. `began`: from when on the log has everything; of windows that began before,
    /// nobody knows what they had used.
    #[must_use]
    pub fn new(fleet: Fleet<'a>, operated: &Operated, began: &'a Began, tell: impl FnMut(Difference) + 'a) -> Self {
        let mut replay = Self {
            fleet,
            books: Books::default(),
            tasks: Tasks::default(),
            pauses: Pauses::of(&operated.pauses),
            turns: HashMap::new(),
            next_turn: 0,
            order: 0,
            events: BinaryHeap::new(),
            lanes: HashMap::new(),
            waiting: 0,
            parked: HashMap::new(),
            apart: HashSet::new(),
            held_up: HeldUp::default(),
            anchored: HashSet::new(),
            began,
            tell: Box::new(tell),
            summary: Summary::default(),
        };
        for reset in &operated.resets {
            let counter = format!("{} {}@{}", reset.shard, reset.limit, reset.counter);
            replay.at(reset.at_ms, 0, 0, Next::Reset(counter));
        }
        replay
    }

    /// Takes a turn. They come in the order in which the first of each was decided ([`Turn::at_ms`]).
    pub fn turn(&mut self, turn: Turn) {
        self.summary.cannot_say(NOT_ADMITTED, turn.unknown);
        let Some(at_ms) = turn.at_ms() else { return };
        self.until(at_ms);
        let number = self.next_turn;
        self.next_turn += 1;
        for (index, decision) in turn.decisions.iter().enumerate() {
            match &decision.what {
                What::Wait(by, _) | What::Refuse(_, Some(by)) => self.is_held_up(&turn, by),
                What::Go(calls, note)
                    if decision.first + calls < turn.calls.len()
                        && (is_full(note.tick.0, note.tick.1) || is_full(note.day.0, note.day.1)) =>
                {
                    self.is_held_up(&turn, TICK);
                }
                What::Go(..) | What::Refuse(_, None) => {}
            }
            // Of one moment: first what goes out, in its order, then what a limit has cut short, for that was full by then, then
            // what waits or is refused.
            let (class, tie) = match &decision.what {
                What::Go(calls, note) => {
                    let is_cut = decision.first + calls < turn.calls.len() && !note.is_full();
                    (1 + u8::from(is_cut), i64::from(note.tick.0))
                }
                What::Wait(..) => (3, 0),
                What::Refuse(..) => (4, 0),
            };
            self.at(decision.at_ms, class, tie, Next::Decision(number, index));
        }
        let left = turn.decisions.len();
        self.turns.insert(number, Live { turn, next: 0, apart: None, left, busy_ms: 0, parked: None });
    }

    /// Says what came of it: what could not be decided.
    #[must_use]
    pub fn finish(mut self) -> Summary {
        self.until(i64::MAX);
        self.summary
    }

    fn at(&mut self, at_ms: i64, class: u8, tie: i64, next: Next) {
        self.order += 1;
        self.events.push(Reverse((at_ms, class, tie, self.order, next)));
    }

    /// Goes on up to this moment.
    fn until(&mut self, at_ms: i64) {
        while let Some(Reverse((now_ms, ..))) = self.events.peek()
            && *now_ms < at_ms
        {
            let Some(Reverse((now_ms, _, _, _, next))) = self.events.pop() else { return };
            self.books.is(now_ms);
            match next {
                Next::Reset(counter) => {
                    self.books.counters.remove(&counter);
                }
                Next::Free(counter, places) => {
                    self.books.give_back(&counter, places, now_ms);
                    if self.lanes.contains_key(&counter) {
                        self.at(now_ms, 5, 0, Next::Room(counter));
                    }
                }
                Next::Take(counter, places) => self.books.take(&counter, places),
                Next::Line(counter, stands) => self.line(counter, stands),
                Next::Decision(turn, index) => self.decision(turn, index, now_ms),
                Next::Room(lane) => self.room(&lane, now_ms),
            }
            self.books.forget(now_ms);
        }
    }

    /// The fleet decided something about a turn at this moment.
    fn decision(&mut self, number: u64, index: usize, now_ms: i64) {
        let Some(mut live) = self.turns.remove(&number) else { return };
        live.left -= 1;
        self.unpark(&mut live);
        let decision = live.turn.decisions[index].clone();
        self.books.slots = decision.slots.or(self.books.slots);
        self.tasks.before(&live.turn, &decision);
        // What waits here goes on by itself; what is ahead was decided before.
        let behind = match &decision.what {
            What::Go(calls, _) | What::Refuse(calls, _) => decision.first + calls,
            What::Wait(..) => decision.first + 1,
        };
        if live.apart.is_none() && live.next >= decision.first && live.next < behind {
            live.next = live.next.max(decision.first);
            self.compare(number, &mut live, &decision, (now_ms, true));
        } else if live.apart.is_none() && live.next < decision.first {
            // Calls in between had an end of their own (expired, cancelled).
            live.next = decision.first;
            self.compare(number, &mut live, &decision, (now_ms, true));
        }
        self.tasks.after(&live.turn, &decision);
        if live.left > 0 || live.apart.is_some() {
            self.turns.insert(number, live);
        }
    }

    /// Holds what the policy says against what was decided. `is_first` is false for what is left of it.
    fn compare(&mut self, number: u64, live: &mut Live, decision: &Decision, (now_ms, is_first): (i64, bool)) {
        // Of whom there is none, guards have told it.
        let Ok(whose) = whose(&self.fleet, &live.turn) else {
            live.next = live.turn.calls.len();
            return;
        };
        let wanted = live.turn.calls.len() - live.next;
        let mut said = self.ask(&whose, live, (Some(decision), wanted), None, now_ms);
        let cut = cut_by_others(live, decision, &said);
        if is_first && !matches!(decision.what, What::Wait(..)) {
            self.cannot_ask(&said);
        }
        if let Some(went) = cut {
            said = self.ask(&whose, live, (Some(decision), went), None, now_ms);
        }
        let verdict = said.verdict.clone();
        match (&decision.what, verdict) {
            (What::Wait(by, until_ms), _)
                if waits_for_unknown(live, decision, &said) || self.stands(live, by, *until_ms, &said) =>
            {
                self.park(live, Self::lane_of(live, by, &said));
            }
            (What::Refuse(calls, by), verdict) if self.is_refused(live.turn.shard, by.as_deref(), &said) => {
                let end = decision.first + calls;
                live.next = match verdict {
                    Verdict::Refuse(_, ends) => (live.next + ends).min(end),
                    _ => end,
                };
                // The rest of what was refused together is looked at by itself.
                if live.next < end {
                    self.compare(number, live, decision, (now_ms, false));
                }
            }
            (What::Go(calls, _), Verdict::Dispatch(fits)) if fits >= *calls && !live.turn.is_whole => {
                // What else there was to go out is not in the log.
                self.go(live, *calls, said, now_ms);
            }
            (_, Verdict::Dispatch(fits)) => {
                let recorded = self.recorded(live, decision, &said, cut);
                self.go_as_fits(number, live, (fits, recorded), said, now_ms);
            }
            (_, Verdict::Refuse(reason, calls)) => {
                let upto = live.next + calls;
                self.end(live, upto, &said.by, reason.word());
                if live.next < live.turn.calls.len() {
                    let (by, lane) = (said.by, said.lane);
                    self.wait(number, live, Apart { by, lane, since_ms: now_ms }, now_ms + 1);
                }
            }
            (_, Verdict::End(reason)) => {
                let all = live.turn.calls.len();
                self.end(live, all, &said.by, reason.word());
            }
            (_, Verdict::Wait { .. }) => {
                let apart = Apart { by: said.by, lane: said.lane, since_ms: now_ms };
                self.wait(number, live, apart, said.until_ms);
            }
        }
    }

    /// How many of the calls that would go went. Where they waited, as many as went together later, if there are such (`cut`).
    fn recorded(&mut self, live: &Live, decision: &Decision, said: &Said, cut: Option<usize>) -> usize {
        if let What::Go(calls, _) = &decision.what {
            return *calls - (live.next - decision.first).min(*calls);
        }
        cut.inspect(|_| self.cannot_ask(said)).unwrap_or(0)
    }

    /// Counts what was decided by limits that could not be asked.
    fn cannot_ask(&mut self, said: &Said) {
        said.unknown.iter().for_each(|unknown| self.summary.cannot_say_of(&unknown.by, unknown.why, 1));
    }

    /// As many calls as fit go out, of which `recorded` did in the fleet; what is left waits.
    fn go_as_fits(&mut self, number: u64, live: &mut Live, (fits, recorded): (usize, usize), said: Said, now_ms: i64) {
        let (by, lane, until_ms) = (said.by.clone(), said.lane.clone(), said.until_ms);
        self.go(live, fits, said, now_ms);
        if fits < recorded || recorded == 0 && live.next < live.turn.calls.len() {
            self.wait(number, live, Apart { by, lane, since_ms: now_ms }, until_ms);
        } else if fits == recorded && live.next < live.turn.calls.len() && live.left > 0 {
            // What is left of it waits for what cut it short, once these have ended.
            self.park(live, lane);
        }
    }

    /// Whether a wait stands that was decided: the policy has the calls wait as well, until then, or cannot say.
    fn stands(&mut self, live: &Live, by: &str, until_ms: i64, said: &Said) -> bool {
        let agent = agent_of(&live.turn);
        if by == ROOM || by == EARLIER && !self.apart.contains(&agent) {
            return true;
        }
        if self.is_share(by) {
            self.summary.cannot_say_of(by, SHARE, 1);
            return true;
        }
        match said.verdict {
            // Whatever else there is, these do not go.
            Verdict::Refuse(..) | Verdict::End(_) => false,
            _ if said.is_unknown(by) => true,
            Verdict::Wait { behind: true } => true,
            Verdict::Wait { behind: false } => {
                until_ms == 0 || said.until_ms >= until_ms || said.by != by && self.apart.is_empty()
            }
            // Whoever comes while others wait for the same goes behind them, even where there is room by now.
            Verdict::Dispatch(_) => {
                let is_waited_for =
                    |side: &Side| side.by == by && side.is_limit() && self.parked.contains_key(&side.lane);
                said.sides.iter().any(is_waited_for) || self.was_open(live.turn.shard, by, said)
            }
        }
    }

    /// Whether that is a share of the slots, by this policy too.
    fn is_share(&self, by: &str) -> bool {
        let is_it = |limit: &Limit| matches!(limit.bound, LimitBound::Share(_)) && super::limit(&limit.name) == by;
        self.fleet.policy.limits.iter().any(is_it)
    }

    /// The lane on which a turn waits that waits for this.
    fn lane_of(live: &Live, by: &str, said: &Said) -> String {
        let side = said.sides.iter().find(|side| side.by == by);
        side.map_or_else(|| agent_of(&live.turn), |side| side.lane.clone())
    }

    /// Keeps in mind on which lane a turn waits as it did in the fleet: others come behind it.
    fn park(&mut self, live: &mut Live, lane: String) {
        self.line(lane.clone(), true);
        live.parked = Some(lane);
    }

    fn unpark(&mut self, live: &mut Live) {
        if let Some(lane) = live.parked.take() {
            self.line(lane, false);
        }
    }

    /// One more waits on a lane, or one less.
    fn line(&mut self, lane: String, waits: bool) {
        if waits {
            *self.parked.entry(lane).or_default() += 1;
        } else if let Some(count) = self.parked.get_mut(&lane) {
            *count -= 1;
            if *count == 0 {
                self.parked.remove(&lane);
            }
        }
    }

    /// Whether a refusal stands.
    fn is_refused(&mut self, shard: u32, by: Option<&str>, said: &Said) -> bool {
        let Some(by) = by else { return true };
        if by == TASK && !said.knows_task {
            self.summary.cannot_say(NO_TASK, 1);
            return true;
        }
        match said.verdict {
            Verdict::Refuse(..) | Verdict::End(_) => said.by == by,
            _ if said.is_unknown(by) => true,
            Verdict::Dispatch(_) => self.was_open(shard, by, said),
            Verdict::Wait { .. } => false,
        }
    }

    /// Whether what stopped calls was open before the log began, so that it is not known what it had used.
    fn was_open(&mut self, shard: u32, by: &str, said: &Said) -> bool {
        let began_ms = self.began.of(shard);
        let open = match by {
            DAY => said.known_ms.1 < began_ms,
            TICK => said.known_ms.0 < began_ms,
            _ => said.sides.iter().any(|side| side.by == by && side.is_limit() && side.state.began_ms < began_ms),
        };
        if open {
            self.summary.cannot_say(OPEN_BEFORE, 1);
        }
        open
    }
}

/// Who makes a turn's calls, as the policy has them.
fn whose<'p>(fleet: &Fleet<'p>, turn: &Turn) -> Result<Whose<'p>, Unknown> {
    let tenant = TenantId::new(turn.tenant.as_str()).map_err(|_| Unknown::Tenant)?;
    let agent = AgentId::new(turn.agent.as_str()).map_err(|_| Unknown::Agent)?;
    let (owner, policy) = fleet.policy.look_up(&tenant, &agent)?;
    Ok(Whose { tenant, agent, owner, policy })
}

/// The name under which an agent's budgets are kept.
fn agent_of(turn: &Turn) -> String {
    format!("{}:{}", turn.tenant, turn.agent)
}
