//! What docs/governance.md shows, done: each section by itself, against a fleet with the files that it shows.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tickfleet_testkit::RedisServer;

use crate::support::binary::{DevFleet, Said};
use crate::support::documents::{REPOSITORY, Shown, agrees, files, shown, with_binary};

/// The text of one section of the page.
fn section(title: &str) -> String {
    let text = fs::read_to_string(Path::new(REPOSITORY).join("docs/governance.md")).unwrap();
    let sections = text.split("\n## ").find(|section| section.lines().next() == Some(title));
    sections.unwrap_or_else(|| panic!("no section {title:?}")).to_owned()
}

#[tokio::test]
async fn the_section_on_what_nobody_knows_shows_what_its_commands_print() {
    plays("Reconcile", "effects").await;
}

#[tokio::test]
async fn the_section_on_loops_shows_what_its_commands_print() {
    plays("Loops", "loops").await;
}

#[tokio::test]
async fn the_section_on_cached_reads_shows_what_its_commands_print() {
    plays("Cached reads", "reads").await;
}

#[tokio::test]
async fn the_section_on_the_audit_log_shows_what_its_commands_print() {
    plays("Audit that stands up", "sealed").await;
}

/// The folder with the files that a section shows.
fn written(text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files(text, "yaml") {
        let file = folder.path().join(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }
    folder
}

/// What makes the key of seals, where a section begins with it; and the key, which its fleet has in a variable.
fn key(commands: &[Shown], folder: &Path) -> (usize, String) {
    let Some(first) = commands.first().filter(|shown| shown.command.contains("audit key")) else {
        return (0, String::new());
    };
    let mut shell = Command::new("sh");
    let made = with_binary(shell.args(["-c", &first.command])).current_dir(folder).status().unwrap();
    assert!(made.success(), "{}", first.command);
    (1, fs::read_to_string(folder.join("seal.key")).unwrap().trim().to_owned())
}

/// Plays a section against a fleet with the files that it shows, in the folder `of`.
async fn plays(title: &str, of: &str) {
    let text = section(title);
    let (redis, folder, commands) = (RedisServer::start().await, written(&text), shown(&text));
    let (done, key) = key(&commands, folder.path());
    let args = ["--config", of, "--redis-url", &redis.url()];
    let fleet = DevFleet::start_in(folder.path(), &args, &[("SEAL_KEY", &key)]);
    for shown in &commands[done..] {
        let said = Said::of(with_binary(&mut fleet.shell(&shown.command)).current_dir(folder.path()), "");
        let (line, printed) = (shown.line, format!("{}{}", said.stdout, said.stderr));
        assert!(agrees(&shown.output, &said.stdout), "line {line}: `{}` printed:\n{printed}", shown.command);
    }
    assert_eq!(fleet.stop(), Some(0));
}
