use super::refusal::is_right_missing;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("the Redis URL cannot be read: {0}")]
    Url(#[source] redis::RedisError),
    #[error("Redis at {address} cannot be reached: {source}")]
    Connect {
        /// Never contains a password.
        address: String,
        source: redis::RedisError,
    },
    /// If the connection broke, Redis may have applied the request. The caller may repeat the request.
    #[error("{verb} failed in Redis: {source}")]
    Verb { verb: &'static str, source: redis::RedisError },
    /// For example after a flush. The fleet creates streams and groups again, but the content of the streams is lost.
    #[error("the shard's streams or groups are missing: {0}")]
    StateLost(String),
    #[error(
        "this process has {ours} shards, the data was written with {stored}; all processes must have the same number"
    )]
    Shards { ours: u32, stored: String },
    /// The reply is one that no version of the script returns.
    #[error("unexpected reply to {verb}: {found}")]
    Reply {
        verb: &'static str,
        /// Truncated.
        found: String,
    },
    #[error("cannot {doing} {}: {source}", path.display())]
    Data { doing: &'static str, path: std::path::PathBuf, source: std::io::Error },
    #[error("the data directory {} is in use by another process", .0.display())]
    DataInUse(std::path::PathBuf),
    #[error("{} is damaged at byte {at}; restore the data directory from a backup, or remove it", path.display())]
    DataDamaged {
        path: std::path::PathBuf,
        /// The number of readable bytes at the start of the file.
        at: u64,
    },
    /// The Redis user lacks a permission. Other transactions of the batch may have been committed.
    #[error("Redis refused a transaction: {0}")]
    Refused(String),
    /// The store may have applied the call.
    #[error("the store did not answer: {0}")]
    Unanswered(&'static str),
    /// A record cannot be read, or too many commits conflicted. Nothing was written.
    #[error("{0}")]
    Undecided(String),
    /// The store may have applied the call.
    #[error("the fleet at {} does not answer: {source}", path.display())]
    DevSocket { path: std::path::PathBuf, source: std::io::Error },
    #[error("{0}")]
    Remote(String),
    #[error("this fleet has no Redis: its state is in the memory of one process")]
    NoRedis,
}

impl StoreError {
    /// True if repeating the same batch cannot help. After all other errors, the caller repeats the batch until it
    /// succeeds.
    #[must_use]
    pub fn is_script_error(&self) -> bool {
        match self {
            Self::Verb { source, .. } => fault_source(source) == FaultSource::Data,
            Self::Reply { .. } | Self::Undecided(_) => true,
            _ => false,
        }
    }

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultSource {
    /// Repeating cannot help.
    Data,
    /// Another connection may help.
    Connection,
    /// Waiting or an operator may help.
    Server,
}

/// A connection error of any command takes precedence, because all commands may succeed on another connection.
pub(super) fn fault_source(error: &redis::RedisError) -> FaultSource {
    if error.is_io_error() || error.is_timeout() || error.is_connection_dropped() || error.is_unrecoverable_error() {
        return FaultSource::Connection;
    }
    // Read the replies, because the error of a pipeline does not contain the codes of its commands.
    let replies = error.clone().into_server_errors();
    let replies = replies.as_deref().unwrap_or_default();
    let blames =
        || replies.iter().map(|(_, reply)| fault_source_of_reply(reply.code(), reply.details().unwrap_or_default()));
    [FaultSource::Connection, FaultSource::Data]
        .into_iter()
        .find(|blame| blames().any(|b| b == *blame))
        .unwrap_or(FaultSource::Server)
}

fn fault_source_of_reply(code: &str, message: &str) -> FaultSource {
    // `ASK` is not in this list. While a slot is migrating, neither server has all keys of a shard, so a script must
    // wait for `MOVED`.
    const ELSEWHERE: [&str; 6] = ["READONLY", "MOVED", "MASTERDOWN", "UNBLOCKED", "NOAUTH", "WRONGPASS"];
    let is_not_allowed = is_right_missing(message) || message.contains("Unknown Redis command called from script");
    match code {
        _ if ELSEWHERE.contains(&code) => FaultSource::Connection,
        "WRONGTYPE" => FaultSource::Data,
        // With a position in the script, data caused the error. The error about a missing permission also has a
        // position, so exclude it.
        "ERR" if message.contains("user_script:") && !is_not_allowed => FaultSource::Data,
        _ => FaultSource::Server,
    }
}

pub(super) fn is_of_this_connection(error: &redis::RedisError) -> bool {
    fault_source(error) == FaultSource::Connection
}

pub(super) fn is_unknown_command(error: &redis::RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.starts_with("unknown command"))
}

/// First words of replies from servers that are not ready, or that do not own the key. Metrics use them as labels.
pub(crate) const ANSWERS: [&str; 8] =
    ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "READONLY", "UNBLOCKED"];

pub(super) fn answer_of(error: &redis::RedisError) -> Option<&'static str> {
    let replies = error.clone().into_server_errors();
    let replies = replies.as_deref().unwrap_or_default();
    ANSWERS.into_iter().find(|answer| replies.iter().any(|(_, reply)| reply.code() == *answer))
}

pub(super) fn all_served(mut answers: super::PipelineReplies) -> redis::RedisResult<super::PipelineReplies> {
    let sent_away = |answer: &redis::RedisResult<_>| matches!(answer, Err(error) if answer_of(error).is_some());
    match answers.iter().position(sent_away) {
        Some(at) => Err(answers.swap_remove(at).err().unwrap_or_else(|| (redis::ErrorKind::Client, "no error").into())),
        None => Ok(answers),
    }
}

/// True if the server did not run the command. The slot of the command is on another server, is migrating, or is
/// unavailable.
pub(super) fn was_not_run(error: &redis::RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN"))
        && !error.detail().is_some_and(|message| message.contains("user_script"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::FaultSource::{Connection, Data, Server};
    use super::*;

    const REPLIES: [(&str, FaultSource); 26] = [
        ("MOVED 866 10.0.0.7:6379", Connection),
        ("READONLY You can't write against a read only replica.", Connection),
        ("READONLY You can't write against a read only replica. script: 5f3, on @user_script:41.", Connection),
        ("READONLY Can not run script with write flag on readonly replica.", Connection),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", Connection),
        ("UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)", Connection),
        ("NOAUTH Authentication required.", Connection),
        ("WRONGPASS invalid username-password pair or user is disabled.", Connection),
        ("ASK 866 10.0.0.7:6379", Server),
        ("TRYAGAIN Multiple keys request during rehashing of slot", Server),
        ("CLUSTERDOWN The cluster is down", Server),
        ("CROSSSLOT Keys in request don't hash to the same slot", Server),
        ("LOADING Redis is loading the dataset in memory", Server),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", Server),
        ("OOM command not allowed when used memory > 'maxmemory'. script: 5f3, on @user_script:9.", Server),
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", Server),
        ("NOREPLICAS Not enough good replicas to write.", Server),
        ("NOSCRIPT No matching script. Please use EVAL.", Server),
        ("EXECABORT Transaction discarded because of previous errors.", Server),
        ("NOPERM User fleet has no permissions to run the 'evalsha' command", Server),
        (
            "ERR The user executing the script can't run this command or subcommand script: 5f3, on @user_script:3.",
            Server,
        ),
        (
            "ERR ACL failure in script: User default has no permissions to run the 'hset' command script: 5f3, on @user_script:3.",
            Server,
        ),
        ("ERR Unknown Redis command called from script script: 5f3, on @user_script:3.", Server),
        ("ERR user_script:12: bad argument #1 to 'unpack' script: 5f3, on @user_script:12.", Data),
        ("ERR value is not an integer or out of range script: 5f3, on @user_script:12.", Data),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", Data),
    ];

    fn error_reply(reply: &str) -> redis::RedisError {
        redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap().extract_error().unwrap_err()
    }

    #[test]
    fn every_error_reply_is_a_data_connection_or_server_fault() {
        for (reply, blame) in REPLIES {
            let error = error_reply(reply);
            assert_eq!(super::fault_source(&error), blame, "{reply}");
            assert_eq!(is_of_this_connection(&error), blame == Connection, "{reply}");
            assert_eq!(StoreError::verb("settle", error).is_script_error(), blame == Data, "{reply}");
        }
    }

    #[test]
    fn a_broken_connection_is_a_connection_fault_not_a_script_error() {
        for kind in [std::io::ErrorKind::TimedOut, std::io::ErrorKind::BrokenPipe, std::io::ErrorKind::Other] {
            let error = redis::RedisError::from(std::io::Error::from(kind));
            assert_eq!(fault_source(&error), Connection, "{kind}");
            assert!(!StoreError::verb("settle", error).is_script_error(), "{kind}");
        }
    }
}
