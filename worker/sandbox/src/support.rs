use std::fmt;

use crate::spec::{Level, Network};

/// The lowest Landlock ABI that restricts TCP.
pub(crate) const ABI_TCP: i32 = 4;
/// The lowest Landlock ABI that restricts signals to the sandbox.
#[cfg(target_os = "linux")]
pub(crate) const ABI_SCOPES: i32 = 6;

/// The sandbox features that this machine supports. A trial run of each launcher level detected `basic`, `strict` and
/// `proc`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxSupport {
    /// The version of Landlock's ABI. 0 if Landlock is unavailable.
    pub landlock: i32,
    /// Why the level `basic` is not supported. `None` if the level is supported.
    pub basic: Option<String>,
    /// Why the level `strict` is not supported. `None` if the level is supported.
    pub strict: Option<String>,
    /// True if each command at the level `strict` has its own `/proc`.
    pub proc: bool,
    /// Why no container engine is available. `None` if an engine is available.
    pub docker: Option<String>,
    /// Why commands do not have their own cgroups. `None` if each command has its own cgroup.
    pub cgroup: Option<String>,
}

impl SandboxSupport {
    /// Returns the support of a machine that was not probed: nothing is supported, and the reason is `why`.
    #[must_use]
    pub fn none(why: &str) -> Self {
        let why = || Some(why.to_owned());
        Self { landlock: 0, basic: why(), strict: why(), proc: false, docker: why(), cgroup: why() }
    }

    /// Checks that this machine supports a level together with this network access.
    ///
    /// # Errors
    /// The missing feature, as a message for the operator.
    pub fn check(&self, level: Level, network: &Network) -> Result<(), String> {
        let missing = match level {
            Level::Basic => &self.basic,
            Level::Strict => &self.strict,
            Level::Docker => &self.docker,
        };
        if let Some(why) = missing {
            return Err(format!("this machine does not support the sandbox level {level}: {why}"));
        }
        match (level, network) {
            (_, Network::None) => Ok(()),
            (Level::Docker, Network::Tcp(_)) => Err("the sandbox level docker has no network at all".into()),
            (_, Network::Tcp(_)) if self.landlock < ABI_TCP => {
                let found = self.landlock;
                Err(format!(
                    "this machine cannot restrict TCP to single ports: its Landlock has ABI {found}, not {ABI_TCP}"
                ))
            }
            (_, Network::Tcp(_)) => Ok(()),
        }
    }

    /// Returns each level, with the reason why the level is not supported. The reason is `None` if the level is
    /// supported.
    pub fn levels(&self) -> impl Iterator<Item = (Level, Option<&str>)> {
        let levels = [(Level::Basic, &self.basic), (Level::Strict, &self.strict), (Level::Docker, &self.docker)];
        levels.into_iter().map(|(level, missing)| (level, missing.as_deref()))
    }
}

impl fmt::Display for SandboxSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (level, missing) in self.levels() {
            match missing {
                None => write!(f, "{level}: yes; ")?,
                Some(why) => write!(f, "{level}: no ({why}); ")?,
            }
        }
        match &self.cgroup {
            None => f.write_str("a cgroup for each command: yes; ")?,
            Some(why) => write!(f, "a cgroup for each command: no ({why}); ")?,
        }
        write!(f, "Landlock ABI: {}", self.landlock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsupported_level_is_rejected_with_the_reason() {
        let none = SandboxSupport::none("it was not probed");
        for level in [Level::Basic, Level::Strict, Level::Docker] {
            assert!(none.check(level, &Network::None).is_err_and(|why| why.contains("it was not probed")));
        }
        let old = SandboxSupport { landlock: 3, ..SandboxSupport::default() };
        assert!(old.check(Level::Basic, &Network::None).is_ok());
        assert!(old.check(Level::Basic, &Network::Tcp(vec![443])).is_err_and(|why| why.contains("ABI 3")));
        assert!(SandboxSupport { landlock: 4, ..old }.check(Level::Strict, &Network::Tcp(vec![443])).is_ok());
    }
}
