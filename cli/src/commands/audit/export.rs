//! Exports the audit log with its seals.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, BufWriter, Write};
use std::path::PathBuf;

use clap::Args;
use tickfleet_client::audit::{Export, ExportError, ExportRange, ExportResume};
use tickfleet_model::TenantId;
use tickfleet_proof::lines::{FORMAT, Header, Line, TenantFacts};
use tickfleet_store::Store;

use super::follow::{self, Destination, Follow};
use crate::failure::Failure;
use crate::output::Output;
use crate::output::time_format::TimeArg;
use crate::setup::Setup;

/// Export entries and seals as JSON lines, for `verify` and `prove`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// Only entries of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Only entries since this time: 24h (ago) or 2026-03-01T12:00:00Z. Starts at a seal; `verify --anchors-from`
    /// takes the same time.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    since: Option<TimeArg>,
    /// Only entries before this time.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    until: Option<TimeArg>,
    /// Output file. If missing, standard output. An existing file is continued at its end.
    #[arg(long, value_name = "TO")]
    to: Option<Destination>,
    #[command(flatten)]
    pub(super) follow: Follow,
}

pub(super) async fn run(setup: &Setup, args: &ExportArgs, output: &Output) -> Result<(), Failure> {
    if let Some(to) = args.to.as_ref().filter(|_| args.follow.follow) {
        let header = Header {
            export: FORMAT,
            fleet: setup.settings().redis.namespace.clone(),
            dedupe_ms: setup.store_options().dedupe_ms,
            tenants: tenants(setup, None),
            ..Header::default()
        };
        return follow::run(setup, &args.follow, to, header).await;
    }
    let client = setup.client().await?;
    let Some(first) = client.stores().first() else { return Ok(()) };
    let made_ms = first.now_ms().await?;
    let range = ExportRange {
        tenant: args.tenant.clone(),
        from_ms: args.since.map(|since| since.at(made_ms)),
        until_ms: args.until.map(|until| until.at(made_ms)),
    };
    let header = header(setup, client.stores(), &range, made_ms).await?;
    let (resume, out): (ExportResume, Box<dyn Write>) = match &args.to {
        None | Some(Destination::Stdout) => (ExportResume::default(), Box::new(std::io::stdout().lock())),
        Some(Destination::Otlp(_)) => return Err(Failure::usage("--to otlp:… requires --follow")),
        Some(Destination::File(path)) => {
            let failed = |error: anyhow::Error| Failure::failed(error.context(path.display().to_string()));
            let (resume, kept, file) = opened(path).map_err(|error| failed(error.into()))?;
            resume.check(client.stores(), &header).await.map_err(|error| match error {
                ExportError::Store(error) => Failure::from(error),
                other => failed(other.into()),
            })?;
            let file = cut(file, kept).map_err(|error| failed(error.into()))?;
            (resume, Box::new(BufWriter::new(file)))
        }
    };
    let made = Export::new(client.stores(), range, resume, out).write(&header).await.map_err(|error| match error {
        ExportError::Store(error) => Failure::from(error),
        other => Failure::failed(other),
    })?;
    output.note(&format!("{} entries and {} seals were exported.", made.entries, made.seals));
    Ok(())
}

pub(crate) async fn header(
    setup: &Setup,
    stores: &[Store],
    range: &ExportRange,
    made_ms: i64,
) -> Result<Header, Failure> {
    let mut keys = BTreeMap::new();
    for store in stores {
        keys.extend(store.seal_keys().await?);
    }
    Ok(Header {
        export: FORMAT,
        fleet: setup.settings().redis.namespace.clone(),
        made_ms,
        from_ms: range.from_ms,
        until_ms: range.until_ms,
        tenant: range.tenant.as_ref().map(ToString::to_string),
        keys,
        dedupe_ms: setup.store_options().dedupe_ms,
        tenants: tenants(setup, range.tenant.as_ref()),
        ..Header::default()
    })
}

/// With these facts, `prove` checks that no cap was exceeded.
fn tenants(setup: &Setup, only: Option<&TenantId>) -> BTreeMap<String, TenantFacts> {
    let active = setup.active().load();
    let policy = &active.policy;
    let wanted = policy.tenants.iter().filter(|(tenant, _)| only.is_none_or(|only| only == *tenant));
    let facts = wanted.map(|(tenant, owner)| {
        let day_cap = owner.max_actions_per_day.map(u64::from);
        (tenant.to_string(), TenantFacts { time_zone: policy.time_zone(owner).to_owned(), day_cap })
    });
    facts.collect()
}

const BEGINS: &str = "{\"export\":";

/// Returns the length of the complete lines in bytes. Leaves the file unchanged on an error.
fn opened(path: &PathBuf) -> std::io::Result<(ExportResume, u64, std::fs::File)> {
    let other = |why: String| std::io::Error::other(format!("nothing was exported: {why}; write to another file"));
    let file = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut resume = ExportResume::default();
    let mut kept = 0_u64;
    let mut number = 0_u64;
    let mut line = String::new();
    let mut reader = BufReader::new(&file);
    while reader.read_line(&mut line)? > 0 {
        number += 1;
        let is_whole = line.ends_with('\n');
        let is_taken = is_whole && resume.take(line.trim_end());
        if !resume.has_header() && (is_whole || !BEGINS.starts_with(&line) && !line.starts_with(BEGINS)) {
            return Err(other("it is not an export".to_owned()));
        }
        if !is_taken {
            // The export may replace an incomplete last line, and the end line of a finished export.
            if is_whole && !(is_end(&line) && reader.fill_buf()?.is_empty()) {
                return Err(other(format!("line {number} is not from an export that can continue")));
            }
            break;
        }
        kept += line.len() as u64;
        line.clear();
    }
    Ok((resume, kept, file))
}

fn is_end(line: &str) -> bool {
    matches!(Line::read(line.trim_end()), Some(Line::End(_)))
}

fn cut(mut file: std::fs::File, kept: u64) -> std::io::Result<std::fs::File> {
    use std::io::Seek as _;
    file.set_len(kept)?;
    file.seek(std::io::SeekFrom::End(0))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_proof::lines::{self, End};

    use super::*;

    #[tokio::test]
    async fn a_foreign_or_non_export_file_is_rejected_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("march.jsonl");
        let ours = Header { fleet: "south".into(), keys: [("k1".into(), "A".into())].into(), ..Header::default() };
        let header = |change: &dyn Fn(&mut Header)| {
            let mut header = ours.clone();
            change(&mut header);
            format!("{}\n", lines::header(&header))
        };
        let good = header(&|_| ());
        let end = format!("{}\n", lines::end(End::default()));
        for (text, why) in [
            (header(&|header| header.fleet = "north".into()), "the fleet \"north\", and this one is of \"south\""),
            (header(&|header| header.tenant = Some("acme".into())), "the tenant \"acme\", and this one is of \"all\""),
            (
                header(&|header| header.keys = [("k1".into(), "B".into())].into()),
                "keys that this fleet does not have (k1)",
            ),
            ("notes of somebody\n".to_owned(), "it is not an export"),
            ("notes without an end of line".to_owned(), "it is not an export"),
            (format!("{}\n", lines::entry(0, "1-1", "", "{}")), "it is not an export"),
            (format!("{good}notes\n"), "line 2 is not from an export"),
            (format!("{good}{end}notes\n"), "line 2 is not from an export"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = match opened(&path) {
                Ok((resume, _, _)) => resume.check(&[], &ours).await.unwrap_err().to_string(),
                Err(error) => error.to_string(),
            };
            assert!(error.contains(why), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        for (text, kept) in [
            (String::new(), 0),
            ("{\"exp".to_owned(), 0),
            (good[..20].to_owned(), 0),
            (good.clone(), good.len()),
            (format!("{good}{end}"), good.len()),
            (format!("{good}{{\"shard"), good.len()),
        ] {
            std::fs::write(&path, &text).unwrap();
            let (resume, whole, _) = opened(&path).unwrap();
            resume.check(&[], &ours).await.unwrap();
            assert_eq!(whole, kept as u64, "{text}");
        }
    }
}
