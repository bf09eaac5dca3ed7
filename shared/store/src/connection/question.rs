//! The questions that Redis is asked beside the verbs: names for errors and metrics.

/// The list: makes an enum of it whose variants have these words.
macro_rules! questions {
    ($($(#[$doc:meta])* $variant:ident: $word:literal),* $(,)?) => {
        /// A question to Redis that needs no script.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Question {
            $($(#[$doc])* $variant,)*
        }

        impl Question {
            /// The words of all.
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

questions! {
    /// A consumer reads from its streams.
    Read: "read",
    /// The facts that are known of turns.
    Look: "look",
    /// Whether the server runs scripts and takes writes.
    Probe: "probe",
    /// The time in the shard.
    Now: "now",
    /// The amounts that wait, by place.
    Backlog: "backlog",
    /// The check that turns under way will be looked at again.
    Sweep: "sweep",
    /// Audit log and dead stream are kept within their bounds.
    Housekeep: "housekeep",
    /// The entries that a consumer holds.
    Held: "held",
    /// One entry of a queue.
    Entry: "entry",
    /// The wait until what was written would survive.
    Confirm: "confirm",
    /// A shard is watched.
    Watch: "watch",
    /// The newest entries of the audit log.
    AuditLog: "audit_log",
    /// An inbox is removed.
    ForgetInbox: "forget_inbox",
}
