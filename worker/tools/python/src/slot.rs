//! A slot for one process: the process is started on demand, monitored and replaced.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_model::retry::DoublingDelay;
use tickfleet_tools::Secrets;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::definition;
use crate::interpreter::{self, Interpreter};
use crate::leases::PoolShared;
use crate::process::Process;

/// The waits before a process is started again. Together, a worker's default retries (1, 3, 9 s) last longer than the
/// first seven waits. So a retried call can outlast several restarts.
const RESTARTS: DoublingDelay = DoublingDelay::new(Duration::from_millis(100), Duration::from_secs(10));
/// A process that has run this long resets the waits.
const STEADY: Duration = Duration::from_secs(30);
const MEMORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

enum ProcessEnd {
    Closed,
    /// The process has run enough calls or uses too much memory. It receives no more calls, but its running calls can
    /// end.
    Retired,
    Stopped,
}

pub(crate) async fn run(shared: Arc<PoolShared>) {
    let mut restarts = RESTARTS;
    let mut ending = None::<JoinHandle<()>>;
    loop {
        let wanted = shared.stop.run_until_cancelled(shared.until_needed()).await;
        if wanted.is_none() {
            break;
        }
        let began = Instant::now();
        let over = match shared.stop.run_until_cancelled(started(&shared)).await {
            None => break,
            Some(Ok((interpreter, process))) => serve(&shared, interpreter, process, &mut ending).await,
            Some(Err(why)) => {
                tracing::warn!(name = shared.name, why, "tool process failed to start");
                shared.failed();
                ProcessEnd::Closed
            }
        };
        match over {
            ProcessEnd::Stopped => break,
            ProcessEnd::Retired => restarts.reset(),
            ProcessEnd::Closed => {
                if began.elapsed() >= STEADY {
                    restarts.reset();
                }
                let wait = tokio::time::sleep(restarts.next_wait());
                if shared.stop.run_until_cancelled(wait).await.is_none() {
                    break;
                }
            }
        }
    }
    if let Some(ending) = ending {
        // An error means a bug in the task. The process was killed together with the task.
        let _ = ending.await;
    }
}

async fn started(shared: &PoolShared) -> Result<(Arc<Interpreter>, Process), String> {
    let secrets = Secrets::resolve(&shared.def.secrets, &shared.machine.environment, None).await;
    let secrets = Arc::new(secrets.map_err(|name| format!("the secret '{name}' is missing"))?);
    let (interpreter, process, tools) = interpreter::start(&shared.name, &shared.def, secrets, &shared.machine).await?;
    if definition::digest(&tools) == shared.digest {
        return Ok((interpreter, process));
    }
    interpreter.send_bye();
    process.end().await;
    Err("its tools have changed since the configuration was read; a reload applies the change".to_owned())
}

/// Serves calls with one process. A retired process ends in the background, and each slot has at most one such process.
async fn serve(
    shared: &Arc<PoolShared>,
    interpreter: Arc<Interpreter>,
    process: Process,
    ending: &mut Option<JoinHandle<()>>,
) -> ProcessEnd {
    tracing::info!(name = shared.name, process = interpreter.process, "tool process ready");
    shared.process_ready(&interpreter);
    let over = watch(shared, &interpreter, &process).await;
    match over {
        ProcessEnd::Closed => {
            shared.process_gone(&interpreter);
            let status = process.end().await;
            tracing::warn!(name = shared.name, status, "tool process exited");
        }
        ProcessEnd::Stopped => {
            interpreter.send_bye();
            process.end().await;
            shared.process_gone(&interpreter);
        }
        ProcessEnd::Retired => {
            if let Some(before) = ending.take() {
                // An error means a bug in the task. The process was killed together with the task.
                let _ = before.await;
            }
            let shared_by_end = Arc::clone(shared);
            *ending = Some(shared.tasks.spawn(retire(shared_by_end, interpreter, process)));
        }
    }
    over
}

async fn watch(shared: &PoolShared, interpreter: &Interpreter, process: &Process) -> ProcessEnd {
    let mut looks = tokio::time::interval(MEMORY_CHECK_INTERVAL);
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return ProcessEnd::Stopped,
            () = interpreter.closed.cancelled() => return ProcessEnd::Closed,
            () = interpreter.retired.cancelled() => return ProcessEnd::Retired,
            _ = looks.tick() => {}
        }
        let bytes = process.resident_bytes().unwrap_or(0);
        if bytes >= shared.def.memory_max {
            tracing::info!(name = shared.name, bytes, "tool process reached its memory limit; replacing it");
            interpreter.retired.cancel();
        }
    }
}

/// Waits for the running calls. A function that ignores cancellation can be stopped only by killing the process.
async fn retire(shared: Arc<PoolShared>, interpreter: Arc<Interpreter>, process: Process) {
    let idle = async {
        while shared.running_on(&interpreter) > 0 {
            interpreter.idle.notified().await;
        }
    };
    let out_of_patience = async {
        interpreter.stuck.cancelled().await;
        tokio::time::sleep(shared.def.cancel_grace).await;
    };
    let stuck = tokio::select! {
        () = idle => interpreter.stuck.is_cancelled(),
        () = out_of_patience => true,
        () = interpreter.closed.cancelled() => false,
        () = shared.stop.cancelled() => false,
    };
    if stuck {
        tracing::warn!(name = shared.name, "canceled call did not stop; killing its process");
        process.kill();
    } else {
        interpreter.send_bye();
    }
    process.end().await;
    shared.process_gone(&interpreter);
}
