//! Tools that come and go while a worker runs.

use tokio::sync::{mpsc, oneshot};
use worker::tools::TypedTool;

/// Requests that wait.
const WAITING_MAX: usize = 16;

/// Registers tools at the workers of this process. Clones are the same registrar.
#[derive(Debug, Clone)]
pub struct Registrar(mpsc::Sender<Request>);

/// Why a tool is not registered.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The operator does not want it.
    #[error("worker.allow_dynamic_registration is false")]
    NotAllowed,
    /// The tool cannot be used: its name is taken, its schema is refused, its start hook failed.
    #[error("{0}")]
    Refused(String),
    /// No tool that was registered at run time has this name.
    #[error("no tool was registered as {0:?}")]
    Unknown(String),
    /// The workers are about to end.
    #[error("the worker stops")]
    Stopped,
}

/// What is asked for.
#[derive(Debug)]
pub(crate) enum Request {
    Register(Box<TypedTool>, oneshot::Sender<Result<(), RegisterError>>),
    Unregister(String, oneshot::Sender<Result<(), RegisterError>>),
}

impl Registrar {
    /// A registrar, and where its requests arrive.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Request>) {
        let (sender, receiver) = mpsc::channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Runs the tool's start hook, then makes the tool callable; calls that run are not disturbed. Who may call it is
    /// for `permissions.yaml` to say, by its name, as for any tool: nobody, where no row does. The registration lasts
    /// until the process ends. Every worker of a fleet should register the same tools: a call goes to any of them.
    ///
    /// # Errors
    /// [`RegisterError`]; the tools are as before.
    pub async fn register(&self, tool: TypedTool) -> Result<(), RegisterError> {
        self.ask(|answer| Request::Register(Box::new(tool), answer)).await
    }

    /// Takes a tool away that was registered at run time. Calls of it that run come to their end; then its stop hook
    /// runs.
    ///
    /// # Errors
    /// [`RegisterError`]; the tools are as before.
    pub async fn unregister(&self, name: &str) -> Result<(), RegisterError> {
        self.ask(|answer| Request::Unregister(name.to_owned(), answer)).await
    }

    async fn ask(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<(), RegisterError>>) -> Request,
    ) -> Result<(), RegisterError> {
        let (answer, answered) = oneshot::channel();
        self.0.send(request(answer)).await.map_err(|_| RegisterError::Stopped)?;
        answered.await.unwrap_or(Err(RegisterError::Stopped))
    }
}
