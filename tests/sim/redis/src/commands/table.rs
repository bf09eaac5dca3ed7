//! Which commands there are.

use super::{
    Args, Run, expiry, groups, hashes, is, keys, pending, server, sets, stream_reads, streams, strings, xinfo, zsets,
};

/// A command, and what Redis knows of it.
pub(crate) struct Command {
    name: &'static str,
    /// Words, its name included; negative: so many or more.
    arity: i32,
    /// Whether it changes data.
    pub(crate) writes: bool,
    /// Whether it is refused while memory is full.
    pub(crate) needs_memory: bool,
    /// Whether scripts may not call it.
    pub(crate) not_from_scripts: bool,
    pub(crate) run: Run,
}

impl Command {
    /// Whether it takes so many words.
    pub(crate) const fn takes(&self, words: usize) -> bool {
        let words = words as i32;
        if self.arity < 0 { words >= -self.arity } else { words == self.arity }
    }
}

const fn reads(name: &'static str, arity: i32, run: Run) -> Command {
    Command { name, arity, writes: false, needs_memory: false, not_from_scripts: false, run }
}

const fn writes(name: &'static str, arity: i32, run: Run) -> Command {
    Command { writes: true, ..reads(name, arity, run) }
}

const fn grows(name: &'static str, arity: i32, run: Run) -> Command {
    Command { needs_memory: true, ..writes(name, arity, run) }
}

const fn outside(name: &'static str, arity: i32, run: Run) -> Command {
    Command { not_from_scripts: true, ..reads(name, arity, run) }
}

/// Sorted by name.
static COMMANDS: &[Command] = &[
    grows("APPEND", 3, strings::append),
    outside("AUTH", -2, server::auth),
    outside("CLIENT", -2, server::client),
    reads("COMMAND", -1, server::command),
    outside("CONFIG", -2, server::config),
    reads("DBSIZE", 1, keys::dbsize),
    grows("DECR", 2, strings::decr),
    writes("DEL", -2, keys::del),
    reads("DUMP", 2, keys::dump),
    reads("ECHO", 2, server::echo),
    reads("EXISTS", -2, keys::exists),
    writes("EXPIRE", -3, expiry::expire),
    writes("FLUSHALL", -1, keys::flush),
    writes("FLUSHDB", -1, keys::flush),
    reads("GET", 2, strings::get),
    reads("GETRANGE", 4, strings::getrange),
    writes("HDEL", -3, hashes::hdel),
    outside("HELLO", -1, server::hello),
    reads("HEXISTS", 3, hashes::hexists),
    reads("HGET", 3, hashes::hget),
    reads("HGETALL", 2, hashes::hgetall),
    grows("HINCRBY", 4, hashes::hincrby),
    reads("HKEYS", 2, hashes::hkeys),
    reads("HLEN", 2, hashes::hlen),
    reads("HMGET", -3, hashes::hmget),
    reads("HSCAN", -3, hashes::hscan),
    grows("HSET", -4, hashes::hset),
    grows("HSETNX", 4, hashes::hsetnx),
    reads("HSTRLEN", 3, hashes::hstrlen),
    reads("HVALS", 2, hashes::hvals),
    grows("INCR", 2, strings::incr),
    grows("INCRBY", 3, strings::incrby),
    reads("INFO", -1, server::info),
    reads("KEYS", 2, keys::keys),
    reads("LASTSAVE", 1, server::lastsave),
    reads("MEMORY", -2, server::memory),
    reads("MGET", -2, strings::mget),
    writes("PERSIST", 2, expiry::persist),
    writes("PEXPIRE", -3, expiry::pexpire),
    writes("PEXPIREAT", -3, expiry::pexpireat),
    reads("PING", -1, server::ping),
    reads("PTTL", 2, expiry::pttl),
    grows("RESTORE", -4, keys::restore),
    outside("ROLE", 1, server::role),
    grows("SADD", -3, sets::sadd),
    outside("SAVE", 1, server::save),
    reads("SCAN", -2, keys::scan),
    reads("SCARD", 2, sets::scard),
    reads("SELECT", 2, server::select),
    grows("SET", -3, strings::set),
    grows("SETRANGE", 4, strings::setrange),
    reads("SISMEMBER", 3, sets::sismember),
    reads("SMEMBERS", 2, sets::smembers),
    writes("SREM", -3, sets::srem),
    reads("SSCAN", -3, sets::sscan),
    reads("STRLEN", 2, strings::strlen),
    reads("TIME", 1, server::time),
    reads("TTL", 2, expiry::ttl),
    reads("TYPE", 2, keys::kind),
    writes("UNLINK", -2, keys::del),
    writes("XACK", -4, groups::xack),
    grows("XADD", -5, streams::xadd),
    writes("XAUTOCLAIM", -6, pending::xautoclaim),
    writes("XCLAIM", -6, pending::xclaim),
    writes("XDEL", -3, streams::xdel),
    writes("XGROUP", -2, groups::xgroup),
    reads("XINFO", -2, xinfo::xinfo),
    reads("XLEN", 2, streams::xlen),
    reads("XPENDING", -3, pending::xpending),
    reads("XRANGE", -4, streams::xrange),
    reads("XREAD", -4, stream_reads::xread),
    writes("XREADGROUP", -7, stream_reads::xreadgroup),
    reads("XREVRANGE", -4, streams::xrevrange),
    writes("XTRIM", -4, streams::xtrim),
    grows("ZADD", -4, zsets::zadd),
    reads("ZCARD", 2, zsets::zcard),
    reads("ZCOUNT", 4, zsets::zcount),
    grows("ZINCRBY", 4, zsets::zincrby),
    reads("ZRANGE", -4, zsets::zrange),
    reads("ZRANGEBYSCORE", -4, zsets::zrangebyscore),
    reads("ZRANK", 3, zsets::zrank),
    writes("ZREM", -3, zsets::zrem),
    writes("ZREMRANGEBYSCORE", 4, zsets::zremrangebyscore),
    reads("ZREVRANGE", -4, zsets::zrevrange),
    reads("ZREVRANGEBYSCORE", -4, zsets::zrevrangebyscore),
    reads("ZSCAN", -3, zsets::zscan),
    reads("ZSCORE", 3, zsets::zscore),
];

/// The subcommands of `XGROUP` that need memory.
static XGROUP_GROWS: Command = grows("XGROUP", -2, groups::xgroup);

/// The command that these words call, however it is written.
pub(crate) fn find(args: Args<'_>) -> Option<&'static Command> {
    let name = *args.first()?;
    let mut upper = [0_u8; 20];
    let upper = upper.get_mut(..name.len())?;
    upper.copy_from_slice(name);
    upper.make_ascii_uppercase();
    let at = COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(upper)).ok()?;
    let command = COMMANDS.get(at)?;
    let sub = args.get(1).copied().unwrap_or_default();
    let grows = upper == b"XGROUP" && (is(sub, "CREATE") || is(sub, "CREATECONSUMER"));
    Some(if grows { &XGROUP_GROWS } else { command })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_by_its_name() {
        for command in COMMANDS {
            assert!(find(&[command.name.to_lowercase().as_bytes()]).is_some_and(|found| found.name == command.name));
        }
    }
}
