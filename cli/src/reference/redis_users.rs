//! `docs/reference/redis-users.md`: the access rules of each role, as `tickfleet acl` prints them.

use std::fmt::Write;

use tickfleet_store::Role;

use super::keep_current;

#[test]
fn the_page_of_redis_users_is_current() {
    let mut page = "Each role connects to Redis as a user of its own. `tickfleet acl --role ROLE` prints the line for an ACL file. \
        The rules below are those of the namespace `tickfleet` (`redis.namespace`).\n\n| Role | Use it for |\n|---|---|\n"
        .to_owned();
    for (word, role) in Role::WORDS {
        writeln!(page, "| [`{word}`](#{word}) | {} |", purpose(role)).unwrap();
    }
    for (word, role) in Role::WORDS {
        page.push_str(&section(word, role));
    }
    keep_current("redis-users.md", "Redis users by role", &page);
}

const fn purpose(role: Role) -> &'static str {
    match role {
        Role::Tickfleet => "a scheduler, a worker and an operator that share one user, as in `tickfleet dev`",
        Role::Scheduler => "`tickfleet scheduler`",
        Role::Worker => "`tickfleet worker`",
        Role::Operator => "commands that cancel, pause, replay, reset, repair or change tenants",
        Role::Gateway => "`tickfleet gateway`, its operator routes and the console",
        Role::Producer => "a service that submits turns and tasks and reads replies",
        Role::Onlooker => "commands that only read: `top`, `explain`, `doctor`",
        Role::Exporter => "`tickfleet audit export --follow` and `tickfleet approvals notify`",
    }
}

fn section(word: &str, role: Role) -> String {
    let rules = role.rules("tickfleet");
    let keys: Vec<&String> = rules.iter().filter(|rule| rule.contains('~')).collect();
    let commands: Vec<&str> = rules.iter().filter_map(|rule| rule.strip_prefix('+')).collect();
    let known = keys.len() + commands.len();
    let others: Vec<String> = rules
        .iter()
        .filter(|rule| !rule.contains('~') && !rule.starts_with('+'))
        .map(|rule| format!("`{rule}`"))
        .collect();
    assert_eq!(known + others.len(), rules.len(), "{word}: a rule is in no list");
    let mut page = format!("\n## {word}\n\nFor {}.\n\n| Key pattern | Access |\n|---|---|\n", purpose(role));
    for key in keys {
        let (mode, pattern) = key.split_once('~').unwrap();
        let access = match mode {
            "%R" => "read",
            "%W" => "write",
            _ => "read and write",
        };
        writeln!(page, "| `{pattern}` | {access} |").unwrap();
    }
    write!(page, "\nCommands:\n\n```text\n{}\n```\n\nOther rules: {}.\n", wrapped(&commands), others.join(", "))
        .unwrap();
    page
}

/// Words on lines of at most 100 characters.
fn wrapped(words: &[&str]) -> String {
    let mut lines = vec![String::new()];
    for word in words {
        let line = lines.last_mut().unwrap();
        if line.is_empty() {
            line.push_str(word);
        } else if line.len() + word.len() < 100 {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push((*word).to_owned());
        }
    }
    lines.join("\n")
}
