//! The commands of verbs: their arguments are the verb's request and the operator's name.

use std::fmt::Debug;

use clap::Args;
use tickfleet_client::verbs::{OperatorVerb, Reason};

use crate::commands::operate::audit_note::By;
use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

#[derive(Debug, Args)]
pub(crate) struct VerbArgs<V: Args + Debug> {
    #[command(flatten)]
    request: V,
    #[command(flatten)]
    by: By,
}

/// The options of a command that acts on all matches of a filter.
#[derive(Debug, Args)]
pub(crate) struct MatchesArgs {
    /// Reason for the audit log.
    #[arg(long)]
    pub(crate) reason: Reason,
    #[command(flatten)]
    pub(crate) by: By,
    /// Execute. Without it, the command only prints what it would do.
    #[arg(long)]
    pub(crate) yes: bool,
}

pub(crate) async fn run<V: OperatorVerb + Args + Debug>(
    setup: &Setup,
    VerbArgs { request, by }: &VerbArgs<V>,
    output: &Output,
) -> Result<(), Failure> {
    let by = if V::NEEDS_NAME { by.name()? } else { by.name_if_known() };
    let report = request.run(&setup.operator(by, output).await?).await?;
    output.show(&report, ToString::to_string)
}
