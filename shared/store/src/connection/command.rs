//! Commands to Redis that run without a script, with their names for errors and metrics.

/// Generates an enum from a list of variants and their words.
macro_rules! redis_commands {
    ($($(#[$doc:meta])* $variant:ident: $word:literal),* $(,)?) => {
        /// A command to Redis that runs without a script.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RedisCommand {
            $($(#[$doc])* $variant,)*
        }

        impl RedisCommand {
            /// The words of all variants.
            pub(crate) const WORDS: &[&str] = &[$($word),*];

            /// The word in errors and metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

redis_commands! {
    /// A consumer reads entries from its streams.
    Read: "read",
    /// Reads the state of turns.
    Look: "look",
    /// Checks whether the server runs scripts and accepts writes.
    Probe: "probe",
    /// Reads the shard time.
    Now: "now",
    /// Reads the number of waiting items, by place.
    Backlog: "backlog",
    /// Checks that unfinished turns have a timer.
    Sweep: "sweep",
    /// Trims the audit log and the dead stream.
    Housekeep: "housekeep",
    /// Reads the entries that a consumer holds.
    Held: "held",
    /// Reads one entry of a queue.
    Entry: "entry",
    /// Waits until writes would survive a failure.
    Confirm: "confirm",
    /// Reads a shard for `top`.
    Watch: "watch",
    /// Reads the newest entries of the audit log.
    AuditLog: "audit_log",
    /// Removes an inbox.
    ForgetInbox: "forget_inbox",
}
