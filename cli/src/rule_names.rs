//! Checks the names in the rules of `permissions.yaml` against the tools of a process.

use std::sync::Arc;

use tickfleet_config::{ConfigErrors, ConfigWarning};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_store::Store;
use tickfleet_tools::Registry;

use crate::failure::Failure;
use crate::setup::{Runs, Setup};

impl Setup {
    pub(crate) fn registry(&self, store: &Store, active: &Arc<PolicyHandle>, runs: Runs) -> Result<Registry, Failure> {
        let registry = self.tools(store, active, runs)?;
        self.rule_names(&registry).map_err(Failure::failed)?;
        Ok(registry)
    }

    /// Warnings are about names that may be misspelled, errors about names that no call can have.
    pub(crate) fn rule_names(&self, registry: &Registry) -> Result<Vec<ConfigWarning>, ConfigErrors> {
        self.configuration.check_rule_names(|tool| registry.input_schemas(tool))
    }

    pub(crate) fn warn_about_rules(&self, registry: &Registry) {
        for warning in self.rule_names(registry).unwrap_or_default() {
            tracing::warn!(%warning, "rule names an argument that its tool does not declare");
        }
    }

    /// The outer error is about tools that cannot be used, the inner error about rules.
    pub(crate) fn check_rules(&self) -> Result<Result<Vec<ConfigWarning>, ConfigErrors>, Failure> {
        let store = Store::open(&self.url, 0, Arc::new(self.store_options()))?;
        Ok(self.rule_names(&self.tools(&store, &self.active(), Runs::Elsewhere)?))
    }
}
