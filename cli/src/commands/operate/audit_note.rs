//! Options for the audit log.

use std::time::Duration;

use clap::Args;

use crate::commands::limits::{by_environment, reason, who};
use crate::failure::Failure;

/// Name of the operator.
#[derive(Debug, Args)]
pub(crate) struct By {
    /// Your name for the audit log. If missing, the variable USER.
    #[arg(long, value_name = "NAME", value_parser = who)]
    by: Option<String>,
}

impl By {
    pub(crate) fn name(&self) -> Result<String, Failure> {
        self.by.clone().map_or_else(by_environment, Ok)
    }
}

/// Fields of the audit entry besides the action, for commands that do not require them.
#[derive(Debug, Args)]
pub(crate) struct AuditNote {
    /// Reason for the audit log.
    #[arg(long, value_parser = reason)]
    reason: Option<String>,
    #[command(flatten)]
    by: By,
}

impl AuditNote {
    /// A missing name is not an error, because a command that revokes a right must always work.
    pub(crate) fn by(&self) -> String {
        self.by.name().unwrap_or_else(|_| "unknown".into())
    }

    pub(crate) fn reason(&self) -> &str {
        self.reason.as_deref().unwrap_or_default()
    }
}

pub(crate) fn age(text: &str) -> Result<Duration, String> {
    tickfleet_config::units::parse_duration(text).ok_or_else(|| "expected a duration such as 10m or 2h".to_owned())
}
