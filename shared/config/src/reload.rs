//! Detects changes of the configuration folder.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tickfleet_model::hex;

use super::{ConfigErrors, Configuration, Sources, load};
use crate::document::tree::{Entry, Node, join};
use crate::files;

/// A reload applies these sections and settings. Other settings need a restart.
const LIVE: [&str; 6] =
    ["caps.", "fairness.", "permission.", "log.level", "worker.tool_timeout", "worker.allow_dynamic_registration"];

const READS_MAX: usize = 5;

const FILES_MAX: usize = 1_000;

/// Returns a digest of the visible files in the folder and in its direct subfolders.
///
/// Callers poll the digest. A mounted ConfigMap changes by swapping the link `..data`, which a watch on the files does
/// not notice. Network file systems report no changes at all.
#[must_use]
pub fn fingerprint(dir: &Path) -> String {
    let mut hash = Sha256::new();
    for path in files_in(dir, true).into_iter().take(FILES_MAX) {
        let held = match std::fs::metadata(&path) {
            Ok(file) if file.len() > files::FILE_BYTES_MAX => format!("{} bytes", file.len()).into_bytes(),
            Ok(_) => std::fs::read(&path).unwrap_or_else(|error| error.to_string().into_bytes()),
            Err(error) => error.kind().to_string().into_bytes(),
        };
        for part in [path.as_os_str().as_encoded_bytes(), &held] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    hex(&hash.finalize())
}

fn files_in(dir: &Path, below: bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    let shown = names.into_iter().filter(|name| !name.as_encoded_bytes().starts_with(b".")).map(|name| dir.join(name));
    shown
        .flat_map(|path| {
            if !path.is_dir() {
                vec![path]
            } else if below {
                files_in(&path, false)
            } else {
                Vec::new()
            }
        })
        .collect()
}

/// Loads one consistent state of the folder: reads again if the folder changes during a read.
///
/// # Errors
/// The errors of [`load`]. If the folder keeps changing, the errors of the last read.
pub fn load_settled(sources: &Sources) -> (String, Result<Configuration, ConfigErrors>) {
    let state = || sources.dir.as_deref().map(fingerprint).unwrap_or_default();
    let mut before = state();
    for _ in 1..READS_MAX {
        let loaded = load(sources);
        let after = state();
        if before == after {
            return (after, loaded);
        }
        before = after;
    }
    (before, load(sources))
}

/// Returns only the names of the changed settings, because some values are secrets.
#[must_use]
pub fn needs_restart(running: &Configuration, new: &Configuration) -> Vec<String> {
    let mut names = Vec::new();
    if let (Some(running), Some(new)) = (&running.trees.settings, &new.trees.settings) {
        differences(running, new, "", &mut names);
    }
    names.retain(|name| !LIVE.iter().any(|live| name == live || (live.ends_with('.') && name.starts_with(live))));
    names
}

fn differences(running: &Node, new: &Node, path: &str, names: &mut Vec<String>) {
    if running.entries().is_empty() && running.to_json() != new.to_json() {
        names.push(path.to_owned());
    }
    // Both trees have all defaults, so they have the same fields.
    for Entry { key, node, .. } in running.entries() {
        match new.get(key) {
            Some(new) => differences(node, new, &join(path, key), names),
            None => names.push(join(path, key)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;

    use tickfleet_model::policy::TEAM_TOOLS;

    use super::*;

    fn settings(dir: &Path, text: &str) -> Configuration {
        std::fs::write(dir.join("tickfleet.yaml"), text).unwrap();
        let built_in_handlers = ["note".to_owned()].into();
        let trial = ["echo", "sleep", "fail", "fail_once", "delegate_task"];
        let built_in_tools = trial.into_iter().chain(TEAM_TOOLS).map(String::from).collect();
        let sources = Sources { dir: Some(dir.into()), built_in_tools, built_in_handlers, ..Sources::default() };
        load_settled(&sources).1.unwrap()
    }

    #[test]
    fn only_settings_that_need_a_restart_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let running = settings(dir.path(), "caps: {tick: 5s}");
        let new = settings(
            dir.path(),
            "caps: {tick: 9s}\nworker: {slots: 3, tool_timeout: 9s}\nlog: {level: debug, format: json}\nredis: {url: 'redis://u:p@h/'}",
        );
        assert_eq!(needs_restart(&running, &new), ["redis.url", "worker.slots", "log.format"]);
        assert!(needs_restart(&running, &running).is_empty());
    }

    #[test]
    fn the_page_about_reloads_lists_the_live_settings() {
        let page = include_str!("../../../docs/operate/reload.md");
        let row = page.lines().find(|line| line.contains("`worker.tool_timeout`")).unwrap();
        let listed: BTreeSet<&str> = row.split('`').skip(1).step_by(2).collect();
        assert_eq!(listed, LIVE.iter().map(|live| live.trim_end_matches('.')).collect());
    }

    #[test]
    fn a_fingerprint_detects_changed_added_removed_and_relinked_files() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut seen = vec![fingerprint(dir.path())];
        for (version, text) in [("..one", "a"), ("..two", "b")] {
            std::fs::create_dir(at(version)).unwrap();
            std::fs::write(at(version).join("tools.yaml"), text).unwrap();
        }
        std::os::unix::fs::symlink("..one", at("..data")).unwrap();
        std::os::unix::fs::symlink("..data/tools.yaml", at("tools.yaml")).unwrap();
        seen.push(fingerprint(dir.path()));
        assert_eq!(fingerprint(dir.path()), seen[1], "nothing has changed");
        std::os::unix::fs::symlink("..two", at("..data_tmp")).unwrap();
        std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
        seen.push(fingerprint(dir.path()));
        std::fs::remove_file(at("tools.yaml")).unwrap();
        assert_eq!(fingerprint(dir.path()), seen[0], "as at the beginning");
        std::fs::rename(at("..two").join("tools.yaml"), at("agents.yaml")).unwrap();
        seen.push(fingerprint(dir.path()));
        let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len(), "{seen:?}");
    }
}
