//! The Redis of the simulation: serves connections, keeps blocked readers waiting, restarts with what was kept.

use std::collections::{BTreeMap, VecDeque};

use tickfleet_sim_redis::{Answer, Redis, Reply, Snapshot, decode};

use crate::net::{Arrival, Net, WireId};

/// One command that was carried out, as those see it who watch.
pub(crate) struct Done<'a> {
    pub(crate) wire: WireId,
    pub(crate) args: &'a [Vec<u8>],
    pub(crate) reply: &'a Reply,
}

/// Somebody who looks on.
pub(crate) trait Watch {
    /// A command is to be carried out.
    fn before(&mut self, redis: &mut Redis, args: &[Vec<u8>]);
    /// It was.
    fn after(&mut self, redis: &mut Redis, done: &Done<'_>);
}

/// Redis and its connections.
pub(crate) struct Server {
    pub(crate) redis: Redis,
    sessions: BTreeMap<WireId, Session>,
    /// By how much its clock differs from the true time, µs.
    pub(crate) ahead_us: i64,
    /// Commands that were carried out.
    pub(crate) commands: u64,
    /// States to go back to, each with its time.
    kept: VecDeque<(i64, Snapshot)>,
    starts: u64,
}

#[derive(Default)]
struct Session {
    input: Vec<u8>,
    blocked: Option<(Vec<Vec<u8>>, Option<i64>)>,
    /// Commands since `MULTI`.
    queued: Option<Vec<Vec<Vec<u8>>>>,
}

/// States that are kept at most: with one every 100 ms, the last three seconds.
const KEPT_MAX: usize = 30;

impl Server {
    pub(crate) fn new(seed: u64) -> Self {
        let mut redis = Redis::new(seed);
        redis.take_appended();
        Self { redis, sessions: BTreeMap::new(), ahead_us: 0, commands: 0, kept: VecDeque::new(), starts: seed }
    }

    /// Redis' own time.
    pub(crate) fn set_now(&mut self, now_us: i64) {
        self.redis.set_time_us(now_us + self.ahead_us);
    }

    /// Carries out what has arrived, and what blocked readers wait for.
    pub(crate) fn serve(&mut self, net: &Net, now_us: i64, watch: &mut dyn Watch) {
        self.set_now(now_us);
        for arrival in net.arrivals() {
            match arrival {
                Arrival::Closed(wire) => drop(self.sessions.remove(&wire)),
                Arrival::Bytes(wire, bytes) => {
                    self.sessions.entry(wire).or_default().input.extend(bytes);
                    self.work(net, wire, watch);
                }
            }
        }
        self.look_at_blocked(net, watch);
    }

    /// Carries out the commands of one connection, up to one that blocks.
    fn work(&mut self, net: &Net, wire: WireId, watch: &mut dyn Watch) {
        loop {
            let Some(session) = self.sessions.get_mut(&wire) else { return };
            if session.blocked.is_some() {
                return;
            }
            let args = match decode(&mut session.input) {
                Ok(Some(args)) => args,
                Ok(None) => return,
                Err(_) => {
                    self.sessions.remove(&wire);
                    return;
                }
            };
            if self.queues(net, wire, &args, watch) {
                continue;
            }
            let before = self.redis.changes();
            watch.before(&mut self.redis, &args);
            match self.redis.execute(&args) {
                Answer::Now(reply) => self.done(net, &Done { wire, args: &args, reply: &reply }, watch),
                Answer::Block { until_us } => {
                    let settled = self.redis.settled(&args);
                    if let Some(session) = self.sessions.get_mut(&wire) {
                        session.blocked = Some((settled, until_us));
                    }
                }
            }
            if self.redis.changes() != before {
                self.look_at_blocked(net, watch);
            }
        }
    }

    /// Whether a command belongs to a transaction: it is kept, and carried out with the others by `EXEC`, with nothing in
    /// between. What changes something there is a matter for scripts: nobody who looks on is asked about each command.
    fn queues(&mut self, net: &Net, wire: WireId, args: &[Vec<u8>], watch: &mut dyn Watch) -> bool {
        let Some(session) = self.sessions.get_mut(&wire) else { return false };
        let name = args.first().map(|name| name.to_ascii_uppercase());
        let reply = match (name.as_deref(), session.queued.take()) {
            (Some(b"MULTI"), None) => {
                session.queued = Some(Vec::new());
                Reply::Status("OK".into())
            }
            (Some(b"EXEC"), Some(queued)) => {
                let each = queued.iter().map(|args| match self.redis.execute(args) {
                    Answer::Now(reply) => reply,
                    Answer::Block { .. } => Reply::NilArray,
                });
                Reply::Array(each.collect())
            }
            (_, Some(mut queued)) => {
                queued.push(args.to_vec());
                session.queued = Some(queued);
                Reply::Status("QUEUED".into())
            }
            (_, None) => return false,
        };
        self.done(net, &Done { wire, args, reply: &reply }, watch);
        true
    }

    fn done(&mut self, net: &Net, done: &Done<'_>, watch: &mut dyn Watch) {
        self.commands += 1;
        let mut bytes = Vec::new();
        done.reply.encode(&mut bytes);
        net.answer(done.wire, bytes);
        watch.after(&mut self.redis, done);
    }

    /// Asks again for whoever is blocked. Redis looks at each after every command.
    fn look_at_blocked(&mut self, net: &Net, watch: &mut dyn Watch) {
        let blocked: Vec<WireId> =
            self.sessions.iter().filter(|(_, session)| session.blocked.is_some()).map(|(wire, _)| *wire).collect();
        for wire in blocked {
            let Some((args, until_us)) = self.sessions.get_mut(&wire).and_then(|session| session.blocked.take()) else {
                continue;
            };
            match self.redis.retry(&args) {
                Answer::Now(reply) => self.done(net, &Done { wire, args: &args, reply: &reply }, watch),
                Answer::Block { .. } if until_us.is_some_and(|until| self.redis.now_us() >= until) => {
                    let reply = Reply::NilArray;
                    self.done(net, &Done { wire, args: &args, reply: &reply }, watch);
                }
                Answer::Block { .. } => {
                    if let Some(session) = self.sessions.get_mut(&wire) {
                        session.blocked = Some((args, until_us));
                    }
                    continue;
                }
            }
            self.work(net, wire, watch);
        }
    }

    /// Keeps the state of this moment, to go back to.
    pub(crate) fn keep(&mut self, now_us: i64) {
        self.kept.push_back((now_us, self.redis.snapshot()));
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
    }

    /// Dies and comes back with what it knew `lost_us` ago; zero loses nothing. Gives the time of the state that it
    /// came back with.
    pub(crate) fn restart(&mut self, net: &Net, now_us: i64, lost_us: i64) -> i64 {
        net.drop_all();
        self.sessions.clear();
        self.starts += 1;
        let found = self.kept.iter().rfind(|(at, _)| *at <= now_us - lost_us).or_else(|| self.kept.front()).cloned();
        let (at_us, data) = match found {
            Some(found) if lost_us > 0 => found,
            _ => (now_us, self.redis.snapshot()),
        };
        self.kept.clear();
        self.redis.restart(data, self.starts.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        at_us
    }

    /// Carries out a command of somebody who looks on, or of a hand.
    pub(crate) fn ask(&mut self, words: &[&str]) -> Reply {
        let args: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        match self.redis.execute(&args) {
            Answer::Now(reply) => reply,
            Answer::Block { .. } => Reply::NilArray,
        }
    }
}

/// The shard of a key of ours, and what stands behind the shard's prefix.
pub(crate) fn place(key: &str) -> Option<(u32, &str)> {
    let (shard, rest) = key.strip_prefix("{sim:")?.split_once("}:")?;
    Some((shard.parse().ok()?, rest))
}
