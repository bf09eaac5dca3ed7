//! An HTTP tool, declared in `tools.yaml` and checked when the file is loaded.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};
use secrecy::ExposeSecret;
use serde_json::value::RawValue;
use tickfleet_config::tools::{HttpDef, SecretRef};
use tickfleet_model::{Context, Effect};
use tickfleet_ops::traces;
use tickfleet_outbound::Guard;
use tickfleet_tools::{CallContext, DeclarationError, Environment, Handler, Secrets, ToolFailure, ToolOutput, percent};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::client::{Client, Request, SendError};
use super::clients::HttpClients;
use super::declared::{Defaults, base_url, defaults, header_name, header_value, headers, parse_all, rules};
use super::error::field;
use super::oauth2::{Credentials, OAuth2};
use super::outcome::{self, OutcomeRules, ToolResponse};
use super::template::{Arguments, Body, Template, TemplatePosition, Values};
use super::tokens::{Token, Tokens};

pub struct HttpTool {
    method: Method,
    base: Url,
    path: Template,
    query: Vec<(String, Template)>,
    headers: Vec<(HeaderName, Template)>,
    defaults: Defaults,
    body: Option<Body>,
    body_is_secret: bool,
    secrets: BTreeMap<String, SecretRef>,
    environment: Environment,
    idempotency_header: Option<HeaderName>,
    redirects_max: u8,
    rules: OutcomeRules,
    client: Arc<Client>,
    sign_in: Option<OAuth2>,
    tokens: Arc<Tokens>,
    once: bool,
}

impl fmt::Debug for HttpTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Prints only the host: paths of webhooks are secrets.
        f.debug_struct("HttpTool").field("host", &self.base.host_str()).finish_non_exhaustive()
    }
}

impl HttpTool {
    pub fn new(
        def: &HttpDef,
        effect: Effect,
        environment: &Environment,
        clients: &HttpClients,
    ) -> Result<Self, DeclarationError> {
        let allowed = def.allow_private.iter().map(|entry| environment.expand(entry)).collect::<Result<Vec<_>, _>>()?;
        // A variable may contain several entries, separated by commas.
        let guard = Guard::parse(allowed.iter().flat_map(|e| e.split(',')))
            .map_err(|entry| field("allow_private")(format!("'{entry}' is not a host, host:port or CIDR block")))?;
        let base = base_url(&environment.expand(&def.base_url)?).map_err(field("base_url"))?;
        guard.check(&base).map_err(|refused| field("base_url")(refused.to_string()))?;
        let once = effect == Effect::Once;
        let body = def.body.as_ref().map(Body::parse).transpose().map_err(field("body"))?;
        let mut body_is_secret = false;
        if let Some(body) = &body {
            body.templates(&mut |template| body_is_secret |= template.secrets().next().is_some());
        }
        Ok(Self {
            method: Method::from_bytes(def.method.as_bytes()).map_err(|_| field("method")(def.method.clone()))?,
            base,
            path: Template::parse(&def.path).map_err(field("path"))?,
            query: parse_all("query", &def.query)?,
            headers: headers(def)?,
            defaults: defaults(def, environment)?,
            body,
            body_is_secret,
            secrets: def.secrets.clone(),
            environment: environment.clone(),
            idempotency_header: def
                .idempotency_header
                .as_deref()
                .map(header_name)
                .transpose()
                .map_err(field("idempotency_header"))?,
            redirects_max: if once { 0 } else { def.redirects_max },
            rules: rules(def, effect),
            sign_in: def.oauth2.as_ref().map(|oauth2| OAuth2::new(oauth2, environment, &guard)).transpose()?,
            client: clients.get(guard, once).map_err(|why| DeclarationError::Machine(format!("http: {why}")))?,
            tokens: clients.tokens(),
            once,
        })
    }

    #[must_use]
    pub fn missing_secret(&self) -> Option<&str> {
        self.secrets.iter().find(|(_, secret)| self.environment.lacks(secret)).map(|(name, _)| name.as_str())
    }

    fn request(&self, context: &CallContext, values: &Values<'_>) -> Result<Request, String> {
        let mut request = Request {
            method: self.method.clone(),
            url: self.url(values)?,
            headers: HeaderMap::new(),
            body: self.body.as_ref().map(|body| body.render(values)).transpose()?.flatten().map(Bytes::from),
            body_is_secret: self.body_is_secret,
        };
        request.headers.insert(header::ACCEPT, HeaderValue::from_static("application/json, text/*;q=0.8, */*;q=0.5"));
        if request.body.is_some() {
            request.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        if let Some(name) = &self.idempotency_header {
            request.headers.insert(name.clone(), header_value(name, &context.idempotency_key)?);
        }
        for (name, template) in &self.headers {
            if let Some(text) = template.render(values, TemplatePosition::Header)? {
                let mut value = header_value(name, &text)?;
                value.set_sensitive(template.secrets().next().is_some());
                request.headers.insert(name.clone(), value);
            }
        }
        Ok(request)
    }

    fn url(&self, values: &Values<'_>) -> Result<Url, String> {
        let path = self.path.render(values, TemplatePosition::Path)?.ok_or("An argument of the address is null.")?;
        let mut text = format!("{}{path}", self.base.as_str().trim_end_matches('/'));
        let mut separator = '?';
        for (name, template) in &self.query {
            if let Some(value) = template.render(values, TemplatePosition::Query)? {
                text.push_str(&format!("{separator}{}={value}", percent::percent_encoded(name, "")));
                separator = '&';
            }
        }
        let url = Url::parse(&text).map_err(|_| "The arguments result in an invalid URL.".to_owned())?;
        // The encoding above prevents a change of the address. This check is a second protection, in case the encoding
        // has a bug.
        let segments = |text: &str| text.matches('/').count();
        let expected = segments(self.base.path().trim_end_matches('/')) + segments(&path);
        if url.origin() != self.base.origin() || segments(url.path()) != expected {
            return Err("The arguments would change the address.".to_owned());
        }
        Ok(url)
    }
}

#[async_trait]
impl Handler for HttpTool {
    fn validate(&self, arguments: &RawValue) -> Result<(), String> {
        let mut without =
            self.defaults.iter().filter(|(_, default)| default.is_none()).map(|(name, _)| name).peekable();
        if without.peek().is_none() {
            return Ok(());
        }
        let given: Arguments = serde_json::from_str(arguments.get()).unwrap_or_default();
        match without.find(|name| is_absent(&given, name)) {
            Some(name) => Err(format!("Argument '{name}' is missing, and this fleet has no default for it: give it.")),
            None => Ok(()),
        }
    }

    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        let secrets = Secrets::resolve(&self.secrets, &self.environment, Some(&context.tenant))
            .await
            .map_err(|name| ToolFailure::NotConfigured { message: format!("The secret '{name}' is missing.") })?;
        let mut arguments: Arguments = serde_json::from_str(arguments.get())
            .map_err(|_| outcome::permanent("The arguments must be a JSON object."))?;
        for (name, default) in &self.defaults {
            if let Some(default) = default.as_ref().filter(|_| is_absent(&arguments, name)) {
                arguments.insert(name.clone(), default.clone());
            }
        }
        let values = Values { arguments: &arguments, secrets: &secrets };
        let span = tracing::debug_span!(
            target: traces::TARGET, "http request", otel.kind = "client", otel.status_code = Empty,
            http.request.method = self.method.as_str(), http.response.status_code = Empty,
            server.address = self.base.host_str().unwrap_or_default(),
        );
        let answered = async {
            match &self.sign_in {
                None => {
                    let answer = self.send(context, &values, &secrets, None).await?;
                    self.rules.interpret(answer, &secrets).await
                }
                Some(sign_in) => self.signed_in(sign_in, context, &values).await,
            }
        };
        let answered = answered.instrument(span.clone()).await;
        if answered.is_err() {
            span.record("otel.status_code", "ERROR");
        }
        answered
    }
}

impl HttpTool {
    async fn send(
        &self,
        context: &CallContext,
        values: &Values<'_>,
        secrets: &Secrets,
        token: Option<&Token>,
    ) -> Result<ToolResponse, ToolFailure> {
        let mut request = self.request(context, values).map_err(outcome::permanent)?;
        if let Some(token) = token {
            // The sign-in has already checked that the token fits into a header.
            let value = HeaderValue::try_from(format!("Bearer {}", token.value.expose_secret()));
            let mut value = value.map_err(|_| outcome::permanent("The access token forms no valid header."))?;
            value.set_sensitive(true);
            request.headers.insert(header::AUTHORIZATION, value);
        }
        let sent = self.client.send(traced(request, &context.context), self.redirects_max, secrets).await;
        let answered = match sent {
            Ok(answer) => ToolResponse::from(answer),
            Err(SendError::Redirect(redirect)) => ToolResponse::from(*redirect),
            Err(SendError::Blocked(refused)) => return Err(outcome::blocked(&refused)),
            Err(SendError::NotSent { host, why }) => return Err(outcome::not_sent(&host, why)),
            Err(SendError::Lost { host, why }) => return Err(outcome::lost(&host, why)),
        };
        Span::current().record("http.response.status_code", answered.answer.status().as_u16());
        Ok(answered.for_call(&context.call))
    }

    /// If the service rejects the token, retries once with another token.
    async fn signed_in(
        &self,
        sign_in: &OAuth2,
        context: &CallContext,
        values: &Values<'_>,
    ) -> Result<ToolOutput, ToolFailure> {
        let credentials =
            || -> Result<Credentials, ToolFailure> { sign_in.credentials(values).map_err(outcome::permanent) };
        let token = self.tokens.get(&self.client, credentials()?).await?;
        let secrets = values.secrets.with_token(&token.value);
        let answer = self.send(context, values, &secrets, Some(&token)).await?;
        if !self.refuses_token(&answer) {
            return self.rules.interpret(answer, &secrets).await;
        }
        match self.tokens.replace(&self.client, credentials()?, &token).await {
            None => self.rules.interpret(answer, &secrets).await,
            Some(token) => {
                let token = token?;
                let secrets = values.secrets.with_token(&token.value);
                let answer = self.send(context, values, &secrets, Some(&token)).await?;
                self.rules.interpret(answer, &secrets).await
            }
        }
    }

    /// True if the service has rejected the token. For a `once` tool, a bare 401 is not sufficient: `invalid_token`
    /// (RFC 6750) or a declared 401 is required.
    fn refuses_token(&self, answered: &ToolResponse) -> bool {
        let answer = &answered.answer;
        let says_so = |challenge: &HeaderValue| {
            let challenge = challenge.as_bytes().to_ascii_lowercase();
            let has = |word: &[u8]| challenge.windows(word.len()).any(|part| part == word);
            challenge.starts_with(b"bearer") && has(b"invalid_token")
        };
        let ours = answer.status().as_u16() == 401 && answer.url().origin() == self.base.origin();
        let certain = self.rules.not_executed.contains(&401)
            || answer.headers().get_all(header::WWW_AUTHENTICATE).iter().any(says_so);
        ours && (!self.once || certain)
    }
}

/// Headers that the declaration sets take precedence.
fn traced(mut request: Request, context: &Context) -> Request {
    let Some(outgoing) = traces::outgoing(context) else { return request };
    let state = outgoing.tracestate.map(|state| ("tracestate", state));
    for (name, text) in [("traceparent", outgoing.traceparent)].into_iter().chain(state) {
        if let Ok(value) = HeaderValue::from_str(&text) {
            request.headers.entry(name).or_insert(value);
        }
    }
    request
}

fn is_absent(arguments: &Arguments, name: &str) -> bool {
    arguments.get(name).is_none_or(|value| value.get() == "null")
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
