//! What a program brings along beside what Tickfleet has: its own tools and task handlers.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use worker::tools::TypedTool;

use crate::registrar::Registrar;

type Beside = dyn Fn(Registrar) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

/// A program's own tools and task handlers. Clones share what is registered while the program runs.
#[derive(Clone, Default)]
pub(crate) struct Own {
    pub(crate) tools: Vec<TypedTool>,
    pub(crate) task_handlers: Vec<TypedTool>,
    /// What was registered at run time.
    registered: Arc<Mutex<Vec<TypedTool>>>,
    /// Runs beside a worker, and may register tools.
    pub(crate) beside: Option<Arc<Beside>>,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Own").field("tools", &self.tools).field("task_handlers", &self.task_handlers).finish()
    }
}

impl Own {
    /// The tools that there are now.
    pub(crate) fn tools_now(&self) -> Vec<TypedTool> {
        self.tools.iter().chain(self.registered().iter()).cloned().collect()
    }

    /// Everything that is started before the first call.
    pub(crate) fn fixed(&self) -> Vec<TypedTool> {
        self.tools.iter().chain(&self.task_handlers).cloned().collect()
    }

    /// Everything that is stopped after the last call.
    pub(crate) fn all(&self) -> Vec<TypedTool> {
        self.fixed().into_iter().chain(self.registered().iter().cloned()).collect()
    }

    pub(crate) fn add(&self, tool: TypedTool) {
        self.registered().push(tool);
    }

    /// Takes away what was registered at run time under this name.
    pub(crate) fn take(&self, name: &str) -> Option<TypedTool> {
        let mut registered = self.registered();
        let at = registered.iter().position(|tool| tool.spec().name == name)?;
        Some(registered.remove(at))
    }

    fn registered(&self) -> MutexGuard<'_, Vec<TypedTool>> {
        // Each change is one call: nothing can leave the list half changed.
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
