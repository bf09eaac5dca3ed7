//! Logs: one subscriber per process, to stderr, so that stdout belongs to a command's result. Spans that are exported
//! ([`super::traces`]) go through the same one.

use std::io::IsTerminal;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{FilterExt, LevelFilter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use super::repeats::Repeats;
use super::traces::Traces;

/// The look of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people: one line an event, in colour on a terminal.
    #[default]
    Pretty,
    /// For collectors: one JSON object an event.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = TelemetryError;

    fn from_str(text: &str) -> Result<Self, TelemetryError> {
        match text {
            "pretty" => Ok(Self::Pretty),
            "json" => Ok(Self::Json),
            _ => Err(TelemetryError::Format(text.to_owned())),
        }
    }
}

/// The level and format of a process' log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    /// The look of lines.
    pub format: LogFormat,
    /// A level (`info`), or levels by target (`info,tickfleet_store=debug`), as `EnvFilter` takes them.
    pub level: String,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: "info".into() }
    }
}

/// Why logging cannot start as asked.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level is no directive.
    #[error("log level {level:?}: {why}; expected off, error, warn, info, debug or trace, or TARGET=LEVEL pairs")]
    Level {
        /// The text that was given.
        level: String,
        /// The problem with it.
        why: String,
    },
    /// No format has this name.
    #[error("log format {0:?} is unknown; expected pretty or json")]
    Format(String),
    /// The process logs already.
    #[error("logging was started twice in one process: {0}")]
    Started(#[from] tracing_subscriber::util::TryInitError),
    /// The process does not log, so there is no level to change.
    #[error("cannot change the log level: logging was not started")]
    NotStarted,
}

/// The level of the process' log, once it has started: there is one log per process.
static LEVEL: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Starts logging for the whole process, and the export of spans where there is one. Call it once, before anything logs.
///
/// # Errors
/// [`TelemetryError::Level`] where the level does not parse, [`TelemetryError::Started`] on a second call.
pub fn init(options: &LogOptions, traces: Option<&Traces>) -> Result<(), TelemetryError> {
    let (filter, level) = reload::Layer::new(filter(&options.level)?);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match options.format {
        LogFormat::Pretty => lines.with_ansi(colour_wanted()).boxed(),
        LogFormat::Json => json_lines(),
    };
    let wanted = filter.and(Repeats::default());
    let process = tracing_subscriber::registry().with(lines.with_filter(wanted));
    match traces {
        Some(traces) => {
            process.with(traces.layer()).try_init()?;
            traces.started();
        }
        None => process.try_init()?,
    }
    // Only the one start that succeeds comes here.
    let _ = LEVEL.set(level);
    Ok(())
}

/// Lines of JSON on stderr.
fn json_lines<S>() -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = fmt::layer().with_writer(std::io::stderr).json();
    // Fields at the top level, so that a collector's query says `turn`, not `fields.turn`.
    lines.flatten_event(true).with_current_span(true).with_span_list(false).boxed()
}

/// Writes what `emit` logs as lines of a JSON log, whether the process' log has started or not: for what is wrong before.
pub fn emit_json(emit: impl FnOnce()) {
    tracing::subscriber::with_default(tracing_subscriber::registry().with(json_lines()), emit);
}

/// Changes what the process logs from here on.
///
/// # Errors
/// [`TelemetryError::Level`] where the level does not parse, [`TelemetryError::NotStarted`] before [`init`]; then
/// nothing has changed.
pub fn set_level(level: &str) -> Result<(), TelemetryError> {
    let filter = filter(level)?;
    let handle = LEVEL.get().ok_or(TelemetryError::NotStarted)?;
    handle.reload(filter).map_err(|_| TelemetryError::NotStarted)
}

/// Returns true if lines are coloured: on a terminal, unless the user said no (<https://no-color.org>).
#[allow(clippy::disallowed_methods, reason = "NO_COLOR is a convention of terminals, no setting of ours")]
fn colour_wanted() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Parses a level. `EnvFilter` alone takes a misspelt level (`inof`) for the name of a target and then logs
/// nothing at all: a bare word has to be a level here.
fn filter(level: &str) -> Result<EnvFilter, TelemetryError> {
    let fail = |why: String| TelemetryError::Level { level: level.to_owned(), why };
    let directives: Vec<&str> = level.split(',').map(str::trim).collect();
    for directive in &directives {
        let bare = !directive.contains(['=', '[']);
        // An empty word is a level too for the parser (error), but nobody means that.
        if directive.is_empty() || (bare && directive.parse::<LevelFilter>().is_err()) {
            return Err(fail(format!("{directive:?} is not a level")));
        }
    }
    // The MCP library logs whole messages, arguments and results among them: it is silent unless it is named.
    let quiet = if level.contains("rmcp") { "" } else { ",rmcp=off" };
    // Joined again without the blanks around commas, which `EnvFilter` takes for a part of the names.
    EnvFilter::try_new(directives.join(",") + quiet).map_err(|error| fail(error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn levels_and_levels_by_target_are_taken() {
        for good in ["info", "WARN", "off", "info,tickfleet_store=debug", "warn, worker=trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_misspelt_level_is_an_error_that_names_it() {
        for bad in ["inof", "", "info,deubg", "info,tickfleet_ops=loud"] {
            let error = filter(bad).expect_err(bad).to_string();
            assert!(error.contains("expected off, error, warn"), "{error}");
        }
        assert!(filter("info,deubg").unwrap_err().to_string().contains("\"deubg\" is not a level"));
    }

    #[test]
    fn logging_starts_once_per_process_and_its_level_changes_meanwhile() {
        assert!(matches!(set_level("debug"), Err(TelemetryError::NotStarted)));
        init(&LogOptions { format: LogFormat::Json, ..LogOptions::default() }, None).unwrap();
        assert!(matches!(init(&LogOptions::default(), None), Err(TelemetryError::Started(_))));
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
        set_level("warn,tickfleet_ops=debug").unwrap();
        assert!(tracing::enabled!(tracing::Level::DEBUG), "of this module");
        assert!(!tracing::enabled!(target: "other", tracing::Level::INFO));
        assert!(matches!(set_level("loud"), Err(TelemetryError::Level { .. })));
        assert!(tracing::enabled!(tracing::Level::DEBUG), "as before");
    }

    #[test]
    fn formats_have_names() {
        assert_eq!("json".parse::<LogFormat>().unwrap(), LogFormat::Json);
        assert!("xml".parse::<LogFormat>().unwrap_err().to_string().contains("pretty or json"));
    }
}
