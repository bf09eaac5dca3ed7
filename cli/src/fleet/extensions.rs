//! The tools and task handlers that the fleet's program adds to those of Tickfleet.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tickfleet_tools::TypedTool;

use crate::fleet::registrar::Registrar;

type CompanionTask = dyn Fn(Registrar) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

#[derive(Clone, Default)]
pub(crate) struct Extensions {
    pub(crate) tools: Vec<TypedTool>,
    pub(crate) task_handlers: Vec<TypedTool>,
    registered: Arc<Mutex<Vec<TypedTool>>>,
    /// A tool stays here until its last call has ended and the tool has been stopped.
    retiring: Arc<Mutex<Vec<TypedTool>>>,
    pub(crate) beside: Option<Arc<CompanionTask>>,
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions").field("tools", &self.tools).field("task_handlers", &self.task_handlers).finish()
    }
}

impl Extensions {
    pub(crate) fn tools_now(&self) -> Vec<TypedTool> {
        self.tools.iter().chain(self.registered.lock().iter()).cloned().collect()
    }

    pub(crate) fn fixed(&self) -> Vec<TypedTool> {
        self.tools.iter().chain(&self.task_handlers).cloned().collect()
    }

    pub(crate) fn all(&self) -> Vec<TypedTool> {
        let retiring = self.retiring.lock().clone();
        self.fixed().into_iter().chain(self.registered.lock().iter().cloned()).chain(retiring).collect()
    }

    pub(crate) fn add(&self, tool: TypedTool) {
        self.registered.lock().push(tool);
    }

    pub(crate) fn retire(&self, name: &str) -> Option<TypedTool> {
        let mut registered = self.registered.lock();
        let at = registered.iter().position(|tool| tool.spec().name == name)?;
        let tool = registered.remove(at);
        self.retiring.lock().push(tool.clone());
        Some(tool)
    }

    pub(crate) fn forget(&self, name: &str) {
        self.retiring.lock().retain(|tool| tool.spec().name != name || tool.is_held());
    }
}
