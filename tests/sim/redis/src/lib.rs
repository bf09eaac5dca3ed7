//! A Redis within a simulation: one server's data, commands and scripts in the caller's own thread, with no clock, no
//! chance and nothing from the environment. The same calls give the same replies in every run.
//!
//! It answers as Redis 7.0.15 does, which the tests hold it against, and runs scripts in Lua 5.1, which Redis embeds.
//! Where it differs on purpose:
//!
//! - A key that has ended goes before the next command, whatever that names; Redis removes it within some 100 ms, or
//!   when it is named. Within a script nothing ends.
//! - What has no order (`KEYS`, `SCAN`, `SMEMBERS`, large hashes) comes in an order of its own, alike in every run.
//! - `used_memory` is an estimate: bytes held, with fixed costs of keys and elements. `MEMORY USAGE` follows it.
//! - `DUMP` answers a number that `RESTORE` of the same server understands.
//! - There is one database, no user and no replica; settings are kept, and only `maxmemory` does something.
//! - Scripts have no `cmsgpack`, `bit` and `os`, and of `cjson` only `encode`. A global that exists may be overwritten.
//! - `MULTI` is a connection's matter: [`serve`] knows it, a bare [`Redis`] does not.

mod commands;
mod data;
mod db;
mod lua;
mod number;
mod reply;
mod serve;

use std::sync::Arc;

use commands::{Args, Outcome, Stop};
use data::Data;
use db::Db;
use lua::Engine;

pub use db::Appended;
pub use lua::{Branch, Coverage, ScriptCoverage};
pub use reply::{Reply, decode};
pub use serve::serve;

/// What comes of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Its reply.
    Now(Reply),
    /// A blocking read found nothing: the caller asks again with [`Redis::retry`] after any write, until the time is
    /// over, and then answers [`Reply::NilArray`].
    Block {
        /// Until when it waits, µs of the server's clock; none: without end.
        until_us: Option<i64>,
    },
}

/// A data set as it was at one moment. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    data: Arc<Data>,
}

/// One server.
#[derive(Debug)]
pub struct Redis {
    db: Box<Db>,
    engine: Engine,
}

impl Redis {
    /// An empty server at time 0. `seed` makes its run id.
    ///
    /// # Panics
    /// Lua cannot be set up: there is no memory.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let engine = match Engine::new() {
            Ok(engine) => engine,
            #[allow(clippy::panic, reason = "a simulation without its Redis cannot begin")]
            Err(error) => panic!("Lua does not start: {error}"),
        };
        Self { db: Box::new(Db::new(seed)), engine }
    }

    /// Sets the clock, µs since 1970: what `TIME` says, what numbers entries, what ends keys. It may step back.
    pub fn set_time_us(&mut self, us: i64) {
        self.db.now_us = us;
    }

    /// Carries out one command, its name first.
    pub fn execute(&mut self, args: &[Vec<u8>]) -> Answer {
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        match self.outcome(&args) {
            Ok(reply) | Err(Stop::Error(reply)) => Answer::Now(reply),
            Err(Stop::Block(until_us)) => Answer::Block { until_us },
        }
    }

    fn outcome(&mut self, args: Args<'_>) -> Outcome {
        self.db.purge();
        self.db.commands += 1;
        match args.first() {
            Some(name) if Engine::is_asked(name) => self.engine.execute(&mut self.db, args),
            _ => self.db.execute(args),
        }
    }

    /// Carries out a read that was blocked. It differs from [`Self::execute`] only where the stream or group that it
    /// waits for is gone. The end that it answers is reckoned from now: the caller keeps the first.
    pub fn retry(&mut self, args: &[Vec<u8>]) -> Answer {
        self.db.is_retry = true;
        let answer = self.execute(args);
        self.db.is_retry = false;
        answer
    }

    /// A read that is about to block, as it is to be asked again: `$` is the last id of now.
    #[must_use]
    pub fn settled(&self, args: &[Vec<u8>]) -> Vec<Vec<u8>> {
        commands::settled(&self.db, args)
    }

    /// Grows with every write that changed something.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.db.changes
    }

    /// The data set as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { data: Arc::new(self.db.data.clone()) }
    }

    /// Starts the server anew with this data: it has another run id and knows no script. Settings and clock stay.
    pub fn restart(&mut self, data: Snapshot, seed: u64) {
        self.db.data = Arc::unwrap_or_clone(data.data);
        self.db.run_id = db::run_id(seed);
        self.db.started_us = self.db.now_us;
        self.db.commands = 0;
        self.db.expired = 0;
        self.engine.forget();
    }

    /// Sets the bound of memory, bytes; 0: none. Nothing is evicted.
    pub fn set_maxmemory(&mut self, bytes: u64) {
        self.db.maxmemory = bytes;
    }

    /// Bytes in use, about.
    #[must_use]
    pub fn used_memory(&self) -> u64 {
        self.db.used_memory()
    }

    /// All keys, those that have ended since the last command, too.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.db.data.names()
    }

    /// What was appended to streams since the last look; from the first look on.
    pub fn take_appended(&mut self) -> Vec<Appended> {
        self.db.appended.replace(Vec::new()).unwrap_or_default()
    }

    /// The server's clock, µs since 1970.
    #[must_use]
    pub const fn now_us(&self) -> i64 {
        self.db.now_us
    }

    /// Begins to note which lines of scripts run and which ways their conditions go, or ends it.
    pub fn cover(&mut self, on: bool) {
        self.engine.cover(on);
    }

    /// What ran of which scripts while [`Self::cover`] was on.
    #[must_use]
    pub fn coverage(&self) -> Coverage {
        self.engine.coverage()
    }
}
