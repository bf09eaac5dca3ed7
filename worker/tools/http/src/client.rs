//! Sends one request, checks each redirect before following it, and reads the response up to a maximum size.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Response, StatusCode, Url};

use tickfleet_outbound::{Blocked, ConnectOptions, Guard, HostTrust, client, find_source};
use tickfleet_tools::Secrets;

/// For connections of tools that may run twice.
const IDLE: Duration = Duration::from_secs(30);
/// For connections of other tools. Shorter than the shortest common keep-alive (5 s): if a connection closes during a
/// request, the outcome is unknown.
const IDLE_ONCE: Duration = Duration::from_secs(4);

#[derive(Debug)]
pub struct Request {
    pub method: Method,
    pub url: Url,
    /// Headers that contain a secret are marked as sensitive.
    pub headers: HeaderMap,
    pub body: Option<Bytes>,
    pub body_is_secret: bool,
}

/// Messages name only the host of a URL.
#[derive(Debug)]
pub enum SendError {
    Blocked(Blocked),
    NotSent {
        host: String,
        why: &'static str,
    },
    /// The request was sent, or may have been sent.
    Lost {
        host: String,
        why: &'static str,
    },
    Redirect(Box<UnfollowedRedirect>),
}

/// A redirect does not show whether the request took effect: services often redirect after a successful POST.
pub struct UnfollowedRedirect {
    pub answer: Response,
    /// Worded for a model.
    pub why: String,
}

impl fmt::Debug for UnfollowedRedirect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnfollowedRedirect").field("why", &self.why).finish_non_exhaustive()
    }
}

/// The client `named` is for hosts and ports that are allowed by name. It is a separate client, because a resolver does
/// not know the port.
pub struct Client {
    guard: Arc<Guard>,
    stranger: reqwest::Client,
    named: Option<reqwest::Client>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl Client {
    /// `once` is true if requests must not be sent twice.
    pub fn new(guard: Guard, once: bool, connect_timeout: Duration) -> Result<Self, String> {
        let guard = Arc::new(guard);
        let connecting = ConnectOptions { timeout: connect_timeout, idle: Some(if once { IDLE_ONCE } else { IDLE }) };
        let stranger = client(&guard, HostTrust::Unnamed, connecting)?;
        let named = if guard.names_any() { Some(client(&guard, HostTrust::Named, connecting)?) } else { None };
        Ok(Self { guard, stranger, named })
    }

    /// Follows no redirect that would send one of `secrets` to another host. Fails if the last response is a redirect.
    pub async fn send(
        &self,
        mut request: Request,
        redirects_max: u8,
        secrets: &Secrets,
    ) -> Result<Response, SendError> {
        let unfollowed = |answer, why| Err(SendError::Redirect(Box::new(UnfollowedRedirect { answer, why })));
        let mut followed = 0;
        loop {
            let answer = self.send_one(&request, followed > 0).await?;
            if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            if followed == redirects_max {
                let status = answer.status().as_u16();
                let why = format!("The service answered with a redirect ({status}), which this tool does not follow.");
                return unfollowed(answer, why);
            }
            followed += 1;
            request = match redirected(request, answer.status(), answer.headers(), secrets) {
                Ok(next) => next,
                Err(why) => return unfollowed(answer, why),
            };
        }
    }

    /// Follows no redirect. After an earlier request (`again`), a failed connection does not prove that nothing was
    /// sent.
    async fn send_one(&self, request: &Request, again: bool) -> Result<Response, SendError> {
        let standing = self.guard.check(&request.url).map_err(SendError::Blocked)?;
        let client = match (standing, &self.named) {
            (HostTrust::Named, Some(named)) => named,
            _ => &self.stranger,
        };
        let mut builder = client.request(request.method.clone(), request.url.clone()).headers(request.headers.clone());
        if let Some(body) = &request.body {
            builder = builder.body(body.clone());
        }
        builder.send().await.map_err(|error| {
            let host = request.url.host_str().unwrap_or_default().to_owned();
            match find_source::<Blocked>(&error) {
                Some(refused) => SendError::Blocked(refused.clone()),
                None if error.is_builder() => SendError::NotSent { host, why: "the request could not be built" },
                None if error.is_connect() && !again => {
                    SendError::NotSent { host, why: tickfleet_outbound::connect_failure(&error) }
                }
                None => SendError::Lost { host, why: "the connection was lost before the answer" },
            }
        })
    }
}

fn redirected(
    mut request: Request,
    status: StatusCode,
    headers: &HeaderMap,
    secrets: &Secrets,
) -> Result<Request, String> {
    let location = headers.get(header::LOCATION).and_then(|l| l.to_str().ok());
    let next = location.and_then(|l| request.url.join(l).ok());
    let next = next.ok_or("The service answered with a redirect without a target.")?;
    let number = status.as_u16();
    if number == 303 {
        request.method = Method::GET;
        request.body = None;
        request.headers.remove(header::CONTENT_TYPE);
    } else if request.method != Method::GET && matches!(number, 301 | 302) {
        // Clients differ in whether they keep the method. With another method, a failed call could look successful.
        return Err(format!("The service answered a {} with an ambiguous redirect ({number}).", request.method));
    }
    if request.url.scheme() == "https" && next.scheme() != "https" {
        return Err("The service answered with a redirect away from https, which is not followed.".to_owned());
    }
    if request.url.origin() != next.origin() {
        if request.body.is_some() && request.body_is_secret || secrets.found_in(next.as_str()) {
            return Err("The service answered with a redirect that would send a secret to another host.".to_owned());
        }
        // The template's other headers are only for the first host.
        let stay: [HeaderName; 2] = [header::CONTENT_TYPE, header::ACCEPT];
        let kept = stay.into_iter().filter_map(|name| Some((name.clone(), request.headers.get(&name)?.clone())));
        request.headers = kept.filter(|(_, value): &(_, HeaderValue)| !value.is_sensitive()).collect();
    }
    request.url = next;
    Ok(request)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn request(method: Method, body: Option<&str>) -> Request {
        let mut secret = HeaderValue::from_static("key");
        secret.set_sensitive(true);
        let headers = [(header::ACCEPT, HeaderValue::from_static("application/json")), (header::AUTHORIZATION, secret)];
        Request {
            method,
            url: Url::parse("https://api.example.com/a").unwrap(),
            headers: headers.into_iter().collect(),
            body: body.map(|body| Bytes::copy_from_slice(body.as_bytes())),
            body_is_secret: true,
        }
    }

    fn follow(method: Method, body: Option<&str>, status: u16, location: &str) -> Result<Request, String> {
        let headers = [(header::LOCATION, HeaderValue::from_str(location).unwrap())].into_iter().collect();
        redirected(
            request(method, body),
            StatusCode::from_u16(status).unwrap(),
            &headers,
            &Secrets::of([("T", "secret")]),
        )
    }

    #[test]
    fn a_cross_origin_redirect_drops_the_authorization_header() {
        let same = follow(Method::GET, None, 302, "/b").unwrap();
        assert!(same.headers.contains_key(header::AUTHORIZATION) && same.url.path() == "/b");
        for other in ["https://evil.example.com/", "https://api.example.com:444/", "//evil.example.com/"] {
            let moved = follow(Method::GET, None, 302, other).unwrap();
            assert!(!moved.headers.contains_key(header::AUTHORIZATION), "{other}");
        }
    }

    #[test]
    fn an_ambiguous_or_unsafe_redirect_is_rejected() {
        assert!(follow(Method::POST, Some("{}"), 302, "/b").is_err(), "POST or GET?");
        assert!(follow(Method::POST, Some("{}"), 307, "https://evil.example.com/").is_err(), "a secret body");
        assert!(follow(Method::GET, None, 302, "http://api.example.com/").is_err(), "away from https");
        assert!(follow(Method::GET, None, 302, "https://evil.example.com/?t=secret").is_err(), "a secret address");
        let seen = follow(Method::POST, Some("{}"), 303, "/b").unwrap();
        assert!(seen.method == Method::GET && seen.body.is_none());
    }

    #[tokio::test]
    async fn a_hanging_tls_handshake_counts_as_not_sent() {
        tickfleet_outbound::install_crypto_provider();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let guard = Guard::parse(["127.0.0.1"]).unwrap();
        let client = Client::new(guard, true, Duration::from_millis(50)).unwrap();
        let url = Url::parse(&format!("https://{address}/")).unwrap();
        match client.send(Request { url, ..request(Method::GET, None) }, 0, &Secrets::of([])).await {
            Err(SendError::NotSent { why, .. }) => assert_eq!(why, "connection timed out"),
            other => panic!("{other:?}"),
        }
    }
}
