//! Commands to Redis besides the verbs: names for errors and metrics.

/// Generates an enum from the list; its variants have these words.
macro_rules! redis_commands {
    ($($(#[$doc:meta])* $variant:ident: $word:literal),* $(,)?) => {
        /// A command to Redis that needs no script.
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
    /// A consumer reads its streams.
    Read: "read",
    /// The state of turns.
    Look: "look",
    /// Whether the server runs scripts and accepts writes.
    Probe: "probe",
    /// The shard time.
    Now: "now",
    /// The amount of waiting work, by place.
    Backlog: "backlog",
    /// The check that turns under way have a timer.
    Sweep: "sweep",
    /// Trimming of the audit log and the dead stream.
    Housekeep: "housekeep",
    /// The entries that a consumer holds.
    Held: "held",
    /// One entry of a queue.
    Entry: "entry",
    /// The wait until writes would survive.
    Confirm: "confirm",
    /// A view of a shard for `top`.
    Watch: "watch",
    /// The newest entries of the audit log.
    AuditLog: "audit_log",
    /// The removal of an inbox.
    ForgetInbox: "forget_inbox",
}
