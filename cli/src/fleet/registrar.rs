use tickfleet_tools::{Environment, TypedTool, start_all, stop_all};
use tokio::sync::{mpsc, oneshot};

const WAITING_MAX: usize = 16;

#[derive(Debug, Clone)]
pub struct Registrar {
    requests: mpsc::Sender<Request>,
    environment: Environment,
}

#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    #[error("worker.allow_dynamic_registration is false")]
    NotAllowed,
    /// The name is taken, the schema is rejected, or the start hook failed.
    #[error("{0}")]
    Refused(String),
    /// No tool that was registered at run time has this name.
    #[error("no tool was registered as {0:?}")]
    Unknown(String),
    #[error("the worker stops")]
    Stopped,
}

#[derive(Debug)]
pub(crate) enum Request {
    May(String, oneshot::Sender<Result<(), RegisterError>>),
    Register(Box<TypedTool>, oneshot::Sender<Result<(), RegisterError>>),
    Unregister(String, oneshot::Sender<Result<(), RegisterError>>),
}

impl Registrar {
    pub(crate) fn new(environment: Environment) -> (Self, mpsc::Receiver<Request>) {
        let (requests, receiver) = mpsc::channel(WAITING_MAX);
        (Self { requests, environment }, receiver)
    }

    /// Runs the tool's start hook, then makes the tool callable until the tool is unregistered or the process ends.
    /// Agents also need a row in `permissions.yaml` with the tool's name. Register the same tools with every worker,
    /// because a call can go to any worker.
    pub async fn register(&self, tool: TypedTool) -> Result<(), RegisterError> {
        let name = tool.spec().name.clone();
        self.ask(|answer| Request::May(name, answer)).await?;
        // The hook runs here and not in the loop for registrations, because a slow hook would delay other
        // registrations.
        let one = [tool.clone()];
        start_all(&one, &self.environment).await.map_err(|errors| {
            let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
            RegisterError::Refused(errors.join("; "))
        })?;
        let registered = self.ask(|answer| Request::Register(Box::new(tool), answer)).await;
        if registered.is_err() {
            stop_all(&one).await;
        }
        registered
    }

    /// After the running calls, the tool's stop hook runs.
    pub async fn unregister(&self, name: &str) -> Result<(), RegisterError> {
        self.ask(|answer| Request::Unregister(name.to_owned(), answer)).await
    }

    async fn ask(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<(), RegisterError>>) -> Request,
    ) -> Result<(), RegisterError> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| RegisterError::Stopped)?;
        answered.await.unwrap_or(Err(RegisterError::Stopped))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};
    use tickfleet_model::Effect;
    use tickfleet_ops::shutdown::Shutdown;
    use tickfleet_protocol::parse_turn;
    use tickfleet_testkit::RedisServer;
    use tickfleet_tools::ToolError;
    use tokio::sync::Notify;

    use super::*;
    use crate::fleet::extensions::Extensions;
    use crate::fleet::{self, ProbeAddress, Roles};
    use crate::global::Global;
    use crate::setup::{self, Setup};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}

    #[derive(Serialize, JsonSchema)]
    struct Done {}

    type Log = Arc<Mutex<Vec<String>>>;

    fn tool(label: &'static str, log: &Log, go: &Arc<Notify>) -> TypedTool {
        let note = |what: &'static str| {
            let log = Arc::clone(log);
            move || log.lock().push(format!("{label} {what}"))
        };
        let called = note("is called");
        let started = note("starts");
        let stopped = note("stops");
        let go = Arc::clone(go);
        TypedTool::new("later", "Waits.", Effect::Once, move |_, _: Nothing| {
            called();
            let go = Arc::clone(&go);
            async move {
                go.notified().await;
                Ok::<_, ToolError>(Done {})
            }
        })
        .on_start(move |_| {
            started();
            async { Ok(()) }
        })
        .on_stop(move || {
            stopped();
            async {}
        })
    }

    async fn until(log: &Log, wanted: &[&str]) {
        let began = tokio::time::Instant::now();
        while *log.lock() != wanted {
            assert!(began.elapsed() < PATIENCE, "{:?} instead of {wanted:?}", log.lock());
            // Hooks run in the background, so the test polls the log.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_tool_registers_once_and_stops_after_its_last_call() {
        tickfleet_outbound::install_crypto_provider();
        let redis = RedisServer::start().await;
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("permissions.yaml"), "permissions: {later: {everyone: true}}\n").unwrap();
        let variables = [("REDIS_URL", redis.url()), ("TICKFLEET_WORKER_ALLOW_DYNAMIC_REGISTRATION", "true".into())];
        let environment = variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        let (sender, mut registrars) = mpsc::channel(1);
        let beside = move |registrar: Registrar| -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
            let sender = sender.clone();
            Box::pin(async move { sender.send(registrar).await.unwrap() })
        };
        let mut extensions = Extensions::default();
        extensions.beside = Some(Arc::new(beside));
        let global = Global {
            config: Some(dir.path().to_owned()),
            redis_url: None,
            json: false,
            trial_tools: false,
            extensions,
        };
        let setup = Setup::of(&setup::sources_in(environment, &global).unwrap(), &global.extensions, None).unwrap();
        let shutdown = Shutdown::default();
        let probes = ProbeAddress::On("127.0.0.1:0".parse().unwrap());
        let fleet = fleet::start(&setup, Roles::BOTH, probes, shutdown.clone()).await.unwrap();
        fleet.follow_configuration(&setup, None);
        let registrar = registrars.recv().await.unwrap();

        let log = Log::default();
        let go = Arc::new(Notify::new());
        registrar.register(tool("first", &log, &go)).await.unwrap();
        let again = registrar.register(tool("second", &log, &go)).await.unwrap_err();
        assert_eq!(again.to_string(), r#"there is a tool "later" already"#);
        assert!(matches!(registrar.unregister("earlier").await, Err(RegisterError::Unknown(_))));
        until(&log, &["first starts"]).await;

        // A call of the first tool runs while the second tool replaces it.
        let client = setup.client().await.unwrap();
        let turn = br#"{"tenant": "demo", "agent": "kelly", "calls": [{"name": "later"}]}"#;
        client.submit(parse_turn(turn).unwrap()).await.unwrap();
        until(&log, &["first starts", "first is called"]).await;
        registrar.unregister("later").await.unwrap();
        registrar.register(tool("second", &log, &go)).await.unwrap();
        until(&log, &["first starts", "first is called", "second starts"]).await;
        go.notify_one();
        until(&log, &["first starts", "first is called", "second starts", "first stops"]).await;

        shutdown.drain();
        fleet.wait().await.unwrap();
        until(&log, &["first starts", "first is called", "second starts", "first stops", "second stops"]).await;
        assert!(registrar.register(tool("third", &log, &go)).await.is_err(), "nothing is registered any more");
    }
}
