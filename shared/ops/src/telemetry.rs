//! Logs: one subscriber per process, also for exported spans ([`super::traces`]). Log lines go to stderr, because
//! stdout is for a command's result.

use std::io::IsTerminal;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{FilterExt, LevelFilter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use super::repeat_filter::RepeatFilter;
use super::traces::Traces;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Pretty,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogOptions {
    pub format: LogFormat,
    /// A level (`info`), or levels by target (`info,tickfleet_store=debug`), in the syntax of `EnvFilter`.
    pub level: String,
}

impl Default for LogOptions {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: "info".into() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("log level {level:?}: {why}; expected off, error, warn, info, debug or trace, or TARGET=LEVEL pairs")]
    Level { level: String, why: String },
    #[error("log format {0:?} is unknown; expected pretty or json")]
    Format(String),
    #[error("logging was started twice in one process: {0}")]
    Started(#[from] tracing_subscriber::util::TryInitError),
    #[error("cannot change the log level: logging was not started")]
    NotStarted,
}

/// Empty until logging has started.
static LEVEL: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Call this function once, before the first log line. A second call fails with [`TelemetryError::Started`].
pub fn init(options: &LogOptions, traces: Option<&Traces>) -> Result<(), TelemetryError> {
    let (filter, level) = reload::Layer::new(filter(&options.level)?);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match options.format {
        LogFormat::Pretty => lines.with_ansi(wants_color()).boxed(),
        LogFormat::Json => json_lines(),
    };
    let wanted = filter.and(RepeatFilter::default());
    let process = tracing_subscriber::registry().with(lines.with_filter(wanted));
    match traces {
        Some(traces) => {
            process.with(traces.layer()).try_init()?;
            traces.started();
        }
        None => process.try_init()?,
    }
    // A second call fails above, so `LEVEL` is not set yet.
    let _ = LEVEL.set(level);
    Ok(())
}

fn json_lines<S>() -> Box<dyn Layer<S> + Send + Sync>
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
{
    let lines = fmt::layer().with_writer(std::io::stderr).json();
    // With fields at the top level, a collector's query is `turn` instead of `fields.turn`.
    lines.flatten_event(true).with_current_span(true).with_span_list(false).boxed()
}

/// For errors before logging has started.
pub fn emit_json(emit: impl FnOnce()) {
    tracing::subscriber::with_default(tracing_subscriber::registry().with(json_lines()), emit);
}

/// Fails if the level is invalid, and before [`init`]. After an error, the level is unchanged.
pub fn set_level(level: &str) -> Result<(), TelemetryError> {
    let filter = filter(level)?;
    let handle = LEVEL.get().ok_or(TelemetryError::NotStarted)?;
    handle.reload(filter).map_err(|_| TelemetryError::NotStarted)
}

/// True if stderr is a terminal, and `NO_COLOR` is unset or empty (<https://no-color.org>).
#[allow(clippy::disallowed_methods, reason = "NO_COLOR is a convention of terminals, no setting of ours")]
fn wants_color() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// `EnvFilter` alone would take a misspelled level (`inof`) for a target, and then log nothing. So a word without `=`
/// and `[` must be a level.
fn filter(level: &str) -> Result<EnvFilter, TelemetryError> {
    let fail = |why: String| TelemetryError::Level { level: level.to_owned(), why };
    let directives: Vec<&str> = level.split(',').map(str::trim).collect();
    for directive in &directives {
        let bare = !directive.contains(['=', '[']);
        // The parser would accept an empty word as the level `error`.
        if directive.is_empty() || (bare && directive.parse::<LevelFilter>().is_err()) {
            return Err(fail(format!("{directive:?} is not a level")));
        }
    }
    // The MCP library logs whole messages, so this library is silent unless the level names it.
    let quiet = if level.contains("rmcp") { "" } else { ",rmcp=off" };
    // Each directive was trimmed, because `EnvFilter` would treat blanks as part of the names.
    EnvFilter::try_new(directives.join(",") + quiet).map_err(|error| fail(error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn levels_with_and_without_targets_are_accepted() {
        for good in ["info", "WARN", "off", "info,tickfleet_store=debug", "warn, worker=trace"] {
            assert!(filter(good).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_misspelled_level_is_named_in_the_error() {
        for bad in ["inof", "", "info,deubg", "info,tickfleet_ops=loud"] {
            let error = filter(bad).expect_err(bad).to_string();
            assert!(error.contains("expected off, error, warn"), "{error}");
        }
        assert!(filter("info,deubg").unwrap_err().to_string().contains("\"deubg\" is not a level"));
    }

    #[test]
    fn logging_starts_once_and_its_level_can_change() {
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
    fn log_formats_parse_by_name() {
        assert_eq!("json".parse::<LogFormat>().unwrap(), LogFormat::Json);
        assert!("xml".parse::<LogFormat>().unwrap_err().to_string().contains("pretty or json"));
    }
}
