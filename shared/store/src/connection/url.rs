use std::sync::Arc;

use redis::{ConnectionAddr, ErrorKind, IntoConnectionInfo, RedisError, RedisResult};

use super::cluster::{Cluster, Holder};
use super::dial::Dial;
use super::error::StoreError;
use super::sentinel::Sentinels;
use super::tls::{Server, TlsFiles};

const SENTINEL_PORT: u16 = 26379;
const NODE_PORT: u16 = 6379;
const SCHEMES: [(&str, &str); 2] = [("redis+sentinel://", "redis://"), ("rediss+sentinel://", "rediss://")];

const CLUSTER_SCHEMES: [(&str, &str); 2] = [("redis+cluster://", "redis://"), ("rediss+cluster://", "rediss://")];

pub(crate) enum Target {
    One(Arc<dyn Dial>),
    Cluster(Arc<Cluster>),
}

impl Target {
    /// Without `key`, connects to any primary.
    pub(crate) fn dial(&self, key: Option<&str>) -> Arc<dyn Dial> {
        match self {
            Self::One(dial) => Arc::clone(dial),
            Self::Cluster(cluster) => Arc::new(Holder::new(Arc::clone(cluster), key)),
        }
    }
}

pub(crate) fn target_of(url: &str) -> Result<Target, StoreError> {
    let of = |schemes: &[(&'static str, &'static str)]| {
        schemes.iter().find_map(|(ours, plain)| Some((url.strip_prefix(ours)?.to_owned(), *plain)))
    };
    let target = match (of(&SCHEMES), of(&CLUSTER_SCHEMES)) {
        (Some((rest, scheme)), _) => sentinels_of(&rest, scheme).map(|found| Target::One(Arc::new(found))),
        (None, Some((rest, scheme))) => cluster_of(&rest, scheme).map(|found| Target::Cluster(Arc::new(found))),
        (None, None) => server_of(url).map(|found| Target::One(Arc::new(found))),
    };
    target.map_err(StoreError::Url)
}

pub(super) fn dial_to(url: &str) -> Result<Arc<dyn Dial>, StoreError> {
    Ok(target_of(url)?.dial(None))
}

fn server_of(url: &str) -> RedisResult<Server> {
    let (place, query) = url.rsplit_once('?').unwrap_or((url, ""));
    let (files, rest) = TlsFiles::take(query)?;
    let kept = match rest.as_str() {
        // Without TLS files, keep the URL unchanged: the `?` may be part of a password that is not escaped.
        _ if files.is_empty() => url.to_owned(),
        "" => place.to_owned(),
        rest => format!("{place}?{rest}"),
    };
    Server::new(kept.into_connection_info()?, files)
}

/// `[user:password@]host[:port],…/name[/db][?query]`. Each part becomes an ordinary URL, so that the library decodes
/// the escapes.
fn sentinels_of(rest: &str, scheme: &str) -> RedisResult<Sentinels> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = place.split_once('/').ok_or_else(|| refused("the primary's name is missing"))?;
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (name, db) = path.split_once('/').unwrap_or((path, ""));
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')) {
        return Err(refused("the primary's name must consist of A-Z a-z 0-9 . - _"));
    }
    let mut user = "";
    let mut password = "";
    let mut protocol = String::new();
    let (files, query) = TlsFiles::take(query)?;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_username", value)) => user = value,
            Some(("sentinel_password", value)) => password = value,
            Some(("protocol", value)) => protocol = format!("?protocol={value}"),
            _ => {
                return Err(refused(
                    "parameters after ? can be sentinel_username, sentinel_password, protocol, tls_cert, tls_key and \
                     tls_ca",
                ));
            }
        }
    }
    let sentinel_login = match (user, password) {
        ("", "") => String::new(),
        (user, password) => format!("{user}:{password}@"),
    };
    let sentinel = |host: &str| {
        let url = format!("{scheme}{sentinel_login}{}/", with_port(host, SENTINEL_PORT));
        Server::new(url.into_connection_info()?, files.clone())
    };
    let sentinels: Vec<Server> = hosts.split(',').map(sentinel).collect::<RedisResult<_>>()?;
    let login = if login.is_empty() { String::new() } else { format!("{login}@") };
    // The host that the sentinels report replaces the placeholder.
    let primary = format!("{scheme}{login}primary.invalid/{db}{protocol}").into_connection_info()?;
    Ok(Sentinels::new(sentinels, name.to_owned(), primary, files))
}

/// `[user:password@]host[:port],…[/0][?query]`
fn cluster_of(rest: &str, scheme: &str) -> RedisResult<Cluster> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (login, place) = place.rsplit_once('@').unwrap_or(("", place));
    let (hosts, db) = place.split_once('/').unwrap_or((place, ""));
    if !matches!(db, "" | "0") {
        return Err(refused("a cluster has only database 0: remove the part after the slash"));
    }
    let (files, query) = TlsFiles::take(query)?;
    let protocol = match query.as_str() {
        "" => String::new(),
        query if query.starts_with("protocol=") && !query.contains('&') => format!("?{query}"),
        _ => return Err(refused("parameters after ? can be protocol, tls_cert, tls_key and tls_ca")),
    };
    let login = if login.is_empty() { String::new() } else { format!("{login}@") };
    let seed = |host: &str| {
        let info = format!("{scheme}{login}{}/{protocol}", with_port(host, NODE_PORT)).into_connection_info()?;
        // Report a missing file at the start, and not at the first connection.
        Server::new(info.clone(), files.clone())?;
        match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok(((host.clone(), *port), info.clone()))
            }
            _ => Err(refused("a node of a cluster is named by host and port")),
        }
    };
    let seeds: Vec<_> = hosts.split(',').map(seed).collect::<RedisResult<_>>()?;
    let login = seeds.first().map(|(_, info)| info.clone()).ok_or_else(|| refused("no node is named"))?;
    Ok(Cluster::new(seeds.into_iter().map(|(place, _)| place).collect(), login, files))
}

fn with_port(host: &str, port: u16) -> String {
    let given = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    match given {
        Some(_) => host.to_owned(),
        None => format!("{host}:{port}"),
    }
}

fn refused(why: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, why).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_sentinel_url_names_the_sentinels_and_the_primary() {
        for (url, address) in [
            ("redis+sentinel://a:1,b:2,c/fleet", "fleet (sentinels a:1, b:2, c:26379)"),
            ("redis+sentinel://u:p%40ss@a/fleet.eu-1_x/2", "fleet.eu-1_x (sentinels a:26379)"),
            ("rediss+sentinel://:p@[::1]:7,[::2]/f?sentinel_password=s%3As", "f (sentinels ::1:7, ::2:26379)"),
            ("redis+sentinel://a/f/1?sentinel_username=u&sentinel_password=s&protocol=resp3", "f (sentinels a:26379)"),
        ] {
            assert_eq!(dial_to(url).unwrap().address(), address, "{url}");
        }
    }

    #[test]
    fn a_sentinel_url_decodes_escapes_and_keeps_both_logins_apart() {
        let url = "u:p%40%2Fss@a:1,b/fleet/3?sentinel_username=s&sentinel_password=t%3At";
        let read = sentinels_of(url, "rediss://").unwrap();
        let primary = read.info().redis_settings();
        assert_eq!((primary.username(), primary.password(), primary.db()), (Some("u"), Some("p@/ss"), 3));
        for sentinel in read.servers() {
            let info = sentinel.info();
            let login = info.redis_settings();
            assert_eq!((login.username(), login.password(), login.db()), (Some("s"), Some("t:t"), 0));
            assert!(matches!(info.addr(), redis::ConnectionAddr::TcpTls { insecure: false, .. }), "{:?}", info.addr());
        }
    }

    #[test]
    fn an_incomplete_or_invalid_sentinel_url_is_rejected() {
        for url in [
            "redis+sentinel://",
            "redis+sentinel://a",
            "redis+sentinel://a/",
            "redis+sentinel:///fleet",
            "redis+sentinel://a,/fleet",
            "redis+sentinel://,a/fleet",
            "redis+sentinel://a b/fleet",
            "redis+sentinel://a/fl eet",
            "redis+sentinel://a/fleet/x",
            "redis+sentinel://a/fleet/0/1",
            "redis+sentinel://a/fleet?sentinel=x",
            "redis+sentinel://a:70000/fleet",
            "rediss+sentinel://a/fleet?tls_ca=/none/ca.pem",
        ] {
            assert!(matches!(dial_to(url), Err(StoreError::Url(_))), "{url}");
        }
    }

    #[test]
    fn a_cluster_url_names_nodes_and_allows_only_database_0() {
        for (url, address) in [
            ("redis+cluster://a", "any slot (cluster a:6379)"),
            ("redis+cluster://a/0", "any slot (cluster a:6379)"),
            ("rediss+cluster://u:p%40ss@[::1],[::2]:7?protocol=resp3", "any slot (cluster ::1:6379, ::2:7)"),
        ] {
            let parsed = dial_to(url).unwrap().address();
            // The process ID determines the first node to ask, but not the displayed address.
            assert_eq!(parsed, address, "{url}");
        }
        let Ok(Target::Cluster(cluster)) = target_of("rediss+cluster://u:p%40%2Fss@a:1,b") else { unreachable!() };
        let login = cluster.login().redis_settings();
        assert_eq!((login.username(), login.password(), login.db()), (Some("u"), Some("p@/ss"), 0));
        let parsed = |url: &str| dial_to(url).unwrap_err().to_string();
        assert!(
            parsed("redis+cluster://a,b/3").contains("a cluster has only database 0"),
            "{}",
            parsed("redis+cluster://a/3")
        );
        for url in ["redis+cluster://", "redis+cluster://a,", "redis+cluster://,a", "redis+cluster://a?x=y"] {
            assert!(matches!(dial_to(url), Err(StoreError::Url(_))), "{url}");
        }
    }

    #[test]
    fn tls_files_are_validated_and_errors_hide_the_key_and_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name).to_str().unwrap().to_owned()
        };
        let begun = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let cert = file("cert", begun);
        let key = file("secret-key", "-----BEGIN hunter2");
        let text = file("text", "x");
        for (url, why) in [
            (format!("rediss://a?tls_cert={cert}"), "go together"),
            (format!("rediss://a/0?tls_key={key}"), "go together"),
            ("rediss://a?tls_ca=".to_owned(), "one file each"),
            (format!("rediss://a?tls_ca={cert}&tls_ca={cert}"), "one file each"),
            (format!("rediss://a?tls_ca={text}"), "no certificate in PEM"),
            (format!("rediss://a?tls_ca={text}.none"), "text.none: No such file"),
            (format!("rediss://a?tls_cert={cert}&tls_key={key}.none"), "No such file"),
            (format!("rediss://a?tls_cert={cert}&tls_key={key}"), "key without password, in PEM"),
            (format!("redis://a?tls_ca={cert}"), "need rediss://"),
            (format!("redis+sentinel://a/fleet?tls_ca={cert}"), "need rediss://"),
            (format!("redis+cluster://a?tls_ca={cert}"), "need rediss://"),
        ] {
            let parsed = dial_to(&url).unwrap_err().to_string();
            assert!(parsed.contains(why), "{url}: {parsed}");
            assert!(!parsed.contains("secret-key") && !parsed.contains("hunter2"), "{parsed}");
        }
        assert_eq!(dial_to("rediss://a:1/0?protocol=resp3").unwrap().address(), "a:1");
    }
}
