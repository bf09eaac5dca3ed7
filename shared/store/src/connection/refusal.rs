//! Why a reachable Redis refuses commands, and the remedy.

use redis::RedisError;

use crate::StoreError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    Disk,
    Replica,
    Replicas,
    Rights,
    Login,
    Memory,
    Loading,
    Busy,
    Cluster,
}

impl Refusal {
    pub const ALL: [Self; 9] = [
        Self::Disk,
        Self::Replica,
        Self::Replicas,
        Self::Rights,
        Self::Login,
        Self::Memory,
        Self::Loading,
        Self::Busy,
        Self::Cluster,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "misconf",
            Self::Replica => "readonly",
            Self::Replicas => "noreplicas",
            Self::Rights => "noperm",
            Self::Login => "noauth",
            Self::Memory => "oom",
            Self::Loading => "loading",
            Self::Busy => "busy",
            Self::Cluster => "cluster",
        }
    }

    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Disk => {
                "free disk space on the Redis server, or repair its disk: its log names the file; Redis accepts writes again after the next successful save"
            }
            Self::Replica => "name the primary in the URL, or name the sentinels with redis+sentinel://",
            Self::Replicas => "start the missing replicas, or lower min-replicas-to-write",
            Self::Rights => "give the user the rules that `tickfleet acl --role ROLE` prints",
            Self::Login => "put the user and the password into the URL: redis://USER:PASSWORD@HOST:PORT",
            Self::Memory => "raise maxmemory, read the inboxes, or shorten retention.*",
            Self::Loading => "wait until the server has read its files",
            Self::Busy => "wait, or end the blocking script with FUNCTION KILL (or SCRIPT KILL)",
            Self::Cluster => {
                "name nodes of the cluster with redis+cluster://HOST:PORT; if the URL already does, check CLUSTER INFO"
            }
        }
    }

    fn of_code(code: &str, details: &str) -> Option<Self> {
        Some(match code {
            "MISCONF" => Self::Disk,
            "READONLY" => Self::Replica,
            "NOREPLICAS" => Self::Replicas,
            "NOPERM" => Self::Rights,
            "NOAUTH" | "WRONGPASS" => Self::Login,
            "OOM" => Self::Memory,
            "LOADING" | "MASTERDOWN" => Self::Loading,
            "BUSY" => Self::Busy,
            "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" | "CROSSSLOT" => Self::Cluster,
            _ if is_right_missing(details) => Self::Rights,
            _ => return None,
        })
    }
}

pub(crate) fn is_right_missing(message: &str) -> bool {
    message.contains("The user executing the script") || message.contains("ACL failure in script")
}

impl StoreError {
    #[must_use]
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Self::Connect { source, .. } | Self::Verb { source, .. } => of_error(source),
            Self::Refused(_) => Some(Refusal::Rights),
            _ => None,
        }
    }
}

#[must_use]
pub fn refusal_in(error: &(dyn std::error::Error + 'static)) -> Option<Refusal> {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.filter_map(|cause| cause.downcast_ref::<RedisError>()).find_map(of_error)
}

fn of_error(error: &RedisError) -> Option<Refusal> {
    // Check the kind of the error: the library's login error does not contain the code of Redis's reply.
    if error.kind() == redis::ErrorKind::AuthenticationFailed {
        return Some(Refusal::Login);
    }
    let own = error.code().and_then(|code| Refusal::of_code(code, error.detail().unwrap_or_default()));
    own.or_else(|| {
        let replies = error.clone().into_server_errors();
        let replies = replies.as_deref().unwrap_or_default();
        replies.iter().find_map(|(_, reply)| Refusal::of_code(reply.code(), reply.details().unwrap_or_default()))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn each_refusal_reply_is_recognized_by_its_code() {
        for (reply, expected) in [
            ("MISCONF Redis is configured to save RDB snapshots, but it's unable to persist to disk.", Refusal::Disk),
            ("MISCONF Errors writing to the AOF file: No space left on device", Refusal::Disk),
            ("READONLY Can not run script with write flag on readonly replica.", Refusal::Replica),
            ("NOREPLICAS Not enough good replicas to write.", Refusal::Replicas),
            ("NOPERM User fleet has no permissions to run the 'evalsha' command", Refusal::Rights),
            (
                "ERR The user executing the script can't run this command script: 5f3, on @user_script:3.",
                Refusal::Rights,
            ),
            ("ERR ACL failure in script: User w has no permissions to run the 'hset' command", Refusal::Rights),
            ("NOAUTH Authentication required.", Refusal::Login),
            ("WRONGPASS invalid username-password pair or user is disabled.", Refusal::Login),
            ("OOM command not allowed when used memory > 'maxmemory'.", Refusal::Memory),
            ("LOADING Redis is loading the dataset in memory", Refusal::Loading),
            ("BUSY Redis is busy running a script.", Refusal::Busy),
            ("MOVED 866 10.0.0.7:6379", Refusal::Cluster),
            ("CLUSTERDOWN The cluster is down", Refusal::Cluster),
        ] {
            let error =
                redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap().extract_error().unwrap_err();
            let error = StoreError::verb("probe", error);
            assert_eq!((error.refusal(), refusal_in(&error)), (Some(expected), Some(expected)), "{reply}");
        }
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        let broken = StoreError::verb("probe", broken);
        assert_eq!((broken.refusal(), refusal_in(&broken)), (None, None));
    }
}
