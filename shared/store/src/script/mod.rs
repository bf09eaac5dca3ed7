//! The Lua scripts: one verb a file, composed with the fragments they share, called by digest.

use std::collections::BTreeMap;

pub(crate) mod args;
pub(crate) mod reply;

use crate::StoreError;

const BASE: &str = include_str!("fragments/base.lua");
const TENANTS: &str = include_str!("fragments/tenants.lua");
const SLICE: &str = include_str!("fragments/slice.lua");
const BUDGET: &str = include_str!("fragments/budget.lua");
const EARLY: &str = include_str!("fragments/early.lua");
const INBOX: &str = include_str!("fragments/inbox.lua");
const REPLY: &str = include_str!("fragments/reply.lua");
const POISON: &str = include_str!("fragments/poison.lua");
const PRESSURE: &str = include_str!("fragments/pressure.lua");

macro_rules! verbs {
    ($($room:literal / $verb:literal: [$($fragment:expr),*]),* $(,)?) => {
        &[$(($verb, include_str!(concat!("../verbs/", $room, "/", $verb, ".lua")), &[$($fragment),*])),*]
    };
}

/// Verb, its own text, and the fragments that go before it.
const VERBS: &[(&str, &str, &[&str])] = verbs! {
    "turns" / "submit": [BASE, INBOX],
    "turns" / "admit": [BASE, PRESSURE, TENANTS, SLICE, BUDGET, EARLY, INBOX],
    "turns" / "reject": [BASE, INBOX, REPLY],
    "timers" / "release": [BASE, PRESSURE, TENANTS, SLICE, BUDGET],
    "timers" / "promote": [BASE, PRESSURE, TENANTS, SLICE],
    "slices" / "begin": [BASE],
    "slices" / "settle": [BASE, TENANTS, SLICE, INBOX, REPLY],
    "slices" / "retry": [BASE, TENANTS, SLICE],
    "slices" / "hand_back": [BASE, TENANTS, SLICE],
    "recovery" / "reap": [BASE, TENANTS, SLICE, INBOX, POISON],
    "slices" / "assert": [BASE],
    "recovery" / "beat": [BASE],
    "turns" / "cancel": [BASE, TENANTS, SLICE],
    "tasks" / "delegate": [BASE, PRESSURE, TENANTS, SLICE, EARLY, INBOX],
    "tasks" / "touch": [BASE],
    "run_time" / "announce": [BASE],
    "run_time" / "at_run_time": [BASE],
    "run_time" / "set_tenant": [BASE],
    "run_time" / "switch_tool": [BASE],
    "upkeep" / "prune": [BASE],
    "tasks" / "retire": [BASE],
    "upkeep" / "weigh": [BASE],
    "timers" / "wake": [BASE],
    "recovery" / "suspect": [BASE],
    "slices" / "put_aside": [BASE, TENANTS, SLICE],
    "recovery" / "ensure_groups": [BASE],
    "recovery" / "put_back": [BASE],
};

/// Verbs that drain, and make Redis' memory fuller first: what is admitted frees its inbound entry, but is a slice
/// meanwhile. Redis runs them while there is memory. Beyond, it refuses them, and they are run a second time, however
/// full it is, with the one bound that then holds (`AT_BRIM`, see `fragments/pressure.lua`).
const DRAINING: &[&str] = &["admit", "release", "promote", "delegate"];

/// One script as Redis gets it.
#[derive(Debug, Clone)]
pub struct Script {
    pub(crate) verb: &'static str,
    pub(crate) source: String,
    pub(crate) digest: String,
}

impl Script {
    fn new(verb: &'static str, source: String) -> Self {
        let digest = redis::Script::new(&source).get_hash().to_owned();
        Self { verb, source, digest }
    }
}

/// All scripts by verb.
#[derive(Debug, Clone)]
pub struct Scripts {
    by_verb: BTreeMap<&'static str, Script>,
    /// The second form of those that drain.
    at_brim: BTreeMap<&'static str, Script>,
}

impl Scripts {
    /// The scripts that are compiled in.
    #[must_use]
    pub fn embedded() -> Self {
        // The shebang must be the first line; the fragments go right after it.
        let parts = |text: &'static str| text.split_once('\n').unwrap_or((text, ""));
        let composed = VERBS.iter().map(|(verb, text, fragments)| {
            let ((shebang, body), fragments) = (parts(text), fragments.join("\n"));
            let at_brim = if DRAINING.contains(verb) { "local AT_BRIM = false\n" } else { "" };
            (*verb, Script::new(verb, format!("{shebang}\n{at_brim}{fragments}\n{body}")))
        });
        let draining = VERBS.iter().filter(|(verb, ..)| DRAINING.contains(verb)).map(|(verb, text, fragments)| {
            let (body, fragments) = (parts(text).1, fragments.join("\n"));
            (*verb, Script::new(verb, format!("#!lua flags=allow-oom\nlocal AT_BRIM = true\n{fragments}\n{body}")))
        });
        Self { by_verb: composed.collect(), at_brim: draining.collect() }
    }

    /// Replaces `from` by `to` in the scripts that contain it. For tests that switch a rule off.
    ///
    /// # Errors
    /// The text to replace, where no script contains it: the guard has moved and the test must follow.
    pub fn sabotage(mut self, from: &str, to: &str) -> Result<Self, String> {
        let mut hit = false;
        let scripts = self.by_verb.values_mut().chain(self.at_brim.values_mut());
        for script in scripts.filter(|s| s.source.contains(from)) {
            *script = Script::new(script.verb, script.source.replace(from, to));
            hit = true;
        }
        if hit { Ok(self) } else { Err(format!("no script contains {from:?}")) }
    }

    pub(crate) fn get(&self, verb: &'static str) -> Result<&Script, StoreError> {
        self.by_verb.get(verb).ok_or(StoreError::NoSuchScript(verb))
    }

    /// What runs in its place where memory is full; none where the verb does not drain, or runs then anyway.
    pub(crate) fn get_at_brim(&self, verb: &'static str) -> Option<&Script> {
        self.at_brim.get(verb)
    }

    /// The verbs and sources, for `doctor` and the tidy test; those that drain come twice.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.by_verb.values().chain(self.at_brim.values()).map(|s| (s.verb, s.source.as_str()))
    }
}
