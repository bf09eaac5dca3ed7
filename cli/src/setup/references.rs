//! Checks the names in tools that define themselves in code. Loading the configuration checks only the names in
//! `tools.yaml`.

use std::collections::BTreeSet;

use tickfleet_config::Configuration;
use tickfleet_model::{Effect, ToolSpec, suggest};
use tickfleet_tools::Registry;

pub(super) fn errors(configuration: &Configuration, registry: &Registry) -> Vec<String> {
    let approvers = &configuration.policy.permissions.approvers;
    // If tools can be registered at run time or by another worker, this process does not know all tools. Unknown tools
    // are then not reported.
    let is_complete = !configuration.settings.worker.allow_dynamic_registration;
    let mut errors = Vec::new();
    for ToolSpec { name, approval, reconcile, .. } in registry.iter().map(|tool| &tool.spec) {
        if let Some(demand) = approval {
            let known: BTreeSet<&str> = approvers.values().flatten().map(String::as_str).collect();
            for role in demand.by.iter().filter(|role| !known.contains(role.as_str())) {
                let roles = suggest::list(known.iter().copied());
                errors.push(format!(
                    "tool '{name}': approval.by has the unknown role {role:?}; expected a role that an approver of \
                     permissions.yaml has: {roles}"
                ));
            }
            let may = approvers.values().filter(|roles| demand.by.is_empty() || !demand.by.is_disjoint(roles)).count();
            let quorum = usize::try_from(demand.quorum).unwrap_or(usize::MAX);
            // If `may` is 0, the error would be redundant: the loop above reports unknown roles, and calls without an
            // approver are rejected.
            if may > 0 && quorum > may {
                errors.push(format!(
                    "tool '{name}': approval.quorum is {quorum}; expected at most {may}: permissions.yaml has only that \
                     many approvers for it"
                ));
            }
        }
        let Some(by) = reconcile.as_ref().map(|reconcile| reconcile.tool.as_str()) else { continue };
        match registry.get(by) {
            None if is_complete => errors.push(format!("tool '{name}': reconcile.tool is {by:?}; no such tool exists")),
            Some(other) if by == name || other.spec.effect != Effect::Read => {
                errors.push(format!(
                    "tool '{name}': reconcile.tool is {by:?}; expected another tool, with the effect read"
                ));
            }
            _ => {}
        }
    }
    errors
}
