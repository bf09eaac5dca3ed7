//! Commands to Redis that run without a script, with their names for errors and metrics.

macro_rules! redis_commands {
    ($($(#[$doc:meta])* $variant:ident: $word:literal),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RedisCommand {
            $($(#[$doc])* $variant,)*
        }

        impl RedisCommand {
            pub(crate) const WORDS: &[&str] = &[$($word),*];

            /// Returns the command's name in errors and metrics.
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
    Read: "read",
    Look: "look",
    /// Checks whether the server runs scripts and accepts writes.
    Probe: "probe",
    Now: "now",
    Backlog: "backlog",
    /// Checks that unfinished turns have a timer.
    Sweep: "sweep",
    /// Trims the audit log and the dead stream.
    Housekeep: "housekeep",
    Held: "held",
    Entry: "entry",
    /// Waits until writes are safe from a failure of one server.
    Confirm: "confirm",
    Watch: "watch",
    AuditLog: "audit_log",
    ForgetInbox: "forget_inbox",
}
