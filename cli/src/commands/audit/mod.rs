//! `tickfleet audit`: searches the audit log, exports it with its seals, and verifies an export.

pub(crate) mod export;
pub(crate) mod follow;
pub(crate) mod key;
mod search;
pub(crate) mod verify;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// Search the audit log, export it, or verify an export.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet audit search --tenant demo --outcome denied --since 2h
  tickfleet audit export --tenant demo --since 2026-03-01T00:00:00Z --to march.jsonl
  tickfleet audit verify march.jsonl --tenant demo --anchors-from 2026-03-01T00:00:00Z \\
    --anchors anchors.jsonl --key seal-1=PUBLICKEY
  tickfleet audit export --follow --to file:/var/log/tickfleet/audit.jsonl
  tickfleet audit export --follow --to otlp:http://collector:4318
  tickfleet audit key --new /etc/tickfleet/seal.key

Exit code 1 of verify: the export differs from the log as it was written.")]
pub(crate) struct Audit {
    #[command(subcommand)]
    pub(crate) command: AuditCommand,
}

impl Audit {
    pub(crate) const fn follows(&self) -> bool {
        matches!(&self.command, AuditCommand::Export(args) if args.follow.follow)
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Search entries, the newest first, and print how far the search went.
    Search(search::Search),
    /// Export entries and seals as JSON lines, for `verify` and `prove`.
    Export(export::ExportArgs),
    /// Verify an export offline: report entries that were edited, removed, inserted or reordered after sealing, or
    /// truncated.
    Verify(verify::Verify),
    /// Print the public key of the signing key, or create a signing key.
    Key(key::Key),
}

pub(crate) async fn run(setup: &Setup, args: &Audit, output: &Output) -> Result<(), Failure> {
    match &args.command {
        AuditCommand::Search(args) => search::run(setup, args, output).await,
        AuditCommand::Export(args) => export::run(setup, args, output).await,
        AuditCommand::Verify(args) => verify::run(args, output).await,
        AuditCommand::Key(_) => key::show(setup, output),
    }
}
