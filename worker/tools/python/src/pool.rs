//! A pool: the interpreters of one configuration entry, from start to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tickfleet_config::ModulesDef;
use tokio_util::sync::DropGuard;

use crate::leases::{Lease, NoLease, PoolShared};
use crate::machine::Machine;
use crate::slot;

/// Dropping the last tool of the pool ends the pool's processes.
pub(crate) struct Pool {
    pub(crate) shared: Arc<PoolShared>,
    started: AtomicBool,
    _stops: DropGuard,
}

impl Pool {
    pub(crate) fn new(name: &str, def: &ModulesDef, digest: String, machine: Arc<Machine>) -> Self {
        let shared = Arc::new(PoolShared::new(name, def, digest, machine));
        let stops = shared.stop.clone().drop_guard();
        Self { shared, started: AtomicBool::new(false), _stops: stops }
    }

    /// Starts the processes now instead of on demand. Requires a running runtime.
    pub(crate) fn start(&self) {
        self.shared.be_eager();
        self.slots();
    }

    pub(crate) async fn stop(&self) {
        self.shared.stop.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }

    fn slots(&self) {
        if !self.started.swap(true, Ordering::AcqRel) && !self.shared.stop.is_cancelled() {
            for _ in 0..self.shared.def.processes {
                self.shared.tasks.spawn(slot::run(Arc::clone(&self.shared)));
            }
        }
    }

    pub(crate) async fn lease(&self, wait: Duration) -> Result<Lease, NoLease> {
        self.slots();
        let coming = match self.shared.take() {
            Ok(lease) => return Ok(lease),
            Err(coming) => coming,
        };
        match tokio::time::timeout(wait, coming).await {
            Ok(Ok(lease)) => Ok(lease),
            Ok(Err(_)) => Err(NoLease::Away),
            Err(_) => Err(self.shared.unavailable_reason()),
        }
    }
}
