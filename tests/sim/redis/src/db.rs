//! A server's state beside its scripts: the data set, its clock, its settings.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::commands::{self, Args, Outcome, fail, shown};
use crate::data::{Data, Value};

/// Bytes that a server takes without data.
const BASE_BYTES: u64 = 1 << 20;

/// An entry that was appended to a stream, by a command or a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The stream.
    pub key: Vec<u8>,
    /// Its fields, in order.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug)]
pub(crate) struct Db {
    pub(crate) data: Data,
    pub(crate) now_us: i64,
    pub(crate) started_us: i64,
    pub(crate) changes: u64,
    pub(crate) commands: u64,
    pub(crate) expired: usize,
    pub(crate) maxmemory: u64,
    pub(crate) config: BTreeMap<String, String>,
    pub(crate) run_id: String,
    /// Values that were dumped, by what stands in the dump.
    pub(crate) dumps: Vec<Arc<Value>>,
    /// Whether a script calls.
    pub(crate) in_script: bool,
    /// Whether a read was blocked before.
    pub(crate) is_retry: bool,
    /// What was appended to streams since somebody looked; none where nobody looks.
    pub(crate) appended: Option<Vec<Appended>>,
}

/// 40 hex digits that are alike for one seed only.
pub(crate) fn run_id(seed: u64) -> String {
    sha1_smol::Sha1::from(seed.to_le_bytes()).digest().to_string()
}

impl Db {
    pub(crate) fn new(seed: u64) -> Self {
        let config =
            [("appendonly", "no"), ("maxmemory-policy", "noeviction"), ("save", ""), ("appendfsync", "everysec")];
        Self {
            data: Data::default(),
            now_us: 0,
            started_us: 0,
            changes: 0,
            commands: 0,
            expired: 0,
            maxmemory: 0,
            config: config.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            run_id: run_id(seed),
            dumps: Vec::new(),
            in_script: false,
            is_retry: false,
            appended: None,
        }
    }

    pub(crate) const fn now_ms(&self) -> i64 {
        self.now_us.div_euclid(1_000)
    }

    pub(crate) const fn changed(&mut self, changes: usize) {
        self.changes += changes as u64;
    }

    /// An entry was appended to the stream `key`.
    pub(crate) fn note_appended(&mut self, key: &[u8], fields: &[&[u8]]) {
        if let Some(appended) = &mut self.appended {
            let fields = fields.chunks_exact(2).map(|pair| (pair[0].to_vec(), pair[1].to_vec())).collect();
            appended.push(Appended { key: key.to_vec(), fields });
        }
    }

    pub(crate) const fn used_memory(&self) -> u64 {
        BASE_BYTES + self.data.used() as u64
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.maxmemory > 0 && self.used_memory() > self.maxmemory
    }

    /// Lets go what has ended: before every command, and never within one.
    pub(crate) fn purge(&mut self) {
        let purged = self.data.purge(self.now_ms());
        self.expired += purged;
        self.changed(purged);
    }

    /// Carries out a command of a connection that is no script's business.
    pub(crate) fn execute(&mut self, args: Args<'_>) -> Outcome {
        let name = args.first().copied().unwrap_or_default();
        let Some(command) = commands::find(args) else {
            let rest: String = args.iter().skip(1).map(|arg| format!("'{}' ", shown(arg))).collect();
            return fail(format!("ERR unknown command '{}', with args beginning with: {rest}", shown(name)));
        };
        if !command.takes(args.len()) {
            return wrong_arity(name);
        }
        if command.needs_memory && self.is_full() {
            return fail("OOM command not allowed when used memory > 'maxmemory'.");
        }
        (command.run)(self, args)
    }
}

/// The error of a command with too few or too many words.
pub(crate) fn wrong_arity(name: &[u8]) -> Outcome {
    fail(format!("ERR wrong number of arguments for '{}' command", shown(name).to_lowercase()))
}
