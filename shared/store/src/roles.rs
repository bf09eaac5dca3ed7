//! What each role of a fleet needs of Redis: the rules of a user that may do that, and little else.
//!
//! The commands follow from the list of verbs: what their scripts call. What is asked without a script stands here.

use std::collections::BTreeSet;

use crate::verbs::{Scripts, Verb};

/// The rules of the user `default` where each role has a user of its own: nobody logs in as it, but Redis reads its
/// append-only file with its rights. Without them Redis 7.0 and 8.2 refuse every transaction of a script in that file and
/// start empty.
pub const DEFAULT_USER: &str = "off ~* &* +@all";

/// Who works with Redis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Scheduler, worker and operator in one, as in `tickfleet dev`.
    Tickfleet,
    /// Admits turns.
    Scheduler,
    /// Carries calls out.
    Worker,
    /// Sets, cancels, resets, looks.
    Operator,
    /// Submits, cancels, talks with agents, reads replies, and looks at everything.
    Gateway,
    /// Submits turns and reads replies.
    Producer,
    /// Looks.
    Onlooker,
    /// Looks, and keeps how far it has come: exports the audit log, and tells others of approvals.
    Exporter,
}

/// What every connection may ask: who and where the server is. `waitaof` is not named for workers, but its category: a
/// server that does not know a command refuses a rule that names it.
const CONNECTING: &[&str] = &["ping", "select", "info", "role", "time", "cluster|shards", "cluster|slots"];
/// What runs scripts.
const SCRIPTS: &[&str] = &["evalsha", "script|load"];
/// Reads without a script, of whoever looks.
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
/// What an operator asks of the server: its settings, and whether the user `default` would load the append-only file.
const OPERATING: &[&str] = &["acl|dryrun", "config|get"];
/// What a client does with inboxes and inbound streams without a script.
const CLIENT: &[&str] =
    &["xadd", "xlen", "hget", "xread", "xrange", "xrevrange", "xdel", "xtrim", "set", "del", "zrem"];

/// Commands, and the keys that they may be used on: a selector of a user. Keys are rules without their namespace.
struct Selector {
    keys: &'static [&'static str],
    commands: &'static [&'static str],
}

/// Runs the scripts that schedulers have loaded, and loads none. They are given the bare prefix, which no key has; nodes of a
/// cluster are asked by it for the holder of its slot.
const LENT_SCRIPTS: Selector = Selector { keys: &["~"], commands: &["evalsha", "exists"] };

/// What producers do, by script or without: each command on the keys that it is for, and on no others.
const PRODUCER: &[Selector] = &[
    LENT_SCRIPTS,
    Selector { keys: &["%W~turns", "%W~tasks"], commands: &["xadd"] },
    // An id that is waited for; how far an inbox was read.
    Selector { keys: &["%W~id:*", "%W~read:*"], commands: &["set"] },
    Selector { keys: &["%W~queued"], commands: &["hset"] },
    Selector { keys: &["%W~inboxes:*"], commands: &["zadd", "zrem", "zremrangebyscore", "pexpire"] },
    // What was read is removed, and with it an inbox that was made for one question.
    Selector { keys: &["%W~replies:*"], commands: &["xdel", "xtrim"] },
    Selector { keys: &["%W~replies:*", "%W~read:*", "%W~seq:*"], commands: &["del"] },
    Selector {
        keys: &[
            "%R~turns",
            "%R~tasks",
            "%R~queued",
            "%R~id:*",
            "%R~replies:*",
            "%R~read:*",
            "%R~seq:*",
            "%R~inboxes:*",
            "%R~meta",
            "%R~tenant:*",
            "%R~turn:*",
            "%R~done:*",
            "%R~timers",
            "%R~ready:*",
            "%R~external:*",
            "%R~steps:*",
            "%R~tools:*",
            "%R~absent",
        ],
        commands: &[
            "exists",
            "get",
            "getrange",
            "hget",
            "hgetall",
            "hmget",
            "lrange",
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

/// What exporters write: how far they have come, who exports, and which notices of approvals they have passed on.
const EXPORTER: &[Selector] = &[
    LENT_SCRIPTS,
    Selector { keys: &["%W~followed"], commands: &["hset"] },
    // The bare prefix: whether Redis takes writes.
    Selector { keys: &["%W~", "%W~follower:*"], commands: &["set"] },
    Selector { keys: &["~approvals:*"], commands: &["xgroup|create", "xreadgroup", "xack"] },
];

/// What gateways do to streams that they add to and remove nothing from.
const GATEWAY: &[Selector] = &[Selector { keys: &["%W~audit"], commands: &["xadd"] }];
/// Keys that gateways write without a script, or whose names their scripts make from a record: the queue of a turn, its lane.
const GATEWAY_WRITES: &[&str] =
    &["", "turns", "tasks", "replies:*", "read:*", "seq:*", "inboxes:*", "ready:*", "external:*", "lane:*", "held:*"];

/// Verbs whose users may load no script.
pub(crate) const LENT: [Verb; 0] = [];

const SCHEDULER: &[Verb] = &[
    Verb::Admit,
    Verb::Expect,
    Verb::Reject,
    Verb::Heads,
    Verb::Release,
    Verb::Promote,
    Verb::Wake,
    Verb::Cascade,
    Verb::Settle,
    Verb::Delegate,
    Verb::Reap,
    Verb::Suspect,
    Verb::PutBack,
    Verb::Seal,
    Verb::Weigh,
    Verb::Prune,
];
const WORKER: &[Verb] = &[
    Verb::Enter,
    Verb::Settle,
    Verb::Delegate,
    Verb::Reap,
    Verb::Suspect,
    Verb::Weigh,
];
const OPERATOR: &[Verb] = &[
    Verb::Delegate,
    Verb::Repair,
];

impl Role {
    /// All roles, by their words.
    pub const WORDS: [(&str, Self); 8] = [
        ("tickfleet", Self::Tickfleet),
        ("scheduler", Self::Scheduler),
        ("worker", Self::Worker),
        ("operator", Self::Operator),
        ("gateway", Self::Gateway),
        ("producer", Self::Producer),
        ("onlooker", Self::Onlooker),
        ("exporter", Self::Exporter),
    ];

    /// The verbs that it calls.
    fn verbs(self) -> Vec<Verb> {
        match self {
            Self::Tickfleet => [SCHEDULER, WORKER, OPERATOR].concat(),
            Self::Scheduler => SCHEDULER.to_vec(),
            Self::Worker => WORKER.to_vec(),
            Self::Operator => OPERATOR.to_vec(),
            Self::Gateway | Self::Producer | Self::Onlooker | Self::Exporter => Vec::new(),
        }
    }

    /// Returns true if it may call this verb, by its word.
    #[must_use]
    pub fn calls(self, verb: &str) -> bool {
        self.verbs().iter().any(|known| known.as_str() == verb)
    }

    /// What it asks without a script, beside [`CONNECTING`].
    fn plain(self) -> Vec<&'static [&'static str]> {
        const SCHEDULING: &[&str] = &["xreadgroup", "xadd", "xdel", "xtrim", "zremrangebyscore", "multi", "exec"];
        const WORKING: &[&str] = &["xreadgroup", "@blocking", "wait", "set"];
        match self {
            Self::Tickfleet => vec![READS, SCRIPTS, CLIENT, SCHEDULING, WORKING, OPERATING],
            Self::Scheduler => vec![READS, SCRIPTS, SCHEDULING],
            Self::Worker => vec![READS, SCRIPTS, CLIENT, WORKING],
            Self::Operator => vec![READS, SCRIPTS, CLIENT, OPERATING, &["multi", "exec"]],
            Self::Gateway => vec![READS, SCRIPTS, CLIENT],
            Self::Producer => Vec::new(),
            Self::Onlooker => vec![READS],
            Self::Exporter => vec![READS, &["multi", "exec"]],
        }
    }

    /// What it may do to some keys alone.
    const fn selectors(self) -> &'static [Selector] {
        match self {
            Self::Producer => PRODUCER,
            Self::Exporter => EXPORTER,
            Self::Gateway => GATEWAY,
            Self::Tickfleet | Self::Scheduler | Self::Worker | Self::Operator | Self::Onlooker => &[],
        }
    }

    /// The commands that it may use on all of its keys, as rules name them.
    fn commands(self) -> BTreeSet<String> {
        let scripts = Scripts::embedded();
        // Those of weak roles are in selectors, each with its keys.
        let verbs = if matches!(self, Self::Producer | Self::Exporter) { Vec::new() } else { self.verbs() };
        let of_verbs = verbs.into_iter().flat_map(|verb| scripts.of(verb).each().map(|s| s.source.clone()));
        let mut commands: BTreeSet<String> = of_verbs.flat_map(|source| called(&source)).collect();
        let plain = self.plain().into_iter().flatten().chain(CONNECTING);
        commands.extend(plain.map(ToString::to_string));
        commands
    }

    /// The keys on which it may use all of its commands, as rules name them.
    fn keys(self, namespace: &str) -> Vec<String> {
        let key = |mode: &str, suffix: &str| format!("{mode}~{{{namespace}:*}}:{suffix}");
        match self {
            Self::Tickfleet | Self::Scheduler | Self::Worker | Self::Operator => vec![key("", "*")],
            // A cancel takes a turn from wherever it is, and leaves alone what no turn is made of.
            Self::Gateway => {
                let scripts = Scripts::embedded();
                let sources = self.verbs().into_iter().flat_map(|verb| scripts.of(verb).each());
                let mut written: BTreeSet<String> = sources.flat_map(|script| key_families(&script.source)).collect();
                written.extend(GATEWAY_WRITES.iter().map(ToString::to_string));
                written.retain(|family| family != "audit");
                let written = written.iter().map(|suffix| key("", suffix));
                written.chain([key("%R", "*")]).collect()
            }
            Self::Producer => Vec::new(),
            Self::Onlooker | Self::Exporter => vec![key("%R", "*")],
        }
    }

    /// The rules of a user for this role in `namespace`, as `ACL SETUSER` and an `aclfile` take them, without name and
    /// password.
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
    /// The selector as a rule of a user in `namespace`.
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

/// The keys that a script names, as patterns behind the prefix: `turn:*`. Those that it makes from what it reads are not
/// among them.
fn key_families(source: &str) -> BTreeSet<String> {
    let named = source.split("P .. '").skip(1).filter_map(|rest| rest.split('\'').next());
    named.map(|family| if family.ends_with(':') { format!("{family}*") } else { family.to_owned() }).collect()
}

/// The commands that a script calls.
fn called(source: &str) -> BTreeSet<String> {
    const CONTAINERS: [&str; 3] = ["xinfo", "xgroup", "memory"];
    let literal = |text: &str| text.split_once('\'').map(|(word, rest)| (word.to_ascii_lowercase(), rest.to_owned()));
    let mut found = BTreeSet::new();
    for call in source.split("call('").skip(1) {
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
    fn a_script_is_read_for_its_commands() {
        let source = "call('HSET', a) redis.pcall('XINFO', 'STREAM', s) call('XGROUP', word, s) call(name)";
        let found: Vec<String> = called(source).into_iter().collect();
        assert_eq!(found, ["hset", "xgroup", "xinfo|stream"]);
    }

    #[test]
    fn a_worker_may_wait_until_a_begin_is_durable() {
        for role in [Role::Worker, Role::Tickfleet] {
            let commands = role.commands();
            // `WAIT` is in that category since Redis 7.2, `WAITAOF` is there since then.
            assert!(commands.contains("wait") && commands.contains("@blocking"), "{role:?}");
        }
    }

    #[test]
    fn schedulers_and_workers_alone_move_the_clock() {
        let scripts = Scripts::embedded();
        for role in [Role::Operator, Role::Gateway, Role::Producer, Role::Onlooker, Role::Exporter] {
            for verb in role.verbs() {
                let moves = scripts.of(verb).each().any(|script| script.source.contains("'last_ms', string.format"));
                assert!(!moves, "{role:?} moves the clock by {}", verb.as_str());
            }
        }
        for role in [Role::Producer, Role::Onlooker, Role::Exporter] {
            let selected = role.selectors().iter().flat_map(|selector| selector.keys).map(ToString::to_string);
            let mut keys = role.keys("t").into_iter().chain(selected);
            let found = keys.find(|key| !key.starts_with("%R") && (key.ends_with("meta") || key.ends_with("~*")));
            assert_eq!(found, None, "{role:?} may write it");
        }
    }

    #[test]
    fn weak_roles_may_do_what_their_scripts_do_and_load_none() {
        let scripts = Scripts::embedded();
        for role in [Role::Producer, Role::Exporter] {
            let selected = role.selectors().iter().flat_map(|selector| selector.commands).map(ToString::to_string);
            let may: BTreeSet<String> = role.commands().into_iter().chain(selected).collect();
            assert!(!may.contains("script|load") && !may.contains("eval"), "{role:?}");
            for verb in role.verbs() {
                assert!(LENT.contains(&verb), "schedulers load {} for {role:?}", verb.as_str());
                let sources: Vec<_> = scripts.of(verb).each().map(|script| script.source.clone()).collect();
                let needed: BTreeSet<String> = sources.iter().flat_map(|source| called(source)).collect();
                let missing: Vec<_> = needed.difference(&may).collect();
                assert!(missing.is_empty(), "{role:?} lacks {missing:?} for {}", verb.as_str());
            }
        }
    }

    #[test]
    fn a_gateway_writes_no_key_that_only_others_write() {
        let keys = Role::Gateway.keys("t");
        let may_write = |key: &str| keys.iter().any(|rule| rule == &format!("~{{t:*}}:{key}"));
        for key in ["turn:*", "timers", "pauses", "drains", "ready:*"] {
            assert!(may_write(key), "{key}: {keys:?}");
        }
        for key in
            ["*", "audit", "seals", "seal_heads", "beats", "policies", "grant:*", "kb:*", "memories:*", "followed"]
        {
            assert!(!may_write(key), "{key}");
        }
    }

    #[test]
    fn no_script_calls_a_command_that_is_not_written_there() {
        for (verb, source) in Scripts::embedded().iter() {
            let code = source.lines().map(|line| line.split("--").next().unwrap_or_default());
            let hidden: Vec<&str> = code.filter(|line| line.contains(" call(") && !line.contains("call('")).collect();
            assert!(hidden.is_empty(), "{verb}: which command is it? {hidden:?}");
        }
    }

    #[test]
    fn every_command_that_is_asked_without_a_script_is_some_roles() {
        let may: BTreeSet<String> = Role::WORDS.iter().flat_map(|(_, role)| role.commands()).collect();
        for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
            let text = std::fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for asked in code.split("cmd(\"").skip(1) {
                let command = asked.split('"').next().unwrap_or_default().to_ascii_lowercase();
                // The last two are of the seam, which no process uses yet.
                let is_elsewhere = ["sentinel", "waitaof", "fcall", "function"].contains(&command.as_str());
                let known = may.iter().any(|rule| rule.split('|').next() == Some(&command));
                assert!(known || is_elsewhere, "{}: no role may ask {command}", path.display());
            }
        }
    }

    #[test]
    fn a_role_may_call_the_verbs_that_its_crates_call() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (role, folders) in [
            (Role::Scheduler, ["scheduler/src", "shared/engine/src"]),
            (Role::Worker, ["worker/src", "shared/engine/src"]),
            (Role::Worker, ["worker/llm/src", "worker/tools/knowledge/src"]),
            (Role::Gateway, ["cli/gateway/src", "cli/gateway/src"]),
        ] {
            let texts: Vec<String> = folders
                .iter()
                .flat_map(|folder| sources(&root.join(folder)))
                .map(|path| std::fs::read_to_string(path).unwrap())
                .collect();
            for verb in Verb::ALL {
                let call = format!("store.{}(", verb.as_str());
                let is_called = texts.iter().any(|text| text.contains(&call));
                assert!(!is_called || role.calls(verb.as_str()), "{role:?} calls {}", verb.as_str());
            }
        }
    }
}
