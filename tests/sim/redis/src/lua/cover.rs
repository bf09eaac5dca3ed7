//! Which lines of scripts ran.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use mlua::{HookTriggers, Lua, VmState};

/// The lines of one script, numbered from 1.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScriptCoverage {
    /// Its text.
    pub text: String,
    /// The lines that hold code.
    pub lines: BTreeSet<usize>,
    /// Those of them that ran.
    pub ran: BTreeSet<usize>,
}

/// The lines of every script that a server ever knew, by the script's digest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    /// By digest (40 hex digits).
    pub scripts: BTreeMap<String, ScriptCoverage>,
}

impl Coverage {
    /// Adds what ran elsewhere.
    pub fn merge(&mut self, other: Self) {
        for (digest, script) in other.scripts {
            let own = self.scripts.entry(digest).or_default();
            own.ran.extend(&script.ran);
            (own.text, own.lines) = (script.text, script.lines);
        }
    }
}

/// What is noted while scripts run.
#[derive(Default)]
pub(super) struct Covered {
    is_on: Cell<bool>,
    known: RefCell<BTreeMap<String, ScriptCoverage>>,
    /// The script that runs, and by its lines whether they ran.
    current: RefCell<(String, Vec<bool>)>,
}

impl Covered {
    pub(super) fn know(&self, digest: &str, text: &[u8], lines: BTreeSet<usize>) {
        let mut known = self.known.borrow_mut();
        let script = known.entry(digest.to_owned()).or_default();
        if script.lines.is_empty() {
            script.text = String::from_utf8_lossy(text).into_owned();
            script.lines = lines;
        }
    }

    /// Notes lines of this script from now on.
    pub(super) fn turn_to(&self, digest: &str) {
        if self.is_on.get() && self.current.borrow().0 != digest {
            self.settle();
            *self.current.borrow_mut() = (digest.to_owned(), Vec::new());
        }
    }

    fn note(&self, line: usize) {
        let ran = &mut self.current.borrow_mut().1;
        if ran.len() <= line {
            ran.resize(line + 1, false);
        }
        if let Some(ran) = ran.get_mut(line) {
            *ran = true;
        }
    }

    fn settle(&self) {
        let current = self.current.borrow();
        if let Some(script) = self.known.borrow_mut().get_mut(&current.0) {
            let ran = current.1.iter().enumerate().filter(|(_, ran)| **ran);
            script.ran.extend(ran.map(|(line, _)| line));
        }
    }

    pub(super) fn switch(self: &Rc<Self>, lua: &Lua, on: bool) {
        self.settle();
        self.is_on.set(on);
        if !on {
            return lua.remove_hook();
        }
        let covered = Rc::clone(self);
        let hook = lua.set_hook(HookTriggers::EVERY_LINE, move |_, frame| {
            if frame.source().source.as_deref() == Some("@user_script") {
                covered.note(frame.current_line().unwrap_or(0));
            }
            Ok(VmState::Continue)
        });
        self.is_on.set(hook.is_ok());
    }

    pub(super) fn told(&self) -> Coverage {
        self.settle();
        Coverage { scripts: self.known.borrow().clone() }
    }
}
