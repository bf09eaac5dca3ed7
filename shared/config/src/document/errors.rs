//! The errors of a configuration.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigLocation {
    BuiltIn {
        file: Arc<str>,
        line: u64,
        column: u64,
    },
    File {
        file: Arc<str>,
        /// From 1; 0 for the whole file.
        line: u64,
        /// In characters, from 1; 0 for the whole file.
        column: u64,
    },
    Environment(Arc<str>),
}

impl ConfigLocation {
    #[must_use]
    pub fn whole_file(path: &str) -> Self {
        Self::File { file: path.into(), line: 0, column: 0 }
    }

    #[must_use]
    pub const fn is_built_in(&self) -> bool {
        matches!(self, Self::BuiltIn { .. })
    }
}

impl fmt::Display for ConfigLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn { file, line, column } => write!(f, "built-in {file}:{line}:{column}"),
            Self::File { file, line: 0, .. } => f.write_str(file),
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Environment(name) => write!(f, "environment variable {name}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct ConfigError {
    pub place: ConfigLocation,
    /// Such as `worker.lease` or `tools.search_x.http.method`; empty for a whole file.
    pub path: String,
    /// Without secrets.
    pub found: String,
    pub expected: String,
    pub suggestion: Option<String>,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        write!(f, "found {}; expected {}", self.found, self.expected)?;
        match &self.suggestion {
            Some(meant) => write!(f, "; did you mean `{meant}`?"),
            None => Ok(()),
        }
    }
}

/// Never empty. A cause comes before its consequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    #[must_use]
    pub fn as_slice(&self) -> &[ConfigError] {
        &self.0
    }
}

impl std::error::Error for ConfigErrors {}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.0.len() == 1 { "error" } else { "errors" };
        write!(f, "the configuration has {} {plural}:", self.0.len())?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigWarning {
    pub place: ConfigLocation,
    pub path: String,
    pub message: String,
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.path, self.message)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Errors(RefCell<Vec<ConfigError>>, RefCell<Vec<ConfigWarning>>);

impl Errors {
    pub(crate) fn push(
        &self,
        place: &ConfigLocation,
        path: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.suggest(place, path, found, expected, None);
    }

    pub(crate) fn suggest(
        &self,
        place: &ConfigLocation,
        path: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
        suggestion: Option<String>,
    ) {
        let found = found.into();
        let expected = expected.into();
        self.0.borrow_mut().push(ConfigError { place: place.clone(), path: path.into(), found, expected, suggestion });
    }

    pub(crate) fn warn(&self, place: &ConfigLocation, path: &str, message: impl Into<String>) {
        let path = path.to_owned();
        let message = message.into();
        self.1.borrow_mut().push(ConfigWarning { place: place.clone(), path, message });
    }

    pub(crate) fn warnings(&self) -> Vec<ConfigWarning> {
        let mut warnings = self.1.borrow().clone();
        warnings.sort();
        warnings
    }

    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }

    pub(crate) fn unless_any<T>(self, value: Option<T>) -> Result<T, ConfigErrors> {
        let mut errors = self.0.into_inner();
        match value {
            Some(value) if errors.is_empty() => Ok(value),
            _ => {
                errors.sort_by(|a, b| (rank(&a.place), a).cmp(&(rank(&b.place), b)));
                errors.dedup();
                Err(ConfigErrors(gathered(errors)))
            }
        }
    }
}

/// These files of the sample business use names of other files. An operator who replaces the other files may have to
/// replace these, too.
const OF_SAMPLES: [&str; 3] = ["agents.yaml", "permissions.yaml", "tenants.yaml"];

/// A file uses only names of files above it. In this order, each error comes before the errors that it causes.
const ORDER: [&str; 9] = [
    "tickfleet.yaml",
    "models.yaml",
    "mcp.lock.yaml",
    "mcp.yaml",
    "tools.yaml",
    "agents.yaml",
    "permissions.yaml",
    "limits.yaml",
    "tenants.yaml",
];

/// Prompts of agents count as `tickfleet.yaml`, because other files name these prompts.
fn rank(place: &ConfigLocation) -> usize {
    match place {
        ConfigLocation::Environment(_) => 0,
        ConfigLocation::BuiltIn { file, .. } | ConfigLocation::File { file, .. } => {
            let name = file.rsplit(['/', '\\']).next().unwrap_or_default();
            ORDER.iter().position(|known| *known == name).unwrap_or(0)
        }
    }
}

/// Operators cannot edit a built-in file, so its errors become one error. `errors` must be sorted.
fn gathered(errors: Vec<ConfigError>) -> Vec<ConfigError> {
    let sample = |error: &ConfigError| match &error.place {
        ConfigLocation::BuiltIn { file, .. } if OF_SAMPLES.contains(&&**file) => Some(Arc::clone(file)),
        _ => None,
    };
    let runs = errors.chunk_by(|a, b| sample(a).is_some() && sample(a) == sample(b));
    let one = |run: &[ConfigError]| match run.first().and_then(sample) {
        Some(file) => vec![of_sample(&file, run)],
        None => run.to_vec(),
    };
    runs.flat_map(one).collect()
}

fn of_sample(file: &str, errors: &[ConfigError]) -> ConfigError {
    const SHOWN: usize = 3;
    let expected = format!("a {file} of your own: each file that you bring replaces the built-in one as a whole");
    let mut names: Vec<&str> = errors.iter().map(|error| named(&error.found)).collect();
    names.sort_unstable();
    names.dedup();
    let shown = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let more = if names.len() > SHOWN { ", …" } else { "" };
    let found = match names.len() {
        1 => format!("the name {shown}, which your files do not have"),
        count => format!("{count} names that your files do not have ({shown}{more})"),
    };
    let (place, path) = errors
        .first()
        .map(|first| (first.place.clone(), first.path.clone()))
        .unwrap_or_else(|| (ConfigLocation::BuiltIn { file: file.into(), line: 1, column: 1 }, String::new()));
    let path = if names.len() == 1 { path } else { String::new() };
    ConfigError { place, path, found, expected, suggestion: None }
}

fn named(found: &str) -> &str {
    found.split(['`', '"']).nth(1).unwrap_or(found)
}
