//! `tickfleet prove`: proves guarantees from exports of the audit log, without Redis.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;
use tickfleet_proof::prove::{Proof, Prover};
use tickfleet_proof::report::markdown;
use tickfleet_proof::verify::ExportVerdict;

use crate::commands::audit::verify::{References, at, verified};
use crate::failure::Failure;
use crate::output::Output;
use crate::output::time_format::Deadline;

/// Prove from audit exports that no cap was exceeded, no call has two results and no effect ran twice.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet prove day.jsonl
  tickfleet prove --from 2026-03-01T00:00:00Z --to 2026-04-01T00:00:00Z --report march.md march-*.jsonl

Caps can be checked only if the setting audit.admissions was on.
Exit code 1: a guarantee does not hold, or the export differs from the log as it was written.")]
pub(crate) struct Prove {
    /// Exports of `tickfleet audit export`, in order, without overlaps.
    #[arg(required = true, value_name = "EXPORT")]
    exports: Vec<PathBuf>,
    /// Only calls that ended since this time.
    #[arg(long, value_name = "TIME", value_parser = Deadline::parse)]
    from: Option<Deadline>,
    /// Only calls that ended before this time.
    #[arg(long, value_name = "TIME", value_parser = Deadline::parse)]
    to: Option<Deadline>,
    /// Write the report as Markdown to this file. If missing, it is printed.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    against: References,
}

#[derive(Serialize)]
struct ProofOutput<'a> {
    proof: &'a Proof,
    verdict: &'a ExportVerdict,
}

pub(crate) async fn run(args: &Prove, output: &Output) -> Result<(), Failure> {
    let mut prover = Prover::new(at(args.from, "--from")?, at(args.to, "--to")?);
    let anchors = args.against.anchors().await?;
    let verdict = verified(&args.exports, &args.against, &anchors, &mut |line| prover.line(line))?;
    let proof = prover.finish();
    let report = markdown(&proof, &verdict);
    match &args.report {
        Some(path) => {
            std::fs::write(path, &report).with_context(|| path.display().to_string()).map_err(Failure::failed)?;
            output.note(&format!("The report is in {}.", path.display()));
            if output.json() {
                output.data(&ProofOutput { proof: &proof, verdict: &verdict })?;
            }
        }
        None => output.show(&ProofOutput { proof: &proof, verdict: &verdict }, |_| report)?,
    }
    if proof.holds && verdict.intact { Ok(()) } else { Err(Failure::Reported) }
}
