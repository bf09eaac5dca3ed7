//! Names the commands to Redis that run without a script.

macro_rules! redis_commands {
    ($($(#[$doc:meta])* $variant:ident: $word:literal),* $(,)?) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RedisCommand {
            $($(#[$doc])* $variant,)*
        }

        impl RedisCommand {
            pub(crate) const WORDS: &[&str] = &[$($word),*];

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
    Probe: "probe",
    Now: "now",
    Backlog: "backlog",
    Sweep: "sweep",
    Housekeep: "housekeep",
    Held: "held",
    Entry: "entry",
    Confirm: "confirm",
    Watch: "watch",
    AuditLog: "audit_log",
    ForgetInbox: "forget_inbox",
}
