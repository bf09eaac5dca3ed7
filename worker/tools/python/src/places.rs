//! The places of a pool for calls: which interpreter has room, and who waits for one.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tickfleet_config::PythonDef;
use tokio::sync::{Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::interpreter::Interpreter;
use crate::machine::Machine;

/// What the pool, its slots and its calls share.
pub(crate) struct Shared {
    pub(crate) name: String,
    pub(crate) def: PythonDef,
    pub(crate) machine: Arc<Machine>,
    /// Digest of the tools that the configuration was read with: a process with others is not used.
    pub(crate) digest: String,
    /// Cancelled when everything should end.
    pub(crate) stop: CancellationToken,
    /// Slots, and what ends their processes.
    pub(crate) tasks: TaskTracker,
    state: Mutex<State>,
    /// A permit for each idle slot that should start a process.
    wanted: Semaphore,
}

#[derive(Default)]
struct State {
    /// Processes are started without being asked for.
    eager: bool,
    live: Vec<Live>,
    /// Calls that no process has room for, the oldest first.
    waiting: VecDeque<oneshot::Sender<Lease>>,
    /// Slots that wait until they are wanted.
    idle: usize,
    /// Slots that start a process.
    starting: usize,
}

struct Live {
    interpreter: Arc<Interpreter>,
    /// Calls that run on it, and calls that it was given so far.
    running: usize,
    served: u64,
}

/// The right to run one call on an interpreter. Dropping it gives it back.
pub(crate) struct Lease {
    pub(crate) interpreter: Arc<Interpreter>,
    shared: Arc<Shared>,
}

/// Why no interpreter takes a call. Nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoLease {
    /// None can be started now.
    Away,
    /// All are busy.
    Busy,
}

impl Shared {
    /// No process, and nobody who waits.
    pub(crate) fn new(name: &str, def: &PythonDef, digest: String, machine: Arc<Machine>) -> Self {
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

    /// From now on, processes are started without being asked for.
    pub(crate) fn be_eager(&self) {
        self.state.lock().eager = true;
        self.wanted.add_permits(self.def.processes);
    }

    /// A place on an interpreter, or where one will be handed over.
    ///
    /// # Errors
    /// The receiver of a place, where there is none now.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Lease, oneshot::Receiver<Lease>> {
        let mut state = self.state.lock();
        match self.pick(&mut state) {
            Some(lease) => Ok(lease),
            None => Err(self.queue(&mut state)),
        }
    }

    /// Why a place did not come in time.
    pub(crate) fn why_none(&self) -> NoLease {
        if self.state.lock().live.is_empty() { NoLease::Away } else { NoLease::Busy }
    }

    /// The interpreter with the fewest calls that has room for one more.
    fn pick(self: &Arc<Self>, state: &mut State) -> Option<Lease> {
        let open = |live: &&mut Live| {
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

    /// Hands what has become free to whoever waits. Leases are sent when the lock is free: one that nobody takes comes
    /// back at once.
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
                // One that was not taken is dropped here, and gives its place back.
                drop(give.send(lease));
            }
        }
    }

    /// Waits until a slot should start a process.
    pub(crate) async fn wanted(&self) {
        {
            let mut state = self.state.lock();
            state.waiting.retain(|waiting| !waiting.is_closed());
            // Those that start already will have room for some.
            if state.eager || state.waiting.len() > state.starting * self.def.concurrency {
                state.starting += 1;
                return;
            }
            state.idle += 1;
        }
        // The semaphore is never closed.
        if let Ok(permit) = self.wanted.acquire().await {
            permit.forget();
        }
        let mut state = self.state.lock();
        state.idle -= 1;
        state.starting += 1;
    }

    /// A process is up and takes calls.
    pub(crate) fn up(self: &Arc<Self>, interpreter: &Arc<Interpreter>) {
        {
            let mut state = self.state.lock();
            state.starting -= 1;
            state.live.push(Live { interpreter: Arc::clone(interpreter), running: 0, served: 0 });
        }
        self.serve();
    }

    /// A process could not be started. Where no other is there or on its way, nobody waits any longer.
    pub(crate) fn failed(&self) {
        let given_up = {
            let mut state = self.state.lock();
            state.starting -= 1;
            let hopeless = state.live.is_empty() && state.starting == 0;
            if hopeless { std::mem::take(&mut state.waiting) } else { VecDeque::new() }
        };
        drop(given_up);
    }

    /// A process has ended, or will in a moment.
    pub(crate) fn down(&self, interpreter: &Arc<Interpreter>) {
        self.state.lock().live.retain(|live| !Arc::ptr_eq(&live.interpreter, interpreter));
    }

    /// Returns the number of calls that run on a process.
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
