//! Which connections a URL stands for.

use std::sync::Arc;

use redis::{Client, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError, RedisResult};

use super::dial::Dial;
use super::error::StoreError;
use super::sentinel::Sentinels;

/// The port of a sentinel that is named without one.
const SENTINEL_PORT: u16 = 26379;
/// The beginning of a URL that names sentinels, and of one for the servers that they stand for.
const SCHEMES: [(&str, &str); 2] = [("redis+sentinel://", "redis://"), ("rediss+sentinel://", "rediss://")];

/// What makes connections to `url`. Nothing is connected to yet.
///
/// # Errors
/// [`StoreError::Url`] where the URL cannot be read.
pub(super) fn dial_to(url: &str) -> Result<Arc<dyn Dial>, StoreError> {
    let sentinels = SCHEMES.iter().find_map(|(ours, plain)| Some((url.strip_prefix(ours)?, *plain)));
    match sentinels {
        Some((rest, scheme)) => Ok(Arc::new(sentinels_of(rest, scheme).map_err(StoreError::Url)?)),
        None => Ok(Arc::new(Client::open(url).map_err(StoreError::Url)?)),
    }
}

/// Reads `[user:password@]host[:port],…/name[/db][?query]`. What is escaped in it is left to the library: each part
/// becomes a URL of the usual form.
fn sentinels_of(rest: &str, scheme: &str) -> RedisResult<Sentinels> {
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = place.split_once('/').ok_or_else(|| refused("the primary's name is missing"))?;
    let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (name, db) = path.split_once('/').unwrap_or((path, ""));
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')) {
        return Err(refused("the primary's name must consist of A-Z a-z 0-9 . - _"));
    }
    let (mut user, mut password, mut protocol) = ("", "", String::new());
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_username", value)) => user = value,
            Some(("sentinel_password", value)) => password = value,
            Some(("protocol", value)) => protocol = format!("?protocol={value}"),
            _ => return Err(refused("after ? may stand sentinel_username, sentinel_password and protocol")),
        }
    }
    let sentinel_login = match (user, password) {
        ("", "") => String::new(),
        (user, password) => format!("{user}:{password}@"),
    };
    let sentinel = |host: &str| client(&format!("{scheme}{sentinel_login}{}/", with_port(host)));
    let sentinels: Vec<Client> = hosts.split(',').map(sentinel).collect::<RedisResult<_>>()?;
    let login = if login.is_empty() { String::new() } else { format!("{login}@") };
    // The host is put in place of this one when the sentinels have named it.
    let primary = format!("{scheme}{login}primary.invalid/{db}{protocol}").into_connection_info()?;
    Ok(Sentinels::new(sentinels, name.to_owned(), primary))
}

/// A client of the server at `url`, which must be one host.
fn client(url: &str) -> RedisResult<Client> {
    let info: ConnectionInfo = url.into_connection_info()?;
    Client::open(info)
}

fn with_port(host: &str) -> String {
    let port = host.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    match port {
        Some(_) => host.to_owned(),
        None => format!("{host}:{SENTINEL_PORT}"),
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
    fn a_url_of_sentinels_names_them_and_the_primary() {
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
    fn what_is_escaped_is_read_and_logins_go_where_they_belong() {
        let url = "u:p%40%2Fss@a:1,b/fleet/3?sentinel_username=s&sentinel_password=t%3At";
        let read = sentinels_of(url, "rediss://").unwrap();
        let primary = read.info().redis_settings();
        assert_eq!((primary.username(), primary.password(), primary.db()), (Some("u"), Some("p@/ss"), 3));
        for sentinel in read.clients() {
            let info = sentinel.get_connection_info();
            let login = info.redis_settings();
            assert_eq!((login.username(), login.password(), login.db()), (Some("s"), Some("t:t"), 0));
            assert!(matches!(info.addr(), redis::ConnectionAddr::TcpTls { insecure: false, .. }), "{:?}", info.addr());
        }
    }

    #[test]
    fn a_url_of_sentinels_that_says_too_little_or_too_much_is_refused() {
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
        ] {
            assert!(matches!(dial_to(url), Err(StoreError::Url(_))), "{url}");
        }
    }
}
