//! `docs/reference/redis-users.md`: the access rules of each role, as `tickfleet acl` prints them.

use std::fmt::Write;

use tickfleet_store::Role;

use super::keep_current;

#[test]
fn the_page_of_redis_users_is_current() {
    let mut page = "Each role connects to Redis as a user of its own. `tickfleet acl --role ROLE` prints the line for an ACL file. \
        The rules below are those of the namespace `tickfleet` (`redis.namespace`). \
        [Redis users and TLS](../operate/redis-users-and-tls.md) explains how to create the users, and the \
        [threat model](../understand/threat-model.md#a-redis-password-leaks) the power of each role.\n\n| Role | Use it for |\n|---|---|\n"
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
        Role::Operator => "`doctor`, and commands that list, cancel, pause, replay, reset, repair or change tenants",
        Role::Gateway => "`tickfleet gateway`, its operator routes and the console",
        Role::Producer => "a service that submits turns and tasks and reads replies",
        Role::Viewer => {
            "commands that only read: `top`, `explain` of ended work, `workers list`, `turns list`, `limits`, `dead list`"
        }
        Role::Exporter => "`tickfleet audit export --follow` and `tickfleet approvals notify`",
    }
}

fn section(word: &str, role: Role) -> String {
    let rules = role.rules("tickfleet");
    let (selectors, plain): (Vec<&String>, Vec<&String>) = rules.iter().partition(|rule| rule.starts_with('('));
    let commands: Vec<&str> = plain.iter().filter_map(|rule| rule.strip_prefix('+')).collect();
    let mut page =
        format!("\n## {word}\n\nFor {}.\n\n| Key patterns | Access | Commands |\n|---|---|---|\n", purpose(role));
    for rule in plain.iter().filter(|rule| rule.contains('~')) {
        let (access, pattern) = access(rule);
        writeln!(page, "| `{pattern}` | {access} | the commands below |").unwrap();
    }
    for selector in selectors {
        page.push_str(&row(selector));
    }
    write!(page, "\nCommands:\n\n```text\n{}\n```\n", wrapped(&commands)).unwrap();
    write!(page, "\nLine for an ACL file:\n\n```acl\nuser {word} on >{word}-secret {}\n```\n", rules.join(" "))
        .unwrap();
    page
}

fn row(selector: &str) -> String {
    let words = || selector.trim_matches(['(', ')']).split(' ');
    let patterns: Vec<(&str, &str)> = words().filter(|word| word.contains('~')).map(access).collect();
    let commands: Vec<&str> = words().filter_map(|word| word.strip_prefix('+')).collect();
    assert_eq!(words().count(), patterns.len() + commands.len(), "{selector}: neither a key nor a command");
    let first = patterns[0].0;
    assert!(patterns.iter().all(|(access, _)| *access == first), "{selector}: a row has one access");
    let patterns: Vec<String> = patterns.iter().map(|(_, pattern)| format!("`{pattern}`")).collect();
    format!("| {} | {first} | `{}` |\n", patterns.join(", "), commands.join(" ").replace('|', "\\|"))
}

fn access(rule: &str) -> (&'static str, &str) {
    let (mode, pattern) = rule.split_once('~').unwrap();
    let access = match mode {
        "%R" => "read",
        "%W" => "write",
        _ => "read and write",
    };
    (access, pattern)
}

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
