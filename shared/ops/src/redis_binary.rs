use std::path::{Path, PathBuf};

/// A path, or a name in PATH.
const VARIABLE: &str = "TICKFLEET_REDIS_SERVER";
/// Searched for in PATH in this order.
const NAMES: [&str; 2] = ["redis-server", "valkey-server"];

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerNotFound {
    #[error("TICKFLEET_REDIS_SERVER: {0:?} is not a program")]
    Named(PathBuf),
    #[error(
        "found neither redis-server nor valkey-server in PATH. Install one (Debian: apt-get install redis-server), \
         name one with TICKFLEET_REDIS_SERVER, or point REDIS_URL at a running one"
    )]
    InPath,
}

#[allow(clippy::disallowed_methods, reason = "PATH and the program's name belong to the machine, not to the fleet")]
pub fn find_binary() -> Result<PathBuf, ServerNotFound> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    choose(named, &folders)
}

fn choose(named: Option<PathBuf>, folders: &[PathBuf]) -> Result<PathBuf, ServerNotFound> {
    let look_up = |name: &Path| folders.iter().map(|folder| folder.join(name)).find(|file| is_program(file));
    match named {
        Some(file) if file.components().count() > 1 && is_program(&file) => Ok(file),
        Some(name) => look_up(&name).ok_or(ServerNotFound::Named(name)),
        None => NAMES.iter().find_map(|name| look_up(Path::new(name))).ok_or(ServerNotFound::InPath),
    }
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn program(folder: &Path, name: &str, mode: u32) -> PathBuf {
        let file = folder.join(name);
        std::fs::write(&file, "").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        file
    }

    #[test]
    fn the_named_program_wins_then_redis_then_valkey() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().to_owned()];
        assert_eq!(choose(None, &folders), Err(ServerNotFound::InPath));

        let valkey = program(folder.path(), "valkey-server", 0o755);
        assert_eq!(choose(None, &folders), Ok(valkey.clone()));
        let redis = program(folder.path(), "redis-server", 0o755);
        assert_eq!(choose(None, &folders), Ok(redis));
        assert_eq!(choose(Some("valkey-server".into()), &folders), Ok(valkey.clone()));
        assert_eq!(choose(Some(valkey.clone()), &[]), Ok(valkey));
    }

    #[test]
    fn a_non_executable_file_is_not_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let text = program(folder.path(), "redis-server", 0o644);
        assert_eq!(choose(None, &[folder.path().to_owned()]), Err(ServerNotFound::InPath));
        assert_eq!(choose(Some(text.clone()), &[]), Err(ServerNotFound::Named(text)));
    }
}
