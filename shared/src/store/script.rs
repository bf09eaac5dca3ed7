//! The Lua scripts: one verb a file, composed with the fragments they share, called by digest.

use std::collections::BTreeMap;

use super::StoreError;

const BASE: &str = include_str!("lua/lib/base.lua");
const TENANTS: &str = include_str!("lua/lib/tenants.lua");
const SLICE: &str = include_str!("lua/lib/slice.lua");
const BUDGET: &str = include_str!("lua/lib/budget.lua");
const EARLY: &str = include_str!("lua/lib/early.lua");
const REPLY: &str = include_str!("lua/lib/reply.lua");

macro_rules! verbs {
    ($($verb:literal: [$($fragment:expr),*]),* $(,)?) => {
        &[$(($verb, include_str!(concat!("lua/", $verb, ".lua")), &[$($fragment),*])),*]
    };
}

/// Verb, its own text, and the fragments that go before it.
const VERBS: &[(&str, &str, &[&str])] = verbs! {
    "submit": [BASE],
    "admit": [BASE, TENANTS, SLICE, BUDGET, EARLY],
    "reject": [BASE, REPLY],
    "release": [BASE, TENANTS, SLICE, BUDGET],
    "promote": [BASE, TENANTS, SLICE],
    "begin": [BASE],
    "settle": [BASE, TENANTS, SLICE, REPLY],
    "retry": [BASE, TENANTS, SLICE],
    "hand_back": [BASE, TENANTS, SLICE],
    "reap": [BASE, TENANTS, SLICE],
    "assert": [BASE],
    "beat": [BASE],
    "cancel": [BASE, TENANTS, SLICE],
    "delegate": [BASE, TENANTS, SLICE, EARLY],
    "touch": [BASE],
    "announce": [BASE],
    "at_run_time": [BASE],
    "set_tenant": [BASE],
    "switch_tool": [BASE],
    "prune": [BASE],
    "retire": [BASE],
};

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
}

impl Scripts {
    /// The scripts that are compiled in.
    #[must_use]
    pub fn embedded() -> Self {
        let composed = VERBS.iter().map(|(verb, text, fragments)| {
            // The shebang must be the first line; the fragments go right after it.
            let (shebang, body) = text.split_once('\n').unwrap_or((text, ""));
            (*verb, Script::new(verb, format!("{shebang}\n{}\n{body}", fragments.join("\n"))))
        });
        Self { by_verb: composed.collect() }
    }

    /// Replaces `from` by `to` in the scripts that contain it. For tests that switch a rule off.
    ///
    /// # Errors
    /// The text to replace, where no script contains it: the guard has moved and the test must follow.
    pub fn sabotage(mut self, from: &str, to: &str) -> Result<Self, String> {
        let mut hit = false;
        for script in self.by_verb.values_mut().filter(|s| s.source.contains(from)) {
            *script = Script::new(script.verb, script.source.replace(from, to));
            hit = true;
        }
        if hit { Ok(self) } else { Err(format!("no script contains {from:?}")) }
    }

    pub(crate) fn get(&self, verb: &'static str) -> Result<&Script, StoreError> {
        self.by_verb.get(verb).ok_or(StoreError::NoSuchScript(verb))
    }

    /// The verbs and sources, for `doctor` and the tidy test.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.by_verb.values().map(|s| (s.verb, s.source.as_str()))
    }
}
