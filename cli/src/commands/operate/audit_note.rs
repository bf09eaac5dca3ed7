//! Options for the audit log.

use std::time::Duration;

use clap::Args;
use tickfleet_client::verbs::Reason;
use tickfleet_model::limits;

use crate::failure::Failure;
use crate::global::environment;

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

    /// A missing name is not an error, because a command that stops work or revokes a right must always work.
    pub(crate) fn name_if_known(&self) -> String {
        self.name().unwrap_or_else(|_| "unknown".into())
    }
}

/// Fields of the audit entry besides the action, for commands that do not require them.
#[derive(Debug, Args)]
pub(crate) struct AuditNote {
    /// Reason for the audit log.
    #[arg(long)]
    reason: Option<Reason>,
    #[command(flatten)]
    by: By,
}

impl AuditNote {
    pub(crate) fn by(&self) -> String {
        self.by.name_if_known()
    }

    pub(crate) fn reason(&self) -> &str {
        self.reason.as_ref().map_or("", Reason::as_str)
    }
}

pub(crate) fn who(text: &str) -> Result<String, String> {
    let text = text.trim();
    let max = limits::NAME_BYTES_MAX;
    match text.len() {
        0 => Err("it must not be empty".into()),
        bytes if bytes > max => Err(format!("it has {bytes} bytes; at most {max} are allowed")),
        _ => Ok(text.to_owned()),
    }
}

pub(crate) fn by_environment() -> Result<String, Failure> {
    let user = environment().remove("USER").unwrap_or_default();
    who(&user).map_err(|_| Failure::usage("the variable USER is not set: pass --by with your name for the audit log"))
}

pub(crate) fn age(text: &str) -> Result<Duration, String> {
    tickfleet_config::units::parse_duration(text).ok_or_else(|| "expected a duration such as 10m or 2h".to_owned())
}
