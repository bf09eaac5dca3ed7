//! Which connections a URL stands for.

use std::sync::Arc;

use redis::{ErrorKind, IntoConnectionInfo, RedisError, RedisResult};

use super::dial::Dial;
use super::error::StoreError;
use super::sentinel::Sentinels;
use super::tls::{Server, TlsFiles};

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
        None => Ok(Arc::new(server_of(url).map_err(StoreError::Url)?)),
    }
}

/// Reads a URL of the library's, with the files of ours in its query.
fn server_of(url: &str) -> RedisResult<Server> {
    let (place, query) = url.rsplit_once('?').unwrap_or((url, ""));
    let (files, rest) = TlsFiles::take(query)?;
    let kept = match rest.as_str() {
        // A `?` may belong to a password that should have been escaped: the library judges that.
        _ if files.is_empty() => url.to_owned(),
        "" => place.to_owned(),
        rest => format!("{place}?{rest}"),
    };
    Server::new(kept.into_connection_info()?, files)
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
    let (files, query) = TlsFiles::take(query)?;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel_username", value)) => user = value,
            Some(("sentinel_password", value)) => password = value,
            Some(("protocol", value)) => protocol = format!("?protocol={value}"),
            _ => {
                return Err(refused(
                    "after ? may stand sentinel_username, sentinel_password, protocol, tls_cert, tls_key and tls_ca",
                ));
            }
        }
    }
    let sentinel_login = match (user, password) {
        ("", "") => String::new(),
        (user, password) => format!("{user}:{password}@"),
    };
    let sentinel = |host: &str| {
        let url = format!("{scheme}{sentinel_login}{}/", with_port(host));
        Server::new(url.into_connection_info()?, files.clone())
    };
    let sentinels: Vec<Server> = hosts.split(',').map(sentinel).collect::<RedisResult<_>>()?;
    let login = if login.is_empty() { String::new() } else { format!("{login}@") };
    // The host is put in place of this one when the sentinels have named it.
    let primary = format!("{scheme}{login}primary.invalid/{db}{protocol}").into_connection_info()?;
    Ok(Sentinels::new(sentinels, name.to_owned(), primary, files))
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
        for sentinel in read.servers() {
            let info = sentinel.info();
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
            "rediss+sentinel://a/fleet?tls_ca=/none/ca.pem",
        ] {
            assert!(matches!(dial_to(url), Err(StoreError::Url(_))), "{url}");
        }
    }

    #[test]
    fn files_for_tls_are_looked_at_and_neither_the_key_nor_its_place_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
            folder.path().join(name).to_str().unwrap().to_owned()
        };
        let begun = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let (cert, key, text) = (file("cert", begun), file("secret-key", "-----BEGIN hunter2"), file("text", "x"));
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
        ] {
            let told = dial_to(&url).unwrap_err().to_string();
            assert!(told.contains(why), "{url}: {told}");
            assert!(!told.contains("secret-key") && !told.contains("hunter2"), "{told}");
        }
        assert_eq!(dial_to("rediss://a:1/0?protocol=resp3").unwrap().address(), "a:1");
    }
}
