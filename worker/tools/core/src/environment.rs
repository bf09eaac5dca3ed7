//! The process environment, passed as an argument.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use tickfleet_config::tools::{SecretRef, TENANT};

/// Looks up environment variables.
#[derive(Clone)]
pub struct Environment(Arc<Lookup>);

type Lookup = dyn Fn(&str) -> Option<String> + Send + Sync;

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Variables can contain secrets, so their values are not printed.
        f.write_str("Environment(..)")
    }
}

impl Environment {
    /// Makes an environment that reads variables with `lookup`.
    pub fn new(lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Arc::new(lookup))
    }

    /// Makes an environment with the given variables, for tests.
    pub fn of<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let variables: HashMap<String, String> =
            variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self::new(move |name| variables.get(name).cloned())
    }

    /// Returns the value of a variable. An empty value counts as not set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.is_empty())
    }

    /// True if the variable of a secret is not set. Secrets that differ by tenant are not checked. Files are not checked
    /// either, because they can be created later.
    #[must_use]
    pub fn lacks(&self, secret: &SecretRef) -> bool {
        matches!(secret, SecretRef::Env(variable) if !variable.contains(TENANT) && self.get(variable).is_none())
    }

    /// Replaces `${NAME}` and `${NAME:-default}` in `text`. Fails if a variable without a default is not set, or if a
    /// `${` is not closed.
    pub fn expand(&self, text: &str) -> Result<String, UnsetVariable> {
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("${") {
            let (reference, after) = after.split_once('}').ok_or_else(|| UnsetVariable(after.to_owned()))?;
            let (name, default) = match reference.split_once(":-") {
                Some((name, default)) => (name, Some(default.to_owned())),
                None => (reference, None),
            };
            expanded.push_str(before);
            expanded.push_str(&self.get(name).or(default).ok_or_else(|| UnsetVariable(name.to_owned()))?);
            rest = after;
        }
        expanded.push_str(rest);
        Ok(expanded)
    }
}

/// The name of a variable that is not set and has no default. After an unclosed `${`, the rest of the text.
#[derive(Debug, PartialEq, Eq)]
pub struct UnsetVariable(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_replace_unset_and_empty_variables() {
        let environment = Environment::of([("HOST", "api.example.com"), ("EMPTY", "")]);
        assert_eq!(environment.expand("https://${HOST:-x}:${PORT:-443}/"), Ok("https://api.example.com:443/".into()));
        assert_eq!(environment.expand("${EMPTY:-default}"), Ok("default".into()));
        assert_eq!(environment.expand("${NONE}"), Err(UnsetVariable("NONE".into())));
        assert_eq!(environment.expand("${NONE"), Err(UnsetVariable("NONE".into())));
        assert_eq!(environment.expand("plain $5 {x}"), Ok("plain $5 {x}".into()));
    }
}
