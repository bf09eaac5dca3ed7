//! What must hold of calls that are governed: what people, facts, rules, the ledger, kept answers and the breaker of loops
//! promise, by what the tools did and what was told.

use std::collections::{BTreeMap, BTreeSet};

use tickfleet_model::{CallResult, Outcome};

use super::{Oracle, is_excused};
use crate::world::{End, Facts, Made, Name, Run, Vote};

/// What has come of calls.
#[derive(Default)]
pub(super) struct Seen {
    /// Calls that ended well, each with the time at which that was told, µs.
    ended_well: BTreeMap<(Name, usize), i64>,
    /// Calls that were denied for want of a fact, and when that was told, µs.
    missed: Vec<(Name, usize, i64)>,
}

fn reason_of(result: &CallResult) -> &str {
    let details = result.error.as_ref().and_then(|error| error.details.as_ref());
    details.and_then(|details| details["reason"].as_str()).unwrap_or_default()
}

/// Whether a denial says of itself what the oracle looks at elsewhere.
pub(super) fn is_reasoned(result: &CallResult) -> bool {
    ["rule_not_met", "fact_missing", "fact_forbidden", "fact_deadlock", "loop"].contains(&reason_of(result))
}

fn tool_of<'f>(facts: &'f Facts, run: &Run) -> Option<(&'f str, u32)> {
    let made = facts.turns.get(&run.turn)?;
    Some((made.tools.get(run.position)?.as_str(), *made.keys.get(run.position)?))
}

/// Of a call whose outcome is another's, or whose tool always says the same: what is not so; none of any other call.
pub(super) fn answered_by_another(
    facts: &Facts,
    name: &str,
    position: usize,
    result: &CallResult,
) -> Option<Vec<String>> {
    let tenant = name.split(':').next().unwrap_or_default();
    let Some(other) = result.repeats.as_ref().or(result.cached.as_ref().map(|cached| &cached.call)) else {
        return (result.tool == "poll" && result.outcome == Outcome::Ok).then(Vec::new);
    };
    let (turn, at) = other.rsplit_once('/').unwrap_or_default();
    let (turn, at) = (format!("{tenant}:{turn}"), at.parse().unwrap_or(usize::MAX));
    let key = |name: &str, position: usize| {
        let made: &Made = facts.turns.get(name)?;
        Some((made.tools.get(position)?.clone(), *made.keys.get(position)?))
    };
    let mut wrong = Vec::new();
    if key(name, position).is_none() || key(name, position) != key(&turn, at) {
        wrong.push(format!("{name}/{position} is answered by {other}, which is no equal call of its tenant"));
    }
    let number = result.output.as_ref().and_then(|output| serde_json::to_value(output).ok());
    let number = number.and_then(|output| output["run"].as_u64()).and_then(|run| usize::try_from(run).ok());
    let returned = facts.runs_of(&turn, at).any(|(run, made)| Some(run) == number && made.end == End::Returned);
    if result.outcome == Outcome::Ok && !returned {
        wrong.push(format!("{name}/{position} is told that run {number:?} of {other} returned, and it did not"));
    }
    Some(wrong)
}

impl Oracle {
    /// What a reply tells of calls that are governed.
    pub(super) fn heard(&mut self, name: &str, reply: &tickfleet_client::Reply) {
        let Some(governed) = self.settings.governed.clone() else { return };
        let mut facts = self.world.facts();
        let (at_us, mut wrong, mut found_out) = (facts.now_us, Vec::new(), 0);
        for (position, result) in reply.results.iter().enumerate() {
            found_out += u64::from(result.reconciled);
            if result.reconciled && result.outcome == Outcome::Transient {
                self.not_made.push((name.to_owned(), position, at_us));
            }
            if result.outcome == Outcome::Ok {
                self.governed.ended_well.entry((name.to_owned(), position)).or_insert(at_us);
            }
            match reason_of(result) {
                "fact_missing" => self.governed.missed.push((name.to_owned(), position, at_us)),
                "loop" if result.tool == "poll" => {
                    let seen = polled(&facts, name, position);
                    if seen < governed.refused_after as usize {
                        wrong.push(format!("{name}/{position} is refused as one of a row, and {seen} equal calls ran"));
                    }
                }
                "rule_not_met" => wrong.extend(self.ruled(&facts, name, position, governed.spends_ms().0)),
                _ => {}
            }
        }
        facts.audited.found_out += found_out;
        drop(facts);
        wrong.into_iter().for_each(|what| self.world.wrong(what));
    }

    /// A call that a rule is told to have stopped, though none of any configuration would.
    fn ruled(&self, facts: &Facts, name: &str, position: usize, allowed_ms: u64) -> Option<String> {
        let made = facts.turns.get(name)?;
        let takes_ms = *made.takes_ms.get(position)?;
        (takes_ms <= allowed_ms).then(|| format!("{name}/{position} is denied by a rule, and takes {takes_ms} ms"))
    }

    /// Of equal calls with an effect key, those that took effect beside another.
    pub(super) fn paid_twice(&self, facts: &Facts) -> Vec<String> {
        if self.settings.governed.is_none() || self.has_forgotten {
            return Vec::new();
        }
        let mut effects: BTreeMap<(&str, u32), Vec<&Run>> = BTreeMap::new();
        for run in facts.runs.iter().filter(|run| run.effect_us.is_some()) {
            if let Some(("transfer", key)) = tool_of(facts, run) {
                effects.entry((run.turn.split(':').next().unwrap_or_default(), key)).or_default().push(run);
            }
        }
        let is_known = |runs: &[&Run]| !runs.iter().any(|run| is_excused(facts, run, self.grace_us()));
        let twice = effects.iter().filter(|(_, runs)| runs.len() > 1 && is_known(runs));
        let said = |runs: &[&Run]| runs.iter().map(|run| format!("{}/{}", run.turn, run.position)).collect::<Vec<_>>();
        twice
            .map(|((_, key), runs)| format!("the effect {key} took place {} times: {:?}", runs.len(), said(runs)))
            .collect()
    }

    /// Of posts about one lot in one session, those that took effect beside another: each forbids what it sets.
    fn posted_twice(&self, facts: &Facts) -> Vec<String> {
        /// Tenant, session and key.
        type Lot<'a> = (&'a str, &'a str, u32);
        // A Redis that has lost something may have lost a fact, or that a call was under way.
        if self.has_forgotten || !facts.lost.is_empty() {
            return Vec::new();
        }
        let mut posts: BTreeMap<Lot<'_>, BTreeSet<(&str, usize)>> = BTreeMap::new();
        for run in facts.runs.iter().filter(|run| run.effect_us.is_some()) {
            if let (Some(("post", key)), Some(made)) = (tool_of(facts, run), facts.turns.get(&run.turn)) {
                let tenant = run.turn.split(':').next().unwrap_or_default();
                posts.entry((tenant, &made.session, key)).or_default().insert((&run.turn, run.position));
            }
        }
        let twice = posts.into_iter().filter(|(_, calls)| calls.len() > 1);
        twice.map(|((_, session, key), calls)| format!("in {session}, {key} was posted by {calls:?}")).collect()
    }

    /// What must hold at the end.
    pub(super) fn ungoverned(&self) -> Vec<String> {
        let Some(governed) = &self.settings.governed else { return Vec::new() };
        let facts = self.world.facts();
        let mut wrong = Vec::new();
        for run in &facts.runs {
            match tool_of(&facts, run) {
                Some(("wire", _)) => wrong.extend(unagreed(&facts, run, governed.quorum_min())),
                Some(("spend", _)) => {
                    let takes_ms = facts.turns.get(&run.turn).and_then(|made| made.takes_ms.get(run.position));
                    if takes_ms.is_some_and(|ms| *ms > governed.spends_ms().1) {
                        wrong.push(format!("{}/{} ran, and no rule allows that", run.turn, run.position));
                    }
                }
                Some(("post", _)) => wrong.extend(self.forbidden(&facts, run)),
                _ => {}
            }
        }
        wrong.extend(self.posted_twice(&facts));
        let missed = self.governed.missed.iter();
        wrong.extend(missed.filter_map(|(name, position, at_us)| self.wrongly_missed(&facts, name, *position, *at_us)));
        wrong
    }

    /// Whether Redis may have forgotten what was so between two times, µs.
    fn may_have_lost(&self, facts: &Facts, from_us: i64, to_us: i64) -> bool {
        self.has_forgotten || facts.lost.iter().any(|(_, to)| (from_us..=to_us).contains(to))
    }

    /// A run of a call that was forbidden in its session before it began.
    fn forbidden(&self, facts: &Facts, run: &Run) -> Option<String> {
        let session = |name: &str| Some((name.split(':').next()?.to_owned(), facts.turns.get(name)?.session.clone()));
        // It is decided about once: another try of it is not judged again.
        let tries = facts.runs.iter().filter(|other| (&other.turn, other.position) == (&run.turn, run.position));
        let began_us = tries.map(|other| other.began_us).min()?;
        let mut set = self.governed.ended_well.iter().filter(|((name, position), at_us)| {
            let tool = facts.turns.get(name).and_then(|made| made.tools.get(*position));
            tool.is_some_and(|tool| tool == "mail") && **at_us < began_us && session(name) == session(&run.turn)
        });
        let ((name, position), at_us) = set.next()?;
        let is_known = !self.may_have_lost(facts, facts.turns.get(name)?.sent_us?, began_us) && *at_us < began_us;
        is_known.then(|| format!("{}/{} ran, and {name}/{position} forbids it", run.turn, run.position))
    }

    /// A call that was denied for want of a fact, though a call that came before it has set that, or was about to.
    fn wrongly_missed(&self, facts: &Facts, name: &str, position: usize, at_us: i64) -> Option<String> {
        let made = facts.turns.get(name)?;
        let (sent_us, key, tenant) = (made.sent_us?, made.keys.get(position)?, name.split(':').next()?);
        let of_us = |(other, at): &(Name, usize)| {
            let opener = facts.turns.get(other)?;
            let is_it = opener.tools.get(*at)? == "open"
                && opener.keys.get(*at)? == key
                && opener.session == made.session
                && other.split(':').next()? == tenant;
            let came_first = if other == name { *at < position } else { opener.accepted_us? < sent_us };
            (is_it && came_first).then_some(opener.sent_us?)
        };
        let found = self.governed.ended_well.keys().find_map(|call| Some((call, of_us(call)?)));
        let ((other, at), since_us) = found?;
        let is_known = !self.may_have_lost(facts, since_us, at_us);
        is_known.then(|| {
            format!("{name}/{position} is denied for want of what {other}/{at}, which came before it, has set")
        })
    }
}

/// How many calls that are equal to a poll have run.
fn polled(facts: &Facts, name: &str, position: usize) -> usize {
    let who = |name: &str| Some((name.split(':').next()?.to_owned(), facts.turns.get(name)?.agent.clone()));
    let key = facts.turns.get(name).and_then(|made| made.keys.get(position).copied());
    let equal = facts.runs.iter().filter(|run| {
        let is_poll = tool_of(facts, run).is_some_and(|(tool, of)| tool == "poll" && Some(of) == key);
        is_poll && who(&run.turn) == who(name) && run.end != End::Running
    });
    equal.map(|run| (run.turn.as_str(), run.position)).collect::<BTreeSet<_>>().len()
}

/// A run that fewer people had agreed to before it began than have to, or that one had denied.
fn unagreed(facts: &Facts, run: &Run, quorum: usize) -> Option<String> {
    let mut of: BTreeMap<&str, Vec<&Vote>> = BTreeMap::new();
    let about = |vote: &&Vote| vote.turn == run.turn && vote.position == run.position && !vote.is_refused;
    for vote in facts.votes.iter().filter(about) {
        of.entry(&vote.approval).or_default().push(vote);
    }
    let agreed = of.values().map(|votes| {
        let denies = |vote: &&&Vote| !vote.agrees && vote.counts_us.is_some_and(|at| at < run.began_us);
        // Redis may have lost that it was denied.
        let is_denied = facts.lost.is_empty() && votes.iter().any(|vote| denies(&vote));
        let agree = votes.iter().filter(|vote| vote.agrees && vote.at_us <= run.began_us).map(|vote| vote.who);
        if is_denied { 0 } else { agree.collect::<BTreeSet<_>>().len() }
    });
    let most = agreed.max().unwrap_or(0);
    (most < quorum).then(|| format!("{}/{} ran, and {most} of {quorum} had agreed to it", run.turn, run.position))
}
