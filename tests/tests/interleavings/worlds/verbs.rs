//! What each verb of the store must do and answer, in the referee's world.

mod limited;
mod release;

pub use release::Releasing;

use std::collections::BTreeMap;

use limited::{Limited, counter_of};
use tickfleet_model::{DayCapAction, limits};
use tickfleet_store::{Generations, PolicyRow, StoreOptions};
use tickfleet_tests::referee::limits::Debit;
use tickfleet_tests::referee::{
    Answer, Budget, Chain, Event, Fence, Reason, Rules, State, TaskBudget, Verdict, decide, window_end,
};

use crate::interleavings::worlds::spec::{
    CRASHES_MAX, INBOX_UNREAD_MAX, INBOXES_MAX, LIMITS, ODD_AGENT, ODD_TASK, RELEASE_BOUND, Rows, Spec,
    TENANT_TURNS_MAX, TURNS_MAX, USED_UP, number_of,
};
use crate::interleavings::worlds::world::{Name, Turn, World, tenant_of};

/// What a batch of turns or lanes is answered as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Batch<T> {
    PolicyStale,
    TenantsStale,
    DayStale,
    /// The script fails, and nothing is written.
    Fails,
    Decided(Vec<T>),
}

/// What a turn is answered at admission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admitted {
    Dispatched,
    Laned,
    Duplicate,
    Conflict,
    Refused(&'static str),
    Ending(Name),
    /// It ends when its timer says so.
    Later,
}

/// A turn in an admission batch.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub entry: String,
    pub turn: String,
    pub spec: usize,
}

fn stale(rows: &Rows, now_ms: i64) -> bool {
    rows.rows.iter().any(|r| now_ms < r.day_start_ms || now_ms >= r.day_end_ms)
}

impl World {
    /// The word that `submit` answers.
    pub fn submit(&mut self, raw_ms: i64, spec: usize) -> &'static str {
        let now_ms = self.now_ms(raw_ms);
        let s = self.specs[spec].clone();
        let id = s.given.as_ref().map(|id| format!("{}:{id}", s.tenant));
        if let Some((_, digest)) = id.as_ref().and_then(|id| self.ids.get(id)) {
            return if *digest == s.digest { "DUPLICATE" } else { "CONFLICT" };
        }
        if self.inbound.len() as u64 >= TURNS_MAX {
            return "QUEUE_FULL";
        }
        if let Some(inbox) = s.inbox.map(|inbox| format!("{}:{inbox}", s.tenant)) {
            if self.unread(&inbox) >= INBOX_UNREAD_MAX {
                return "INBOX_FULL";
            }
            if !self.inbox_fits(&inbox, now_ms) {
                return "TOO_MANY_INBOXES";
            }
            self.known_inboxes.entry(inbox).or_insert(now_ms);
        }
        if let Some(id) = id {
            self.ids.insert(id, ('q', s.digest));
        }
        "OK"
    }

    pub(crate) fn unread(&self, inbox: &str) -> usize {
        self.inboxes.get(inbox).map_or(0, Vec::len)
    }

    /// What `admit` decides.
    ///
    /// # Errors
    /// See [`World::apply`].
    pub fn admit(
        &mut self,
        raw_ms: i64,
        by: Generations,
        rows: &Rows,
        batch: &[(Candidate, i64)],
    ) -> Result<Batch<Admitted>, String> {
        let now_ms = self.clock(raw_ms);
        if let Some(outdated) = self.outdated(by) {
            return Ok(outdated);
        }
        if stale(rows, now_ms) {
            return Ok(Batch::DayStale);
        }
        // The whole batch fails on the first turn whose agent's key is foreign, unless it is refused before that.
        let mut trial = self.clone();
        let mut words = Vec::new();
        let mut waited = self.waited_for();
        for (candidate, stagger_ms) in batch {
            match trial.admit_one(candidate, *stagger_ms, rows, now_ms, &mut waited)? {
                Some(word) => words.push(word),
                None => return Ok(Batch::Fails),
            }
        }
        *self = trial;
        Ok(Batch::Decided(words))
    }

    /// Whether whoever decides by this has missed something.
    fn outdated<T>(&self, by: Generations) -> Option<Batch<T>> {
        if self.generation > by.policy {
            return Some(Batch::PolicyStale);
        }
        (self.tenants_generation > by.tenants).then_some(Batch::TenantsStale)
    }

    /// What `cancel` answers.
    ///
    /// # Errors
    /// See [`World::apply`].
    pub fn cancel(&mut self, raw_ms: i64, name: &str) -> Result<String, String> {
        let now_ms = self.now_ms(raw_ms);
        if self.turns.contains_key(name) {
            return self.apply(name, Event::Cancel, now_ms).map(|answer| format!("{answer:?}"));
        }
        Ok(match self.ids.get(name) {
            Some(('e', _)) => "Done".into(),
            Some(('a', _)) => "Unknown".into(),
            _ => {
                self.early.insert(name.to_owned());
                self.early_ms = now_ms + limits::EARLY_CANCEL_MS;
                "Waiting".into()
            }
        })
    }

    /// Whether a cancel waits for this. One that a clock's step of days has outdated does not count.
    fn was_cancelled(&self, name: &str, now_ms: i64) -> bool {
        self.early_ms > now_ms && self.early.contains(name)
    }

    /// Whether a turn or task that is entered now was cancelled before; then its mark goes.
    fn take_early(&mut self, name: &str, now_ms: i64) -> Result<bool, String> {
        let cancelled = self.was_cancelled(name, now_ms);
        if cancelled {
            self.early.remove(name);
            self.apply(name, Event::Cancel, now_ms)?;
        }
        Ok(cancelled)
    }

    /// None: the script fails.
    fn admit_one(
        &mut self,
        c: &Candidate,
        stagger_ms: i64,
        rows: &Rows,
        now_ms: i64,
        waited: &mut BTreeMap<Name, u64>,
    ) -> Result<Option<Admitted>, String> {
        let spec = self.specs[c.spec].clone();
        let row = rows[number_of(spec.tenant)];
        let (name, lane) = (format!("{}:{}", spec.tenant, c.turn), format!("{}:{}", spec.tenant, spec.agent));
        let at = self.inbound.iter().position(|e| e.id.as_deref() == Some(&c.entry));
        if let Some(word) = self.known(&name, c.spec, at) {
            if word == Admitted::Duplicate {
                at.map(|at| self.inbound.remove(at));
            }
            return Ok(Some(word));
        }
        if spec.task.as_deref() == Some(ODD_TASK) {
            return Ok(None);
        }
        if let Some(code) = self.refuses(&name, c.spec, now_ms) {
            return Ok(Some(Admitted::Refused(code)));
        }
        at.map(|at| self.inbound.remove(at));
        self.roll(&lane, stagger_ms, row, now_ms);
        self.tenant(&name).unfinished += 1;
        if spec.given.is_some() {
            self.ids.insert(name.clone(), ('a', spec.digest.clone()));
            self.fading.remove(&name);
        }
        let waiting = self.is_waiting(&lane);
        let ends = self.agents[&lane].tick.end_ms;
        let (verdict, cut) = if self.was_cancelled(&name, now_ms) {
            (Verdict::End(Reason::Cancelled, now_ms), None)
        } else if spec.deadline_ms <= now_ms {
            (Verdict::End(Reason::Expired, spec.deadline_ms), None)
        } else if waiting {
            (Verdict::Wait(self.lane_due(&lane, row, ends)), None)
        } else {
            let task = spec.task.as_ref().map(|task| format!("{}:{task}", spec.tenant));
            let limited = Limited { rows, next: 0, own: None, waited, place: None, now_ms };
            self.decide((&name, &spec), &lane, task.as_deref(), &limited)
        };
        self.enter(&name, &lane, c.spec);
        if let Some(turn) = self.turns.get_mut(&name) {
            turn.back = cut.map(|at| counter_of(rows, &spec, 0, at));
        }
        self.take_early(&name, now_ms)?;
        if let Verdict::WaitFor(at, _) = verdict {
            waited.entry(counter_of(rows, &spec, 0, at)).or_insert(0);
        }
        self.release_by(&name, &lane, (verdict, rows), now_ms).map(Some)
    }

    /// A new turn's record, before the decision about it is carried out.
    fn enter(&mut self, name: &str, lane: &str, spec: usize) {
        let (calls, deadline_ms) = (self.specs[spec].calls(), self.specs[spec].deadline_ms);
        self.entries += 1;
        let turn = Turn {
            spec,
            // More fences than any turn uses.
            state: State::new(calls, deadline_ms, Fence(self.entries * 10_000)),
            lane: lane.to_owned(),
            seq: None,
            timer_ms: Some(deadline_ms),
            holder: None,
            dispatched: 0,
            task: None,
            ended_ms: 0,
            waits: None,
            back: None,
        };
        self.turns.insert(name.to_owned(), turn);
    }

    fn release_by(
        &mut self,
        name: &str,
        lane: &str,
        (verdict, rows): (Verdict, &Rows),
        now_ms: i64,
    ) -> Result<Admitted, String> {
        let calls = self.turns[name].state.live().map_or(0, |l| l.calls);
        if !matches!(verdict, Verdict::Dispatch(k) if k == calls) {
            self.seq += 1;
            let seq = self.seq;
            if let Some(turn) = self.turns.get_mut(name) {
                turn.seq = Some(seq);
            }
        }
        let answer = self.apply(name, Event::Release(verdict), now_ms)?;
        Ok(match verdict {
            Verdict::Dispatch(_) => Admitted::Dispatched,
            Verdict::End(..) | Verdict::Refuse(..) if answer == Answer::Later => Admitted::Later,
            Verdict::End(..) | Verdict::Refuse(..) => Admitted::Ending(name.to_owned()),
            Verdict::WaitFor(at, _) => {
                let spec = self.specs[self.turns[name].spec].clone();
                let (number, key, window) = rows.debits(&spec, 0).swap_remove(at);
                let counter = format!("{}@{key}", LIMITS[number]);
                // Whoever goes behind others wakes them no later than the window's end.
                let until_ms = self.counters.get(&counter).copied().unwrap_or_default().at(now_ms, window).end_ms;
                self.hop(name, Some(&counter), until_ms);
                Admitted::Laned
            }
            Verdict::Wait(until_ms) => {
                let seq = self.seq;
                self.lanes.entry(lane.to_owned()).or_default().insert(seq, name.to_owned());
                let timer = self.lane_timers.entry(lane.to_owned()).or_insert(until_ms);
                *timer = until_ms.min(*timer);
                Admitted::Laned
            }
        })
    }

    /// When a turn that queues behind others wakes its lane at the latest.
    fn lane_due(&mut self, lane: &str, row: PolicyRow, tick_ends_ms: i64) -> i64 {
        let agent = self.agents[lane];
        let used = i64::from(agent.day.used);
        let (mut left, mut resets_ms) = (i64::from(row.caps.calls_per_day) - used, agent.day.end_ms);
        let day = self.tenant(lane).day;
        if let Some(cap) = row.caps.tenant_calls_per_day.map(i64::from)
            && cap - i64::from(day.used) < left
        {
            (left, resets_ms) = (cap - i64::from(day.used), day.end_ms);
        }
        if left <= 0 && row.caps.on_day_cap == DayCapAction::Defer { resets_ms } else { tick_ends_ms }
    }

    /// Rules 4 and 9: the entry must still be ours to decide, and its id must be new.
    fn known(&self, name: &str, spec: usize, at: Option<usize>) -> Option<Admitted> {
        if at.is_none() {
            return Some(Admitted::Duplicate);
        }
        let spec = &self.specs[spec];
        match self.ids.get(name) {
            Some((_, digest)) if spec.given.is_some() && *digest != spec.digest => Some(Admitted::Conflict),
            Some((state, _)) if spec.given.is_some() && *state != 'q' => Some(Admitted::Duplicate),
            _ => None,
        }
    }

    /// Rule 14: whether a tenant has this inbox, or may have one more.
    pub(crate) fn inbox_fits(&mut self, inbox: &str, now_ms: i64) -> bool {
        if self.known_inboxes.contains_key(inbox) || self.own_inboxes(inbox) < INBOXES_MAX {
            return true;
        }
        // Those that nobody has used for long make room.
        let since_ms = now_ms - StoreOptions::default().reply_retain_ms;
        self.known_inboxes.retain(|known, used_ms| tenant_of(known) != tenant_of(inbox) || *used_ms > since_ms);
        self.own_inboxes(inbox) < INBOXES_MAX
    }

    fn own_inboxes(&self, inbox: &str) -> usize {
        self.known_inboxes.keys().filter(|known| tenant_of(known) == tenant_of(inbox)).count()
    }

    fn refuses(&mut self, name: &str, spec: usize, now_ms: i64) -> Option<&'static str> {
        let spec = self.specs[spec].clone();
        let mut refusal = None;
        let inbox = spec.inbox.map(|inbox| format!("{}:{inbox}", spec.tenant));
        if let Some(inbox) = &inbox {
            if self.unread(inbox) >= INBOX_UNREAD_MAX {
                refusal = Some("inbox_full");
            } else if !self.inbox_fits(inbox, now_ms) {
                refusal = Some("too_many_inboxes");
            }
        }
        let is_over = |task: &String| self.is_over(&format!("{}:{task}", spec.tenant));
        if spec.task.as_ref().is_some_and(|task| self.task(spec.tenant, task).is_none() || is_over(task)) {
            refusal = Some("unknown_task");
        }
        if self.tenant(name).unfinished >= TENANT_TURNS_MAX {
            refusal = Some("tenant_queue_full");
        }
        if refusal.is_none()
            && let Some(inbox) = inbox
        {
            self.known_inboxes.entry(inbox).or_insert(now_ms);
        }
        refusal
    }

    fn roll(&mut self, lane: &str, stagger_ms: i64, row: PolicyRow, now_ms: i64) {
        // Budgets that cannot be read count as used up until the day ends.
        let odd = lane.ends_with(ODD_AGENT) && !self.agents.contains_key(lane);
        let agent = self.agents.entry(lane.to_owned()).or_default();
        if odd {
            self.dead += 1;
            agent.tick = Budget { used: USED_UP, end_ms: window_end(now_ms, stagger_ms, row.caps.tick_ms) };
            agent.day = Budget { used: USED_UP, end_ms: row.day_end_ms };
        }
        agent.roll(now_ms, stagger_ms, row.caps.tick_ms, (row.day_start_ms, row.day_end_ms));
        self.tenant(lane).day.roll_day(now_ms, (row.day_start_ms, row.day_end_ms));
    }

    /// The pure decision, with the chain's counters taken from the world and put back.
    fn decide(
        &mut self,
        (name, spec): (&str, &Spec),
        lane: &str,
        task: Option<&str>,
        limited: &Limited<'_>,
    ) -> (Verdict, Option<usize>) {
        let row = limited.rows[number_of(spec.tenant)];
        let found = limited.rows.debits(spec, limited.next);
        let mut debits: Vec<Debit> = found.iter().map(|debit| self.debit(spec, limited, debit)).collect();
        let before: Vec<u64> = debits.iter().map(|debit| debit.counter.used).collect();
        let rules = Rules { caps: row.caps, epoch_ms: self.epoch_ms, room: self.has_room(name) };
        let (mut agent, mut tenant_day) = (self.agents[lane], self.tenant(name).day);
        let mut budget = task.and_then(|task| self.live(task)?.task);
        let limits = debits.as_mut_slice();
        let mut chain =
            Chain { agent: &mut agent, tenant_day: &mut tenant_day, task: budget.as_mut(), limits, cut: None };
        let verdict = decide(spec.calls() - limited.next, rules, &mut chain);
        let cut = chain.cut;
        if matches!(verdict, Verdict::Dispatch(_)) {
            self.hold(name, &found, limited.now_ms, before.into_iter().zip(debits));
        }
        self.agents.insert(lane.to_owned(), agent);
        self.tenant(name).day = tenant_day;
        if let Some(turn) = task.and_then(|task| self.turns.get_mut(task)) {
            turn.task = budget;
        }
        (verdict, cut)
    }

    /// Whether a task was cancelled, or is ended now: nothing begins under it any more.
    pub(crate) fn is_over(&self, name: &str) -> bool {
        self.live(name).is_some_and(|turn| {
            matches!(turn.state, State::Ending(..)) || turn.state.live().is_some_and(|live| live.cancelled)
        })
    }

    /// What `promote` answers for one timer.
    ///
    /// # Errors
    /// See [`World::apply`].
    pub fn promote(&mut self, raw_ms: i64, name: &str) -> Result<Answer, String> {
        let now_ms = self.clock(raw_ms);
        if self.turns.get(name).and_then(|t| t.timer_ms).is_none_or(|due_ms| due_ms > now_ms) {
            return Ok(Answer::Later);
        }
        self.apply(name, Event::Timer { crashes_max: CRASHES_MAX }, now_ms)
    }

    /// What `delegate` answers; a task's record is entered.
    ///
    /// # Errors
    /// See [`World::apply`].
    pub fn delegate(&mut self, raw_ms: i64, spec: usize, id: &str) -> Result<String, String> {
        let now_ms = self.now_ms(raw_ms);
        let s = self.specs[spec].clone();
        let name = format!("{}:{id}", s.tenant);
        match self.ids.get(&name) {
            Some((_, digest)) if s.given.is_some() && *digest != s.digest => return Ok("CONFLICT".into()),
            Some(_) if s.given.is_some() => return Ok("DUPLICATE".into()),
            _ if self.turns.contains_key(&name) => return Ok("DUPLICATE".into()),
            _ => {}
        }
        if self.tenant(&name).unfinished >= TENANT_TURNS_MAX {
            return Ok("REFUSED tenant_queue_full".into());
        }
        if s.deadline_ms <= now_ms {
            return Ok("REFUSED deadline_passed".into());
        }
        // The tasks of this game come from calls: what is unread refuses none.
        let inbox = s.inbox.map(|inbox| format!("{}:{inbox}", s.tenant));
        if inbox.as_ref().is_some_and(|inbox| !self.inbox_fits(inbox, now_ms)) {
            return Ok("REFUSED too_many_inboxes".into());
        }
        let budget = s.budget.unwrap_or(0);
        if let Some(parent) = s.task.as_ref().map(|task| format!("{}:{task}", s.tenant)) {
            let is_over = self.is_over(&parent);
            match self.live(&parent).and_then(|t| t.task) {
                None => return Ok("REFUSED unknown_parent".into()),
                Some(_) if is_over => return Ok("REFUSED parent_ended".into()),
                Some(parent) if parent.left() < budget => return Ok("REFUSED budget_exceeds_parent".into()),
                Some(mut carved) => {
                    carved.used += budget;
                    if let Some(turn) = self.turns.get_mut(&parent) {
                        turn.task = Some(carved);
                    }
                }
            }
        }
        if let Some(inbox) = inbox {
            self.known_inboxes.entry(inbox).or_insert(now_ms);
        }
        if s.given.is_some() {
            self.ids.insert(name.clone(), ('a', s.digest.clone()));
        }
        self.tenant(&name).unfinished += 1;
        self.enter(&name, &format!("{}:{}", s.tenant, s.agent), spec);
        if let Some(turn) = self.turns.get_mut(&name) {
            turn.task = Some(TaskBudget { max: budget, used: 0 });
        }
        if self.take_early(&name, now_ms)? {
            self.apply(&name, Event::Release(Verdict::End(Reason::Cancelled, now_ms)), now_ms)?;
            // Nobody has been given the ending: promote gives it out.
            if let Some(turn) = self.turns.get_mut(&name) {
                turn.timer_ms = Some(now_ms);
            }
            return Ok("OK".into());
        }
        self.apply(&name, Event::Release(Verdict::Dispatch(1)), now_ms)?;
        Ok("OK".into())
    }
}
