//! `tickfleet whatif`: lists the decisions about recorded traffic that another policy would change.

mod guards;
mod text;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Seek as _, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tickfleet_client::audit::{Export, ExportError, ExportRange, ExportResume};
use tickfleet_engine::rules::stagger_ms;
use tickfleet_engine::time::counter_stagger_ms;
use tickfleet_model::TenantId;
use tickfleet_proof::lines::{FORMAT, Header, Line};
use tickfleet_proof::whatif::facts::FactTurn;
use tickfleet_proof::whatif::facts::replay::FactReplay;
use tickfleet_proof::whatif::recorded::{LogStart, OperatorActions, RecordedCall, RecordedEntry};
use tickfleet_proof::whatif::replay::{Fleet, Replay};
use tickfleet_proof::whatif::turns::Turn;
use tickfleet_proof::whatif::{Difference, Summary};

use crate::commands::whatif::guards::Guards;
use crate::failure::Failure;
use crate::global::Global;
use crate::output::Output;
use crate::output::time_format::TimeArg;
use crate::setup::{Setup, now_ms};

/// Further differences are written only to the file of `--differences`.
const PRINTED_MAX: usize = 100;
const DIFFERENCES_MAX: usize = 10_000;
/// Calls of one turn that are evaluated together.
const CALLS_MAX: usize = 1_000;
const OPERATED_MAX: usize = 100_000;

/// Evaluate recorded calls against another policy and list the differences.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet whatif --policy new/ --audit day.jsonl
  tickfleet whatif --policy new/ --from 7d
  tickfleet whatif --policy new/ --audit day.jsonl --differences differences.jsonl

Exports come from `tickfleet audit export`; without --audit, the command reads the log from Redis. Set
audit.admissions and audit.policy_inputs so that entries contain the inputs of each decision. Calls that cannot be
evaluated from the log are reported with the reason and do not count as differences.
Exit code 0: no differences. 1: differences, or the command failed.")]
pub(crate) struct WhatIf {
    /// Folder of the other configuration.
    #[arg(long, value_name = "DIR")]
    policy: PathBuf,
    /// Audit export. Repeatable, in any order; parts can overlap.
    #[arg(long = "audit", value_name = "EXPORT")]
    exports: Vec<PathBuf>,
    /// Only calls of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Only calls that ended since this time: 24h (ago) or 2026-03-01T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    from: Option<TimeArg>,
    /// Only calls that ended before this time.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    to: Option<TimeArg>,
    /// Worker slots. Limits on a share of the slots need it.
    #[arg(long, value_name = "SLOTS", value_parser = clap::value_parser!(u64).range(1..))]
    slots: Option<u64>,
    /// Write all differences to this file, as JSON lines.
    #[arg(long, value_name = "FILE")]
    differences: Option<PathBuf>,
}

#[derive(Serialize)]
pub(super) struct Evaluation {
    pub(super) summary: Summary,
    pub(super) differences: Vec<Difference>,
    #[serde(skip)]
    file: Option<BufWriter<File>>,
    #[serde(skip)]
    failed: Option<std::io::Error>,
}

impl Evaluation {
    pub(super) fn add_difference(&mut self, difference: Difference) {
        self.summary.count(&difference);
        if let Some(file) = &mut self.file {
            let line = serde_json::to_string(&difference).unwrap_or_default();
            if let Err(error) = writeln!(file, "{line}") {
                self.failed.get_or_insert(error);
            }
        }
        if self.differences.len() < DIFFERENCES_MAX {
            self.differences.push(difference);
        }
    }
}

struct CallFilter {
    tenant: Option<String>,
    from_ms: Option<i64>,
    until_ms: Option<i64>,
}

impl CallFilter {
    fn selects(&self, call: &RecordedCall) -> bool {
        self.tenant.as_ref().is_none_or(|only| *only == call.tenant)
            && self.from_ms.is_none_or(|from| call.ended_ms >= from)
            && self.until_ms.is_none_or(|until| call.ended_ms < until)
    }
}

#[derive(Default)]
struct RecordedLog {
    calls: Vec<RecordedCall>,
    operated: OperatorActions,
    parts: Vec<ExportPart>,
    began: LogStart,
    /// In milliseconds since the epoch.
    first_ms: Option<i64>,
    one_tenant: bool,
    unread: u64,
}

#[derive(Default)]
struct ExportPart {
    all_ms: Option<i64>,
    shards: BTreeMap<u32, i64>,
}

pub(crate) async fn run(args: &WhatIf, global: &Global, output: &Output) -> Result<(), Failure> {
    let other = Global { config: Some(args.policy.clone()), ..global.clone() };
    let setup = Setup::load(&other)?;
    let now_ms = now_ms();
    let filter = CallFilter {
        tenant: args.tenant.as_ref().map(ToString::to_string),
        from_ms: args.from.map(|from| from.at(now_ms)),
        until_ms: args.to.map(|until| until.at(now_ms)),
    };
    let mut log = RecordedLog { one_tenant: filter.tenant.is_some(), ..RecordedLog::default() };
    filter.from_ms.into_iter().for_each(|from_ms| log.began.cut(from_ms));
    for path in &args.exports {
        let file = File::open(path).with_context(|| path.display().to_string()).map_err(Failure::failed)?;
        log.take(file, &filter).with_context(|| path.display().to_string()).map_err(Failure::failed)?;
    }
    if args.exports.is_empty() {
        log.take(live(global, args, &filter).await?, &filter).map_err(Failure::failed)?;
    }
    let file = args.differences.as_ref().map(|path| {
        File::create(path).map(BufWriter::new).with_context(|| path.display().to_string()).map_err(Failure::failed)
    });
    let evaluation =
        Evaluation { summary: Summary::default(), differences: Vec::new(), file: file.transpose()?, failed: None };
    let evaluation = decide(&setup, log, evaluation, args.slots).await?;
    output.show(&evaluation, |evaluation| text::text(evaluation, &args.policy, PRINTED_MAX))?;
    if evaluation.summary.differences == 0 { Ok(()) } else { Err(Failure::Reported) }
}

async fn live(global: &Global, args: &WhatIf, filter: &CallFilter) -> Result<File, Failure> {
    let setup = Setup::load_beside(global)?;
    let client = setup.client().await?;
    let range = ExportRange { tenant: args.tenant.clone(), from_ms: filter.from_ms, until_ms: filter.until_ms };
    let header = Header { export: FORMAT, from_ms: filter.from_ms, until_ms: filter.until_ms, ..Header::default() };
    let mut file = tempfile::tempfile().map_err(Failure::failed)?;
    let out = BufWriter::new(file.try_clone().map_err(Failure::failed)?);
    let made = Export::new(client.stores(), range, ExportResume::default(), Box::new(out)).write(&header).await;
    made.map_err(|error| match error {
        ExportError::Store(error) => Failure::from(error),
        other => Failure::failed(other),
    })?;
    file.rewind().map_err(Failure::failed)?;
    Ok(file)
}

/// In milliseconds since the epoch.
fn ms_of(id: &str) -> Option<i64> {
    id.split('-').next()?.parse().ok()
}

impl ExportPart {
    fn of(header: &Header) -> Self {
        let follows = header.follows.iter().filter_map(|(shard, id)| Some((*shard, ms_of(id)?)));
        let mut shards: BTreeMap<u32, i64> = follows.collect();
        for (shard, at_ms) in &header.begins {
            let known = shards.entry(*shard).or_insert(*at_ms);
            *known = (*known).max(*at_ms);
        }
        Self { all_ms: header.from_ms, shards }
    }
}

impl RecordedLog {
    fn take(&mut self, file: File, filter: &CallFilter) -> std::io::Result<()> {
        for line in BufReader::new(file).lines() {
            let line = line?;
            match Line::read(&line) {
                Some(Line::Header(header)) => {
                    self.one_tenant |= header.tenant.is_some();
                    self.parts.push(ExportPart::of(&header));
                }
                Some(Line::Entry(entry)) => match RecordedEntry::entry(&entry) {
                    RecordedEntry::Call(call) => {
                        self.first_ms = Some(self.first_ms.map_or(call.written_ms, |at| at.min(call.written_ms)));
                        if filter.selects(&call) {
                            self.calls.push(*call);
                        }
                    }
                    RecordedEntry::Reset(reset) if self.operated.resets.len() < OPERATED_MAX => {
                        self.operated.resets.push(reset);
                    }
                    RecordedEntry::Pause(pause) if self.operated.pauses.len() < OPERATED_MAX => {
                        self.operated.pauses.push(pause);
                    }
                    RecordedEntry::Reset(_) | RecordedEntry::Pause(_) | RecordedEntry::Other => {}
                },
                // The fleet's counters include the lost entries, but the log does not. The log is complete only after
                // the gap.
                Some(Line::Lost(lost)) => {
                    let at_ms = ms_of(lost.before.as_deref().unwrap_or(&lost.after));
                    at_ms.into_iter().for_each(|at_ms| self.began.cut_shard(lost.shard, at_ms));
                }
                Some(Line::Seal(_) | Line::End(_)) => {}
                None => self.unread += u64::from(!line.trim().is_empty()),
            }
        }
        Ok(())
    }

    /// Returns the earliest start of all parts, because each later part continues an earlier one.
    fn began(&self) -> LogStart {
        let mut began = self.began.clone();
        let first = |of: &dyn Fn(&ExportPart) -> Option<i64>| {
            self.parts.iter().map(of).collect::<Option<Vec<i64>>>().and_then(|all| all.into_iter().min())
        };
        first(&|part| part.all_ms).into_iter().for_each(|at_ms| began.cut(at_ms));
        let shards: BTreeSet<u32> = self.parts.iter().flat_map(|part| part.shards.keys().copied()).collect();
        for shard in shards {
            let at_ms = first(&|part| part.all_ms.max(part.shards.get(&shard).copied()));
            at_ms.into_iter().for_each(|at_ms| began.cut_shard(shard, at_ms));
        }
        if self.parts.is_empty() {
            // Without a header, an export starts at the time of the first entry.
            self.first_ms.into_iter().for_each(|at_ms| began.cut(at_ms));
        }
        began
    }
}

async fn decide(
    setup: &Setup,
    log: RecordedLog,
    mut evaluation: Evaluation,
    slots: Option<u64>,
) -> Result<Evaluation, Failure> {
    let guards = Guards::new(setup)?;
    evaluation.summary.count_undecidable("lines that are not from an export", log.unread);
    guards.report_undecided(&mut evaluation);
    let began = log.began();
    let operated = log.operated;
    let one_tenant = log.one_tenant;
    let (turns, by_facts) = evaluate_guards(&guards, log.calls, &mut evaluation).await;
    let evaluation = evaluate_by_facts(by_facts, &began, evaluation);
    let fleet = Fleet {
        policy: guards.policy(),
        shards: setup.settings().redis.shards,
        agent_stagger: stagger_ms,
        counter_stagger: counter_stagger_ms,
        slots,
        one_tenant,
    };
    let evaluation = RefCell::new(evaluation);
    let tell = |difference| evaluation.borrow_mut().add_difference(difference);
    let mut replay = Replay::new(fleet, &operated, &began, tell);
    turns.into_iter().for_each(|turn| replay.turn(turn));
    let not_decidable = replay.finish().not_decidable;
    let mut evaluation = evaluation.into_inner();
    not_decidable.iter().for_each(|(why, calls)| evaluation.summary.count_undecidable(why, *calls));
    if let Some(mut file) = evaluation.file.take() {
        file.flush().map_err(Failure::failed)?;
    }
    evaluation.failed.take().map_or(Ok(evaluation), |error| Err(Failure::failed(error)))
}

fn evaluate_by_facts(turns: Vec<FactTurn>, began: &LogStart, evaluation: Evaluation) -> Evaluation {
    let evaluation = RefCell::new(evaluation);
    let mut replay = FactReplay::new(began, |difference| evaluation.borrow_mut().add_difference(difference));
    turns.into_iter().for_each(|turn| replay.turn(turn));
    let (by_facts, said) = replay.finish();
    let mut evaluation = evaluation.into_inner();
    evaluation.summary.by_facts = by_facts;
    said.not_decidable.iter().for_each(|(why, calls)| evaluation.summary.count_undecidable(why, *calls));
    evaluation
}

/// The first list has all turns, sorted by the time of admission. The second list has the turns that depend on facts,
/// sorted by the time when the facts first matter.
async fn evaluate_guards(
    guards: &Guards,
    mut calls: Vec<RecordedCall>,
    evaluation: &mut Evaluation,
) -> (Vec<Turn>, Vec<FactTurn>) {
    calls.sort_by(|one, other| in_order(one).cmp(&in_order(other)));
    // Parts of an export can overlap, so a call can occur twice.
    calls.dedup_by(|one, other| in_order(one) == in_order(other));
    let mut turns = Vec::new();
    let mut by_facts = Vec::new();
    let is_of_turn = |one: &RecordedCall, other: &RecordedCall| {
        (one.shard, &one.tenant, &one.turn) == (other.shard, &other.tenant, &other.turn)
    };
    for group in calls.chunk_by(is_of_turn).flat_map(|turn| turn.chunks(CALLS_MAX)) {
        by_facts.extend(guards.evaluate_turn(group, evaluation).await);
        turns.extend(Turn::of(group));
    }
    turns.sort_by_key(Turn::at_ms);
    by_facts.sort_by_key(|turn| turn.at_ms);
    (turns, by_facts)
}

fn in_order(call: &RecordedCall) -> (u32, &str, &str, usize, i64) {
    (call.shard, &call.tenant, &call.turn, call.position, call.written_ms)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::io::Write as _;

    use super::*;

    fn began(exports: &[&[&str]]) -> (i64, i64) {
        let mut log = RecordedLog::default();
        for lines in exports {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(lines.join("\n").as_bytes()).unwrap();
            file.rewind().unwrap();
            log.take(file, &CallFilter { tenant: None, from_ms: None, until_ms: None }).unwrap();
        }
        (log.began().of(0), log.began().of(1))
    }

    #[test]
    fn the_start_of_a_complete_log_is_found_per_shard() {
        let all = i64::MIN;
        let first = r#"{"export":1,"fleet":"f","made_ms":9}"#;
        let since = r#"{"export":1,"fleet":"f","made_ms":9,"from_ms":500}"#;
        let follows = r#"{"export":1,"fleet":"f","made_ms":9,"follows":{"0":"700-3","1":"800-0"}}"#;
        let trimmed = r#"{"export":1,"fleet":"f","made_ms":9,"begins":{"1":300}}"#;
        assert_eq!(began(&[&[first]]), (all, all));
        assert_eq!(began(&[&[since]]), (500, 500));
        assert_eq!(began(&[&[trimmed]]), (all, 300));
        assert_eq!(began(&[&[follows]]), (700, 800));
        assert_eq!(began(&[&[follows], &[trimmed]]), (all, 300));
        assert_eq!(began(&[&[since], &[first]]), (all, all));
        let gone = r#"{"lost":{"shard":0,"entries":3,"counted":9,"after":"100-0","before":"900-1"}}"#;
        assert_eq!(began(&[&[first, gone]]), (900, all));
    }
}
