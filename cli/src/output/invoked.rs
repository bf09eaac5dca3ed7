//! Finds out how this program was started, so that printed commands can be typed as shown.

use std::path::{Path, PathBuf};

pub(crate) fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from);
    let name = path.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| "tickfleet".into())
}

/// `None` if the program was not started by its path, or if double quotes cannot hold the path.
pub(crate) fn into_path() -> Option<String> {
    let path = std::env::args_os().next().map(PathBuf::from)?;
    folder_in_path(&path, &std::env::current_dir().ok()?)
}

fn folder_in_path(program: &Path, here: &Path) -> Option<String> {
    let folder = program.parent().filter(|folder| !folder.as_os_str().is_empty())?;
    let folder = folder.strip_prefix(".").unwrap_or(folder);
    let below = if folder.is_absolute() { folder.strip_prefix(here).ok() } else { Some(folder) };
    let folder = match below {
        Some(below) => format!("$PWD/{}", below.display()),
        None => folder.display().to_string(),
    };
    // These characters are special inside double quotes.
    let plain = !folder.trim_start_matches("$PWD").contains(['"', '$', '`', '\\']);
    plain.then(|| format!("export PATH=\"{folder}:$PATH\""))
}

pub(crate) fn quoted(word: &str) -> String {
    if !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() || "/._-+".contains(c)) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_started_by_path_suggests_a_path_export() {
        let said = |program: &str| folder_in_path(Path::new(program), Path::new("/srv/fleet"));
        assert_eq!(said("tickfleet"), None);
        let here = Some("export PATH=\"$PWD/target/debug:$PATH\"".to_owned());
        assert_eq!(said("target/debug/tickfleet"), here);
        assert_eq!(said("./target/debug/tickfleet"), here);
        assert_eq!(said("/srv/fleet/target/debug/tickfleet"), here);
        assert_eq!(said("/opt/bin/tickfleet"), Some("export PATH=\"/opt/bin:$PATH\"".to_owned()));
        assert_eq!(said("/opt/$x/tickfleet"), None);
    }

    #[test]
    fn a_folder_with_spaces_is_quoted_for_the_shell() {
        assert_eq!(quoted("conf/a-1"), "conf/a-1");
        assert_eq!(quoted("my conf"), "'my conf'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
