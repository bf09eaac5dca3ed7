//! What runs in the processes: the product's own schedulers, workers and client, put together as its command line does.

mod governed;
pub(crate) mod operator;
mod outside;
mod sealed;
pub(crate) mod tasks;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use scheduler::{Process, Scheduler};
use tickfleet_client::model::{Call, Dialect, InboxName, Priority, Turn, TurnId};
use tickfleet_client::{Client, SubmitError};
use tickfleet_config::{TaskHandlerDef, ToolsFile};
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::one_suspect::OneSuspect;
use tickfleet_engine::report::ReportOptions;
use tickfleet_model::retry::Ladder;
use tickfleet_model::{AgentId, Durability, Priorities};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::progress::Progress;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::{Scripts, Store, StoreError, TurnName};
use tickfleet_tools::{Environment, NoShell, Registry, ToolKinds};
use tickfleet_tools_http::HttpKind;
use worker::Worker;
use worker::agents::{NoModels, TaskHandlers};

use crate::net::Net;
use crate::process::{Main, SimDial};
use crate::settings::{Settings, TOOLS};
use crate::tools::{self, Arguments, How};
use crate::world::{Made, World};
pub(crate) use sealed::AnchorLog;
use tasks::{CLERK, OUTSIDER};

/// What all processes of a game share.
pub(crate) struct Site {
    pub(crate) settings: Settings,
    pub(crate) net: Net,
    pub(crate) world: World,
    /// The scripts of the build, or those with a guard switched off.
    pub(crate) scripts: Scripts,
}

/// The configuration of a process, which a reload replaces.
#[derive(Clone)]
pub(crate) struct Live {
    /// What its liveness probe looks at.
    pub(crate) progress: Progress,
    active: Arc<PolicyHandle>,
    workers: Vec<Arc<Worker>>,
}

impl Site {
    /// The shards, on connections of this process.
    pub(crate) fn stores(&self, process: usize) -> Vec<Store> {
        let options = Arc::new(self.settings.store.clone());
        let dial = || Arc::new(SimDial { net: self.net.clone(), process });
        let open = |shard| Store::over(dial(), shard, Arc::clone(&options)).with_scripts(self.scripts.clone());
        (0..options.shards).map(open).collect()
    }

    pub(crate) fn active(&self, version: usize) -> ActivePolicy {
        ActivePolicy {
            policy: self.settings.policy(version),
            digest: format!("{version:064x}"),
            task_handlers: self.task_handlers(),
            ..ActivePolicy::default()
        }
    }

    /// Where the log is sealed, its entries say what else their calls were decided by.
    fn report(&self) -> ReportOptions {
        ReportOptions { premises: self.settings.sealed.is_some(), ..ReportOptions::default() }
    }

    /// A process with a scheduler for each shard.
    pub(crate) fn scheduler(&self, process: usize, name: &str, version: usize, shutdown: Shutdown) -> (Main, Live) {
        let settings = &self.settings;
        let options = scheduler::Options {
            batch: settings.batch,
            tick_poll: settings.tick_poll,
            reap_every: settings.reap_every,
            collect_every: settings.collect_every,
            audit_bytes_max: 1 << 28,
            dead_retain_ms: 86_400_000,
            seal: self.seal_options(version),
        };
        let active = Arc::new(PolicyHandle::new(self.active(version)));
        let (metrics, progress) = (metrics(), Progress::default());
        let live = Live { progress: progress.clone(), active: active.clone(), workers: Vec::new() };
        let process_wide = Process { active, metrics, progress, suspects: OneSuspect::default() };
        let make = |store: Store| Scheduler::new(store, process_wide.clone(), &options, self.report(), name);
        let schedulers: Vec<Scheduler> = self.stores(process).into_iter().map(make).collect();
        let (world, name) = (self.world.clone(), name.to_owned());
        let main = async move {
            let mut running = tokio::task::JoinSet::new();
            for scheduler in schedulers {
                running.spawn(scheduler.run(shutdown.draining.clone()));
            }
            all_end(running, &world, &name).await;
        };
        (Box::pin(main), live)
    }

    /// A process with a worker for each shard.
    pub(crate) fn worker(&self, process: usize, name: &str, version: usize, shutdown: Shutdown) -> (Main, Live) {
        let settings = &self.settings;
        let active = Arc::new(PolicyHandle::new(self.active(version)));
        let (metrics, progress) = (metrics(), Progress::default());
        let options = worker::Options {
            slots: (settings.slots / settings.store.shards as usize).max(1),
            priorities: Priorities::default(),
            drain: settings.drain,
            ladder: Ladder::new(settings.ladder.clone()),
            report: self.report(),
            // The simulated Redis has no replicas and no disk to wait for.
            durable: Durability::None,
            durable_wait: Duration::from_secs(1),
            loops: settings.governed.as_ref().map(|governed| governed.loops()),
            name: name.to_owned(),
        };
        let (suspects, breakers) = (OneSuspect::default(), worker::Breakers::new(None));
        let make = |store: Store| {
            let surroundings = worker::Surroundings {
                suspects: suspects.clone(),
                breakers: breakers.clone(),
                active: active.clone(),
                metrics: metrics.clone(),
                progress: progress.clone(),
                registry: Arc::new(self.registry(name, &store, &active)),
                task_handlers: self.handlers(name),
            };
            Worker::new(store, surroundings, options.clone(), shutdown.now.child_token())
        };
        let workers: Vec<Arc<Worker>> = self.stores(process).into_iter().map(make).collect();
        let live = Live { progress, active: active.clone(), workers: workers.clone() };
        let world = self.world.clone();
        let name = name.to_owned();
        let main = async move {
            let mut running = tokio::task::JoinSet::new();
            for worker in workers {
                running.spawn(worker.run(shutdown.clone()));
            }
            all_end(running, &world, &name).await;
        };
        (Box::pin(main), live)
    }

    #[allow(clippy::expect_used, reason = "the simulation's own tools are fit to be registered")]
    pub(crate) fn registry(&self, name: &str, store: &Store, active: &Arc<PolicyHandle>) -> Registry {
        let environment = Environment::of([]);
        let kinds = ToolKinds { http: Box::new(HttpKind::new(environment.clone())), shell: Box::new(NoShell) };
        let mut typed = tools::all(&self.settings, &self.world, name);
        typed.push(worker::agents::delegate_task(store.clone(), Arc::clone(active)));
        Registry::build(typed, &ToolsFile::default(), &kinds, &environment, self.settings.tool_timeout)
            .expect("the tools of the simulation")
    }

    /// What the agents that take tasks are bound to.
    fn task_handlers(&self) -> BTreeMap<AgentId, TaskHandlerDef> {
        let lease = self.settings.outside_lease;
        let bound = [(CLERK, TaskHandlerDef::Typed(CLERK.into())), (OUTSIDER, TaskHandlerDef::External { lease })];
        bound.into_iter().filter_map(|(agent, def)| Some((AgentId::new(agent).ok()?, def))).collect()
    }

    #[allow(clippy::expect_used, reason = "the simulation's own handlers are fit to be bound")]
    fn handlers(&self, name: &str) -> TaskHandlers {
        let environment = Environment::of([]);
        let kinds = ToolKinds { http: Box::new(HttpKind::new(environment.clone())), shell: Box::new(NoShell) };
        let typed = vec![tools::clerk(&self.world, name)];
        worker::agents::bind(&self.task_handlers(), typed, &kinds, &NoModels, &environment, self.settings.tool_timeout)
            .expect("the handlers of the simulation")
    }

    /// Gives a running process another configuration, as a reload does.
    pub(crate) fn reload(&self, live: &Live, version: usize) {
        let active = live.active.replace(self.active(version));
        for worker in &live.workers {
            worker.configure_tools(Arc::clone(&active), worker.tools());
        }
    }

    /// A producer: submits its turns, awaits each reply, asks again where it hears nothing.
    pub(crate) fn producer(&self, process: usize, number: usize, turns: Vec<(u64, Turn)>, shutdown: Shutdown) -> Main {
        let client = Client::over(self.stores(process));
        let world = self.world.clone();
        Box::pin(async move {
            let mut running = tokio::task::JoinSet::new();
            let readers: Vec<_> = turns.iter().map(|(_, turn)| turn.tenant.clone()).collect();
            for (wait_ms, turn) in turns {
                let (client, world) = (client.clone(), world.clone());
                running.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                    submit(&client, &world, turn).await;
                });
            }
            let tenants: std::collections::BTreeSet<_> = readers.into_iter().collect();
            for tenant in tenants {
                let Some(inbox) = inbox(number) else { continue };
                running.spawn(read(client.clone(), world.clone(), tenant, inbox));
            }
            let _ended =
                shutdown.draining.run_until_cancelled(async { while running.join_next().await.is_some() {} }).await;
        })
    }

    /// Asks for the end of turns.
    pub(crate) fn canceller(&self, process: usize, cancels: Vec<(u64, TurnName)>) -> Main {
        let client = Client::over(self.stores(process));
        let world = self.world.clone();
        Box::pin(async move {
            for (wait_ms, name) in cancels {
                tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                let answer = client.cancel(&name, "The user pressed stop.").await;
                world.tell(|| format!("cancel of {name}: {answer:?}"));
            }
        })
    }
}

#[allow(clippy::expect_used, reason = "the names of the metrics are constants that their own tests check")]
fn metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new().expect("metrics"))
}

/// Waits for the parts of a process. One that ends by a bug is a violation.
async fn all_end(mut running: tokio::task::JoinSet<Result<(), StoreError>>, world: &World, name: &str) {
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => world.wrong(format!("{name} ended with: {error}")),
            Err(error) => world.wrong(format!("{name} ended by a bug: {error}")),
        }
    }
}

/// Between two tries of a submit.
const AGAIN: Duration = Duration::from_millis(700);
/// Without a reply for so long, a producer asks again whether its turn was taken in.
const PATIENCE: Duration = Duration::from_secs(30);

/// Submits a turn until it is known to be taken in, and again while no reply comes: what Redis has lost, it asks for
/// once more, under the same id.
async fn submit(client: &Client, world: &World, turn: Turn) {
    let id = turn.id.as_ref().map_or_else(String::new, ToString::to_string);
    let name = format!("{}:{id}", turn.tenant);
    let mut asked = false;
    loop {
        world.sent(&name);
        let answer = client.submit(turn.clone()).await;
        world.tell(|| format!("submit of {name}: {answer:?}"));
        match answer {
            // Some producers ask again at once: they have not heard the answer.
            Ok(_) if !std::mem::replace(&mut asked, true) && id.ends_with(['3', '7']) => {
                world.accepted(&name);
                continue;
            }
            Ok(_) => world.accepted(&name),
            Err(SubmitError::Invalid(why)) => return world.wrong(format!("{name} is refused: {why}")),
            Err(SubmitError::Conflict(_)) => return world.wrong(format!("{name} is told to be another turn's id")),
            Err(
                SubmitError::QueueFull
                | SubmitError::InboxFull
                | SubmitError::TooManyInboxes
                | SubmitError::Pressure
                | SubmitError::Store(_),
            ) => {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        }
        tokio::time::sleep(PATIENCE).await;
        if world.facts().turns.get(&name).is_none_or(|made| made.is_answered) {
            return;
        }
    }
}

/// Reads an inbox for ever.
async fn read(client: Client, world: World, tenant: tickfleet_model::TenantId, inbox: InboxName) {
    let mut replies = client.replies(&tenant, &inbox);
    loop {
        match replies.next(Duration::from_secs(4)).await {
            Ok(Some(reply)) => {
                let Some(id) = reply.id() else { continue };
                let name = format!("{tenant}:{id}");
                if let Some(made) = world.facts().turns.get_mut(&name) {
                    made.is_answered = true;
                }
            }
            Ok(None) => {}
            Err(error) => {
                world.tell(|| format!("the inbox {tenant}:{inbox} cannot be read: {error}"));
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

/// Turns, each with the time at which it comes, ms, and what the oracle knows of it.
pub(crate) type Draws = Vec<(u64, Turn, Made)>;

/// The inbox of a producer.
fn inbox(number: usize) -> Option<InboxName> {
    InboxName::new(format!("box{number}")).ok()
}

/// Draws the turns of a producer, each with the time at which it comes, ms.
pub(crate) fn turns(settings: &Settings, number: usize, count: usize, seed: u64) -> Draws {
    let mut chance = StdRng::seed_from_u64(seed);
    let mut one = |at| {
        let drawn = turn(settings, number, at, &mut chance)?;
        Some(if settings.governed.is_some() {
            governed::of(drawn, settings.sealed.is_some(), &mut chance)
        } else {
            drawn
        })
    };
    (0..count).filter_map(&mut one).collect()
}

fn turn(settings: &Settings, number: usize, at: usize, chance: &mut StdRng) -> Option<(u64, Turn, Made)> {
    let wait_ms = chance.random_range(0..settings.span_us.unsigned_abs() / 1_000);
    let tenant = settings.tenants[chance.random_range(0..settings.tenants.len())].clone();
    let agent = settings.agents[chance.random_range(0..settings.agents.len())].clone();
    let calls: Vec<Call> = (0..chance.random_range(1..=6)).map(|_| call(chance)).collect();
    let made = Made {
        agent: agent.to_string(),
        tools: calls.iter().map(|call| call.tool.clone()).collect(),
        parallel_reads: chance.random_bool(0.2),
        ..Made::default()
    };
    // By the clock of Redis, which may be another by then.
    let comes_ms = settings.calendar.start_us / 1_000 + i64::try_from(wait_ms).unwrap_or(0);
    let deadline_ms = chance.random_bool(0.25).then(|| comes_ms + chance.random_range(500..20_000));
    let turn = Turn {
        id: Some(TurnId::new(format!("p{number}-{at}")).ok()?),
        tenant,
        agent,
        priority: Priority::ALL[chance.random_range(0..4)],
        deadline_ms,
        reply_to: inbox(number),
        dialect: if chance.random_bool(0.5) { Dialect::Raw } else { Dialect::OpenaiChat },
        task: None,
        context: tickfleet_client::model::Context::default(),
        want_audits: chance.random_bool(0.1),
        strict: false,
        allowed_tools: None,
        parallel_reads: made.parallel_reads,
        pending_approval: false,
        calls,
    };
    Some((wait_ms, turn, made))
}

fn call(chance: &mut StdRng) -> Call {
    let tool = TOOLS[[0, 0, 1, 1, 2, 2, 2, 3][chance.random_range(0..8)]];
    let work = work(chance);
    let arguments = match chance.random_range(0..30) {
        0 => "{}".into(),
        1 => "no JSON".into(),
        _ => serde_json::to_string(&work).unwrap_or_default(),
    };
    let tool = if chance.random_range(0..40) == 0 { "unheard_of" } else { tool };
    Call { provider_id: None, tool: tool.into(), arguments }
}

/// How a call or a task behaves.
fn work(chance: &mut StdRng) -> Arguments {
    let how = match chance.random_range(0..40) {
        0 => How::Hangs,
        1..3 => How::FailsOnce,
        3 => How::Fails,
        4..6 => How::RefusesOnce,
        6 => How::Refuses,
        7 => How::Panics,
        8 => How::PanicsLate,
        _ => How::Works,
    };
    Arguments { how, ms: [0, 1, 20, 200, 1_500][chance.random_range(0..5)] }
}

/// The turns by their names.
pub(crate) fn by_name(turns: &[(u64, Turn, Made)]) -> BTreeMap<String, Made> {
    turns
        .iter()
        .filter_map(|(_, turn, made)| Some((format!("{}:{}", turn.tenant, turn.id.as_ref()?), made.clone())))
        .collect()
}
