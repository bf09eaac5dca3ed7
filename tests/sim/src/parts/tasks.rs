//! Who delegates tasks: a service that enqueues them, agents that call `delegate_task`, and who cancels some.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tickfleet_client::model::{Call, Context, Priority, Task, TaskId};
use tickfleet_client::{Client, SubmitError};
use tickfleet_model::{AgentId, TaskGrant};
use tickfleet_store::TurnName;

use super::{AGAIN, Draws, PATIENCE, Site, inbox, outside, read, submit};
use crate::process::Main;
use crate::settings::{Settings, TASK_TOOL};
use crate::world::{Made, World};

/// The agent whose tasks the workers carry out.
pub(crate) const CLERK: &str = "clerk";
/// The agent whose tasks runtimes outside carry out.
pub(crate) const OUTSIDER: &str = "outsider";
/// Who enqueues tasks: they are `p8-…`.
const SERVICE: usize = 8;
/// Whose agents delegate: their turns are `p7-…`.
const DELEGATORS: usize = 7;
/// Runtimes outside.
const RUNTIMES: u64 = 2;

/// The tasks of a game.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks {
    /// Each with the time at which it comes, ms.
    tasks: Vec<(u64, Task)>,
    /// Turns that delegate.
    turns: Draws,
    /// Each with the time at which it is asked for, ms.
    cancels: Vec<(u64, TurnName)>,
    /// The chance of the runtimes outside.
    seed: u64,
}

impl Tasks {
    /// Draws them; in half of the games, none.
    pub(crate) fn draw(settings: &Settings, chance: &mut StdRng) -> Self {
        let mut all = Self { seed: chance.random_range(0..u64::MAX), ..Self::default() };
        if chance.random_bool(0.5) && !settings.has_tasks {
            return all;
        }
        let span_ms = settings.span_us.unsigned_abs() / 1_000;
        for at in 0..chance.random_range(2..25) {
            let wait_ms = chance.random_range(0..span_ms);
            let Some(task) = task(settings, at, wait_ms, chance) else { continue };
            if let Some(id) = task.id.as_ref().filter(|_| chance.random_range(0..6) == 0) {
                let late_ms = [0, 5, 300, 3_000][chance.random_range(0..4)];
                all.cancels.push((wait_ms + late_ms, TurnName::task(&task.tenant, id)));
            }
            all.tasks.push((wait_ms, task));
        }
        let (count, seed) = (chance.random_range(0..12), chance.random_range(0..u64::MAX));
        all.turns = super::turns(settings, DELEGATORS, count, seed);
        for (_, turn, made) in &mut all.turns {
            let at = chance.random_range(0..turn.calls.len());
            let work = serde_json::to_string(&super::work(chance)).unwrap_or_default();
            let arguments = serde_json::json!({"target_agent": CLERK, "task_description": work}).to_string();
            turn.calls[at] = Call { provider_id: None, tool: TASK_TOOL.into(), arguments };
            made.tools[at] = TASK_TOOL.into();
        }
        all
    }

    /// Whether there are none.
    pub(crate) const fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Keeps as many of its tasks, and of its turns, as a game is to have. Gives them by name.
    pub(crate) fn truncate(&mut self, most: usize) -> BTreeMap<String, Made> {
        self.tasks.truncate(most);
        self.turns.truncate(most);
        let named = |(_, task): &(u64, Task)| {
            let made = Made { agent: task.target.to_string(), ..made() };
            Some((format!("{}:{}", task.tenant, task.id.as_ref()?), made))
        };
        let mut all = super::by_name(&self.turns);
        all.extend(self.tasks.iter().filter_map(named));
        all
    }
}

/// A task of the clerk, as the oracle knows it.
pub(crate) fn made() -> Made {
    Made { agent: CLERK.into(), tools: vec![TASK_TOOL.into()], is_task: true, ..Made::default() }
}

fn task(settings: &Settings, at: usize, wait_ms: u64, chance: &mut StdRng) -> Option<Task> {
    let comes_ms = settings.calendar.start_us / 1_000 + i64::try_from(wait_ms).ok()?;
    Some(Task {
        id: TaskId::new(format!("p{SERVICE}-{at}")).ok(),
        tenant: settings.tenants[chance.random_range(0..settings.tenants.len())].clone(),
        target: AgentId::new(if chance.random_bool(0.5) { CLERK } else { OUTSIDER }).ok()?,
        delegator: None,
        description: serde_json::to_string(&super::work(chance)).ok()?,
        input: None,
        priority: Priority::ALL[chance.random_range(0..4)],
        // By the clock of Redis, which may be another by then.
        deadline_ms: chance.random_bool(0.25).then(|| comes_ms + chance.random_range(500..20_000)),
        reply_to: inbox(SERVICE),
        parent: None,
        grant: TaskGrant { budget: chance.random_range(1..8), ..TaskGrant::default() },
        context: Context::default(),
    })
}

impl Site {
    /// A process that delegates, cancels, and is the runtimes outside.
    pub(crate) fn tasks(&self, process: usize, all: Tasks) -> Main {
        let client = Client::over(self.stores(process));
        let world = self.world.clone();
        let runtimes: Vec<_> = (0..RUNTIMES)
            .map(|number| outside::Runtime::new(self, process, number, all.seed.wrapping_add(number)))
            .collect();
        let tenants = self.settings.tenants.clone();
        Box::pin(async move {
            let mut running = tokio::task::JoinSet::new();
            for (wait_ms, task) in all.tasks {
                running.spawn(delegate(client.clone(), world.clone(), wait_ms, task));
            }
            for (wait_ms, turn, _) in all.turns {
                let (client, world) = (client.clone(), world.clone());
                running.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                    submit(&client, &world, turn).await;
                });
            }
            for (wait_ms, name) in all.cancels {
                let (client, world) = (client.clone(), world.clone());
                running.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                    let answer = client.cancel(&name, "Nobody needs it any more.").await;
                    world.tell(|| format!("cancel of {name}: {answer:?}"));
                });
            }
            for inbox in [SERVICE, DELEGATORS, outside::RUNTIME].into_iter().filter_map(inbox) {
                for tenant in &tenants {
                    running.spawn(read(client.clone(), world.clone(), tenant.clone(), inbox.clone()));
                }
            }
            for runtime in runtimes {
                running.spawn(runtime.run(client.clone()));
            }
            while running.join_next().await.is_some() {}
        })
    }
}

/// Delegates until the task is known to be taken in, and again while no reply comes.
async fn delegate(client: Client, world: World, wait_ms: u64, task: Task) {
    let name = format!("{}:{}", task.tenant, task.id.as_ref().map_or_else(String::new, ToString::to_string));
    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    loop {
        let answer = client.delegate(task.clone()).await;
        world.tell(|| format!("delegation of {name}: {answer:?}"));
        match answer {
            Ok(_) => world.accepted(&name),
            Err(SubmitError::Invalid(why)) => return world.wrong(format!("{name} is refused: {why}")),
            Err(_) => {
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
