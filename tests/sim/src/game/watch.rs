//! Whoever looks on while Redis works: the oracle, the rules, the story, and those who lie in wait.

use tickfleet_sim_redis::{Answer, Redis, Reply};
use tickfleet_store::fields;

use super::story::told;
use super::{Game, Place, fold};
use crate::net::Net;
use crate::oracle::Oracle;
use crate::rules::{Call, Rules};
use crate::server::{Done, Watch, place};
use crate::trouble::{Ambush, At, POISON};
use crate::world::World;

/// All of them.
struct Watcher<'a> {
    oracle: &'a mut Oracle,
    rules: &'a mut Rules,
    world: &'a World,
    net: &'a Net,
    digest: &'a mut u64,
    places: &'a [Place],
    ambushes: &'a [Ambush],
    /// The script that is carried out.
    call: Option<Call>,
    /// Who has done what others lie in wait for: the process, and the ambush.
    caught: Vec<Caught>,
}

/// A process that has done something, and has not heard of it yet.
pub(super) struct Caught {
    pub(super) process: usize,
    pub(super) ambush: usize,
    /// The stream that it read, as whom.
    pub(super) read: Option<(String, String)>,
}

impl Watch for Watcher<'_> {
    fn before(&mut self, redis: &mut Redis, args: &[Vec<u8>]) {
        self.call = self.rules.before(redis, args);
    }

    fn after(&mut self, redis: &mut Redis, done: &Done<'_>) {
        *self.digest = fold(*self.digest, done);
        let owner = self.net.owner(done.wire);
        self.world.tell(|| {
            let owner = owner.map_or("?", |owner| &self.places[owner].name);
            told(owner, |digest| self.rules.verb(digest), done)
        });
        let call = self.call.take();
        // A worker may hear of it, and deny a call, before the oracle looks next; or a scheduler of a cap, before Redis
        // loses it.
        if call.as_ref().is_some_and(|call| ["switch_tool", "set_tenant"].contains(&call.verb())) {
            self.oracle.look_at_run_time(redis);
        }
        for appended in redis.take_appended() {
            self.oracle.saw(&appended, redis, &|shard| self.rules.epoch_ms(shard));
            self.rules.appended(redis, &appended, call.as_ref().map(Call::verb));
        }
        if let Some(call) = &call {
            self.rules.after(redis, call, done.reply);
        }
        if let Some(process) = owner {
            self.note_suspects(process, done);
            if call.as_ref().is_some_and(|call| call.verb() == "hand_back") {
                self.forget_suspects(process, done);
            }
            self.lie_in_wait(process, call.as_ref().map(Call::verb), redis, done);
        }
    }
}

impl Watcher<'_> {
    /// Who has read a slice that its holders have died with.
    fn note_suspects(&self, process: usize, done: &Done<'_>) {
        let Reply::Array(streams) = done.reply else { return };
        if done.args.first().is_none_or(|word| word != b"XREADGROUP") {
            return;
        }
        for stream in streams {
            let Reply::Array(parts) = stream else { continue };
            let [Reply::Bulk(key), Reply::Array(entries)] = parts.as_slice() else { continue };
            let key = String::from_utf8_lossy(key);
            let Some((shard, "ready")) =
                place(&key).map(|(shard, rest)| (shard, rest.split(':').next().unwrap_or(rest)))
            else {
                continue;
            };
            let is_suspect = key.contains(":suspect:");
            for name in entries.iter().filter_map(slice_name) {
                let of = (self.places[process].name.clone(), name);
                let mut facts = self.world.facts();
                if is_suspect {
                    facts.suspects.insert(of, shard);
                } else {
                    facts.suspects.remove(&of);
                }
            }
        }
    }

    /// Who has handed a slice back may carry its turn out by another, which is no suspect.
    fn forget_suspects(&self, process: usize, done: &Done<'_>) {
        let mut facts = self.world.facts();
        for name in done.args {
            facts.suspects.remove(&(self.places[process].name.clone(), String::from_utf8_lossy(name).into_owned()));
        }
    }

    fn lie_in_wait(&mut self, process: usize, verb: Option<&'static str>, redis: &mut Redis, done: &Done<'_>) {
        if self.ambushes.is_empty() {
            return;
        }
        let read = read_by(done);
        for (ambush, waits) in self.ambushes.iter().enumerate() {
            let is_it = match waits.at {
                At::Reads(stream) => read.as_ref().is_some_and(|(key, _)| key.contains(stream)),
                At::Poisoned => looks_into_poison(read.is_some(), verb, redis, done),
                At::Asks(word) => verb == Some(word) && !matches!(done.reply, Reply::Error(_)),
            };
            if is_it {
                self.caught.push(Caught { process, ambush, read: read.clone() });
            }
        }
    }
}

/// The turn of a slice, as it is read.
fn slice_name(entry: &Reply) -> Option<String> {
    let Reply::Array(parts) = entry else { return None };
    let Reply::Array(fields) = parts.get(1)? else { return None };
    let is_name = |pair: &&[Reply]| pair[0] == Reply::Bulk(fields::slice::NAME.into());
    let Some(Reply::Bulk(name)) = fields.chunks_exact(2).find(is_name).map(|pair| &pair[1]) else { return None };
    Some(String::from_utf8_lossy(name).into_owned())
}

/// Whether somebody is about to look into what kills those who do. What has killed once is looked into alone, and said
/// to be before.
fn looks_into_poison(has_read: bool, verb: Option<&'static str>, redis: &mut Redis, done: &Done<'_>) -> bool {
    let arg = |at: usize| done.args.get(at).map_or(&[][..], Vec::as_slice);
    // Redis may not know the script yet: then nobody was told anything.
    if matches!(done.reply, Reply::Error(_)) {
        return false;
    }
    match verb {
        Some("begin") => done.args.iter().any(|arg| contains(arg, POISON.as_bytes())) && arg(10).is_empty(),
        Some("suspect") if !arg(7).is_empty() => {
            let stream = [arg(3), arg(5)].concat();
            match redis.execute(&[b"XRANGE".into(), stream, arg(7).into(), arg(7).into()]) {
                Answer::Now(found) => contains(&encoded(&found), POISON.as_bytes()),
                _ => false,
            }
        }
        _ => {
            let bytes = if has_read { encoded(done.reply) } else { Vec::new() };
            contains(&bytes, POISON.as_bytes()) && !contains(&bytes, b"$1\r\nx\r\n")
        }
    }
}

fn encoded(reply: &Reply) -> Vec<u8> {
    let mut bytes = Vec::new();
    reply.encode(&mut bytes);
    bytes
}

fn contains(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// Which stream was read as one of a group, with something in it, and by which consumer.
fn read_by(done: &Done<'_>) -> Option<(String, String)> {
    let word = |at: usize| done.args.get(at).map(|arg| String::from_utf8_lossy(arg).into_owned());
    if word(0)? != "XREADGROUP" || !matches!(done.reply, Reply::Array(_)) {
        return None;
    }
    let Reply::Array(streams) = done.reply else { return None };
    let Reply::Array(first) = streams.first()? else { return None };
    let Reply::Bulk(key) = first.first()? else { return None };
    if let Some(Reply::Array(entries)) = first.get(1)
        && entries.is_empty()
    {
        return None;
    }
    Some((String::from_utf8_lossy(key).into_owned(), word(3)?))
}

impl Game {
    /// Redis works.
    pub(super) fn serve(&mut self) {
        let mut watcher = Watcher {
            oracle: &mut self.oracle,
            rules: &mut self.rules,
            world: &self.site.world,
            net: &self.site.net,
            digest: &mut self.verdict.digest,
            places: &self.places,
            ambushes: &self.ambushes,
            call: None,
            caught: Vec::new(),
        };
        self.server.serve(&self.site.net, self.now_us, &mut watcher);
        for caught in watcher.caught {
            self.spring(&caught);
        }
    }
}
