//! What docs/governance.md shows, done: each section by itself, against a fleet with the files that it shows.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tickfleet_testkit::RedisServer;
use tokio::time::Instant;

use crate::support::binary::{DevFleet, Said};
use crate::support::documents::{REPOSITORY, agrees, files, shown, with_binary};

/// The longest wait for what a command shows.
const PATIENCE: Duration = Duration::from_secs(60);

/// The text of one section of the page.
fn section(title: &str) -> String {
    let text = fs::read_to_string(Path::new(REPOSITORY).join("docs/governance.md")).unwrap();
    let sections = text.split("\n## ").find(|section| section.lines().next() == Some(title));
    sections.unwrap_or_else(|| panic!("no section {title:?}")).to_owned()
}

/// The id of the one approval that waits.
fn approval(fleet: &DevFleet, config: &str) -> String {
    let began = Instant::now();
    loop {
        let found = fleet.run(&["approvals", "list", "--config", config, "--json"]).exits(0).json();
        if let Some(id) = found[0]["id"].as_str() {
            return id.to_owned();
        }
        assert!(began.elapsed() < PATIENCE, "nothing waits for an approval");
    }
}

#[tokio::test]
async fn the_section_on_approvals_shows_what_its_commands_print() {
    let text = section("Approvals");
    let (redis, folder) = (RedisServer::start().await, written(&text));
    let config = folder.path().join("approvals");
    let config = config.to_str().unwrap();
    let fleet = DevFleet::start(&["--config", config, "--redis-url", &redis.url()]);
    let mut id = None;
    for shown in shown(&text) {
        let mut command = shown.command.clone();
        if let Some((_, rest)) = command.clone().split_once("apr-") {
            let real = id.get_or_insert_with(|| approval(&fleet, config));
            let written: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
            command = command.replace(&format!("apr-{written}"), real);
        }
        let run = || Said::of(with_binary(&mut fleet.shell(&command)).current_dir(folder.path()), "");
        let looks = ["explain", "approvals list"].iter().any(|verb| command.starts_with(&format!("tickfleet {verb}")));
        let (mut said, began) = (run(), Instant::now());
        while looks && !agrees(&shown.output, &said.stdout) && began.elapsed() < PATIENCE {
            said = run();
        }
        let (line, printed) = (shown.line, format!("{}{}", said.stdout, said.stderr));
        assert!(agrees(&shown.output, &said.stdout), "line {line} of the section: `{command}` printed:\n{printed}");
    }
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
async fn the_section_on_what_if_shows_what_its_commands_print() {
    plays("What if", "whatif").await;
}

#[tokio::test]
async fn the_section_on_facts_shows_what_its_commands_print() {
    plays("Facts and sequence", "facts").await;
}

#[tokio::test]
async fn the_section_on_rules_shows_what_its_commands_print() {
    plays("Rules on arguments", "rules").await;
}

#[tokio::test]
async fn the_section_on_shadow_shows_what_its_commands_print() {
    plays("Shadow", "shadow").await;
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

/// Plays a section against a fleet with the files that it shows, in the folder `of`.
async fn plays(title: &str, of: &str) {
    let text = section(title);
    let (redis, folder, commands) = (RedisServer::start().await, written(&text), shown(&text));
    let args = ["--config", of, "--redis-url", &redis.url()];
    let fleet = DevFleet::start_in(folder.path(), &args, &[]);
    for shown in &commands {
        let said = Said::of(with_binary(&mut fleet.shell(&shown.command)).current_dir(folder.path()), "");
        let (line, printed) = (shown.line, format!("{}{}", said.stdout, said.stderr));
        assert!(agrees(&shown.output, &said.stdout), "line {line}: `{}` printed:\n{printed}", shown.command);
    }
    assert_eq!(fleet.stop(), Some(0));
}
