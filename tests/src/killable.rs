//! Workers and schedulers that end like killed processes: in the middle of their work and without cleanup.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::shutdown::Shutdown;
use tokio::runtime::{Builder, Runtime};

use crate::fleet::{Fleet, Plan};

/// Has its own async runtime, so that a kill ends nothing else.
pub struct KillableProcess {
    runtime: Option<Runtime>,
}

impl KillableProcess {
    pub fn start(fleet: &Fleet, name: &str) -> Self {
        Self::start_as(fleet, Arc::clone(fleet.plan()), name)
    }

    pub fn start_as(fleet: &Fleet, plan: Arc<Plan>, name: &str) -> Self {
        Self::worker_on(&fleet.url_of("worker"), plan, &fleet.active, &fleet.metrics, name)
    }

    pub fn worker_on(
        url: &str,
        plan: Arc<Plan>,
        active: &Arc<PolicyHandle>,
        metrics: &Arc<Metrics>,
        name: &str,
    ) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let url = url.to_owned();
        let name = name.to_owned();
        let active = active.clone();
        let metrics = metrics.clone();
        runtime.spawn(async move {
            let shutdown = Shutdown::default();
            let worker = plan.worker(plan.store(&url), active, metrics, &name, shutdown.now.clone());
            worker.run(shutdown).await.unwrap();
        });
        Self { runtime: Some(runtime) }
    }

    pub fn both(fleet: &Fleet, name: &str) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let url = fleet.url_of("tickfleet");
        let plan = Arc::clone(fleet.plan());
        let active = fleet.active.clone();
        let metrics = fleet.metrics.clone();
        let worker = format!("w{name}");
        let scheduler = format!("s{name}");
        runtime.spawn(async move {
            let shutdown = Shutdown::default();
            let now = shutdown.now.clone();
            let scheduler = plan.scheduler(plan.store(&url), active.clone(), metrics.clone(), &scheduler);
            let worker = plan.worker(plan.store(&url), active, metrics, &worker, now);
            let draining = shutdown.draining.clone();
            let (decided, carried) = tokio::join!(scheduler.run(draining), worker.run(shutdown));
            decided.and(carried).unwrap();
        });
        Self { runtime: Some(runtime) }
    }

    pub fn kill(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for KillableProcess {
    fn drop(&mut self) {
        self.stop();
    }
}
