//! A fingerprint of the code of modules. A change of the code counts as a change of the configuration.

use std::collections::BTreeMap;
use std::path::Path;

use sha2::{Digest, Sha256};
use tickfleet_config::{ModulesDef, ToolRuntime};
use tickfleet_model::hex;

use crate::runtime;

/// A tree that is deeper than this is an installation, not a tool.
const DEPTH_MAX: usize = 16;
const FILES_MAX: usize = 5_000;

/// Covers names, sizes and times of the code files in the folders of `path`, but no installed modules.
#[must_use]
pub fn code_fingerprint<'a>(defs: impl IntoIterator<Item = &'a ModulesDef>) -> String {
    let mut found = BTreeMap::new();
    for def in defs {
        for folder in &def.path {
            look(def.runtime, Path::new(folder), 0, &mut found);
        }
    }
    let mut hash = Sha256::new();
    for (path, state) in found {
        hash.update(path);
        hash.update([0]);
        hash.update(state);
    }
    hex(&hash.finalize())
}

fn look(runtime: ToolRuntime, folder: &Path, depth: usize, found: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let hidden = name.as_encoded_bytes().starts_with(b".") || runtime::is_beside_code(runtime, &name);
        if hidden || found.len() >= FILES_MAX {
            continue;
        }
        // A mounted ConfigMap consists of symbolic links, so they are followed.
        let Ok(state) = std::fs::metadata(&path) else { continue };
        if state.is_dir() && depth < DEPTH_MAX {
            look(runtime, &path, depth + 1, found);
        } else if runtime::is_code(runtime, &path) {
            let changed = state.modified().map(|time| format!("{time:?}")).unwrap_or_default();
            let key = path.as_os_str().as_encoded_bytes().to_vec();
            found.insert(key, format!("{} {changed}", state.len()).into_bytes());
        }
    }
}
