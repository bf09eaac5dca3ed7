//! The operator: sets tenants and switches tools while the fleet runs, by the verbs of `tickfleet tenant` and
//! `tickfleet tools`; and the turns of a tenant that exists by that alone.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;
use tickfleet_client::{Client, StoreError};
use tickfleet_model::TenantId;
use tickfleet_model::policy::TenantPolicy;
use tokio_util::sync::CancellationToken;

use super::{AGAIN, Draws, Site, read, submit};
use crate::process::Main;
use crate::settings::{Settings, TOOLS};
use crate::world::Made;

/// The tenant that no configuration has.
pub(crate) const GUEST: &str = "tenantguest";
/// The number of the guest's producer: its turns are `p9-…`.
const PRODUCER: usize = 9;

/// What an operator does.
#[derive(Debug, Clone)]
enum Step {
    Set(TenantId, TenantPolicy),
    Unset(TenantId),
    Switch(&'static str, bool),
}

/// What is set at run time in a game, and who lives by it.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunTime {
    /// Each with the time at which it is done, ms after the start.
    steps: Vec<(u64, Step)>,
    /// The guest's turns: they come once it was declared, each so many ms later.
    turns: Draws,
}

impl RunTime {
    /// Draws what an operator does; in half of the games, nothing.
    pub(crate) fn draw(settings: &Settings, chance: &mut StdRng) -> Self {
        let mut run_time = Self::default();
        if chance.random_bool(0.5) {
            return run_time;
        }
        let span_ms = settings.span_us.unsigned_abs() / 1_000;
        if let Some(guest) = TenantId::new(GUEST).ok().filter(|_| chance.random_bool(0.7)) {
            run_time.guest(&guest, settings, span_ms, chance);
        }
        for _ in 0..chance.random_range(0..5) {
            let tenant = settings.tenants[chance.random_range(0..settings.tenants.len())].clone();
            let step = if chance.random_bool(0.3) { Step::Unset(tenant) } else { Step::Set(tenant, policy(chance)) };
            run_time.steps.push((chance.random_range(0..span_ms), step));
        }
        for _ in 0..chance.random_range(0..3) {
            let (tool, off_ms) = (TOOLS[chance.random_range(0..3)], chance.random_range(0..span_ms));
            let on_ms = off_ms + chance.random_range(0..span_ms);
            run_time.steps.extend([(off_ms, Step::Switch(tool, false)), (on_ms, Step::Switch(tool, true))]);
        }
        run_time.steps.sort_by_key(|(at, _)| *at);
        run_time
    }

    /// A guest comes, in some games goes, and comes back: turns that were refused meanwhile are submitted again.
    fn guest(&mut self, guest: &TenantId, settings: &Settings, span_ms: u64, chance: &mut StdRng) {
        let comes_ms = chance.random_range(0..span_ms / 2);
        self.steps.push((comes_ms, Step::Set(guest.clone(), policy(chance))));
        if chance.random_bool(0.4) {
            let goes_ms = comes_ms + chance.random_range(0..span_ms / 2);
            let again_ms = goes_ms + chance.random_range(0..span_ms / 4);
            self.steps.push((goes_ms, Step::Unset(guest.clone())));
            self.steps.push((again_ms, Step::Set(guest.clone(), policy(chance))));
        }
        let theirs = Settings { tenants: vec![guest.clone()], span_us: settings.span_us / 2, ..settings.clone() };
        let count = chance.random_range(2..12);
        self.turns = super::turns(&theirs, PRODUCER, count, chance.random_range(0..u64::MAX));
    }

    /// Whether nobody does anything.
    pub(crate) const fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// The guest's turns, at most so many.
    pub(crate) fn truncate(&mut self, most: usize) -> BTreeMap<String, Made> {
        self.turns.truncate(most);
        super::by_name(&self.turns)
    }
}

/// Calls of a tenant's day: fewer than the configuration's, or more.
fn policy(chance: &mut StdRng) -> TenantPolicy {
    let caps = [None, Some(0), Some(3), Some(20), Some(60)];
    TenantPolicy { max_actions_per_day: caps[chance.random_range(0..caps.len())], ..TenantPolicy::default() }
}

/// Between two looks at the dead letters.
const LOOKS_EVERY: Duration = Duration::from_secs(45);

impl Site {
    /// Somebody at a command line, and the guest's producer.
    pub(crate) fn operator(&self, process: usize, run_time: RunTime) -> Main {
        let client = Client::over(self.stores(process));
        let world = self.world.clone();
        let declared = CancellationToken::new();
        Box::pin(async move {
            let mut running = tokio::task::JoinSet::new();
            for (wait_ms, turn, _) in run_time.turns {
                let (client, world, declared) = (client.clone(), world.clone(), declared.clone());
                running.spawn(async move {
                    declared.cancelled().await;
                    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
                    submit(&client, &world, turn).await;
                });
            }
            if let (Ok(guest), Some(inbox)) = (TenantId::new(GUEST), super::inbox(PRODUCER)) {
                running.spawn(read(client.clone(), world.clone(), guest, inbox));
            }
            let is_of_guest = |step: &Step| matches!(step, Step::Set(tenant, _) if tenant.as_str() == GUEST);
            let last = run_time.steps.iter().rfind(|(_, step)| is_of_guest(step)).map(|(_, step)| step.clone());
            let mut now_ms = 0;
            for (at_ms, step) in run_time.steps {
                tokio::time::sleep(Duration::from_millis(at_ms - now_ms)).await;
                now_ms = at_ms;
                while let Err(error) = carry_out(&client, &step).await {
                    world.tell(|| format!("{step:?} failed: {error}"));
                    tokio::time::sleep(AGAIN).await;
                }
                world.tell(|| format!("{step:?} is done"));
                if is_of_guest(&step) {
                    declared.cancel();
                }
            }
            // Where Redis has lost that the guest was declared, somebody finds its turns among the dead letters.
            while let Some(step) = &last {
                tokio::time::sleep(LOOKS_EVERY).await;
                if !world.facts().lost.is_empty() {
                    let answer = carry_out(&client, step).await;
                    world.tell(|| format!("{step:?} once more: {answer:?}"));
                }
            }
            while running.join_next().await.is_some() {}
        })
    }
}

async fn carry_out(client: &Client, step: &Step) -> Result<(), StoreError> {
    match step {
        Step::Set(tenant, policy) => client.store(tenant).set_tenant(tenant, policy, "").await,
        Step::Unset(tenant) => client.store(tenant).unset_tenant(tenant, "").await.map(drop),
        Step::Switch(tool, on) => {
            for store in client.stores() {
                store.switch_tool(tool, *on, "").await?;
            }
            Ok(())
        }
    }
}
