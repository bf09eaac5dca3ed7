//! Checks which sandboxes of the configured tools this machine can provide.

use std::sync::Arc;

use tickfleet_config::WithoutSandbox;
use tickfleet_config::tools::ToolRunner;
use tickfleet_model::Effect;
use tickfleet_ops::metrics::Metrics;
use tickfleet_tools::ToolKind;
use tickfleet_tools_shell::{ShellKind, builtin};

use crate::setup::Setup;

impl Setup {
    /// `None` if no tool needs a sandbox. Each text names a tool without a possible sandbox, with the reason.
    pub(crate) fn sandboxed(&self) -> Option<Vec<String>> {
        let tools = self.configuration.tools.tools.iter();
        let declared = tools.filter_map(|(name, def)| match &def.runner {
            Some(ToolRunner::Shell(shell)) => Some((name, shell)),
            _ => None,
        });
        let declared: Vec<_> = declared.collect();
        let runs: Vec<&str> = builtin::RUNNING.into_iter().filter(|name| self.is_wanted(name)).collect();
        if declared.is_empty() && runs.is_empty() {
            return None;
        }
        let kind = ShellKind::new(Arc::clone(&self.shell));
        let unheld = declared.into_iter().filter_map(|(name, def)| {
            let schema = self.configuration.tools.tools.get(name)?.input_schema.as_ref()?;
            Some(format!("{name}: {}", kind.make(def, schema, Effect::Once).err()?))
        });
        let mut unheld: Vec<String> = unheld.collect();
        if self.shell.strictest().is_none() {
            unheld.extend(runs.iter().map(|name| format!("{name}: it needs the level basic or strict")));
        }
        Some(unheld)
    }

    pub(crate) fn starts_without_sandbox(&self) -> bool {
        self.settings().worker.without_sandbox == WithoutSandbox::RefuseCalls
    }

    pub(crate) fn warn_about_sandbox(&self, metrics: &Metrics) {
        let Some(unheld) = self.sandboxed() else {
            metrics.sandbox_found([], 0);
            return;
        };
        let support = self.shell.support();
        metrics.sandbox_found(support.levels().map(|(level, why)| (level.to_string(), why.is_none())), unheld.len());
        for tool in unheld {
            tracing::error!(tool, "this machine cannot provide the tool's sandbox; its calls are rejected here");
        }
    }
}
