//! Assigns the calls of a pool to interpreters with free capacity, and queues the other calls.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tickfleet_config::ModulesDef;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::interpreter::Interpreter;
use crate::machine::Machine;

pub(crate) struct PoolShared {
    pub(crate) name: String,
    pub(crate) def: ModulesDef,
    pub(crate) machine: Arc<Machine>,
    /// The digest of the tools, computed when the configuration was read. A process with different tools is not used.
    pub(crate) digest: String,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
    state: Mutex<State>,
    /// Each permit lets one idle slot start a process.
    wanted: Semaphore,
}

#[derive(Default)]
struct State {
    eager: bool,
    live: Vec<LiveInterpreter>,
    /// The calls that wait for a lease, oldest first.
    waiting: VecDeque<oneshot::Sender<Lease>>,
    idle: usize,
    starting: usize,
}

struct LiveInterpreter {
    interpreter: Arc<Interpreter>,
    /// The number of calls that run now. `served` also counts the calls that have ended.
    running: usize,
    served: u64,
}

/// The right to run one call on an interpreter. Dropping the lease returns the capacity.
pub(crate) struct Lease {
    pub(crate) interpreter: Arc<Interpreter>,
    shared: Arc<PoolShared>,
}

/// Why a call gets no lease. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoLease {
    Away,
    Busy,
}

impl PoolShared {
    pub(crate) fn new(name: &str, def: &ModulesDef, digest: String, machine: Arc<Machine>) -> Self {
        Self {
            name: name.to_owned(),
            def: def.clone(),
            machine,
            digest,
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            state: Mutex::default(),
            wanted: Semaphore::new(0),
        }
    }

    pub(crate) fn entry_name(&self) -> &str {
        self.name.split_once('.').map_or(&self.name, |(_, name)| name)
    }

    pub(crate) fn be_eager(&self) {
        self.state.lock().eager = true;
        self.wanted.add_permits(self.def.processes);
    }

    /// The error is a receiver of a later lease.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Lease, oneshot::Receiver<Lease>> {
        let mut state = self.state.lock();
        match self.pick(&mut state) {
            Some(lease) => Ok(lease),
            None => Err(self.queue(&mut state)),
        }
    }

    pub(crate) fn unavailable_reason(&self) -> NoLease {
        if self.state.lock().live.is_empty() { NoLease::Away } else { NoLease::Busy }
    }

    fn pick(self: &Arc<Self>, state: &mut State) -> Option<Lease> {
        let open = |live: &&mut LiveInterpreter| {
            live.running < self.def.concurrency
                && !live.interpreter.retired.is_cancelled()
                && !live.interpreter.closed.is_cancelled()
        };
        let live = state.live.iter_mut().filter(open).min_by_key(|live| live.running)?;
        live.running += 1;
        live.served += 1;
        if live.served >= self.def.recycle_after_calls {
            live.interpreter.retired.cancel();
        }
        Some(Lease { interpreter: Arc::clone(&live.interpreter), shared: Arc::clone(self) })
    }

    fn queue(&self, state: &mut State) -> oneshot::Receiver<Lease> {
        let (give, lease) = oneshot::channel();
        state.waiting.retain(|waiting| !waiting.is_closed());
        state.waiting.push_back(give);
        if state.idle > 0 && self.wanted.available_permits() < state.idle {
            self.wanted.add_permits(1);
        }
        lease
    }

    /// Gives leases to waiting calls, without holding the lock: dropping an undelivered lease needs the lock.
    fn serve(self: &Arc<Self>) {
        loop {
            let (give, lease) = {
                let mut state = self.state.lock();
                state.waiting.retain(|waiting| !waiting.is_closed());
                if state.waiting.is_empty() {
                    return;
                }
                let Some(lease) = self.pick(&mut state) else { return };
                (state.waiting.pop_front(), lease)
            };
            if let Some(give) = give {
                drop(give.send(lease));
            }
        }
    }

    pub(crate) async fn until_needed(&self) {
        {
            let mut state = self.state.lock();
            state.waiting.retain(|waiting| !waiting.is_closed());
            // Starting processes will have capacity for some of the waiting calls, so this slot starts one only for the
            // others.
            if state.eager || state.waiting.len() > state.starting * self.def.concurrency {
                state.starting += 1;
                return;
            }
            state.idle += 1;
        }
        // `acquire` fails only if the semaphore is closed, and nothing closes it.
        if let Ok(permit) = self.wanted.acquire().await {
            permit.forget();
        }
        let mut state = self.state.lock();
        state.idle -= 1;
        state.starting += 1;
    }

    pub(crate) fn process_ready(self: &Arc<Self>, interpreter: &Arc<Interpreter>) {
        {
            let mut state = self.state.lock();
            state.starting -= 1;
            state.live.push(LiveInterpreter { interpreter: Arc::clone(interpreter), running: 0, served: 0 });
        }
        self.serve();
    }

    /// Records that a process did not start. If no other process is running or starting, all waiting calls fail.
    pub(crate) fn failed(&self) {
        let given_up = {
            let mut state = self.state.lock();
            state.starting -= 1;
            let hopeless = state.live.is_empty() && state.starting == 0;
            if hopeless { std::mem::take(&mut state.waiting) } else { VecDeque::new() }
        };
        drop(given_up);
    }

    pub(crate) fn process_gone(&self, interpreter: &Arc<Interpreter>) {
        self.state.lock().live.retain(|live| !Arc::ptr_eq(&live.interpreter, interpreter));
    }

    pub(crate) fn running_on(&self, interpreter: &Arc<Interpreter>) -> usize {
        let state = self.state.lock();
        state.live.iter().find(|live| Arc::ptr_eq(&live.interpreter, interpreter)).map_or(0, |live| live.running)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let idle = {
            let mut state = self.shared.state.lock();
            let live = state.live.iter_mut().find(|live| Arc::ptr_eq(&live.interpreter, &self.interpreter));
            live.is_some_and(|live| {
                live.running -= 1;
                live.running == 0
            })
        };
        if idle {
            self.interpreter.idle.notify_one();
        }
        self.shared.serve();
    }
}
