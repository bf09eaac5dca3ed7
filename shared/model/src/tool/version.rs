//! A tool can have several versions. Each agent gets one version.

use semver::{Version, VersionReq};

/// Selects the newest version, also for agents without a selector.
pub const LATEST: &str = "latest";

/// Splits `search@2` into name and label. The label is `None` without `@`.
#[must_use]
pub fn split(name: &str) -> (&str, Option<&str>) {
    match name.split_once('@') {
        Some((name, label)) => (name, Some(label)),
        None => (name, None),
    }
}

/// Also accepts `2` and `2.1`.
#[must_use]
pub fn parse(text: &str) -> Option<Version> {
    let missing = match text.split(['-', '+']).next().unwrap_or_default().split('.').count() {
        1 => ".0.0",
        2 => ".0",
        _ => "",
    };
    Version::parse(&format!("{text}{missing}")).ok()
}

/// `latest`, or a range in Cargo's syntax (`1`, `1.2`, `=1.2.3`, `>=1, <3`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selector {
    Latest,
    Range(VersionReq),
}

impl Selector {
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text == LATEST {
            return Some(Self::Latest);
        }
        VersionReq::parse(text).ok().map(Self::Range)
    }

    #[must_use]
    pub fn takes(&self, version: &Version) -> bool {
        match self {
            Self::Latest => true,
            Self::Range(range) => range.matches(version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selector_accepts_only_matching_versions() {
        let takes = |selector: &str, version: &str| {
            Selector::parse(selector).zip(parse(version)).is_some_and(|(selector, version)| selector.takes(&version))
        };
        assert!(takes("latest", "3") && takes("1", "1.9.2") && takes("1.2", "1.3.0") && takes(">=1, <3", "2.0.0"));
        assert!(!takes("1", "2") && !takes("=1.2.3", "1.2.4"));
        assert!(Selector::parse("newest").is_none() && parse("x").is_none());
        assert_eq!((split("search@2"), split("search")), (("search", Some("2")), ("search", None)));
    }
}
