//! X: `post_to_x` and `search_x`, according to the documentation of API v2 (docs.x.com: Posts, Search, Media, OAuth
//! 2.0, Rate limits; as of November 2026).

mod api;
mod media;
mod multipart;
mod post;
mod sealed;
mod search;
mod sign_in;
mod upload;

use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use tickfleet_outbound::Guard;
use tickfleet_store::Store;
use tickfleet_tools::{Environment, TypedTool};
use tickfleet_tools_http::Client;

use api::Api;
use media::MediaFetcher;
use sign_in::{Account, SignIn};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Without a token, the tool exists, but its calls fail with `not_configured`. Only an unusable variable is an error.
pub(crate) fn all(home: &Store, environment: &Environment) -> Result<[TypedTool; 2], String> {
    let base = environment.get("X_BASE_URL").unwrap_or_else(|| "https://api.x.com".to_owned());
    let base = Url::parse(&base).map_err(|error| format!("X_BASE_URL: {error}"))?;
    let guard = guard(environment, "TICKFLEET_ALLOW_PRIVATE")?;
    guard.check(&base).map_err(|refused| format!("X_BASE_URL: {refused}"))?;
    let client = |guard: Guard| Client::new(guard, true, CONNECT_TIMEOUT).map(Arc::new);
    // A model chooses the addresses of media and must not reach the private addresses of the API client. So media have
    // their own guard.
    let fetcher = MediaFetcher::new(client(self::guard(environment, "X_MEDIA_ALLOW_PRIVATE")?)?);
    let client = client(guard)?;
    let sign_in = SignIn::new(&base, &client, home, environment)?.map(Arc::new);
    let api = |account: &Account| Api::new(base.clone(), client.clone(), account.clone());
    let account = Account::of_user(sign_in.clone());
    let post = account.declared_on(post::post_to_x(api(&account), fetcher), environment);
    let reader = Account::of_reader(sign_in, environment);
    let search = reader.declared_on(search::search_x(api(&reader)), environment);
    Ok([post, search])
}

fn guard(environment: &Environment, variable: &str) -> Result<Guard, String> {
    let listed = environment.get(variable).unwrap_or_default();
    Guard::parse(listed.split(','))
        .map_err(|entry| format!("{variable}: '{entry}' is not a host, host:port or CIDR block"))
}
