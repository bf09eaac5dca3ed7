//! Reads the facts that the findings need in addition to the polled shards.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tickfleet_client::Approval;
use tickfleet_client::approvals::waiting_approvals;
use tickfleet_client::dead::{DeadEntry, FailuresSeen, RecentFailures};
use tickfleet_client::held_slices::{HeldSlice, held_slices};
use tickfleet_store::{RunTimeSettings, ShardView, Store, StoreError};

use crate::checks::{CheckResult, problems_of_servers};
use crate::output::time_format::millis;
use crate::setup::Setup;

/// Per shard. Further approvals are only counted.
const APPROVALS_READ: usize = 100;
const SLICES_READ: usize = 100;
/// The settings of servers rarely change.
const SERVERS_EVERY: Duration = Duration::from_secs(60);
/// The least timeout, in ms, of a tool that is not in tools.yaml.
const UNDECLARED_MS: i64 = 600_000;

#[derive(Debug, Clone, Default)]
pub(super) struct FleetFacts {
    /// Counts all waiting approvals; `approvals` has only the oldest of each shard.
    pub(super) approvals_count: u64,
    pub(super) approvals: Vec<Approval>,
    /// `failures` covers the last hour. `unknown` excludes the calls that an operator has replayed or dropped.
    pub(super) failures: Vec<DeadEntry>,
    pub(super) unknown: Vec<DeadEntry>,
    pub(super) failures_partial: bool,
    pub(super) settings: Vec<RunTimeSettings>,
    pub(super) stuck: Vec<HeldSlice>,
    pub(super) servers: Vec<CheckResult>,
    /// Errors by shard. The key `None` stands for the checks of the servers.
    pub(super) unread: BTreeMap<Option<u32>, String>,
}

#[derive(Debug, Default)]
pub(super) struct FactsReader {
    failures: RecentFailures,
    servers: Option<(Instant, Vec<CheckResult>)>,
}

impl FactsReader {
    #[allow(clippy::disallowed_methods, reason = "the edge: how old the check of the servers is")]
    pub(super) async fn read(&mut self, setup: &Setup, shards: &[(&Store, &ShardView)]) -> FleetFacts {
        let mut facts = FleetFacts::default();
        for (store, view) in shards {
            if let Err(error) = self.read_shard(setup, store, view, &mut facts).await {
                facts.unread.insert(Some(store.shard()), error.to_string());
            }
        }
        let is_fresh = |at: Instant| at.elapsed() < SERVERS_EVERY;
        if let Some((_, found)) = self.servers.as_ref().filter(|(at, _)| is_fresh(*at)) {
            facts.servers.clone_from(found);
            return facts;
        }
        match problems_of_servers(setup).await {
            Ok(found) => {
                facts.servers.clone_from(&found);
                self.servers = Some((Instant::now(), found));
            }
            Err(failure) => drop(facts.unread.insert(None, failure.message().unwrap_or_default())),
        }
        facts
    }

    async fn read_shard(
        &mut self,
        setup: &Setup,
        store: &Store,
        view: &ShardView,
        facts: &mut FleetFacts,
    ) -> Result<(), StoreError> {
        let FailuresSeen { failures, unknown, is_partial } = self.failures.poll(store, view.now_ms).await?;
        facts.failures.extend(failures);
        facts.unknown.extend(unknown);
        facts.failures_partial |= is_partial;
        let approvals = waiting_approvals(store, APPROVALS_READ).await?;
        facts.approvals_count += approvals.count;
        facts.approvals.extend(approvals.oldest);
        facts.settings.push(store.run_time_config().await?);
        let longest_ms = view.streams.iter().map(|stream| stream.oldest_held_ms).max().unwrap_or(0);
        if longest_ms > allowed_ms(setup, &[]) {
            let slices = held_slices(store, None, SLICES_READ).await?;
            facts.stuck.extend(slices.into_iter().filter(|slice| slice.held_ms > allowed_ms(setup, &slice.tools)));
        }
        Ok(())
    }
}

fn allowed_ms(setup: &Setup, tools: &[String]) -> i64 {
    let worker = &setup.settings().worker;
    let default_ms = millis(worker.tool_timeout);
    let known = &setup.configuration.tools.tools;
    let of_tool = |tool: &String| match known.get(tool) {
        Some(def) => def.timeout_ms.and_then(|ms| i64::try_from(ms).ok()).unwrap_or(default_ms),
        None => default_ms.max(UNDECLARED_MS),
    };
    tools.iter().map(of_tool).sum::<i64>().max(default_ms) + millis(worker.lease)
}
