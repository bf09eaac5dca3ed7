//! Reads the facts that findings need in addition to the polled shards: waiting approvals, failed calls, pauses, slices
//! that run too long, and problems of the store's servers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tickfleet_client::Approval;
use tickfleet_client::approvals::waiting_approvals;
use tickfleet_client::dead::{DeadEntry, FailuresSeen, RecentFailures};
use tickfleet_client::held_slices::{HeldSlice, held_slices};
use tickfleet_store::{RunTimeConfig, ShardView, Store, StoreError};

use crate::checks::{CheckResult, problems_of_servers};
use crate::output::time_format::millis;
use crate::setup::Setup;

/// Maximum approvals to read from each shard. Further approvals are only counted.
const APPROVALS_READ: usize = 100;
const SLICES_READ: usize = 100;
/// Interval between two checks of the servers. Their settings rarely change.
const SERVERS_EVERY: Duration = Duration::from_secs(60);
/// Time (ms) allowed for a call without a timeout in tools.yaml: a call of a tool that declares its timeout in code, or
/// a task of an agent.
const UNDECLARED_MS: i64 = 600_000;

#[derive(Debug, Clone, Default)]
pub(super) struct FleetFacts {
    /// Counts all waiting approvals. `approvals` has only the oldest ones of each shard.
    pub(super) approvals_count: u64,
    pub(super) approvals: Vec<Approval>,
    /// Calls and tasks that failed in the last hour. `unknown` has the calls with an unknown outcome that no operator
    /// has replayed or dropped.
    pub(super) failures: Vec<DeadEntry>,
    pub(super) unknown: Vec<DeadEntry>,
    /// True if the audit log has entries of the last hour that were not read.
    pub(super) failures_partial: bool,
    pub(super) settings: Vec<RunTimeConfig>,
    /// Slices that workers hold for longer than all their calls may take.
    pub(super) stuck: Vec<HeldSlice>,
    pub(super) servers: Vec<CheckResult>,
    /// The error of each read that failed, by shard. The key `None` stands for the checks of the servers.
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
            if let Err(error) = self.read_shard(setup, (store, view), &mut facts).await {
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
        (store, view): (&Store, &ShardView),
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

/// Returns the time (ms) that a worker may hold a slice with calls of these tools: their timeouts plus a lease.
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
