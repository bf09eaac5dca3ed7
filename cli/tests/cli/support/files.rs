//! Folders and files of a test.

use std::fs;
use std::path::Path;

/// The path is short, because the length of socket paths is limited.
pub fn short_folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("tf-").tempdir().unwrap()
}

/// Creates missing folders.
pub fn write(folder: &Path, name: &str, text: &str) {
    let file = folder.join(name);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}
