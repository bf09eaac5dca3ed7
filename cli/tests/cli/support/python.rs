use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::documents::REPOSITORY;

fn python(arguments: &[&str]) {
    let output = Command::new("python3").args(arguments).output().expect("python3");
    assert!(output.status.success(), "python3 {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

pub fn interpreter() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-tools");
    fs::create_dir_all(&home).unwrap();
    // The lock is released when the file is closed, even if this process dies.
    let lock = File::create(home.join("lock")).unwrap();
    lock.lock().unwrap();
    let made = home.join("venv/bin/python");
    let wanted = fs::read_to_string(Path::new(REPOSITORY).join("python/pyproject.toml")).unwrap();
    if !fs::read_to_string(home.join("made-of")).is_ok_and(|have| have == wanted) {
        python(&["-m", "venv", "--clear", &home.join("venv").display().to_string()]);
        let package = format!("{REPOSITORY}/python[test]");
        let mut pip = Command::new(&made);
        let output = pip.args(["-m", "pip", "install", "--quiet", "--editable", &package]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::write(home.join("made-of"), wanted).unwrap();
    }
    made
}

/// The file `name` in tests/data pins the packages. Returns the folder of their programs.
pub fn installed(name: &str) -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("python-{name}"));
    fs::create_dir_all(&home).unwrap();
    // The lock is released when the file is closed, even if this process dies.
    let lock = File::create(home.join("lock")).unwrap();
    lock.lock().unwrap();
    let pins = format!("{REPOSITORY}/tests/data/{name}.txt");
    let wanted = fs::read_to_string(&pins).unwrap();
    if !fs::read_to_string(home.join("made-of")).is_ok_and(|have| have == wanted) {
        python(&["-m", "venv", "--clear", &home.join("venv").display().to_string()]);
        let mut pip = Command::new(home.join("venv/bin/python"));
        let output =
            pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "-r", &pins]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::write(home.join("made-of"), wanted).unwrap();
    }
    home.join("venv/bin")
}
