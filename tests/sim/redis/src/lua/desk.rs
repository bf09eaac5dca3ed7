//! Where scripts and data meet: while a script runs, the data lies here.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use mlua::{Function, Lua, Value};

use super::Values;
use super::convert::{error_table, value_of, write_arg};
use super::cover::Covered;
use crate::commands::{self, Stop};
use crate::db::Db;
use crate::reply::Reply;

/// What one run of a script may do, and has done.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Run {
    pub(super) reads_only: bool,
    pub(super) allows_oom: bool,
    /// Whether memory was full at its start.
    pub(super) was_full: bool,
    pub(super) has_written: bool,
}

/// The desk.
pub(super) struct Desk {
    /// While no script runs, an empty one.
    db: RefCell<Box<Db>>,
    run: Cell<Run>,
    is_busy: Cell<bool>,
    covered: Rc<Covered>,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            db: RefCell::new(Box::new(Db::new(0))),
            run: Cell::default(),
            is_busy: Cell::new(false),
            covered: Rc::default(),
        }
    }
}

/// Commands that scripts must not call, and that the table of commands does not hold.
const NOT_FROM_SCRIPTS: [&str; 8] = ["EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "SCRIPT", "MULTI", "EXEC", "DISCARD"];

impl Desk {
    /// Puts the data on the desk.
    pub(super) fn begin(&self, db: &mut Box<Db>, run: Run, digest: &str) {
        db.in_script = true;
        self.run.set(run);
        self.is_busy.set(true);
        self.covered.turn_to(digest);
        std::mem::swap(&mut *self.db.borrow_mut(), db);
    }

    /// Takes the data off it.
    pub(super) fn end(&self, db: &mut Box<Db>) {
        std::mem::swap(&mut *self.db.borrow_mut(), db);
        self.is_busy.set(false);
        db.in_script = false;
    }

    pub(super) fn covered(&self) -> &Rc<Covered> {
        &self.covered
    }

    /// Carries out a command of the script.
    fn execute(&self, args: &[&[u8]]) -> Reply {
        let refuse = |why: &str| Reply::error(format!("ERR {why}"));
        let name = args.first().copied().unwrap_or_default();
        let Some(command) = commands::find(args) else {
            let known = NOT_FROM_SCRIPTS.iter().any(|word| commands::is(name, word));
            return refuse(if known {
                "This Redis command is not allowed from script"
            } else {
                "Unknown Redis command called from script"
            });
        };
        if !command.takes(args.len()) {
            return refuse("Wrong number of args calling Redis command from script");
        }
        if command.not_from_scripts {
            return refuse("This Redis command is not allowed from script");
        }
        let run = self.run.get();
        if run.reads_only && command.writes {
            return refuse("Write commands are not allowed from read-only scripts.");
        }
        if run.was_full && command.needs_memory && !run.allows_oom && !run.has_written {
            return Reply::error(super::OOM);
        }
        if command.writes {
            self.run.set(Run { has_written: true, ..run });
        }
        match (command.run)(&mut self.db.borrow_mut(), args) {
            Ok(reply) | Err(Stop::Error(reply)) => reply,
            Err(Stop::Block(_)) => Reply::NilArray,
        }
    }

    /// What `redis.call` and `redis.pcall` have in common: the reply, and whether it is an error.
    fn call(&self, lua: &Lua, values: &Values) -> mlua::Result<(Value, bool)> {
        let refuse = |why: &str| Ok((Value::Table(error_table(lua, &format!("ERR {why}"))?), true));
        if !self.is_busy.get() {
            return refuse("redis.call/pcall can only be called inside a script invocation");
        }
        if values.is_empty() {
            return refuse("Please specify at least one argument for this redis lib call");
        }
        let (mut text, mut ends) = (Vec::with_capacity(256), Vec::with_capacity(values.len()));
        for value in values {
            if !write_arg(value, &mut text) {
                return refuse("Lua redis lib command arguments must be strings or integers");
            }
            ends.push(text.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        let args: Vec<&[u8]> = starts.zip(&ends).map(|(from, to)| text.get(from..*to).unwrap_or_default()).collect();
        let reply = self.execute(&args);
        Ok((value_of(lua, &reply)?, matches!(reply, Reply::Error(_))))
    }
}

/// The function behind `redis.call` and `redis.pcall`.
pub(super) fn caller(lua: &Lua, desk: &Rc<Desk>) -> mlua::Result<Function> {
    let desk = Rc::clone(desk);
    lua.create_function(move |lua, values: Values| desk.call(lua, &values))
}
