//! Scripts: Lua as Redis embeds it.

mod bytecode;
pub(crate) mod convert;
mod cover;
mod desk;
mod json;
mod library;
mod prelude;
mod shebang;
mod structs;

use std::collections::BTreeMap;
use std::rc::Rc;

use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, LuaOptions, MultiValue, StdLib, Table, Value};

use crate::commands::{Args, Outcome, fail, is, shown};
use crate::db::{Db, wrong_arity};
use crate::number::int;
use crate::reply::Reply;
use bytecode::Compiled;
use convert::reply_of;
pub use cover::{Branch, Coverage, ScriptCoverage};
use desk::{Desk, Run};
use shebang::Flags;

const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// A script that was loaded.
struct Script {
    function: Function,
    flags: Flags,
    compiled: Compiled,
}

/// Lua, the scripts that it knows, and where they meet the data.
pub(crate) struct Engine {
    lua: Lua,
    desk: Rc<Desk>,
    /// Calls a script: true and what it returns, or false and the table of its error.
    runner: Function,
    scripts: BTreeMap<String, Script>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({} scripts)", self.scripts.len())
    }
}

impl Engine {
    pub(crate) fn new() -> mlua::Result<Self> {
        let libraries = StdLib::STRING | StdLib::TABLE | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
        let desk = Rc::<Desk>::default();
        let prelude = lua.load(prelude::PRELUDE).set_name("=redis").into_function()?;
        let code = Compiled::of(prelude.dump(false)).code;
        let prelude = lua.load(code).set_mode(ChunkMode::Binary).into_function()?;
        let (caller, handler) = (desk::caller(&lua, &desk)?, library::handler(&lua, desk.covered())?);
        let runner = prelude.call((caller, handler, library::redis(&lua)?, library::packs(&lua)?))?;
        Ok(Self { lua, desk, runner, scripts: BTreeMap::new() })
    }

    /// Whether the command is about scripts, and so not the data's.
    pub(crate) fn is_asked(name: &[u8]) -> bool {
        ["EVALSHA", "EVAL", "SCRIPT", "EVALSHA_RO", "EVAL_RO"].iter().any(|word| is(name, word))
    }

    pub(crate) fn execute(&mut self, db: &mut Box<Db>, args: Args<'_>) -> Outcome {
        let name = args[0];
        if is(name, "SCRIPT") {
            return if args.len() < 2 { wrong_arity(name) } else { self.administer(args) };
        }
        if args.len() < 3 {
            return wrong_arity(name);
        }
        let Ok(keys) = usize::try_from(int(args[2])?) else { return fail("ERR Number of keys can't be negative") };
        if keys > args.len() - 3 {
            return fail("ERR Number of keys can't be greater than number of args");
        }
        let by_text = is(name, "EVAL") || is(name, "EVAL_RO");
        let digest = if by_text { digest(args[1]) } else { shown(args[1]).to_lowercase() };
        if !self.scripts.contains_key(&digest) {
            if !by_text {
                return fail("NOSCRIPT No matching script. Please use EVAL.");
            }
            self.load(args[1])?;
        }
        let Some(script) = self.scripts.get(&digest) else {
            return fail("NOSCRIPT No matching script. Please use EVAL.");
        };
        let is_full = db.is_full();
        if is_full && script.flags.refuses_full_memory() {
            return fail(OOM);
        }
        let run = Run {
            reads_only: script.flags.reads_only(),
            allows_oom: script.flags.allows_oom(),
            was_full: is_full,
            has_written: false,
        };
        let (keys, values) = args[3..].split_at(keys);
        match self.run(db, &digest, run, keys, values) {
            Ok(Reply::Error(text)) => fail(text),
            Ok(reply) => Ok(reply),
            Err(error) => fail(format!("ERR Error running script {digest}, {error}")),
        }
    }

    fn run(&self, db: &mut Box<Db>, digest: &str, run: Run, keys: Args<'_>, args: Args<'_>) -> mlua::Result<Reply> {
        let Some(script) = self.scripts.get(digest) else { return Ok(Reply::Nil) };
        let globals = self.lua.globals();
        globals.raw_set("KEYS", self.list(keys)?)?;
        globals.raw_set("ARGV", self.list(args)?)?;
        self.desk.begin(db, run, digest);
        let outcome = self.runner.call::<(bool, Value)>(&script.function);
        self.desk.end(db);
        let (done, value) = outcome?;
        if done { Ok(reply_of(&value)) } else { Ok(Reply::Error(told(&value, digest))) }
    }

    fn list(&self, items: Args<'_>) -> mlua::Result<Table> {
        self.lua.create_sequence_from(items.iter().map(|item| mlua::BString::from(*item)))
    }

    fn administer(&mut self, args: Args<'_>) -> Outcome {
        match args {
            [_, sub, text] if is(sub, "LOAD") => self.load(text).map(Reply::bulk),
            [_, sub, digests @ ..] if is(sub, "EXISTS") && !digests.is_empty() => {
                let known = digests.iter().map(|digest| self.scripts.contains_key(&shown(digest).to_lowercase()));
                Ok(Reply::Array(known.map(|known| Reply::Int(known.into())).collect()))
            }
            [_, sub, ..] if is(sub, "FLUSH") => {
                self.scripts.clear();
                Ok(Reply::ok())
            }
            [_, sub, ..] if ["LOAD", "EXISTS"].iter().any(|word| is(sub, word)) => {
                fail(format!("ERR wrong number of arguments for 'script|{}' command", shown(sub).to_lowercase()))
            }
            _ => fail(format!("ERR unknown subcommand '{}'. Try SCRIPT HELP.", shown(args[1]))),
        }
    }

    /// Compiles a script. Answers its digest.
    fn load(&mut self, text: &[u8]) -> Result<String, crate::commands::Stop> {
        let digest = digest(text);
        if self.scripts.contains_key(&digest) {
            return Ok(digest);
        }
        let (flags, body) = shebang::split(text).or_else(fail)?;
        let compiled = self.lua.load(body).set_name("@user_script").set_mode(ChunkMode::Text).into_function();
        let compiled = compiled.and_then(|function| {
            let compiled = Compiled::of(function.dump(false));
            self.desk.covered().know(&digest, text, &compiled);
            Ok((self.function(&compiled)?, compiled))
        });
        match compiled {
            Ok((function, compiled)) => {
                self.scripts.insert(digest.clone(), Script { function, flags, compiled });
                Ok(digest)
            }
            Err(error) => {
                let error = error.to_string();
                let why = error.strip_prefix("syntax error: ").unwrap_or(&error);
                fail(format!("ERR Error compiling script (new function): {}", why.lines().next().unwrap_or_default()))
            }
        }
    }

    /// A compiled script as a function; with numbers for lines where those that run are noted.
    fn function(&self, compiled: &Compiled) -> mlua::Result<Function> {
        let code = if self.desk.covered().is_on() { compiled.numbered() } else { compiled.code.clone() };
        self.lua.load(code).set_mode(ChunkMode::Binary).into_function()
    }

    /// Begins or ends to note what runs of scripts.
    pub(crate) fn cover(&mut self, on: bool) {
        self.desk.covered().switch(&self.lua, on);
        let scripts = std::mem::take(&mut self.scripts).into_iter();
        let anew = scripts.filter_map(|(digest, script)| {
            let function = self.function(&script.compiled).ok()?;
            Some((digest, Script { function, ..script }))
        });
        self.scripts = anew.collect();
    }

    pub(crate) fn coverage(&self) -> Coverage {
        self.desk.covered().told()
    }

    /// What a server that starts anew does not know any more.
    pub(crate) fn forget(&mut self) {
        self.scripts.clear();
    }
}

/// The digest that a script is known by.
fn digest(text: &[u8]) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}

/// An uncaught error as it is told.
fn told(error: &Value, digest: &str) -> String {
    let Value::Table(error) = error else {
        let why = error.to_string().unwrap_or_default();
        return format!("ERR Error running script {digest}, {why}");
    };
    let text = |name: &str| match error.raw_get::<Value>(name) {
        Ok(Value::String(text)) => Some(text.to_string_lossy()),
        Ok(Value::Integer(number)) => Some(number.to_string()),
        Ok(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let mut told = text("err").unwrap_or_default();
    if let (Some(source), Some(line)) = (text("source"), text("line")) {
        told.push_str(&format!(" script: {digest}, on {source}:{line}."));
    }
    told
}

/// All values of a call.
type Values = MultiValue;
