//! `tickfleet whatif`: what of recorded traffic another policy would have decided otherwise.

mod guards;
mod shown;
mod sort;

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Seek as _, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use scheduler::policy::stagger_ms;
use serde::Serialize;
use tickfleet_client::audit::{Export, ExportError, ExportRange, Resume};
use tickfleet_engine::time::counter_stagger_ms;
use tickfleet_model::TenantId;
use tickfleet_proof::lines::{FORMAT, Header, Line};
use tickfleet_proof::whatif::recorded::{Operated, Read, Recorded};
use tickfleet_proof::whatif::replay::{Fleet, Replay};
use tickfleet_proof::whatif::turns::Turn;
use tickfleet_proof::whatif::{Difference, Summary};

use crate::commands::whatif::guards::Guards;
use crate::commands::whatif::sort::Sorter;
use crate::failure::Failure;
use crate::global::Global;
use crate::output::Output;
use crate::output::time_format::Past;
use crate::setup::{Setup, now_ms};

/// Differences that are printed; a file gets all of them.
const PRINTED_MAX: usize = 100;
/// Differences that are in the JSON.
const KEPT_MAX: usize = 10_000;
/// Calls of one turn that are looked at together.
const CALLS_MAX: usize = 1_000;
/// Resets of counters that are followed, and pauses.
const OPERATED_MAX: usize = 100_000;

/// Decide recorded calls anew by another policy: who would have been denied, refused, asked or delayed, and by what.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet whatif --policy new/ --audit day.jsonl
  tickfleet whatif --policy new/ --from 7d
  tickfleet whatif --policy new/ --audit day.jsonl --differences differences.jsonl

Exports are those of `tickfleet audit export`; without --audit, the log is read from Redis. The settings
audit.admissions and audit.premises have entries say how their calls were admitted, and what else decided.
What cannot be decided from the log is told, with why, and is no difference.
Exit code 0: nothing would have been decided otherwise. 1: something would, or the command failed.")]
pub(crate) struct WhatIf {
    /// The folder of the other configuration, as --config takes it.
    #[arg(long, value_name = "DIR")]
    policy: PathBuf,
    /// An export; again for another part, in whatever order. Parts may overlap.
    #[arg(long = "audit", value_name = "EXPORT")]
    exports: Vec<PathBuf>,
    /// This tenant's calls alone.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Calls that ended from this time on: 24h (ago) or 2026-03-01T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = Past::parse)]
    from: Option<Past>,
    /// And before this one.
    #[arg(long, value_name = "TIME", value_parser = Past::parse)]
    to: Option<Past>,
    /// How many slots the workers had, where the log does not say it: a limit of a part of them needs it.
    #[arg(long, value_name = "SLOTS", value_parser = clap::value_parser!(u64).range(1..))]
    slots: Option<u64>,
    /// Write every difference into this file, a line of JSON each.
    #[arg(long, value_name = "FILE")]
    differences: Option<PathBuf>,
}

/// What came of it.
#[derive(Serialize)]
pub(super) struct Told {
    pub(super) summary: Summary,
    /// The first of them.
    pub(super) differences: Vec<Difference>,
    #[serde(skip)]
    file: Option<BufWriter<File>>,
    #[serde(skip)]
    failed: Option<std::io::Error>,
}

impl Told {
    /// Tells of a difference.
    pub(super) fn tell(&mut self, difference: Difference) {
        self.summary.count(&difference);
        if let Some(file) = &mut self.file {
            let line = serde_json::to_string(&difference).unwrap_or_default();
            if let Err(error) = writeln!(file, "{line}") {
                self.failed.get_or_insert(error);
            }
        }
        if self.differences.len() < KEPT_MAX {
            self.differences.push(difference);
        }
    }
}

/// Which calls are looked at.
struct Wanted {
    tenant: Option<String>,
    from_ms: Option<i64>,
    until_ms: Option<i64>,
}

/// The calls of the log, by turn; and what else it says.
struct Gathered {
    calls: Sorter,
    operated: Operated,
    is_from_beginning: bool,
    unread: u64,
}

/// Decides anew.
///
/// # Errors
/// Something would have been decided otherwise; the configuration, a file or Redis cannot be read.
pub(crate) async fn run(args: &WhatIf, global: &Global, output: &Output) -> Result<(), Failure> {
    let other = Global { config: Some(args.policy.clone()), ..global.clone() };
    let setup = Setup::load(&other)?;
    let now_ms = now_ms();
    let wanted = Wanted {
        tenant: args.tenant.as_ref().map(ToString::to_string),
        from_ms: args.from.map(|from| from.at(now_ms)),
        until_ms: args.to.map(|until| until.at(now_ms)),
    };
    let mut gathered = Gathered {
        calls: Sorter::default(),
        operated: Operated::default(),
        is_from_beginning: wanted.from_ms.is_none(),
        unread: 0,
    };
    for path in &args.exports {
        let file = File::open(path).with_context(|| path.display().to_string()).map_err(Failure::failed)?;
        gathered.take(file, &wanted).with_context(|| path.display().to_string()).map_err(Failure::failed)?;
    }
    if args.exports.is_empty() {
        gathered.take(live(global, args, &wanted).await?, &wanted).map_err(Failure::failed)?;
    }
    let file = args.differences.as_ref().map(|path| {
        File::create(path).map(BufWriter::new).with_context(|| path.display().to_string()).map_err(Failure::failed)
    });
    let told = Told { summary: Summary::default(), differences: Vec::new(), file: file.transpose()?, failed: None };
    let told = decide(&setup, gathered, told, args.slots).await?;
    output.show(&told, |told| shown::text(told, &args.policy, PRINTED_MAX))?;
    if told.summary.differences == 0 { Ok(()) } else { Err(Failure::Told) }
}

/// The log in Redis, as an export in a file of its own.
async fn live(global: &Global, args: &WhatIf, wanted: &Wanted) -> Result<File, Failure> {
    let setup = Setup::load_beside(global)?;
    let client = setup.client().await?;
    let range = ExportRange { tenant: args.tenant.clone(), from_ms: wanted.from_ms, until_ms: wanted.until_ms };
    let header = Header { export: FORMAT, from_ms: wanted.from_ms, until_ms: wanted.until_ms, ..Header::default() };
    let mut file = tempfile::tempfile().map_err(Failure::failed)?;
    let out = BufWriter::new(file.try_clone().map_err(Failure::failed)?);
    let made = Export::new(client.stores(), range, Resume::default(), Box::new(out)).write(&header).await;
    made.map_err(|error| match error {
        ExportError::Store(error) => Failure::from(error),
        ExportError::Write(error) => Failure::failed(error),
    })?;
    file.rewind().map_err(Failure::failed)?;
    Ok(file)
}

impl Gathered {
    /// Takes the lines of an export.
    fn take(&mut self, file: File, wanted: &Wanted) -> std::io::Result<()> {
        for line in BufReader::new(file).lines() {
            let line = line?;
            match Line::read(&line) {
                Some(Line::Header(header)) => self.is_from_beginning &= header.from_ms.is_none(),
                Some(Line::Entry(entry)) => match Read::entry(&entry) {
                    Read::Call(call) => self.call(&call, &line, wanted)?,
                    Read::Reset(reset) if self.operated.resets.len() < OPERATED_MAX => {
                        self.operated.resets.push(reset);
                    }
                    Read::Pause(pause) if self.operated.pauses.len() < OPERATED_MAX => {
                        self.operated.pauses.push(pause);
                    }
                    Read::Reset(_) | Read::Pause(_) | Read::Other => {}
                },
                // What went before, its windows have counted, too.
                Some(Line::Gone(_)) => self.is_from_beginning = false,
                Some(Line::Seal(_) | Line::End(_)) => {}
                None => self.unread += u64::from(!line.trim().is_empty()),
            }
        }
        Ok(())
    }

    fn call(&mut self, call: &Recorded, line: &str, wanted: &Wanted) -> std::io::Result<()> {
        let (ended_ms, tenant) = (call.ended_ms, &call.tenant);
        if wanted.tenant.as_ref().is_some_and(|only| only != tenant)
            || wanted.from_ms.is_some_and(|from| ended_ms < from)
            || wanted.until_ms.is_some_and(|until| ended_ms >= until)
        {
            return Ok(());
        }
        let (shard, turn, position, written) = (call.shard, &call.turn, call.position, call.written_ms);
        self.calls.push(format!("{shard:05} {tenant}:{turn} {position:05} {written:020}"), line.to_owned())
    }
}

/// Decides about all calls, turn by turn; then about when they go out, in the order in which that was.
async fn decide(setup: &Setup, gathered: Gathered, mut told: Told, slots: Option<u64>) -> Result<Told, Failure> {
    let guards = Guards::new(setup)?;
    told.summary.cannot_say("lines that are none of an export", gathered.unread);
    guards.name_undecided(&mut told);
    let (operated, is_from_beginning) = (gathered.operated, gathered.is_from_beginning);
    let turns = judged(&guards, gathered.calls, &mut told).await?;
    let fleet = Fleet {
        policy: guards.policy(),
        shards: setup.settings().redis.shards,
        agent_stagger: stagger_ms,
        counter_stagger: counter_stagger_ms,
        slots,
    };
    let told = RefCell::new(told);
    let tell = |difference| told.borrow_mut().tell(difference);
    let mut replay = Replay::new(fleet, &operated, is_from_beginning, tell);
    let mut lines = turns.sorted().map_err(Failure::failed)?;
    while let Some(line) = lines.next().map_err(Failure::failed)? {
        replay.turn(serde_json::from_str(&line).map_err(Failure::failed)?);
    }
    let not_decidable = replay.finish().not_decidable;
    let mut told = told.into_inner();
    not_decidable.iter().for_each(|(why, calls)| told.summary.cannot_say(why, *calls));
    if let Some(mut file) = told.file.take() {
        file.flush().map_err(Failure::failed)?;
    }
    told.failed.take().map_or(Ok(told), |error| Err(Failure::failed(error)))
}

/// Has the guards judge all calls; answers the turns that these are of, by when the first of each was decided.
async fn judged(guards: &Guards, calls: Sorter, told: &mut Told) -> Result<Sorter, Failure> {
    let mut turns = Sorter::default();
    let mut lines = calls.sorted().map_err(Failure::failed)?;
    let mut group: Vec<Recorded> = Vec::new();
    loop {
        let call = lines.next().map_err(Failure::failed)?.map(|line| recorded(&line));
        if let Some(Some(next)) = &call
            && is_of(&group, next)
        {
            // Parts of an export may overlap.
            let is_twice = |last: &Recorded| (last.position, last.written_ms) == (next.position, next.written_ms);
            if !group.last().is_some_and(is_twice) {
                group.push(next.clone());
            }
            continue;
        }
        for call in &group {
            guards.judge(call, told).await;
        }
        if let Some(turn) = Turn::of(&group) {
            let line = serde_json::to_string(&turn).map_err(Failure::failed)?;
            turns.push(format!("{:020}", turn.at_ms().unwrap_or(0)), line).map_err(Failure::failed)?;
        }
        group.clear();
        match call {
            Some(next) => group.extend(next),
            None => return Ok(turns),
        }
    }
}

/// Whether a call is of the same turn as these.
fn is_of(group: &[Recorded], call: &Recorded) -> bool {
    let name = |call: &Recorded| (call.shard, call.tenant.clone(), call.turn.clone());
    group.len() < CALLS_MAX && group.first().is_none_or(|first| name(first) == name(call))
}

fn recorded(line: &str) -> Option<Recorded> {
    match Line::read(line)? {
        Line::Entry(entry) => match Read::entry(&entry) {
            Read::Call(call) => Some(*call),
            Read::Reset(_) | Read::Pause(_) | Read::Other => None,
        },
        _ => None,
    }
}
