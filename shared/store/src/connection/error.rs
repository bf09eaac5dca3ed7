//! The failures that Redis may cause, and whose fault each is.

/// Redis did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL cannot be read.
    #[error("the Redis URL cannot be read: {0}")]
    Url(#[source] redis::RedisError),
    /// No connection could be made.
    #[error("Redis at {address} cannot be reached: {source}")]
    Connect {
        /// Host and port, or socket path; never a password.
        address: String,
        /// Why.
        source: redis::RedisError,
    },
    /// A verb failed. Whether it was applied is unknown where the connection broke; it may be repeated.
    #[error("{verb} failed in Redis: {source}")]
    Verb {
        /// The verb.
        verb: &'static str,
        /// Why.
        source: redis::RedisError,
    },
    /// The streams or groups of the shard are gone (a flush): they are made anew, what was in them is lost.
    #[error("the shard's streams or groups are missing: {0}")]
    StateLost(String),
    /// Another number of shards is in force.
    #[error(
        "this process has {ours} shards, the data was written with {stored}; all processes must have the same number"
    )]
    Shards {
        /// Ours.
        ours: u32,
        /// The stored number.
        stored: String,
    },
    /// A reply that no version of the script gives.
    #[error("unexpected reply to {verb}: {found}")]
    Reply {
        /// The verb.
        verb: &'static str,
        /// The reply, bounded.
        found: String,
    },
    /// The data directory of a store in memory cannot be used.
    #[error("cannot {doing} {}: {source}", path.display())]
    Data {
        /// What was tried.
        doing: &'static str,
        /// The file or directory.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Another process has the data directory open.
    #[error("the data directory {} is in use by another process", .0.display())]
    DataInUse(std::path::PathBuf),
    /// A snapshot cannot be read.
    #[error("{} is damaged at byte {at}; restore the data directory from a backup, or remove it", path.display())]
    DataDamaged {
        /// The file.
        path: std::path::PathBuf,
        /// Bytes that can be read.
        at: u64,
    },
    /// A store that tests let fail: the call may have been applied.
    #[error("the store did not answer: {0}")]
    Unanswered(&'static str),
    /// A decision has no result: a record cannot be read, or others changed it again and again. Nothing was written.
    #[error("{0}")]
    Undecided(String),
    /// The process that has the store does not answer. The call may have been applied.
    #[error("the fleet at {} does not answer: {source}", path.display())]
    Lender {
        /// Its socket.
        path: std::path::PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The error of the process that has the store.
    #[error("{0}")]
    Lent(String),
    /// This fleet keeps its state in memory, and the question is about Redis.
    #[error("this fleet has no Redis: its state is in the memory of one process")]
    NoRedis,
}

impl StoreError {
    /// Returns true if a script ran and failed over what it was given (a bug or foreign data), or a command met a key of
    /// another type, so that repeating the same batch cannot help. Everything else that Redis refuses is the
    /// connection's fault, or that of Redis' state and permissions, and nobody's who waits behind it: it is asked again
    /// until it passes (rule 24).
    #[must_use]
    pub fn is_script_error(&self) -> bool {
        match self {
            Self::Verb { source, .. } => blame(source) == Blame::Data,
            Self::Reply { .. } | Self::Undecided(_) => true,
            _ => false,
        }
    }

    /// Returns true if Redis refused a script because its memory is full.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Verb { source, .. } if source.code() == Some("OOM"))
    }

    /// Returns true if it is an answer that is asked for: that a group is there already.
    pub(super) fn is_expected(&self) -> bool {
        matches!(self, Self::Verb { source, .. } if source.code() == Some("BUSYGROUP"))
    }

    pub(crate) fn verb(verb: &'static str, source: redis::RedisError) -> Self {
        let text = source.to_string();
        if source.code() == Some("NOGROUP") || text.contains("no such key") || text.contains("NOGROUP") {
            return Self::StateLost(text);
        }
        Self::Verb { verb, source }
    }
}

/// What a failure is about, and so what helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// What a script was given, or the data that a command met: repeating it cannot help.
    Data,
    /// This connection: it is broken, leads to a server that is no primary (any more), or has lost its login. Another
    /// one may do better.
    Connection,
    /// The state of the server behind it, or its permissions: waiting helps, or somebody who mends them.
    Server,
}

/// What the failure is about. Where several commands of a pipeline failed, that of the connection counts first: what
/// else it answered, another one may answer otherwise.
pub(super) fn blame(error: &redis::RedisError) -> Blame {
    if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() || error.is_unrecoverable_error() {
        return Blame::Connection;
    }
    // A pipeline's failure does not tell its codes by itself.
    let replies = error.clone().into_server_errors();
    let replies = replies.as_deref().unwrap_or_default();
    let blames = || replies.iter().map(|(_, reply)| blame_of_reply(reply.code(), reply.details().unwrap_or_default()));
    [Blame::Connection, Blame::Data].into_iter().find(|blame| blames().any(|b| b == *blame)).unwrap_or(Blame::Server)
}

/// What one error reply is about, by its first word and the rest.
fn blame_of_reply(code: &str, said: &str) -> Blame {
    // `UNBLOCKED` and `MASTERDOWN` are said by a replica alone. `ASK` is not here: the slot is on its way, and until it
    // has arrived neither server has all keys of a shard, so that a script must wait for `MOVED`.
    const ELSEWHERE: [&str; 6] = ["READONLY", "MOVED", "MASTERDOWN", "UNBLOCKED", "NOAUTH", "WRONGPASS"];
    const NOT_ALLOWED: [&str; 3] =
        ["The user executing the script", "ACL failure in script", "Unknown Redis command called from script"];
    match code {
        _ if ELSEWHERE.contains(&code) => Blame::Connection,
        // A key of another type is a fault of the data, whoever reads it.
        "WRONGTYPE" => Blame::Data,
        // Lua itself raised the error, or a command over the data that it met. Redis names the place in the script for
        // both; it also does for a command that it does not let the script run, which says nothing about the data.
        "ERR" if said.contains("user_script:") && !NOT_ALLOWED.iter().any(|why| said.contains(why)) => Blame::Data,
        _ => Blame::Server,
    }
}

/// Returns true if another connection may do better.
pub(super) fn is_of_this_connection(error: &redis::RedisError) -> bool {
    blame(error) == Blame::Connection
}

/// Whether a server does not know the command.
pub(super) fn is_unknown_command(error: &redis::RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.starts_with("unknown command"))
}

/// The answers by which a server says that it is not the one, or not now; as metrics name them.
pub(crate) const ANSWERS: [&str; 8] =
    ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"];

/// Which of these answers it is, or holds.
pub(super) fn answer_of(error: &redis::RedisError) -> Option<&'static str> {
    let replies = error.clone().into_server_errors();
    let replies = replies.as_deref().unwrap_or_default();
    ANSWERS.into_iter().find(|answer| replies.iter().any(|(_, reply)| reply.code() == *answer))
}

/// The answers of a pipeline, if a server that serves all of its keys gave them; else what it said of the first one that
/// it does not serve.
pub(super) fn all_served(mut answers: super::Answers) -> redis::RedisResult<super::Answers> {
    let sent_away = |answer: &redis::RedisResult<_>| matches!(answer, Err(error) if answer_of(error).is_some());
    match answers.iter().position(sent_away) {
        Some(at) => Err(answers.swap_remove(at).err().unwrap_or_else(|| (redis::ErrorKind::Client, "no error").into())),
        None => Ok(answers),
    }
}

/// Returns true if a server refused a script before it began, because the slot is elsewhere, or nobody serves it now.
pub(super) fn was_not_run(error: &redis::RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN"))
        && !error.detail().is_some_and(|said| said.contains("user_script"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::Blame::{Connection, Data, Server};
    use super::*;

    /// What Redis and Valkey answer, word for word, and what it is about.
    const REPLIES: [(&str, Blame); 26] = [
        // The shard has another primary, or this server is none any more.
        ("MOVED 866 10.0.0.7:6379", Connection),
        ("READONLY You can't write against a read only replica.", Connection),
        ("READONLY You can't write against a read only replica. script: 5f3, on @user_script:41.", Connection),
        ("READONLY Can not run script with write flag on readonly replica.", Connection),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Connection),
        ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", Connection),
        // The connection has lost its login, or was never given one.
        ("NOAUTH Authentication required.", Connection),
        ("WRONGPASS invalid username-password pair or user is disabled.", Connection),
        // A slot is on its way, or the cluster is not whole.
        ("ASK 866 10.0.0.7:6379", Server),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Server),
        ("CLUSTERDOWN The cluster is down", Server),
        ("CROSSSLOT Keys in request don't hash to the same slot", Server),
        // The server is not ready, or refuses for a while.
        ("LOADING Redis is loading the dataset in memory", Server),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", Server),
        ("OOM command not allowed when used memory > 'maxmemory'. script: 5f3, on @user_script:9.", Server),
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", Server),
        ("NOREPLICAS Not enough good replicas to write.", Server),
        ("NOSCRIPT No matching script. Please use EVAL.", Server),
        ("EXECABORT Transaction discarded because of previous errors.", Server),
        // Somebody has to give the user more rights.
        ("NOPERM User fleet has no permissions to run the 'evalsha' command", Server),
        (
            "ERR The user executing the script can't run this command or subcommand script: 5f3, on @user_script:3.",
            Server,
        ),
        // As Redis 7.2 and Valkey say it.
        (
            "ERR ACL failure in script: User default has no permissions to run the 'hset' command script: 5f3, on @user_script:3.",
            Server,
        ),
        ("ERR Unknown Redis command called from script script: 5f3, on @user_script:3.", Server),
        // The script failed over what it was given.
        ("ERR user_script:12: bad argument #1 to 'unpack' script: 5f3, on @user_script:12.", Data),
        ("ERR value is not an integer or out of range script: 5f3, on @user_script:12.", Data),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Data),
    ];

    fn told(reply: &str) -> redis::RedisError {
        redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap().extract_error().unwrap_err()
    }

    #[test]
    fn every_reply_is_the_fault_of_the_data_or_the_connection_or_the_server() {
        for (reply, blame) in REPLIES {
            let error = told(reply);
            assert_eq!(super::blame(&error), blame, "{reply}");
            assert_eq!(is_of_this_connection(&error), blame == Connection, "{reply}");
            assert_eq!(StoreError::verb("settle", error).is_script_error(), blame == Data, "{reply}");
        }
    }

    #[test]
    fn a_connection_that_broke_is_made_anew_and_costs_no_item_anything() {
        for kind in [std::io::ErrorKind::TimedOut, std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::Other] {
            let error = redis::RedisError::from(std::io::Error::from(kind));
            assert_eq!(blame(&error), Connection, "{kind}");
            assert!(!StoreError::verb("settle", error).is_script_error(), "{kind}");
        }
    }
}
