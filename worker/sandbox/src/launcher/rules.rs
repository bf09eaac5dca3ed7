//! Landlock rules: the files and TCP ports that a command may use. The command's signals reach only the sandbox.

use std::path::Path;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};

use super::command_paths::CommandPaths;
use super::files::{DEVICES, ETC, SYSTEM, ZERO};
use super::{Refusal, raw, step};
use crate::spec::{Level, Network, Spec};

/// The newest ABI that tests cover. An older kernel enforces the rights that it supports.
const NEWEST: ABI = ABI::V6;

/// Restricts this process and its children permanently.
pub(super) fn restrict(spec: &Spec, paths: &CommandPaths<'_>) -> Result<(), Refusal> {
    if raw::landlock_abi() == 0 {
        // At the level `strict`, the command has its own root, so the mounts already restrict its files.
        return match paths.level {
            Level::Strict => Ok(()),
            _ => Err(Refusal::Step("Landlock: the kernel has none, or it is switched off".into())),
        };
    }
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(|ruleset| ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp))
        .and_then(|ruleset| ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .and_then(Ruleset::create)
        .map_err(step("Landlock"))?;
    let status = with_rules(ruleset, spec, paths)?.restrict_self().map_err(step("Landlock"))?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(Refusal::Step("Landlock: the kernel enforces nothing".into())),
        _ => Ok(()),
    }
}

fn with_rules(mut rules: RulesetCreated, spec: &Spec, paths: &CommandPaths<'_>) -> Result<RulesetCreated, Refusal> {
    let all = AccessFs::from_all(NEWEST);
    let read = AccessFs::from_read(NEWEST);
    let look = AccessFs::ReadFile | AccessFs::ReadDir;
    if paths.level == Level::Strict {
        // The root contains only files from the launcher, so all of it is readable.
        rules = beneath(rules, Path::new("/"), read)?;
        for path in ["/tmp", "/dev/shm"] {
            rules = beneath(rules, Path::new(path), all)?;
        }
    } else {
        for path in SYSTEM {
            rules = beneath(rules, Path::new(path), read)?;
        }
        for path in ETC {
            rules = beneath(rules, Path::new(path), look)?;
        }
    }
    for path in DEVICES {
        rules = beneath(rules, Path::new(path), AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate)?;
    }
    rules = beneath(rules, Path::new(ZERO), AccessFs::ReadFile.into())?;
    for grant in &spec.grants {
        rules = beneath(rules, &grant.path, if grant.write { all } else { read })?;
    }
    rules = beneath(rules, paths.workspace, all)?;
    if let Network::Tcp(ports) = &spec.network {
        for port in ports {
            rules = rules.add_rule(NetPort::new(*port, AccessNet::ConnectTcp)).map_err(step("Landlock"))?;
        }
    }
    Ok(rules)
}

/// A path that does not exist needs no rule.
fn beneath(rules: RulesetCreated, path: &Path, access: BitFlags<AccessFs>) -> Result<RulesetCreated, Refusal> {
    let Ok(found) = PathFd::new(path) else { return Ok(rules) };
    let allowed = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
    rules.add_rule(PathBeneath::new(found, allowed)).map_err(step("Landlock"))
}
