//! Runtimes outside the fleet, which lease tasks and say how they go: some die, stand still, fail, or say a thing twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisResult};
use serde_json::{Value, json};
use tickfleet_client::Client;
use tickfleet_client::model::{Call, Context, Dialect, Priority, Turn, TurnId};
use tickfleet_model::ids::shard_of;
use tickfleet_model::{AgentId, Effect, TaskId, TenantId};
use tickfleet_store::Dial;

use super::tasks::OUTSIDER;
use super::{AGAIN, Site, inbox, submit};
use crate::process::SimDial;
use crate::settings::Settings;
use crate::world::{End, Made, OUTSIDE, World};

/// Whose turns are `p6-…`.
pub(super) const RUNTIME: usize = 6;
/// Between two looks for tasks.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A runtime outside.
pub(super) struct Runtime {
    dial: Arc<dyn Dial>,
    world: World,
    settings: Settings,
    number: u64,
    /// Turns that it has submitted.
    turns: usize,
    chance: StdRng,
}

/// A task that it has leased.
struct Leased {
    tenant: TenantId,
    id: String,
    lease: String,
    task: Value,
    run: usize,
}

impl Leased {
    fn name(&self) -> String {
        format!("{}:{}", self.tenant, self.id)
    }

    /// What is said of it.
    fn message(&self, op: &str, more: Value) -> Value {
        let mut message = json!({"op": op, "tenant": self.tenant, "task_id": self.id, "lease": self.lease});
        if let (Some(message), Value::Object(more)) = (message.as_object_mut(), more) {
            message.extend(more);
        }
        message
    }
}

type Streams = Vec<(String, Vec<(String, BTreeMap<String, String>)>)>;

impl Runtime {
    pub(super) fn new(site: &Site, process: usize, number: u64, seed: u64) -> Self {
        Self {
            dial: Arc::new(SimDial { net: site.net.clone(), process }),
            world: site.world.clone(),
            settings: site.settings.clone(),
            number,
            turns: 0,
            chance: StdRng::seed_from_u64(seed),
        }
    }

    /// Leases tasks and carries them out, one after the other, for ever.
    pub(super) async fn run(mut self, client: Client) {
        loop {
            let ended = self.lease_all(&client).await;
            self.world.tell(|| format!("runtime {} lost its connection: {ended:?}", self.number));
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn lease_all(&mut self, client: &Client) -> RedisResult<()> {
        let mut connection = self.dial.dial(AsyncConnectionConfig::new()).await?;
        loop {
            for tenant in self.settings.tenants.clone() {
                if let Some(leased) = self.lease(&mut connection, &tenant).await? {
                    self.carry_out(client, leased).await;
                }
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn prefix(&self, tenant: &TenantId) -> String {
        format!("{{sim:{}}}:", shard_of(tenant, self.settings.store.shards))
    }

    /// The next task of a tenant. Where the stream is not there, it is made.
    async fn lease(&self, connection: &mut MultiplexedConnection, tenant: &TenantId) -> RedisResult<Option<Leased>> {
        let stream = format!("{}external:{tenant}:{OUTSIDER}", self.prefix(tenant));
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("workers").arg(format!("runtime-{}", self.number)).arg("COUNT").arg(1);
        let found: RedisResult<Option<Streams>> =
            read.arg("STREAMS").arg(&stream).arg(">").query_async(connection).await;
        let found = match found {
            Err(error) if error.code() == Some("NOGROUP") => {
                let mut make = redis::cmd("XGROUP");
                make.arg("CREATE").arg(&stream).arg("workers").arg(0).arg("MKSTREAM");
                let made: RedisResult<String> = make.query_async(connection).await;
                return made.map(|_| None);
            }
            other => other?,
        };
        let entry = found.unwrap_or_default().into_iter().next().and_then(|(_, entries)| entries.into_iter().next());
        let Some((lease, fields)) = entry else { return Ok(None) };
        let task: Value = fields.get("task").and_then(|task| serde_json::from_str(task).ok()).unwrap_or_default();
        let Some(id) = task["task_id"].as_str().map(str::to_owned) else {
            self.world.wrong(format!("a runtime outside cannot read its task: {fields:?}"));
            return Ok(None);
        };
        let run = self.world.begin(format!("{tenant}:{id}"), 0, Effect::Idempotent, OUTSIDE);
        self.world.tell(|| format!("runtime {}: leases {tenant}:{id} as {lease} (run {run})", self.number));
        Ok(Some(Leased { tenant: tenant.clone(), id, lease, task, run }))
    }

    /// Works on a task, in one of the ways in which runtimes do.
    async fn carry_out(&mut self, client: &Client, leased: Leased) {
        let lease = self.settings.outside_lease;
        match self.chance.random_range(0..12) {
            0 => self.ends(&leased, End::BrokenOff),
            1 => {
                // It stands still, and what it says then is of a lease that has gone to another.
                tokio::time::sleep(lease * 3).await;
                self.finish(client, &leased).await;
            }
            2 => {
                self.finish(client, &leased).await;
                self.say(
                    client,
                    &leased,
                    leased.message("finish", json!({"output": {"run": leased.run, "again": true}})),
                )
                .await;
            }
            fate @ 3..5 => {
                self.ends(&leased, End::Failed);
                let error = json!({"code": "no_model", "message": "The model did not answer."});
                let message = leased.message("fail", json!({"error": error, "retryable": fate == 3}));
                self.say(client, &leased, message).await;
            }
            5..9 => {
                self.submit_turn(client, &leased);
                self.works(client, &leased, 2).await;
            }
            9 => self.works(client, &leased, 6).await,
            _ => self.finish(client, &leased).await,
        }
    }

    /// Works for so many thirds of a lease, and says so.
    async fn works(&self, client: &Client, leased: &Leased, thirds: u32) {
        for _ in 0..thirds {
            tokio::time::sleep(self.settings.outside_lease / 3).await;
            self.say(client, leased, leased.message("heartbeat", json!({}))).await;
        }
        self.finish(client, leased).await;
    }

    async fn finish(&self, client: &Client, leased: &Leased) {
        {
            let mut facts = self.world.facts();
            let now_us = facts.now_us;
            facts.runs[leased.run].effect_us = Some(now_us);
        }
        self.ends(leased, End::Returned);
        self.say(client, leased, leased.message("finish", json!({"output": {"run": leased.run}}))).await;
    }

    fn ends(&self, leased: &Leased, end: End) {
        self.world.facts().runs[leased.run].end = end;
        self.world.tell(|| format!("run {} ends: {end:?}", leased.run));
    }

    /// Says something until it is on the stream.
    async fn say(&self, client: &Client, leased: &Leased, message: Value) {
        let text = message.to_string();
        loop {
            let said = client.store(&leased.tenant).enqueue_task(&text, None, None).await;
            self.world.tell(|| format!("runtime {}: says {text}: {said:?}", self.number));
            if matches!(said, Ok(tickfleet_store::Enqueued::Accepted { .. })) {
                return;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Makes calls under the task, more than it grants at times.
    fn submit_turn(&mut self, client: &Client, leased: &Leased) {
        let budget = leased.task["budget"].as_u64().and_then(|calls| u32::try_from(calls).ok()).unwrap_or(0);
        let calls: Vec<Call> = (0..self.chance.random_range(1..=6)).map(|_| super::call(&mut self.chance)).collect();
        let made = Made {
            agent: OUTSIDER.into(),
            tools: calls.iter().map(|call| call.tool.clone()).collect(),
            under: Some((leased.name(), budget)),
            ..Made::default()
        };
        let (Ok(id), Ok(agent), Ok(task)) = (
            TurnId::new(format!("p{RUNTIME}-{}{:03}", self.number, self.turns)),
            AgentId::new(OUTSIDER),
            TaskId::new(&leased.id),
        ) else {
            return;
        };
        self.turns += 1;
        self.world.facts().turns.insert(format!("{}:{id}", leased.tenant), made);
        let turn = Turn {
            id: Some(id),
            tenant: leased.tenant.clone(),
            agent,
            priority: Priority::Normal,
            deadline_ms: None,
            reply_to: inbox(RUNTIME),
            dialect: Dialect::Raw,
            task: Some(task),
            context: Context::default(),
            want_audits: false,
            strict: false,
            allowed_tools: None,
            parallel_reads: false,
            pending_approval: false,
            calls,
        };
        let (client, world) = (client.clone(), self.world.clone());
        tokio::spawn(async move { submit(&client, &world, turn).await });
    }
}
