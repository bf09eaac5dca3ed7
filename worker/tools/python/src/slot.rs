//! One place for a process: started when it is wanted, watched, replaced when it has served enough or has ended.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_tools::Secrets;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::definition;
use crate::interpreter::{self, Interpreter};
use crate::places::Shared;
use crate::process::Process;

/// Waits before a process is started again that has ended by itself. The last one goes on; the sum of a worker's usual
/// waits before a retry (1, 3, 9 s) is longer, so a call can outlive several.
const LADDER: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];
/// A process that ran this long starts the ladder from its first rung.
const STEADY: Duration = Duration::from_secs(30);
/// The time between two looks at a process' memory.
const WEIGHED_EVERY: Duration = Duration::from_secs(1);

/// Why a process is not used any more.
enum Over {
    /// It has ended, or must: nothing can be asked of it.
    Closed,
    /// It has served enough: its calls end on it.
    Retired,
    /// The pool is about to end.
    Stopped,
}

/// Runs one process after the other until the pool stops.
pub(crate) async fn run(shared: Arc<Shared>) {
    let (mut rung, mut ending) = (0, None::<JoinHandle<()>>);
    loop {
        let wanted = shared.stop.run_until_cancelled(shared.wanted()).await;
        if wanted.is_none() {
            break;
        }
        let began = Instant::now();
        let over = match shared.stop.run_until_cancelled(started(&shared)).await {
            None => break,
            Some(Ok((interpreter, process))) => serve(&shared, interpreter, process, &mut ending).await,
            Some(Err(why)) => {
                tracing::warn!(name = shared.name, why, "Python process failed to start");
                shared.failed();
                Over::Closed
            }
        };
        match over {
            Over::Stopped => break,
            Over::Retired => rung = 0,
            Over::Closed => {
                rung = if began.elapsed() >= STEADY { 0 } else { rung };
                let wait = tokio::time::sleep(LADDER[rung.min(LADDER.len() - 1)]);
                rung += 1;
                if shared.stop.run_until_cancelled(wait).await.is_none() {
                    break;
                }
            }
        }
    }
    if let Some(ending) = ending {
        // An error says that it ended by a bug: its process is killed with it.
        let _ = ending.await;
    }
}

async fn started(shared: &Shared) -> Result<(Arc<Interpreter>, Process), String> {
    let secrets = Secrets::resolve(&shared.def.secrets, &shared.machine.environment, None).await;
    let secrets = Arc::new(secrets.map_err(|name| format!("the secret '{name}' is missing"))?);
    let (interpreter, process, tools) = interpreter::start(&shared.name, &shared.def, secrets, &shared.machine).await?;
    if definition::digest(&tools) == shared.digest {
        return Ok((interpreter, process));
    }
    interpreter.bye();
    process.end().await;
    Err("its tools have changed since the configuration was read; a reload applies the change".to_owned())
}

/// Has a process take calls until that is over. One that has served enough ends beside its successor, one at a time.
async fn serve(
    shared: &Arc<Shared>,
    interpreter: Arc<Interpreter>,
    process: Process,
    ending: &mut Option<JoinHandle<()>>,
) -> Over {
    tracing::info!(name = shared.name, process = interpreter.process, "Python process ready");
    shared.up(&interpreter);
    let over = watch(shared, &interpreter, &process).await;
    match over {
        Over::Closed => {
            shared.down(&interpreter);
            let status = process.end().await;
            tracing::warn!(name = shared.name, status, "Python process exited");
        }
        Over::Stopped => {
            interpreter.bye();
            process.end().await;
            shared.down(&interpreter);
        }
        Over::Retired => {
            if let Some(before) = ending.take() {
                // An error says that it ended by a bug: its process is killed with it.
                let _ = before.await;
            }
            let shared_by_end = Arc::clone(shared);
            *ending = Some(shared.tasks.spawn(retire(shared_by_end, interpreter, process)));
        }
    }
    over
}

/// Waits for the end of a process' use.
async fn watch(shared: &Shared, interpreter: &Interpreter, process: &Process) -> Over {
    let mut looks = tokio::time::interval(WEIGHED_EVERY);
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return Over::Stopped,
            () = interpreter.closed.cancelled() => return Over::Closed,
            () = interpreter.retired.cancelled() => return Over::Retired,
            _ = looks.tick() => {}
        }
        let bytes = process.resident_bytes().unwrap_or(0);
        if bytes >= shared.def.memory_max {
            tracing::info!(name = shared.name, bytes, "Python process reached its memory limit; replacing it");
            interpreter.retired.cancel();
        }
    }
}

/// Ends a process when its last call has ended. Where a cancelled call does not end, the others get a grace, and the
/// process is killed: nothing else stops a function that does not look whether it is still wanted.
async fn retire(shared: Arc<Shared>, interpreter: Arc<Interpreter>, process: Process) {
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
        tracing::warn!(name = shared.name, "cancelled Python call did not stop; killing its process");
        process.kill();
    } else {
        interpreter.bye();
    }
    process.end().await;
    shared.down(&interpreter);
}
