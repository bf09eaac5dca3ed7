//! Which lines of scripts ran, and which ways their conditions went.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use mlua::{HookTriggers, Lua, VmState};

use super::bytecode::{Compiled, Condition, FIRST_NUMBER};

/// The lines of one script, numbered from 1, and its branches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScriptCoverage {
    /// Its text.
    pub text: String,
    /// The lines that hold code.
    pub lines: BTreeSet<usize>,
    /// Those of them that ran.
    pub ran: BTreeSet<usize>,
    /// Line by line, in the order in which they are written, nearly always.
    pub branches: Vec<Branch>,
}

/// A place where a script goes one of two ways: each comparison and each value that is asked for its truth, in `if`,
/// `while` and `until` as in `and` and `or`; and each end of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Branch {
    /// Its line.
    pub line: usize,
    /// Which of its line's, from 1.
    pub number: usize,
    /// It went on to what is written next: the body, the next operand, the loop's body once more.
    pub went_on: bool,
    /// It went past what is written next: to the `else`, the operator's value, the end of the loop.
    pub went_past: bool,
}

/// The lines of every script that a server ever knew, by the script's digest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    /// By digest (40 hex digits).
    pub scripts: BTreeMap<String, ScriptCoverage>,
}

/// What is noted of one script.
#[derive(Default)]
struct Noted {
    text: String,
    /// The line of each instruction.
    lines: Vec<usize>,
    /// The conditions, each with whether it went on and whether it went past.
    conditions: Vec<(Condition, bool, bool)>,
    /// The condition at each instruction, by its place in the list.
    condition_at: BTreeMap<usize, usize>,
    /// The instructions that ran.
    ran: Vec<bool>,
}

/// What is noted while scripts run.
#[derive(Default)]
pub(super) struct Covered {
    is_on: Cell<bool>,
    known: RefCell<BTreeMap<String, Rc<RefCell<Noted>>>>,
    /// The script that runs.
    current: RefCell<Rc<RefCell<Noted>>>,
    /// The condition that ran last, if nothing has run since.
    undecided: Cell<Option<usize>>,
}

impl Noted {
    fn of(text: &[u8], compiled: &Compiled) -> Self {
        let conditions = &compiled.conditions;
        Self {
            text: String::from_utf8_lossy(text).into_owned(),
            lines: compiled.lines.clone(),
            conditions: conditions.iter().map(|condition| (*condition, false, false)).collect(),
            condition_at: conditions.iter().enumerate().map(|(place, condition)| (condition.at, place)).collect(),
            ran: vec![false; compiled.lines.len()],
        }
    }

    fn told(&self) -> ScriptCoverage {
        let mut numbers: BTreeMap<usize, usize> = BTreeMap::new();
        let branches = self.conditions.iter().map(|(condition, went_on, went_past)| {
            let line = self.lines.get(condition.at).copied().unwrap_or_default();
            let number = numbers.entry(line).or_default();
            *number += 1;
            Branch { line, number: *number, went_on: *went_on, went_past: *went_past }
        });
        let branches = branches.collect();
        let ran = self.lines.iter().zip(&self.ran).filter(|(_, ran)| **ran);
        ScriptCoverage {
            text: self.text.clone(),
            lines: self.lines.iter().copied().collect(),
            ran: ran.map(|(line, _)| *line).collect(),
            branches,
        }
    }
}

impl Covered {
    pub(super) fn know(&self, digest: &str, text: &[u8], compiled: &Compiled) {
        let mut known = self.known.borrow_mut();
        known.entry(digest.to_owned()).or_insert_with(|| Rc::new(RefCell::new(Noted::of(text, compiled))));
    }

    /// Whether scripts are to be compiled with numbers for lines.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    /// Notes what runs of this script from now on.
    pub(super) fn turn_to(&self, digest: &str) {
        if !self.is_on.get() {
            return;
        }
        self.undecided.set(None);
        if let Some(noted) = self.known.borrow().get(digest) {
            *self.current.borrow_mut() = Rc::clone(noted);
        }
    }

    /// Notes an instruction.
    fn note(&self, number: usize) {
        let current = self.current.borrow();
        let mut noted = current.borrow_mut();
        if let Some(ran) = noted.ran.get_mut(number) {
            *ran = true;
        }
        let place = noted.condition_at.get(&number).copied();
        let before = self.undecided.replace(place).and_then(|place| noted.conditions.get_mut(place));
        if let Some((condition, went_on, went_past)) = before {
            *went_on |= condition.on == number;
            *went_past |= condition.past == number;
        }
    }

    /// Begins or ends to note. The scripts that are known must be compiled anew.
    pub(super) fn switch(self: &Rc<Self>, lua: &Lua, on: bool) {
        self.is_on.set(false);
        if !on {
            return lua.remove_hook();
        }
        let covered = Rc::clone(self);
        // Each instruction is on a line of its own, by its number.
        let hook = lua.set_hook(HookTriggers::EVERY_LINE, move |_, frame| {
            if let Some(number) = frame.current_line().and_then(|line| line.checked_sub(FIRST_NUMBER)) {
                covered.note(number);
            }
            Ok(VmState::Continue)
        });
        self.is_on.set(hook.is_ok());
    }

    /// The line that Lua names where it may be the number of an instruction of the script that runs.
    pub(super) fn line(&self, line: usize) -> usize {
        let Some(number) = line.checked_sub(FIRST_NUMBER) else { return line };
        self.current.borrow().borrow().lines.get(number).copied().unwrap_or(line)
    }

    pub(super) fn told(&self) -> Coverage {
        let known = self.known.borrow();
        Coverage { scripts: known.iter().map(|(digest, noted)| (digest.clone(), noted.borrow().told())).collect() }
    }
}
