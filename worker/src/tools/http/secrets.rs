//! Secrets: resolved at each use, put into requests only, taken out of whatever comes back.

use std::collections::BTreeMap;
use std::fmt;

use secrecy::{ExposeSecret, SecretString};
use shared::config::tools::SecretRef;

use super::environment::Environment;
use super::template;

/// What stands where a secret was.
const REDACTED: &str = "[REDACTED]";
/// Shorter values are not looked for in answers: they would match everywhere.
const SCRUBBED_BYTES_MIN: usize = 4;
/// A secret file larger than this is not a secret.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The secrets of one request, by the names that templates use.
pub(super) struct Secrets(BTreeMap<String, SecretString>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Secrets {
    /// Reads every secret anew: a mounted file may have changed.
    ///
    /// # Errors
    /// The name of the first secret that is missing, empty or unreadable.
    pub(super) async fn resolve(
        references: &BTreeMap<String, SecretRef>,
        environment: &Environment,
    ) -> Result<Self, String> {
        let mut secrets = BTreeMap::new();
        for (name, reference) in references {
            let value = match reference {
                SecretRef::Env(variable) => environment.get(variable),
                SecretRef::File(path) => read(path).await,
            };
            let value = value.filter(|v| !v.is_empty()).ok_or_else(|| name.clone())?;
            secrets.insert(name.clone(), SecretString::from(value));
        }
        Ok(Self(secrets))
    }

    /// Secrets with these values, for tests.
    #[cfg(test)]
    pub(super) fn of<'a>(secrets: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        Self(secrets.into_iter().map(|(name, value)| (name.to_owned(), SecretString::from(value))).collect())
    }

    /// The value of a secret.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(ExposeSecret::expose_secret)
    }

    /// Replaces every secret in `text`, in the forms in which a service may echo it.
    pub(super) fn scrub(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for form in self.forms() {
            if clean.contains(&form) {
                clean = clean.replace(&form, REDACTED);
            }
        }
        clean
    }

    /// Whether `text` has a secret in it.
    pub(super) fn found_in(&self, text: &str) -> bool {
        self.forms().iter().any(|form| text.contains(form))
    }

    /// Plain, percent-encoded, JSON-escaped, and JSON-escaped with `\/`; longest first, so that a secret that is
    /// part of another leaves no remainder.
    fn forms(&self) -> Vec<String> {
        let mut forms = Vec::new();
        for value in self.0.values().map(ExposeSecret::expose_secret).filter(|v| v.len() >= SCRUBBED_BYTES_MIN) {
            let json = serde_json::Value::from(value).to_string();
            let escaped = json.trim_matches('"').to_owned();
            forms.push(escaped.replace('/', "\\/"));
            forms.push(escaped);
            forms.push(template::percent_encoded(value, ""));
            forms.push(template::percent_encoded(value, template::SECRET_KEEPS));
            forms.push(value.to_owned());
        }
        forms.sort_unstable_by_key(|form| std::cmp::Reverse(form.len()));
        forms.dedup();
        forms
    }
}

/// A secret file without its final line break. None when it cannot be read as text.
async fn read(path: &str) -> Option<String> {
    let size = tokio::fs::metadata(path).await.ok().filter(std::fs::Metadata::is_file)?.len();
    if size > FILE_BYTES_MAX {
        return None;
    }
    let text = tokio::fs::read_to_string(path).await.ok()?;
    Some(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn an_echoed_secret_is_scrubbed_in_every_form() {
        let secrets = Secrets::of([("TOKEN", "12:ab/c+\"d")]);
        for echo in ["12:ab/c+\"d", "12%3Aab%2Fc%2B%22d", "12:ab/c+\\\"d", "12:ab\\/c+\\\"d", "12:ab%2Fc+%22d"] {
            assert_eq!(secrets.scrub(&format!("<{echo}>")), "<[REDACTED]>", "{echo}");
            assert!(secrets.found_in(echo));
        }
        assert_eq!(format!("{secrets:?}"), r#"{"TOKEN"}"#);
    }

    #[tokio::test]
    async fn a_missing_secret_is_named_and_a_file_is_read_at_each_use() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_string_lossy().into_owned();
        let references = BTreeMap::from([("KEY".to_owned(), SecretRef::File(path.clone()))]);
        let environment = Environment::of([]);
        let resolve = || Secrets::resolve(&references, &environment);
        assert_eq!(resolve().await.unwrap_err(), "KEY", "an empty file is no secret");
        std::fs::write(&path, "first\n").unwrap();
        assert_eq!(resolve().await.unwrap().get("KEY"), Some("first"));
        std::fs::write(&path, "second\r\n").unwrap();
        assert_eq!(resolve().await.unwrap().get("KEY"), Some("second"));
    }
}
