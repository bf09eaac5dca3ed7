//! The URL of Redis.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

const SCHEMES: [&str; 8] = [
    "redis://",
    "rediss://",
    "valkey://",
    "valkeys://",
    "unix://",
    "redis+unix://",
    "valkey+unix://",
    // `tickfleet dev` uses this scheme for its store without Redis.
    "tickfleet+unix://",
];
const SENTINEL_SCHEMES: [&str; 2] = ["redis+sentinel://", "rediss+sentinel://"];

const CLUSTER_SCHEMES: [&str; 2] = ["redis+cluster://", "rediss+cluster://"];

#[derive(Clone)]
pub struct RedisUrl(SecretString);

impl RedisUrl {
    #[must_use]
    pub fn new(url: &str) -> Option<Self> {
        let after = |schemes: &[&str]| schemes.iter().find_map(|scheme| url.strip_prefix(scheme).map(str::to_owned));
        let servers = after(&SCHEMES).or_else(|| after(&CLUSTER_SCHEMES));
        let sound = match (servers, after(&SENTINEL_SCHEMES)) {
            (Some(rest), _) => !rest.is_empty() && !rest.starts_with('@'),
            (None, Some(rest)) => names_a_primary(&rest),
            (None, None) => false,
        };
        (sound && !url.chars().any(char::is_whitespace)).then(|| Self(url.into()))
    }

    /// An error discards the configuration, so nothing connects to this URL.
    pub(crate) fn stand_in() -> Self {
        Self(SecretString::default())
    }

    pub(crate) fn is_tls(&self) -> bool {
        ["rediss", "valkeys"].iter().any(|scheme| self.expose().starts_with(scheme))
    }

    /// `None` if the URL already has `tls_ca`.
    pub(crate) fn with_authority(&self, file: &str) -> Option<Self> {
        let url = self.expose();
        // A `?` before the last `@` is part of the password. Queries of sentinels contain a password, but no `@`.
        let address = url.rsplit_once('@').map_or(url, |(_, address)| address);
        let joined = match split_query(address).1 {
            Some(query) if query.split('&').any(|pair| pair.starts_with("tls_ca=")) => return None,
            Some(_) => format!("{url}&tls_ca={file}"),
            None => format!("{url}?tls_ca={file}"),
        };
        Some(Self(joined.into()))
    }

    #[must_use]
    pub fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

impl PartialEq for RedisUrl {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for RedisUrl {}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mask_url(self.expose()))
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

fn names_a_primary(rest: &str) -> bool {
    let (place, query) = split_query(rest);
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    !query.is_some_and(|query| query.contains('@'))
        && place
            .split_once('/')
            .is_some_and(|(hosts, name)| !hosts.is_empty() && !name.is_empty() && !name.starts_with('/'))
}

/// Everything before the last `@` counts as user and password, so that an unescaped `/` in the password reveals
/// nothing.
pub(crate) fn mask_url(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (rest, query) = match rest.rsplit_once('@') {
        // An invalid URL of sentinels can have an `@` in its query, which contains the password.
        Some((user, _)) if scheme.ends_with("+sentinel") && user.contains('?') => ("***".to_owned(), None),
        // A `?` before the `@` is part of the password.
        Some((user, address)) => {
            let (address, query) = split_query(address);
            let user = user.split(':').next().unwrap_or_default();
            (format!("{user}:***@{address}"), query)
        }
        None => {
            let (address, query) = split_query(rest);
            (address.to_owned(), query)
        }
    };
    let query = query.map(|query| format!("?{}", query.split('&').map(mask_pair).collect::<Vec<_>>().join("&")));
    let scheme = if scheme.is_empty() { String::new() } else { format!("{scheme}://") };
    format!("{scheme}{rest}{}", query.unwrap_or_default())
}

fn split_query(text: &str) -> (&str, Option<&str>) {
    text.split_once('?').map_or((text, None), |(before, query)| (before, Some(query)))
}

fn mask_pair(pair: &str) -> String {
    match pair.split_once('=') {
        Some((name @ ("db" | "user" | "protocol" | "tls_ca" | "tls_cert"), value)) => format!("{name}={value}"),
        Some((name, _)) => format!("{name}=***"),
        None => "***".into(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn a_tls_ca_is_added_to_a_url_without_one() {
        for (url, expected) in [
            ("rediss://redis:6380/0", Some("rediss://redis:6380/0?tls_ca=/ca.pem")),
            ("rediss://u:a?b@redis/0", Some("rediss://u:a?b@redis/0?tls_ca=/ca.pem")),
            ("rediss://redis?protocol=resp3", Some("rediss://redis?protocol=resp3&tls_ca=/ca.pem")),
            ("rediss+cluster://a,b", Some("rediss+cluster://a,b?tls_ca=/ca.pem")),
            ("rediss://redis?tls_ca=/own.pem", None),
        ] {
            let made = RedisUrl::new(url).unwrap().with_authority("/ca.pem");
            assert_eq!(made.as_ref().map(RedisUrl::expose), expected, "{url}");
        }
        let tls = |url| RedisUrl::new(url).unwrap().is_tls();
        assert!(tls("rediss+sentinel://a/main") && tls("valkeys://a") && !tls("redis://a") && !tls("unix:///rediss"));
    }

    #[test]
    fn a_redis_url_never_shows_its_password() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
            ("redis://:hunter2@redis:6379/1", "redis://:***@redis:6379/1"),
            ("rediss://ada:hun/ter@2?x@redis/0", "rediss://ada:***@redis/0"),
            ("redis://hunter2@redis", "redis://hunter2:***@redis"),
            (
                "rediss://ada:hunter2@redis/0?tls_ca=/tls/ca.pem&tls_cert=/tls/tls.crt&tls_key=/tls/tls.key",
                "rediss://ada:***@redis/0?tls_ca=/tls/ca.pem&tls_cert=/tls/tls.crt&tls_key=***",
            ),
            ("unix:///run/redis.sock?db=2&pass=hunter2", "unix:///run/redis.sock?db=2&pass=***"),
            (
                "redis+sentinel://ada:hunter2@a:1,b:2/fleet/1?sentinel_username=bob&sentinel_password=hunter2",
                "redis+sentinel://ada:***@a:1,b:2/fleet/1?sentinel_username=***&sentinel_password=***",
            ),
            ("rediss+cluster://ada:hunter2@a:1,b?tls_key=/k", "rediss+cluster://ada:***@a:1,b?tls_key=***"),
        ] {
            let url = RedisUrl::new(url).unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(format!("{url:?}"), format!("RedisUrl({shown})"));
        }
    }

    #[test]
    fn an_unescaped_password_is_masked() {
        let url = "redis+sentinel://a:1,b/fleet?sentinel_password=hun@ter2";
        assert!(RedisUrl::new(url).is_none());
        assert_eq!(mask_url(url), "redis+sentinel://***");
    }

    #[test]
    fn an_invalid_redis_url_is_rejected() {
        for url in [
            "",
            "localhost:6379",
            "http://redis",
            "redis://",
            "redis:// a",
            "redis+sentinel://a",
            "redis+sentinel://a/",
            "redis+sentinel:///fleet",
            "redis+cluster://",
            "redis+cluster://a b",
        ] {
            assert!(RedisUrl::new(url).is_none(), "{url:?}");
        }
    }
}
