//! The verbs: what a shard is asked to do, each in one script.
//!
//! A verb is one word everywhere. `settle` is `slices/settle.lua` with its contract, `slices/settle.rs` with its
//! arguments, its replies and its method of [`Store`](crate::Store), and one line of the list below. From the list follow
//! the scripts that Redis gets, the word in errors, and the label of the metrics.

pub(crate) mod ending;
mod scripts;

pub use scripts::Scripts;

use crate::script::fragments::{
    BUDGET, CANCEL, EARLY, FACTS, GROUPS, INBOX, LIMITS, POISON, PRESSURE, REPLY, SLICE, TENANTS,
};
use crate::script::verbs;

verbs! {
    Admit: "turns" / "admit" [PRESSURE, TENANTS, SLICE, BUDGET, LIMITS, EARLY, INBOX] drains,
    Reject: "turns" / "reject" [INBOX, REPLY],
    Heads: "timers" / "heads" [],
    Release: "timers" / "release" [PRESSURE, TENANTS, SLICE, BUDGET, LIMITS] drains,
    Promote: "timers" / "promote" [PRESSURE, TENANTS, SLICE] drains,
    Wake: "timers" / "wake" [],
    Cascade: "timers" / "cascade" [TENANTS, SLICE, CANCEL],
    Expect: "facts" / "expect" [FACTS],
    Enter: "facts" / "enter" [FACTS],
    Settle: "slices" / "settle" [TENANTS, SLICE, INBOX, REPLY, FACTS],
    Delegate: "tasks" / "delegate" [PRESSURE, TENANTS, SLICE, EARLY, INBOX] drains,
    Reap: "recovery" / "reap" [TENANTS, SLICE, INBOX, POISON],
    Suspect: "recovery" / "suspect" [],
    PutBack: "recovery" / "put_back" [],
    Seal: "audit" / "seal" [],
    Weigh: "upkeep" / "weigh" [],
    Prune: "upkeep" / "prune" [],
    Repair: "upkeep" / "repair" [TENANTS, SLICE, GROUPS],
}

/// Turns come in, and are decided, refused or asked to end.
pub(crate) mod turns {
    mod admit;
    mod cancel;
    pub(crate) mod inbound;
    pub(crate) mod limit;
    pub(crate) mod policy;
    mod reject;
    mod submit;

    pub use admit::*;
    pub use cancel::*;
    pub use inbound::Waits;
    pub use tickfleet_core::turn::submit::Inbound;
    pub use limit::{CounterDebits, LimitRow};
    pub use policy::{Generations, PolicyRow};
    pub use reject::*;
    pub use submit::*;
}

/// The verbs of timers: what waits is looked at when its timer is due.
pub(crate) mod timers {
    mod cascade;
    mod due;
    mod heads;
    mod promote;
    mod release;
    mod wake;

    pub use cascade::Cascaded;
    pub use due::Due;
    pub use heads::Head;
    pub use promote::*;
    pub use release::*;
}

/// The verbs of workers for a slice that they hold.
pub(crate) mod slices {
    mod settle;

    pub use settle::*;
}

/// Approvals: what people are asked about calls, what they say, and what comes of that.
pub(crate) mod approvals {
    mod notices;
    mod view;

    pub use notices::*;
    pub use view::*;
}

/// Facts of sessions: what calls that ended have set and cleared, and which calls may begin by that.
pub(crate) mod facts {
    mod enter;
    mod expect;

    pub use enter::*;
    pub use expect::*;
}

/// Tasks, and the runtimes outside that carry them out.
pub(crate) mod tasks {
    mod delegate;
    mod retire;
    mod step;
    mod touch;

    pub use delegate::*;
    pub use touch::*;
}

/// What is said: between people and agents in sessions, and from agent to agent.
pub(crate) mod talks {
    mod say;
    mod tell;

    pub use say::*;
    pub use tell::*;
}

/// Signs of life, and what happens when they stop.
pub(crate) mod recovery {
    mod drain;
    mod ensure_groups;
    mod put_back;
    mod reap;
    mod suspect;

    pub use reap::*;
}

/// What is done while the fleet runs: the policy in force, tenants, tools that are switched off, counters that are set to
/// zero.
pub(crate) mod run_time {
    mod announce;
    mod at_run_time;
    mod note_act;
    mod pause;
    mod reset_limit;
    mod set_tenant;
    mod switch_tool;

    pub use announce::*;
    pub use at_run_time::*;
    pub use pause::PauseSet;
    pub use reset_limit::*;
}

/// What agents may look up: documents and memories.
pub(crate) mod knowledge {
    mod keep_document;
    mod remember;

    pub use keep_document::*;
    pub use remember::*;
}

/// What was put aside, and what operators do with it.
pub(crate) mod dead {
    mod replay;

    pub use replay::*;
}

/// The audit log is sealed, and followed.
pub(crate) mod audit {
    mod checkpoint;
    mod roll_up;
    mod seal;

    pub use checkpoint::*;
    pub use roll_up::Addition;
    pub use seal::*;
}

/// Bounds that are kept once in a while.
pub(crate) mod upkeep {
    mod faults;
    mod grants;
    mod housekeep;
    mod prune;
    mod repair;
    mod tool_lists;
    mod weigh;

    pub use faults::Repaired;
    pub use prune::PruneAt;
    pub use repair::{Fault, FaultFound};
    pub use tool_lists::*;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::records::schema::{NO_FIELD, resolved};
    use crate::script::rarely::BEGIN;
    use crate::script::unused::END;

    #[test]
    fn no_script_names_a_field_that_no_record_has() {
        for (verb, source) in Scripts::embedded().iter() {
            let at = source.find(NO_FIELD);
            assert!(at.is_none(), "{verb}: {}", at.and_then(|at| source[at..].lines().next()).unwrap_or_default());
            // A record that nobody lists stays as it was written, and would fail when the line runs.
            let code = source.lines().map(|line| line.split("--").next().unwrap_or_default());
            let unknown: Vec<_> = code.flat_map(records_named).collect();
            assert!(unknown.is_empty(), "{verb}: no record is called {unknown:?}");
        }
    }

    /// The words of capitals that a line takes a member of, as in `TURN.fence`.
    fn records_named(line: &str) -> Vec<String> {
        let parts: Vec<&str> = line.split('.').collect();
        let pairs = parts.windows(2).filter(|pair| pair[1].starts_with(|c: char| c.is_ascii_lowercase()));
        let words = pairs.map(|pair| pair[0].rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default());
        words.filter(|word| word.len() > 1 && word.bytes().all(|b| b.is_ascii_uppercase())).map(str::to_owned).collect()
    }

    #[test]
    fn a_record_that_nobody_lists_is_seen() {
        assert_eq!(records_named("call('HSET', key, TRUN.fence, x.y, 'A. b')"), ["TRUN"]);
    }

    #[test]
    fn every_line_of_a_script_stands_in_a_file() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let scripts = Scripts::embedded();
        assert_eq!(Scripts::lines().count(), scripts.iter().count());
        // All but what every script begins with is a function, which begins and ends within lines.
        let begin = "return (function() ";
        for ((verb, composed), lines) in scripts.iter().zip(Scripts::lines()) {
            assert_eq!(composed.split('\n').count(), lines.len(), "{verb}");
            // What the script does not use is left out of it.
            let stands = |text: &str| !text.is_empty() && text != " end)()";
            let written = composed.split('\n').zip(&lines).filter(|(text, line)| line.line > 1 && stands(text));
            for (composed, line) in written {
                // What is made late begins and ends within lines, too.
                let composed = composed.split_once(BEGIN).map_or(composed, |(_, first)| first);
                let ends = composed.split_once(" return ").filter(|(_, end)| end.contains(END));
                let composed = ends.map_or(composed, |(last, _)| last);
                let composed = composed.strip_prefix(begin).unwrap_or(composed);
                assert_eq!(composed, resolved(line.text), "{verb}: {line:?}");
            }
            let last = lines.last().unwrap();
            let text = std::fs::read_to_string(source.join(last.file)).unwrap();
            assert_eq!(text.split('\n').count(), last.line, "{verb}");
        }
    }

    #[test]
    fn every_script_lies_beside_its_method_and_is_listed() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/verbs");
        let rooms = here.read_dir().unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        let files = rooms.flat_map(|room| room.read_dir().unwrap().map(|entry| entry.unwrap().path()));
        let scripts: Vec<_> = files.filter(|path| path.extension().is_some_and(|it| it == "lua")).collect();
        let alone: Vec<_> = scripts.iter().filter(|path| !path.with_extension("rs").exists()).collect();
        assert!(alone.is_empty(), "no method beside {alone:?}");
        let found: BTreeSet<_> = scripts.iter().map(|path| path.file_stem().unwrap().to_str().unwrap()).collect();
        assert_eq!(found, Verb::ALL.iter().map(|verb| verb.as_str()).collect());
    }
}
