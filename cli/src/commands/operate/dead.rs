//! `tickfleet dead`: lists, replays and drops dead letters, failed calls and failed tasks.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use serde::Serialize;
use tickfleet_client::dead::{self, DeadAction, DeadEntry, DeadFilter, DeadId, DeadKind, ReplayReport, ReplayStatus};
use tickfleet_client::{Client, Cursor};
use tickfleet_model::{AgentId, TenantId, limits};

use crate::commands::operate::causes;
use crate::commands::operate::verb::MatchesArgs;
use crate::failure::Failure;
use crate::output::time_format::{TimeArg, from_now};
use crate::output::{Output, StatusColor, lines, short, table};
use crate::setup::Setup;
use crate::words::word_of;

const LISTED: u16 = 50;
const PREVIEWED: usize = 10;

/// List dead letters, failed calls and failed tasks; replay or drop them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet dead list --tenant demo --since 1d
  tickfleet dead list --kind call --error 503 --since 1d
  tickfleet dead list --by-cause --since 1d                                            one line per cause
  tickfleet dead show call-0-1764130000000-0
  tickfleet dead replay --error 503 --since 1d --reason 'the service is back'          print the matches
  tickfleet dead replay --error 503 --since 1d --reason 'the service is back' --yes    replay them
  tickfleet dead show letter-0-1764130000000-0 --message > turn.json                   edit the message, then
  tickfleet dead replay letter-0-1764130000000-0 --message turn.json --reason 'fixed' --yes
  tickfleet dead drop --cause unknown_agent --until 7d --reason 'of no use' --yes

Dead letters are messages that were never executed: rejected, quarantined or unreadable. Calls are listed once their turn has
ended and their last attempt failed. A replayed call becomes a new turn of its agent, under caps and permissions, with a new
idempotency key; the old result stays. A call that may have taken effect (outcome_unknown,
internal) requires --allow-duplicate-effects.")]
pub(crate) struct DeadArgs {
    #[command(subcommand)]
    command: DeadCommand,
}

#[derive(Debug, Subcommand)]
enum DeadCommand {
    /// List entries, the newest first.
    List(ListArgs),
    /// Show one entry in full.
    Show(ShowArgs),
    /// Replay entries, by id or by filter.
    Replay(ReplayArgs),
    /// Drop entries: dead letters are deleted, calls and tasks are no longer listed.
    Drop(DropArgs),
}

#[derive(Debug, Args)]
struct DeadEntriesFilter {
    /// Only entries of this kind: a letter was never executed, a call or task failed permanently. To replay a task,
    /// supply a message.
    #[arg(long, value_parser = word_of::<DeadKind>(&["letter", "call", "task"]))]
    kind: Option<DeadKind>,
    /// Only entries of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Only entries of this agent.
    #[arg(long)]
    agent: Option<AgentId>,
    /// Only calls of this tool (name or id).
    #[arg(long)]
    tool: Option<String>,
    /// Only entries with this cause: a rejection code (unknown_agent) or an outcome (transient).
    #[arg(long)]
    cause: Option<String>,
    /// Only entries whose error message contains this text, such as 503.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only entries with this error message, as shown by `list --by-cause`. `#` stands for a word with a digit.
    #[arg(long, value_name = "TEXT")]
    normalized_error: Option<String>,
    /// Only entries without an error message.
    #[arg(long, conflicts_with = "normalized_error")]
    without_error: bool,
    /// Only entries since this time: 1d (ago) or 2026-03-01T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    since: Option<TimeArg>,
    /// Only entries before this time.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    until: Option<TimeArg>,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    filter: DeadEntriesFilter,
    /// Entries to list, 1 to 1000.
    #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Group entries that failed alike, with count, newest and oldest. Reads the whole log; --limit counts groups.
    #[arg(long)]
    by_cause: bool,
    /// Position of the next page, as the previous page prints it.
    #[arg(long, value_name = "PLACE", conflicts_with = "by_cause")]
    from: Option<Cursor>,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Id of the entry, from the list.
    id: DeadId,
    /// Print only the message that a replay sends, for editing.
    #[arg(long)]
    message: bool,
}

#[derive(Debug, Args)]
struct EntriesArgs {
    /// Ids of entries, from the list. If missing, all entries that match the filter.
    #[arg(value_name = "ID", conflicts_with_all = ["kind", "tenant", "agent", "tool", "cause", "error", "normalized_error", "without_error", "since", "until"])]
    ids: Vec<DeadId>,
    #[command(flatten)]
    filter: DeadEntriesFilter,
    #[command(flatten)]
    matches: MatchesArgs,
}

#[derive(Debug, Args)]
struct ReplayArgs {
    #[command(flatten)]
    entries: EntriesArgs,
    /// Send the message in this file instead (-: standard input). Requires exactly one id.
    #[arg(long, value_name = "FILE")]
    message: Option<PathBuf>,
    /// Include entries that may already have taken effect. Requires ids.
    #[arg(long)]
    allow_duplicate_effects: bool,
}

#[derive(Debug, Args)]
struct DropArgs {
    #[command(flatten)]
    entries: EntriesArgs,
}

impl DeadEntriesFilter {
    async fn to_filter(
        &self,
        setup: &Setup,
        client: &Client,
        now_ms: i64,
        limit: usize,
    ) -> Result<DeadFilter, Failure> {
        Ok(DeadFilter {
            kind: self.kind,
            tenant: self.tenant.clone(),
            agent: self.agent.clone(),
            tool: setup.names().tool_filter(client, self.tool.as_deref()).await?,
            cause: self.cause.clone(),
            error: self.error.clone(),
            normalized_error: self.normalized_error.clone(),
            without_error: self.without_error,
            from_ms: self.since.map(|since| since.at(now_ms)),
            until_ms: self.until.map(|until| until.at(now_ms)),
            limit,
        })
    }

    const fn is_empty(&self) -> bool {
        let is_of_any = self.tenant.is_none() && self.agent.is_none() && self.tool.is_none();
        let is_of_cause =
            self.cause.is_some() || self.error.is_some() || self.normalized_error.is_some() || self.without_error;
        is_of_any && !is_of_cause && self.since.is_none() && self.until.is_none()
    }
}

pub(crate) async fn run(setup: &Setup, args: &DeadArgs, output: &Output) -> Result<(), Failure> {
    match &args.command {
        DeadCommand::List(args) => list(setup, args, output).await,
        DeadCommand::Show(args) => show(setup, args, output).await,
        DeadCommand::Replay(args) => {
            let message = args.message.as_ref().map(read).transpose()?;
            if (message.is_some() && args.entries.ids.len() != 1)
                || (args.allow_duplicate_effects && args.entries.ids.is_empty())
            {
                return Err(Failure::usage(
                    "--message requires exactly one id; --allow-duplicate-effects requires ids",
                ));
            }
            let allow_duplicate_effects = args.allow_duplicate_effects;
            let action = DeadAction::Replay { message: message.as_deref(), allow_duplicate_effects };
            handle_entries(setup, &args.entries, action, output).await
        }
        DeadCommand::Drop(args) => handle_entries(setup, &args.entries, DeadAction::Drop, output).await,
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Failure> {
    use std::io::Read as _;
    let failed = |error: std::io::Error| Failure::failed(anyhow::anyhow!("{}: {error}", path.display()));
    let mut bytes = Vec::new();
    let max = limits::TURN_BYTES_MAX as u64 + 1;
    if path.as_os_str() == "-" {
        std::io::stdin().take(max).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        std::fs::File::open(path).map_err(failed)?.take(max).read_to_end(&mut bytes).map_err(failed)?;
    }
    Ok(bytes)
}

async fn list(setup: &Setup, args: &ListArgs, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    let now_ms = client.now_ms().await?;
    let filter = args.filter.to_filter(setup, &client, now_ms, args.limit.into()).await?;
    if args.by_cause {
        return causes::show((&client, &setup.names()), &filter, now_ms, output).await;
    }
    let page = dead::list(&client, &filter, args.from.as_ref()).await?;
    if page.items.is_empty() && args.from.is_none() {
        setup.names().check_filter(&client, (&filter).into()).await?;
    }
    output.show(&page, |page| {
        let mut text = entries_text(&page.items, now_ms, output);
        if let Some(next) = &page.next {
            text += &format!("\nThere may be more: continue with --from {next}.");
        }
        text
    })
}

fn entries_text(dead: &[DeadEntry], now_ms: i64, output: &Output) -> String {
    if dead.is_empty() {
        return "No dead letters match.".into();
    }
    let mut rows = table(&["ID", "WHEN", "TENANT", "AGENT", "WHAT", "CAUSE", "REPLAY", "ERROR"]);
    for one in dead {
        let subject = [one.tool.as_deref(), one.from.as_deref(), one.name.as_deref()];
        let subject: Vec<&str> = subject.into_iter().flatten().collect();
        let replay = match (one.needs_message.is_some(), one.may_have_run) {
            (true, _) => output.cell(StatusColor::Doubtful, "with a message"),
            (false, true) => output.cell(StatusColor::Bad, "may have run"),
            (false, false) => output.cell(StatusColor::Good, "yes"),
        };
        rows.add_row([
            Cell::new(one.id.to_string()),
            Cell::new(from_now(one.at_ms, now_ms)),
            Cell::new(one.tenant.as_ref().map(TenantId::as_str).unwrap_or_default()),
            Cell::new(one.agent.as_deref().unwrap_or_default()),
            Cell::new(subject.join(" ")),
            Cell::new(&one.cause),
            replay,
            Cell::new(short(one.error.as_deref().unwrap_or_default(), 80)),
        ]);
    }
    lines(rows)
}

async fn show(setup: &Setup, args: &ShowArgs, output: &Output) -> Result<(), Failure> {
    let Some(whole) = dead::find(setup.client().await?.stores(), &args.id).await? else {
        return Err(Failure::failed(anyhow::anyhow!("{}: no entry with this id", args.id)));
    };
    if args.message {
        return output.print(whole.message.as_deref().unwrap_or_default());
    }
    output.data(&whole)
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    found: usize,
    handled: usize,
    /// False for a preview.
    done: bool,
    /// Has the entries that were not handled, and all entries given by ID.
    results: Vec<ReplayReport>,
}

const RESULTS_MAX: usize = 1_000;

async fn handle_entries(
    setup: &Setup,
    args: &EntriesArgs,
    action: DeadAction<'_>,
    output: &Output,
) -> Result<(), Failure> {
    if args.ids.is_empty() && args.filter.is_empty() {
        return Err(Failure::usage("expected ids or filters (--error, --since …)"));
    }
    let context = setup.operator(args.matches.by.name()?, output).await?;
    let client = &context.client;
    let mut summary = Summary { done: args.matches.yes, ..Summary::default() };
    if !args.ids.is_empty() {
        summary.found = args.ids.len();
        for id in args.ids.iter().filter(|_| args.matches.yes) {
            summary.add(context.handle_dead(id, action, &args.matches.reason).await?, true);
        }
        show_summary(&summary, action, output)?;
        let is_unknown =
            args.matches.yes && summary.results.iter().all(|result| result.result == ReplayStatus::NotFound);
        return if is_unknown { Err(Failure::Reported) } else { Ok(()) };
    }
    // Handles only entries from before the start of this command. Otherwise, an entry that fails again would be
    // replayed repeatedly.
    let mut began_ms = 0;
    for store in client.stores() {
        began_ms = store.now_ms().await?.max(began_ms);
    }
    let mut filter = args.filter.to_filter(setup, client, client.now_ms().await?, LISTED.into()).await?;
    filter.until_ms.get_or_insert(began_ms + 1);
    let mut from = None;
    loop {
        let page = dead::list(client, &filter, from.as_ref()).await?;
        for found in &page.items {
            summary.found += 1;
            if args.matches.yes {
                let result = context.handle_dead(&found.id, action, &args.matches.reason).await?;
                let has_room =
                    !matches!(result.result, ReplayStatus::QueueFull | ReplayStatus::Pressure | ReplayStatus::Full);
                summary.add(result, false);
                if !has_room {
                    return show_summary(&summary, action, output);
                }
            } else if summary.found <= PREVIEWED {
                preview(found, output);
            }
        }
        if page.next.is_some() && args.matches.yes {
            output.note(&format!(
                "{} found, {} {} so far; Ctrl-C stops here",
                summary.found,
                summary.handled,
                word(action)
            ));
        }
        from = page.next;
        if from.is_none() {
            break;
        }
    }
    if summary.found == 0 {
        context.names.check_filter(client, (&filter).into()).await?;
    }
    show_summary(&summary, action, output)
}

fn preview(found: &DeadEntry, output: &Output) {
    let subject = found.name.as_deref().unwrap_or_default();
    let error = short(found.error.as_deref().unwrap_or_default(), 60);
    output.note(&format!("{} {subject} {}: {error}", found.id, found.cause));
}

const fn word(action: DeadAction<'_>) -> &'static str {
    match action {
        DeadAction::Replay { .. } => "replayed",
        DeadAction::Drop => "dropped",
    }
}

impl Summary {
    fn add(&mut self, result: ReplayReport, is_named: bool) {
        let is_done = result.result == ReplayStatus::Ok;
        self.handled += usize::from(is_done);
        if (is_named || !is_done) && self.results.len() < RESULTS_MAX {
            self.results.push(result);
        }
    }
}

fn show_summary(summary: &Summary, action: DeadAction<'_>, output: &Output) -> Result<(), Failure> {
    let word = word(action);
    output.show(summary, |summary| {
        if !summary.done {
            return format!("{} would be {word}: add --yes to do it", summary.found);
        }
        let mut text: String = summary.results.iter().map(|one| format!("{one}\n")).collect();
        text += &format!("{} found, {} of them {word}", summary.found, summary.handled);
        text
    })
}
