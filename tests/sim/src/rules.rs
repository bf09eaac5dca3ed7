//! The rules of docs/contribute/store-rules.md, checked in Redis itself: each script may change only certain keys. The
//! oracle detects damage by its effects; these checks detect a broken rule at once. START HERE: [`Rules::before`],
//! [`Rules::after`].

mod call;
mod clock;
mod inbound;
mod look;
mod records;
mod slices;

use std::collections::{BTreeMap, BTreeSet};

use tickfleet_sim_redis::{Appended, Redis, Reply};
use tickfleet_store::{Scripts, StoreOptions, fields};

use crate::world::World;
use call::Was;
use clock::ShardTimes;
use look::{Look, list, number, text, words};

/// By how much the clocks of those who ask may be behind, and what a Redis that lost its last writes may have forgotten, µs.
const CLOCKS_US: i64 = 3_000_000;

/// A script as Redis knows it.
#[derive(Debug, Clone, Copy)]
struct Known {
    verb: &'static str,
    /// Whether it frees memory, so that a full Redis must run it.
    drains: bool,
}

/// A script that is carried out, and what was there before.
pub(crate) struct Call {
    verb: &'static str,
    drains: bool,
    /// The prefix of its shard.
    prefix: String,
    argv: Vec<String>,
    /// Fields of `meta`: what was announced, how many shards there are, the generation of tenants.
    meta: Vec<Option<String>>,
    /// What it is about, item by item.
    was: Vec<Was>,
}

impl Call {
    pub(crate) const fn verb(&self) -> &'static str {
        self.verb
    }

    /// The argument that scripts name `ARGV[number]`.
    fn arg(&self, number: usize) -> &str {
        self.argv.get(number.wrapping_sub(1)).map_or("", String::as_str)
    }

    fn number(&self, number: usize) -> i64 {
        self.arg(number).parse().unwrap_or(0)
    }
}

/// Looks on.
pub(crate) struct Rules {
    world: World,
    options: StoreOptions,
    /// By digest.
    scripts: BTreeMap<String, Known>,
    /// By prefix.
    times: BTreeMap<String, ShardTimes>,
    /// Fences under which a call was begun, or a suspect was started.
    started: BTreeSet<String>,
    /// By turn, the crashes of its last slice, and its fence.
    crashes: BTreeMap<String, (i64, String)>,
    /// Whether a hand has taken something away: who looks after it comes later.
    pub(crate) is_robbed: bool,
}

impl Rules {
    /// The rules for these scripts, which may have a guard less than those of the build.
    pub(crate) fn new(options: &StoreOptions, scripts: &Scripts, world: &World) -> Self {
        let embedded = Scripts::embedded();
        let known = scripts.iter().zip(embedded.iter()).map(|((verb, source), (_, whole))| {
            let drains = whole.starts_with("#!lua flags=allow-oom");
            (redis::Script::new(source).get_hash().to_owned(), Known { verb, drains })
        });
        Self {
            world: world.clone(),
            options: options.clone(),
            scripts: known.collect(),
            times: BTreeMap::new(),
            started: BTreeSet::new(),
            crashes: BTreeMap::new(),
            is_robbed: false,
        }
    }

    /// The verb of a script.
    pub(crate) fn verb(&self, digest: &str) -> Option<&'static str> {
        self.scripts.get(digest).map(|known| known.verb)
    }

    fn wrong(&self, rule: u8, what: &str) {
        self.world.wrong(format!("rule {rule}: {what}"));
    }

    /// A command is to be carried out. Gives what is to be known of it later, if it is a script.
    pub(crate) fn before(&self, redis: &mut Redis, args: &[Vec<u8>]) -> Option<Call> {
        if args.first()? != b"EVALSHA" {
            return None;
        }
        let known = *self.scripts.get(String::from_utf8_lossy(args.get(1)?).as_ref())?;
        let prefix = String::from_utf8_lossy(args.get(3)?).into_owned();
        let argv = args.iter().skip(4).map(|arg| String::from_utf8_lossy(arg).into_owned()).collect();
        let mut call = Call { verb: known.verb, drains: known.drains, prefix, argv, meta: Vec::new(), was: Vec::new() };
        let mut look = Look { redis, prefix: &call.prefix };
        call.meta = look.fields("meta", &["policy_gen", "tenants_gen", "shards", "early_ms"]);
        let was = call::items(&call, &mut look);
        call.was = was;
        Some(call)
    }

    /// It was carried out.
    pub(crate) fn after(&mut self, redis: &mut Redis, call: &Call, reply: &Reply) {
        if call.drains && matches!(reply, Reply::Error(why) if why.starts_with("OOM")) {
            self.wrong(13, &format!("{} frees memory, and was refused for want of it", call.verb));
        }
        // One item that cannot be looked at costs itself, not all that the script was to look at.
        if ["promote", "reap", "release"].contains(&call.verb)
            && let Reply::Error(why) = reply
            && !["OOM", "NOSCRIPT"].iter().any(|word| why.starts_with(word))
        {
            self.wrong(18, &format!("{} failed as a whole: {why}", call.verb));
        }
        let mut look = Look { redis, prefix: &call.prefix };
        let now_ms = look.fields("meta", &["last_ms"]).first().cloned().flatten();
        let now_ms = now_ms.and_then(|now| now.parse().ok()).unwrap_or(0);
        self.told_time(call, reply);
        self.denied(&mut look, reply);
        match call.verb {
            "submit" => self.submitted(call, reply),
            "admit" => self.admitted(&mut look, call, reply, now_ms),
            "release" => drop(self.decided(call, reply, now_ms)),
            "reject" => self.rejected(&mut look, call, reply),
            "cancel" => self.cancelled(&mut look, call, reply),
            "begin" => self.begun(call, reply, now_ms),
            "settle" | "retry" | "hand_back" => self.fenced(&mut look, call, reply),
            "promote" => self.promoted(&mut look, call, reply, now_ms),
            "reap" => self.reaped(call, reply),
            "announce" => self.announced(call, reply),
            "set_tenant" => self.set(&mut look, call, reply),
            "lookup" => self.looked_up(call, reply),
            _ => {}
        }
    }

    fn announced(&self, call: &Call, reply: &Reply) {
        let shards = call.meta.get(2).cloned().flatten();
        if words(reply).first().is_some_and(|word| word == "OK") && shards.is_some_and(|known| known != call.arg(3)) {
            self.wrong(10, &format!("a process decides with {} shards, and others with another number", call.arg(3)));
        }
    }

    fn set(&self, look: &mut Look<'_>, call: &Call, reply: &Reply) {
        let before = call.meta.get(1).cloned().flatten().unwrap_or_default();
        let after = look.fields("meta", &["tenants_gen"]).remove(0).unwrap_or_default();
        if words(reply).first().is_some_and(|word| word == "OK") && before == after {
            self.wrong(17, &format!("{} was set, and nobody is told", call.arg(3)));
        }
    }

    /// Kept answers are as young as their time says, and of the tenant that asks.
    fn looked_up(&self, call: &Call, reply: &Reply) {
        let facts = self.world.facts();
        let Some(kept_us) = facts.kept_us else { return };
        let mut old = Vec::new();
        for (at, answer) in list(reply).iter().enumerate() {
            let [_, by, ..] = list(answer) else { continue };
            let by = text(by).unwrap_or_default();
            let (turn, position) = by.rsplit_once('/').unwrap_or_default();
            let name = format!("{}:{turn}", call.arg(3 + 2 * at));
            let mut runs = facts.runs_of(&name, position.parse().unwrap_or(usize::MAX));
            if !runs.any(|(_, run)| run.began_us >= facts.now_us - kept_us - CLOCKS_US) {
                old.push(format!("{name}/{position} has not run for long, and answers others"));
            }
        }
        drop(facts);
        old.iter().for_each(|what| self.wrong(15, what));
    }

    /// An entry has appeared; the script that wrote it was `verb`.
    pub(crate) fn appended(&mut self, redis: &mut Redis, appended: &Appended, verb: Option<&'static str>) {
        let key = String::from_utf8_lossy(&appended.key).into_owned();
        let Some((prefix, stream)) = key.split_once("}:") else { return };
        let prefix = format!("{prefix}}}:");
        let field = |name: &str| {
            let found = appended.fields.iter().find(|(n, _)| n == name.as_bytes());
            found.map(|(_, value)| String::from_utf8_lossy(value).into_owned())
        };
        let mut look = Look { redis, prefix: &prefix };
        if stream.starts_with("ready:") {
            let crashes = field(fields::slice::CRASHES).and_then(|x| x.parse().ok()).unwrap_or(0);
            self.dispatched(&mut look, &field(fields::slice::NAME).unwrap_or_default(), crashes, verb);
        } else if stream == "turns" || stream == "tasks" {
            let crashes = field(fields::inbound::CRASHES).and_then(|x| x.parse().ok()).unwrap_or(0);
            if verb == Some("reap") && crashes >= i64::from(self.options.crashes_max) {
                self.wrong(12, &format!("an inbound entry has killed its readers {crashes} times, and is read again"));
            }
        } else if stream == "dead" {
            let from = field("from").unwrap_or_default();
            if field("reason").as_deref() == Some("unreadable") && from == "turns" {
                self.wrong(18, &format!("an inbound entry was put aside unread: {}", field("raw").unwrap_or_default()));
            }
        }
    }

    /// A slice was put on a queue.
    fn dispatched(&mut self, look: &mut Look<'_>, name: &str, crashes: i64, verb: Option<&'static str>) {
        let fence = look.record(name).fence.unwrap_or_default();
        if crashes >= i64::from(self.options.crashes_max) {
            self.wrong(12, &format!("{name} was lost {crashes} times, and is carried out again"));
        }
        let before = self.crashes.insert(name.to_owned(), (crashes, fence));
        if let Some((count, under)) = before
            && verb == Some("reap")
            && count > 0
            && crashes > count
            && !self.started.contains(&under)
        {
            self.wrong(12, &format!("{name} was never started under {under}, and that counts as a crash"));
        }
    }
}
