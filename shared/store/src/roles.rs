//! The Redis permissions of each role, as ACL rules of a Redis user.
//!
//! The commit function runs most commands; this module lists the others.

use std::collections::BTreeSet;

use crate::seam::redis::{CALLED, COMMIT_SOURCE};

/// Redis reads its append-only file with the permissions of `default`. Without these permissions, Redis 7.0 and 8.2
/// refuse every transaction of a script in the file, and start empty.
pub const DEFAULT_USER: &str = "off ~* &* +@all";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Scheduler, worker and operator in one Redis user, for `tickfleet dev`.
    Tickfleet,
    Scheduler,
    Worker,
    Operator,
    Gateway,
    Producer,
    Viewer,
    Exporter,
}

const CONNECTING: &[&str] = &["ping", "select", "info", "role", "time", "cluster|shards", "cluster|slots"];
/// `function|load` and `script|load` are for a server that does not know the commit function.
const COMMITTING: &[&str] = &["fcall", "function|load", "evalsha", "script|load"];
const READS: &[&str] = &[
    "exists",
    "get",
    "getrange",
    "hget",
    "hgetall",
    "hlen",
    "hmget",
    "hscan",
    "lrange",
    "memory|usage",
    "scan",
    "smembers",
    "sscan",
    "xinfo|consumers",
    "xinfo|groups",
    "xinfo|stream",
    "xlen",
    "xpending",
    "xrange",
    "xread",
    "xrevrange",
    "zcard",
    "zrange",
    "zrangebyscore",
    "zrank",
    "zrevrange",
    "zscan",
    "zscore",
];
/// `acl|dryrun` checks whether the user `default` may load the append-only file.
const OPERATING: &[&str] = &["acl|dryrun", "config|get"];
const TAKING: &[&str] = &["xgroup|create", "xreadgroup"];
const TRIMMING: &[&str] = &["xtrim", "del", "hdel"];
/// Lists `@blocking` instead of `waitaof`, which is in this category. Older servers lack `waitaof`, and a server
/// rejects a rule with an unknown command.
const WAITING: &[&str] = &["@blocking", "wait"];

/// The keys are in the format of ACL rules, but without the namespace.
struct Selector {
    keys: &'static [&'static str],
    commands: &'static [&'static str],
}

/// Permits calls of the loaded function, but not loading the function. The key is the bare prefix of a shard, which
/// never exists. In a cluster, this key finds the owner of the slot.
const LENT_FUNCTION: Selector = Selector { keys: &["~"], commands: &["fcall", "evalsha", "exists"] };

const PRODUCER: &[Selector] = &[
    LENT_FUNCTION,
    Selector { keys: &["%W~turns", "%W~tasks"], commands: &["xadd"] },
    Selector { keys: &["%W~id:*"], commands: &["set"] },
    Selector { keys: &["%W~inboxes:*"], commands: &["zadd", "zrem"] },
    // Producers remove replies that they have read, and inboxes that they created for a single request.
    Selector { keys: &["%W~replies:*"], commands: &["xdel", "xtrim", "del"] },
    Selector { keys: &["%W~seqs:*"], commands: &["hdel"] },
    // Producers claim the local calls of their turns.
    Selector { keys: &["~local:*"], commands: &["xreadgroup"] },
    Selector {
        keys: &[
            "%R~meta",
            "%R~turns",
            "%R~tasks",
            "%R~id:*",
            "%R~replies:*",
            "%R~seqs:*",
            "%R~inboxes:*",
            "%R~counters:_",
            "%R~turn:*",
            "%R~done:*",
            "%R~cancel:*",
            "%R~timers",
            "%R~ready:*",
            "%R~external:*",
            "%R~steps:*",
            "%R~parts:steps:*",
            "%R~parts:turn:*",
            "%R~tools:*",
            "%R~absent:*",
            "%R~policy",
            "%R~settings",
            "%R~parts:settings",
        ],
        commands: &[
            "exists",
            "get",
            "getrange",
            "hexists",
            "hget",
            "hgetall",
            "hlen",
            "hmget",
            "memory|usage",
            "xinfo|groups",
            "xinfo|stream",
            "xlen",
            "xpending",
            "xrange",
            "xread",
            "xrevrange",
            "zcard",
            "zscore",
        ],
    },
];

/// For progress, leases, and the events of approvals that an exporter has delivered.
const EXPORTER: &[Selector] = &[
    LENT_FUNCTION,
    Selector { keys: &["%W~follow:*", "%W~notified:*"], commands: &["set", "pexpire", "del"] },
    Selector {
        keys: &["%W~parts:follow:*", "%W~parts:notified:*"],
        commands: &["hset", "hdel", "pexpire", "pexpireat", "persist", "del"],
    },
    // Exporters check with this key whether Redis accepts writes.
    Selector { keys: &["%W~"], commands: &["set"] },
];

/// Gateways only append to the audit log, and claim local calls for their clients.
const GATEWAY: &[Selector] =
    &[Selector { keys: &["%W~audit"], commands: &["xadd"] }, Selector { keys: &["~local:*"], commands: TAKING }];
const GATEWAY_WRITES: &[&str] = &[
    "",
    "meta",
    "turns",
    "tasks",
    "tasks:*",
    "children:*",
    "lists",
    "id:*",
    "parts:id:*",
    "turn:*",
    "parts:turn:*",
    "done:*",
    "parts:done:*",
    "cancel:*",
    "parts:cancel:*",
    "early:*",
    "absent:*",
    "parts:absent:*",
    "under:*",
    "timers",
    "ready:*",
    "external:*",
    "local:*",
    "throttle:*",
    "short:*",
    "counters:*",
    "canceled:*",
    "approval:*",
    "parts:approval:*",
    "asked",
    "asked:*",
    "approvals:*",
    "session:*",
    "parts:session:*",
    "mailbox:*",
    "parts:mailbox:*",
    "settings",
    "parts:settings",
    "expiring",
    "statistics",
    "parts:statistics",
    "drain:*",
    "parts:drain:*",
    "drains",
    "dead",
    "handled",
    "handled:*",
    "parts:handled:*",
    "replies:*",
    "seqs:*",
    "inboxes:*",
];

impl Role {
    pub const WORDS: [(&str, Self); 8] = [
        ("tickfleet", Self::Tickfleet),
        ("scheduler", Self::Scheduler),
        ("worker", Self::Worker),
        ("operator", Self::Operator),
        ("gateway", Self::Gateway),
        ("producer", Self::Producer),
        ("viewer", Self::Viewer),
        ("exporter", Self::Exporter),
    ];

    /// True if the role may run all commands of a commit on all of its keys.
    const fn commits(self) -> bool {
        match self {
            Self::Tickfleet | Self::Scheduler | Self::Worker | Self::Operator | Self::Gateway => true,
            // Selectors list the keys on which these roles may run the commands of a commit.
            Self::Producer | Self::Viewer | Self::Exporter => false,
        }
    }

    /// The role's lists of commands, in addition to [`CONNECTING`].
    fn plain(self) -> Vec<&'static [&'static str]> {
        match self {
            Self::Tickfleet => vec![READS, COMMITTING, TAKING, TRIMMING, WAITING, OPERATING],
            Self::Scheduler => vec![READS, COMMITTING, TAKING, TRIMMING],
            Self::Worker => vec![READS, COMMITTING, TAKING, TRIMMING, WAITING],
            Self::Operator => vec![READS, COMMITTING, TRIMMING, OPERATING],
            Self::Gateway => vec![READS, COMMITTING, TRIMMING],
            Self::Producer => Vec::new(),
            Self::Viewer | Self::Exporter => vec![READS],
        }
    }

    const fn selectors(self) -> &'static [Selector] {
        match self {
            Self::Producer => PRODUCER,
            Self::Exporter => EXPORTER,
            Self::Gateway => GATEWAY,
            Self::Tickfleet | Self::Scheduler | Self::Worker | Self::Operator | Self::Viewer => &[],
        }
    }

    fn commands(self) -> BTreeSet<String> {
        let mut commands = BTreeSet::new();
        if self.commits() {
            commands.extend(called(COMMIT_SOURCE));
            commands.extend(CALLED.iter().map(|command| command.to_lowercase()));
        }
        let plain = self.plain().into_iter().flatten().chain(CONNECTING);
        commands.extend(plain.map(ToString::to_string));
        commands
    }

    fn keys(self, namespace: &str) -> Vec<String> {
        let key = |mode: &str, suffix: &str| format!("{mode}~{{{namespace}:*}}:{suffix}");
        match self {
            Self::Tickfleet | Self::Scheduler | Self::Worker | Self::Operator => vec![key("", "*")],
            // A gateway cannot write seals, the policy, documents or grants. It can append to the audit log (see
            // `GATEWAY`), but not change it.
            Self::Gateway => {
                let written = GATEWAY_WRITES.iter().map(|suffix| key("", suffix));
                written.chain([key("%R", "*")]).collect()
            }
            Self::Producer => Vec::new(),
            Self::Viewer | Self::Exporter => vec![key("%R", "*")],
        }
    }

    /// In the format of `ACL SETUSER` and an `aclfile`, without name and password.
    #[must_use]
    pub fn rules(self, namespace: &str) -> Vec<String> {
        let mut rules = self.keys(namespace);
        rules.extend(["resetchannels".to_owned(), "-@all".to_owned()]);
        rules.extend(self.commands().into_iter().map(|command| format!("+{command}")));
        rules.extend(self.selectors().iter().map(|selector| selector.rule(namespace)));
        rules
    }
}

impl Selector {
    fn rule(&self, namespace: &str) -> String {
        let key = |rule: &&str| {
            let (mode, suffix) = rule.split_once('~').unwrap_or(("", rule));
            format!("{mode}~{{{namespace}:*}}:{suffix}")
        };
        let commands = self.commands.iter().map(|command| format!("+{command}"));
        let parts: Vec<String> = self.keys.iter().map(key).chain(commands).collect();
        format!("({})", parts.join(" "))
    }
}

fn called(source: &str) -> BTreeSet<String> {
    const CONTAINERS: [&str; 3] = ["xinfo", "xgroup", "memory"];
    let literal = |text: &str| text.split_once('\'').map(|(word, rest)| (word.to_ascii_lowercase(), rest.to_owned()));
    let mut found = BTreeSet::new();
    let calls = ["call('", "try('", "in_parts('"].into_iter().flat_map(|start| source.split(start).skip(1));
    for call in calls {
        let Some((command, rest)) = literal(call) else { continue };
        let sub = rest.strip_prefix(", '").and_then(literal).map(|(sub, _)| sub);
        found.insert(match sub.filter(|_| CONTAINERS.contains(&command.as_str())) {
            Some(sub) => format!("{command}|{sub}"),
            None => command,
        });
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::path::{Path, PathBuf};

    use super::*;

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
            if path.is_dir() && !is_test {
                found.extend(sources(&path));
            } else if path.extension().is_some_and(|it| it == "rs") && !is_test {
                found.push(path);
            }
        }
        found
    }

    #[test]
    fn commands_are_extracted_from_the_function_source() {
        let source =
            "call('HSET', a) try('XINFO', 'STREAM', s) in_parts('ZADD', k) try('XGROUP', 'DELCONSUMER', s) call(n)";
        let found: Vec<String> = called(source).into_iter().collect();
        assert_eq!(found, ["hset", "xgroup|delconsumer", "xinfo|stream", "zadd"]);
        let all = called(COMMIT_SOURCE);
        for command in ["get", "set", "hset", "xadd", "xack", "xdel", "zadd", "time", "info"] {
            assert!(all.contains(command), "{command}: {all:?}");
        }
    }

    #[test]
    fn a_worker_may_wait_until_a_begin_is_durable() {
        for role in [Role::Worker, Role::Tickfleet] {
            let commands = role.commands();
            // `WAIT` is in the category `@blocking` since Redis 7.2, and `WAITAOF` in all versions.
            assert!(commands.contains("wait") && commands.contains("@blocking"), "{role:?}");
        }
    }

    #[test]
    fn weak_roles_cannot_load_scripts_or_write_shard_metadata() {
        for role in [Role::Producer, Role::Viewer, Role::Exporter] {
            let selected = role.selectors().iter().flat_map(|selector| selector.commands).map(ToString::to_string);
            let may: BTreeSet<String> = role.commands().into_iter().chain(selected).collect();
            assert!(["script|load", "function|load", "eval"].iter().all(|load| !may.contains(*load)), "{role:?}");
            let selected = role.selectors().iter().flat_map(|selector| selector.keys).map(ToString::to_string);
            let mut keys = role.keys("t").into_iter().chain(selected);
            let found = keys.find(|key| !key.starts_with("%R") && (key.ends_with("meta") || key.ends_with("~*")));
            assert_eq!(found, None, "{role:?} may write it");
        }
    }

    #[test]
    fn a_gateway_cannot_write_keys_of_other_roles() {
        let keys = Role::Gateway.keys("t");
        let may_write = |key: &str| keys.iter().any(|rule| rule == &format!("~{{t:*}}:{key}"));
        for key in ["turn:*", "timers", "settings", "drain:*", "ready:*"] {
            assert!(may_write(key), "{key}: {keys:?}");
        }
        for key in [
            "*",
            "audit",
            "seals",
            "sealing",
            "consumer:*",
            "policy",
            "grant:*",
            "documents:*",
            "memories:*",
            "follow:*",
        ] {
            assert!(!may_write(key), "{key}");
        }
    }

    #[test]
    fn the_function_calls_only_commands_named_in_its_source() {
        let code = COMMIT_SOURCE.lines().map(|line| line.split("--").next().unwrap_or_default());
        let hidden: Vec<&str> = code
            .filter(|line| [" call(", " try("].iter().any(|start| line.contains(start)))
            .filter(|line| !line.contains("call('") && !line.contains("try('"))
            // This line runs the commands of `CALLED`.
            .filter(|line| !line.contains("call(unpack(ARGV"))
            .collect();
        // This line splits a long list, because Lua limits the arguments of one call.
        assert!(
            matches!(hidden[..], [one] if one.contains("try(command, key, unpack(")),
            "which command is it? {hidden:?}"
        );
    }

    #[test]
    fn every_command_sent_outside_the_function_belongs_to_a_role() {
        let may: BTreeSet<String> = Role::WORDS.iter().flat_map(|(_, role)| role.commands()).collect();
        for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for asked in code.split("cmd(\"").skip(1) {
                let command = asked.split('"').next().unwrap_or_default().to_ascii_lowercase();
                let is_elsewhere = ["sentinel", "waitaof"].contains(&command.as_str());
                let known = may.iter().any(|rule| rule.split('|').next() == Some(&command));
                assert!(known || is_elsewhere, "{}: no role may ask {command}", path.display());
            }
        }
    }
}
