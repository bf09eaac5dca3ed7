//! One provider: sends a request over HTTP, reads the answer within a bound, and classifies failures.

use std::collections::BTreeSet;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use tickfleet_model::limits;
use tickfleet_model::redaction::Redactor;
use tickfleet_outbound::{
    Blocked, BodyError, client_for, connect_failure, find_source, json_values, read_body, retry_after,
};

use crate::breaker::ProviderBreaker;
use crate::error::{ModelError, ModelFailure};
use crate::message::{CALLS_MAX, ModelAnswer, ModelRequest, REQUEST_BYTES_MAX};
use crate::planner;
use crate::rate::used_up;
use crate::wire::{EncodedRequest, ProviderApi};

const ANSWER_BYTES_MAX: usize = 4 * 1024 * 1024;
const REFUSAL_BYTES_MAX: usize = 16 * 1024;
const DETAIL_CHARS_MAX: usize = 300;
/// Includes DNS resolution and the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// `Debug` never prints the key.
#[derive(Debug, Clone)]
pub struct ProviderSettings {
    pub name: String,
    pub api: ProviderApi,
    /// Without the path that the API format adds, for example `https://api.openai.com/v1`.
    pub base_url: String,
    /// `None` if the server needs no key.
    pub key: Option<SecretString>,
    pub model: String,
    /// If false, the prompt describes the tools, and the model writes calls as text.
    pub function_calling: bool,
    /// Permitted private addresses: hosts, `host:port` pairs or blocks of addresses.
    pub allow_private: BTreeSet<String>,
    pub timeout: Duration,
}

#[derive(Debug)]
pub struct Provider {
    settings: ProviderSettings,
    client: reqwest::Client,
    pub(crate) breaker: ProviderBreaker,
}

impl Provider {
    /// The error message never contains the key.
    pub fn new(mut settings: ProviderSettings) -> Result<Self, String> {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':' | b'/' | b'@');
        if settings.model.is_empty() || settings.model.contains("..") || !settings.model.bytes().all(plain) {
            return Err(format!("model {:?}: expected letters, digits and . _ - : / @", settings.model));
        }
        settings.base_url.truncate(settings.base_url.trim_end_matches('/').len());
        let client = client_for(&settings.base_url, &settings.allow_private, CONNECT_TIMEOUT)?;
        Ok(Self { settings, client, breaker: ProviderBreaker::default() })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    pub(crate) fn described(&self) -> (&'static str, &str) {
        let of = match self.settings.api {
            ProviderApi::OpenAi | ProviderApi::Responses => "openai",
            ProviderApi::Anthropic => "anthropic",
            ProviderApi::Gemini => "gcp.gemini",
        };
        (of, &self.settings.model)
    }

    pub(crate) async fn ask(&self, request: &ModelRequest) -> Result<ModelAnswer, ModelError> {
        let plain_text = (!self.settings.function_calling).then(|| planner::as_plain_text(request));
        let written = self.settings.api.write(
            plain_text.as_ref().unwrap_or(request),
            &self.settings.model,
            &self.settings.base_url,
        );
        let written = written.map_err(|_| self.error(ModelFailure::BadRequest, "the request cannot be written"))?;
        if written.body.len() > REQUEST_BYTES_MAX {
            let detail = format!("the request has {} bytes: at most {REQUEST_BYTES_MAX}", written.body.len());
            return Err(self.error(ModelFailure::BadRequest, &detail));
        }
        let asked = tokio::time::timeout(self.settings.timeout, self.send(written));
        let body =
            asked.await.map_err(|_| self.error(ModelFailure::Timeout, "the response was not complete in time"))??;
        let answer = self.settings.api.read(request, &body).map_err(|why| self.error(ModelFailure::Malformed, &why))?;
        let answer = if plain_text.is_some() { planner::parse_calls(request, answer) } else { answer };
        if answer.calls.len() > CALLS_MAX {
            return Err(self.error(ModelFailure::Malformed, &format!("the response has more than {CALLS_MAX} calls")));
        }
        Ok(answer)
    }

    async fn send(&self, written: EncodedRequest) -> Result<Vec<u8>, ModelError> {
        let url = format!("{}{}", self.settings.base_url, written.path);
        let mut builder = self.client.post(url).header(CONTENT_TYPE, "application/json").body(written.body);
        for (name, value) in written.headers {
            builder = builder.header(*name, *value);
        }
        if let Some(key) = &self.settings.key {
            let value = HeaderValue::from_str(&format!("{}{}", written.key.1, key.expose_secret()));
            let mut value =
                value.map_err(|_| self.error(ModelFailure::Unauthorized, "the API key contains invalid characters"))?;
            value.set_sensitive(true);
            builder = builder.header(written.key.0, value);
        }
        let mut response = builder.send().await.map_err(|error| self.unsent(&error))?;
        if !response.status().is_success() {
            let status = response.status().as_u16();
            let body = read_body(&mut response, REFUSAL_BYTES_MAX).await.unwrap_or_default();
            return Err(self.refused(status, response.headers(), &body));
        }
        if let Some(rest) = used_up(response.headers()) {
            self.breaker.pause(rest);
        }
        let body = read_body(&mut response, ANSWER_BYTES_MAX).await.map_err(|error| match error {
            BodyError::TooLarge => {
                self.error(ModelFailure::TooLarge, &format!("the response has more than {ANSWER_BYTES_MAX} bytes"))
            }
            BodyError::Lost(_) => {
                self.error(ModelFailure::Disconnected, "the connection ended before the complete response")
            }
        })?;
        if json_values(&body) > limits::JSON_VALUES_MAX {
            let detail = format!("the response has more than {} values", limits::JSON_VALUES_MAX);
            return Err(self.error(ModelFailure::TooLarge, &detail));
        }
        Ok(body)
    }

    fn unsent(&self, error: &reqwest::Error) -> ModelError {
        if let Some(blocked) = find_source::<Blocked>(error) {
            return self.error(ModelFailure::Blocked, &blocked.to_string());
        }
        match error {
            e if e.is_timeout() => self.error(ModelFailure::Timeout, "connection timed out"),
            e if e.is_connect() => {
                let why = format!("connection failed: {}", connect_failure(e));
                ModelError { may_have_run: false, ..self.error(ModelFailure::Disconnected, &why) }
            }
            _ => self.error(ModelFailure::Disconnected, "the connection ended before the response"),
        }
    }

    fn refused(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> ModelError {
        let json: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        let detail = |member: &str| json["error"][member].as_str().unwrap_or_default();
        let spent = detail("code") == "insufficient_quota"
            || detail("type") == "insufficient_quota"
            || detail("type") == "billing_error"
            || detail("message").contains("credit balance is too low");
        let failure = match status {
            402 => ModelFailure::QuotaSpent,
            400 | 403 | 429 if spent => ModelFailure::QuotaSpent,
            429 => ModelFailure::RateLimited,
            401 | 403 => ModelFailure::Unauthorized,
            404 => ModelFailure::NotFound,
            408 | 409 | 500.. => ModelFailure::Unavailable,
            _ => ModelFailure::BadRequest,
        };
        let mut error = self.error(failure, &format!("status {status}: {}", detail("message")));
        error.retry_after = wait_asked(headers).or_else(|| retry_delay(&json));
        error
    }

    /// Redacts `detail`, because a provider's message can repeat the key or other secrets.
    fn error(&self, failure: ModelFailure, detail: &str) -> ModelError {
        let key = self.settings.key.as_ref().map(ExposeSecret::expose_secret).filter(|key| !key.is_empty());
        let detail = key.map_or_else(|| detail.to_owned(), |key| detail.replace(key, "[REDACTED]"));
        let detail = Redactor::new::<&str>([]).text(&detail).chars().take(DETAIL_CHARS_MAX).collect();
        let may_have_run = matches!(
            failure,
            ModelFailure::Timeout | ModelFailure::Disconnected | ModelFailure::TooLarge | ModelFailure::Malformed
        );
        ModelError { provider: self.settings.name.clone(), failure, detail, retry_after: None, may_have_run }
    }
}

fn wait_asked(headers: &HeaderMap) -> Option<Duration> {
    let ms = headers.get("retry-after-ms").and_then(|value| value.to_str().ok()?.trim().parse::<f64>().ok());
    match ms {
        Some(ms) => Duration::try_from_secs_f64(ms / 1_000.0).ok(),
        None => retry_after(headers),
    }
}

/// Google's `RetryInfo` contains, for example, `"retryDelay": "13s"`.
fn retry_delay(refusal: &serde_json::Value) -> Option<Duration> {
    let details = refusal["error"]["details"].as_array()?;
    let delay = details.iter().find_map(|detail| detail["retryDelay"].as_str())?;
    Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
}
