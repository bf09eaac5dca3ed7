use std::fmt;

use crate::spec::{Level, Network};

/// Lower ABIs do not restrict TCP.
pub(crate) const ABI_TCP: i32 = 4;
/// Lower ABIs do not restrict signals to the sandbox.
#[cfg(target_os = "linux")]
pub(crate) const ABI_SCOPES: i32 = 6;

/// The values of `basic`, `strict` and `proc` come from trial runs of the launcher.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxSupport {
    /// The version of Landlock's ABI. 0 if Landlock is unavailable.
    pub landlock: i32,
    /// `None` if the level is supported; otherwise the reason.
    pub basic: Option<String>,
    /// `None` if the level is supported; otherwise the reason.
    pub strict: Option<String>,
    /// True if each command at the level `strict` has its own `/proc`.
    pub proc: bool,
    /// `None` if a container engine is available; otherwise the reason.
    pub docker: Option<String>,
    /// `None` if each command has its own cgroup; otherwise the reason.
    pub cgroup: Option<String>,
}

impl SandboxSupport {
    #[must_use]
    pub fn none(why: &str) -> Self {
        let why = || Some(why.to_owned());
        Self { landlock: 0, basic: why(), strict: why(), proc: false, docker: why(), cgroup: why() }
    }

    /// The error names the missing feature in words that an operator understands.
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

    /// Returns each level with `None` if the level is supported, otherwise with the reason.
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
