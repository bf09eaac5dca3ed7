//! `tickfleet limits reset`: sets one counter to zero and records the reset in the audit log.

use clap::Args;
use serde::Serialize;
use serde_json::Number;
use tickfleet_client::Client;
use tickfleet_core::CounterKey;
use tickfleet_core::settings::reset::{ResetCounter, ResetLimit};
use tickfleet_model::limit::counters::{OTHERS, tenant_of};
use tickfleet_model::limit::{LimitBound, LimitWindow};
use tickfleet_model::suggest::closest;
use tickfleet_model::{Limit, limits};
use tickfleet_protocol::{LimitReset, limit_reset_entry};
use tickfleet_store::{CounterName, Store, StoreError};

use super::counters::{self, LimitCounters};
use super::listing::{find_limit, no_limit, number};
use crate::commands::operate::audit_note::By;
use crate::failure::Failure;
use crate::global::environment;
use crate::output::Output;
use crate::output::time_format::from_now;
use crate::setup::Setup;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet limits reset mails_per_agent atlas-ux:kelly --reason 'the import was ours'
  tickfleet limits reset writes_of_the_fleet --reason 'agreed with Ben' --by anna

The end of the window does not change. Each reset allows the full limit once more until then.")]
pub(super) struct Reset {
    /// Name of the limit.
    #[arg(value_name = "LIMIT")]
    limit: String,
    /// Counter, as `tickfleet limits` shows it. Omit it if the limit has a single counter.
    #[arg(value_name = "COUNTER", default_value = "", hide_default_value = true)]
    counter: String,
    /// Reason for the audit log.
    #[arg(long, value_parser = reason)]
    reason: String,
    #[command(flatten)]
    by: By,
}

fn bounded(text: &str, bytes_max: usize) -> Result<String, String> {
    let text = text.trim();
    match text.len() {
        0 => Err("it must not be empty".into()),
        bytes if bytes > bytes_max => Err(format!("it has {bytes} bytes; at most {bytes_max} are allowed")),
        _ => Ok(text.to_owned()),
    }
}

pub(crate) fn reason(text: &str) -> Result<String, String> {
    bounded(text, limits::REASON_BYTES_MAX)
}

pub(crate) fn who(text: &str) -> Result<String, String> {
    bounded(text, limits::NAME_BYTES_MAX)
}

#[derive(Debug, Serialize)]
struct ResetResult<'a> {
    limit: &'a str,
    counter: &'a str,
    /// Summed over all shards.
    used_before: Number,
    /// In shard time.
    window_ends_ms: Option<i64>,
    /// Turns that waited for the counter, and are reconsidered now.
    waiting: u64,
    shards: Vec<u32>,
}

pub(super) async fn run(setup: &Setup, args: &Reset, output: &Output) -> Result<(), Failure> {
    let by = args.by.name()?;
    let name = CounterName { limit: args.limit.clone(), counter: args.counter.clone() };
    let limit = find_limit(&setup.configuration.policy.limits, &name.limit);
    if limit.is_some_and(|limit| limit.every == LimitWindow::Concurrency) {
        return Err(Failure::failed(anyhow::anyhow!(
            "{} counts running calls: each releases its slot when it ends. To end a turn, run tickfleet cancel",
            name.limit
        )));
    }
    let client = setup.client().await?;
    let mut done: Vec<(u32, ResetCounter)> = Vec::new();
    let mut now_ms = 0;
    // A counter of a tenant is in one shard. A counter of the whole fleet has a share in every shard.
    for store in client.stores() {
        now_ms = store.now_ms().await?;
        let entry = entry(setup, (&name, limit), (&by, &args.reason), now_ms);
        done.extend(reset_in(store, &name, &entry).await?);
    }
    if done.is_empty() {
        return Err(no_counter(&client, setup, &name).await?);
    }
    let used: u64 = done.iter().map(|(_, was)| was.used).sum();
    let result = ResetResult {
        limit: &name.limit,
        counter: &name.counter,
        used_before: number(used, limit),
        window_ends_ms: done.iter().map(|(_, was)| was.ends_ms).filter(|ends_ms| *ends_ms > 0).max(),
        waiting: done.iter().map(|(_, was)| was.waiting).sum(),
        shards: done.iter().map(|(shard, _)| *shard).collect(),
    };
    output.show(&result, |result| text(result, &name, limit, now_ms))
}

async fn reset_in(store: &Store, name: &CounterName, entry: &str) -> Result<Option<(u32, ResetCounter)>, Failure> {
    let counter = CounterKey::new(&name.limit, &name.counter);
    let entry = serde_json::from_str(entry).map_err(Failure::failed)?;
    let audit_entries_max = store.options().audit_entries_max;
    let was = store.decide(ResetLimit { counter, entry, audit_entries_max }).await.map_err(StoreError::from)?.result;
    Ok(was.map(|was| (store.shard(), was)))
}

pub(crate) fn by_environment() -> Result<String, Failure> {
    let user = environment().remove("USER").unwrap_or_default();
    who(&user).map_err(|_| Failure::usage("the variable USER is not set: pass --by with your name for the audit log"))
}

fn entry(
    setup: &Setup,
    (name, limit): (&CounterName, Option<&Limit>),
    (by, reason): (&str, &str),
    timestamp_ms: i64,
) -> String {
    let tenant = limit.and_then(|limit| tenant_of(limit, &name.counter));
    limit_reset_entry(&LimitReset {
        timestamp_ms,
        by,
        reason,
        limit: &name.limit,
        counter: &name.counter,
        tenant: tenant.as_ref(),
        unit: match limit.map(|limit| &limit.bound) {
            None => "unknown",
            Some(bound) if bound.is_of_amounts() => "millionths",
            Some(LimitBound::Tokens(_)) => "tokens",
            Some(_) => "calls",
        },
        redactor: &setup.report().redactor,
    })
}

fn text(done: &ResetResult<'_>, name: &CounterName, limit: Option<&Limit>, now_ms: i64) -> String {
    let which =
        if name.counter.is_empty() { name.limit.clone() } else { format!("{} of {}", name.limit, name.counter) };
    let max = limit.and_then(|known| known.bound.fixed_max());
    let allowed = max.map(|max| format!(" of {}", number(max, limit))).unwrap_or_default();
    let before = format!("{}{allowed} used before, 0 now", done.used_before);
    let window = match done.window_ends_ms {
        Some(ends) if ends > now_ms => format!(". Its window ends {}", from_now(ends, now_ms)),
        _ => String::new(),
    };
    let waiting = match done.waiting {
        _ if name.counter == OTHERS => {
            ". Turns that share it wait in throttle queues and are checked when that window ends".into()
        }
        0 => ". Nothing waited for it".into(),
        1 => ". 1 waiting turn is checked now".into(),
        turns => format!(". {turns} waiting turns are checked now"),
    };
    format!("{which}: {before}{window}{waiting}")
}

async fn no_counter(client: &Client, setup: &Setup, name: &CounterName) -> Result<Failure, Failure> {
    let shards = counters::shards(client).await?;
    let names = counters::names(&setup.configuration.policy.limits);
    if !names.contains(&name.limit) {
        return Ok(no_limit(&name.limit, names.iter().map(String::as_str)));
    }
    let limit = find_limit(&setup.configuration.policy.limits, &name.limit);
    let seen = LimitCounters::of(&shards, (&name.limit, limit), &setup.configuration.policy).await?;
    let meant = closest(&name.counter, seen.counters.keys().map(|key| key.counter.as_str()));
    let meant = meant.filter(|meant| !meant.is_empty()).map(|meant| format!(" Did you mean {meant:?}?"));
    let which = if name.counter.is_empty() {
        "no counter for all calls".to_owned()
    } else {
        format!("no counter {:?}", name.counter)
    };
    Ok(Failure::failed(anyhow::anyhow!(
        "{} has {which}: no calls were counted recently.{} tickfleet limits --limit {} shows its fullest counters",
        name.limit,
        meant.unwrap_or_default(),
        name.limit
    )))
}
