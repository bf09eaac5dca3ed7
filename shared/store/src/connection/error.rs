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
    #[error("the shard's streams or groups are gone: {0}")]
    StateLost(String),
    /// Another number of shards is in force.
    #[error("this process counts {ours} shards, the data was written with {stored}; all processes must agree")]
    Shards {
        /// Ours.
        ours: u32,
        /// The stored number.
        stored: String,
    },
    /// A reply that no version of the script gives.
    #[error("{verb} answered what it never should: {found}")]
    Reply {
        /// The verb.
        verb: &'static str,
        /// The reply, bounded.
        found: String,
    },
}

impl StoreError {
    /// Returns true if a script ran and failed over what it was given (a bug or foreign data), or a command met a key of
    /// another type, so that repeating the same batch cannot help. Everything else that Redis refuses is the
    /// connection's fault, or that of Redis' state and permissions, and nobody's who waits behind it: it is asked again
    /// until it passes (rule 24).
    #[must_use]
    pub fn is_script_error(&self) -> bool {
        match self {
            Self::Verb { source, .. } => is_of_the_data(source),
            Self::Reply { .. } => true,
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

/// Returns true if Lua itself raised the error, or a command over the data that it met, in a script or not. Redis names the place in the
/// script for both; it also does for a command that it does not let the script run, which says nothing about the data.
fn is_of_the_data(error: &redis::RedisError) -> bool {
    const NOT_ALLOWED: [&str; 2] = ["The user executing the script", "Unknown Redis command called from script"];
    let said = error.detail().unwrap_or_default();
    // A key of another type is a fault of the data, whoever reads it.
    error.code() == Some("WRONGTYPE")
        || error.code() == Some("ERR")
            && said.contains("user_script:")
            && !NOT_ALLOWED.iter().any(|why| said.contains(why))
}

/// Returns true if another connection may do better: this one is broken, leads to a server that is no primary (any
/// more), or has lost its login.
pub(super) fn is_of_this_connection(error: &redis::RedisError) -> bool {
    const ELSEWHERE: [&str; 7] = ["READONLY", "MOVED", "ASK", "MASTERDOWN", "UNBLOCKED", "NOAUTH", "WRONGPASS"];
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || error.code().is_some_and(|code| ELSEWHERE.contains(&code))
}
