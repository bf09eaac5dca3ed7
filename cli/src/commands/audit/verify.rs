//! Verifies an export, without Redis.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use tickfleet_model::TenantId;
use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::verify::{Expected, ExportVerdict, Verifier};
use tickfleet_store::Pool;

use crate::failure::Failure;
use crate::output::Output;
use crate::output::time_format::Deadline;

/// References for the verification.
#[derive(Debug, Args)]
pub(crate) struct References {
    /// Anchored hashes: the file of `seal.anchor`, a log with its lines, or stream:KEY of --anchor-redis.
    #[arg(long, value_name = "FILE|stream:KEY")]
    anchors: Option<String>,
    /// URL of the Redis that holds the stream of `seal.anchor`.
    #[arg(long, value_name = "URL", env = "TICKFLEET_ANCHOR_REDIS", hide_env_values = true)]
    anchor_redis: Option<String>,
    /// Trusted public key, as ID=KEY (see `tickfleet audit key`). Repeatable.
    #[arg(long = "key", value_name = "ID=KEY")]
    keys: Vec<String>,
    /// Ignore anchors after this time, if the export is older than the anchors.
    #[arg(long, value_name = "TIME", value_parser = Deadline::parse)]
    anchors_until: Option<Deadline>,
    /// Expect everything sealed since this time, and nothing older, if the log or the export begins there.
    #[arg(long, value_name = "TIME", value_parser = Deadline::parse)]
    anchors_from: Option<Deadline>,
    /// Namespace (redis.namespace) of the export's fleet. Seals and anchors of other fleets are ignored. If missing,
    /// the fleet that the seals name.
    #[arg(long, value_name = "NAME")]
    fleet: Option<String>,
    /// The export contains only this tenant: anchors of other tenants are ignored.
    #[arg(long, value_name = "TENANT")]
    tenant: Option<TenantId>,
    /// Earlier parts of the export are absent, which is not an error.
    #[arg(long)]
    partial: bool,
}

/// Verify an export offline: report entries that were edited, removed, inserted or reordered after sealing, or
/// truncated.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    /// Parts of the export, in order.
    #[arg(required = true, value_name = "EXPORT")]
    exports: Vec<PathBuf>,
    #[command(flatten)]
    against: References,
}

pub(crate) async fn run(args: &Verify, output: &Output) -> Result<(), Failure> {
    let anchors = args.against.anchors().await?;
    let mut nothing = |_: &str| {};
    let verdict = verified(&args.exports, &args.against, &anchors, &mut nothing)?;
    output.show(&verdict, verdict_text)?;
    if verdict.intact { Ok(()) } else { Err(Failure::Reported) }
}

impl References {
    /// Anchors are seal hashes that were stored outside the fleet. Fails if the given place contains none.
    pub(crate) async fn anchors(&self) -> Result<Vec<Anchor>, Failure> {
        let Some(place) = &self.anchors else { return Ok(Vec::new()) };
        let mut anchors = Vec::new();
        match place.strip_prefix("stream:") {
            None => for_each_line(Path::new(place), &mut |line| anchors.extend(Anchor::read(line)))?,
            Some(stream) => {
                let url = self.anchor_redis.as_deref();
                let url = url.ok_or_else(|| Failure::usage("--anchors stream:KEY needs --anchor-redis URL"))?;
                let lines = Pool::open(url, 1)?.anchors(stream).await?;
                anchors.extend(lines.iter().filter_map(|line| Anchor::read(line)));
            }
        }
        match anchors.is_empty() {
            true => Err(Failure::failed(anyhow::anyhow!("{place}: no anchors found"))),
            false => Ok(anchors),
        }
    }
}

pub(crate) fn verified(
    exports: &[PathBuf],
    against: &References,
    anchors: &[Anchor],
    also: &mut dyn FnMut(&str),
) -> Result<ExportVerdict, Failure> {
    let mut keys = BTreeMap::new();
    for key in &against.keys {
        let (id, key) = key.split_once('=').ok_or_else(|| Failure::usage(format!("--key {key:?}: expected ID=KEY")))?;
        keys.insert(id.to_owned(), key.to_owned());
    }
    let until_ms = at(against.anchors_until, "--anchors-until")?;
    let expected = Expected {
        fleet: against.fleet.clone(),
        tenant: against.tenant.as_ref().map(ToString::to_string),
        partial: against.partial,
        anchors_from_ms: at(against.anchors_from, "--anchors-from")?,
    };
    let mut verifier = Verifier::new(keys).expecting(expected);
    for path in exports {
        for_each_line(path, &mut |line| {
            verifier.line(line);
            also(line);
        })?;
    }
    Ok(verifier.finish(anchors, until_ms))
}

/// In milliseconds. Fails if the value is a duration, not a time.
pub(crate) fn at(time: Option<Deadline>, option: &str) -> Result<Option<i64>, Failure> {
    match time {
        None => Ok(None),
        Some(Deadline::At(ms)) => Ok(Some(ms)),
        Some(Deadline::In(_)) => Err(Failure::usage(format!("{option}: expected a time (2026-03-01T12:00:00Z)"))),
    }
}

/// Replaces invalid UTF-8, so such a line no longer matches its seal.
fn for_each_line(path: &Path, take: &mut dyn FnMut(&str)) -> Result<(), Failure> {
    let read = || -> std::io::Result<()> {
        let mut reader = BufReader::with_capacity(1 << 20, File::open(path)?);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            take(String::from_utf8_lossy(&line).trim_end_matches(['\n', '\r']));
            line.clear();
        }
        Ok(())
    };
    let mut read = read;
    read().with_context(|| path.display().to_string()).map_err(Failure::failed)
}

/// The JSON output can have more findings.
const SHOWN_MAX: usize = 100;

pub(crate) fn verdict_text(verdict: &ExportVerdict) -> String {
    let mut text = if verdict.intact { "Intact.".to_owned() } else { "NOT as it was written.".to_owned() };
    text += &format!(
        " {} entries: {} sealed, {} not yet; {} seals.\n",
        verdict.entries, verdict.sealed, verdict.unsealed, verdict.seals
    );
    for finding in verdict.findings.iter().take(SHOWN_MAX) {
        text += &format!("  {finding}\n");
    }
    let more = verdict.findings.len().saturating_sub(SHOWN_MAX) as u64 + verdict.more_findings;
    if more > 0 {
        text += &format!("  and {more} more\n");
    }
    for note in &verdict.notes {
        text += &format!("  note: {note}\n");
    }
    text
}
