//! Embeddings of texts from any endpoint that implements OpenAI's `/embeddings`.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tickfleet_model::limits;
use tickfleet_outbound::{BodyError, client_for, read_body};
use tickfleet_tools::Environment;
use tokio::time::Instant;

const OPENAI: &str = "https://api.openai.com/v1";
pub(crate) const TEXTS_MAX: usize = 64;
/// Enough for `TEXTS_MAX` vectors of the maximum length, with all digits.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// After a failure, questions do not call the endpoint for this time, and so do not wait for another failure.
const REST: Duration = Duration::from_secs(15);
/// The largest number of a vector is scaled to this value.
const LARGEST: f32 = 127.0;

/// The endpoint's key is never printed.
#[derive(Debug)]
pub struct Embedder {
    url: String,
    key: Option<SecretString>,
    model: String,
    client: reqwest::Client,
    rests_until: Mutex<Option<Instant>>,
}

#[derive(Serialize)]
struct EmbeddingRequest<'a> {
    model: &'a str,
    input: &'a [String],
    encoding_format: &'a str,
}

#[derive(Deserialize)]
struct EmbeddingResponse {
    data: Vec<Embedding>,
}

#[derive(Deserialize)]
struct Embedding {
    index: usize,
    embedding: Vec<f32>,
}

impl Embedder {
    /// `None` if `EMBEDDINGS_MODEL` is not set. `OPENAI_API_KEY` is never sent to `EMBEDDINGS_BASE_URL`.
    pub fn from_environment(environment: &Environment) -> Result<Option<Self>, String> {
        let value = |name: &str| environment.get(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        let Some(model) = value("EMBEDDINGS_MODEL") else { return Ok(None) };
        if model.len() > limits::DOCUMENT_NAME_BYTES_MAX || model.chars().any(char::is_control) {
            return Err("EMBEDDINGS_MODEL: expected the name of a model".to_owned());
        }
        let own = value("EMBEDDINGS_BASE_URL");
        let (base, key) = match own {
            Some(base) => (base, value("EMBEDDINGS_API_KEY")),
            None => (
                value("OPENAI_BASE_URL").unwrap_or_else(|| OPENAI.to_owned()),
                value("EMBEDDINGS_API_KEY").or_else(|| value("OPENAI_API_KEY")),
            ),
        };
        let allowed = value("TICKFLEET_ALLOW_PRIVATE").unwrap_or_default();
        let allowed: BTreeSet<String> = allowed.split(',').map(|entry| entry.trim().to_owned()).collect();
        let allowed = allowed.into_iter().filter(|entry| !entry.is_empty()).collect();
        let url = format!("{}/embeddings", base.trim_end_matches('/'));
        let client = client_for(&url, &allowed, CONNECT_TIMEOUT);
        let client = client.map_err(|why| format!("the embeddings endpoint (EMBEDDINGS_BASE_URL): {why}"))?;
        Ok(Some(Self { url, key: key.map(SecretString::from), model, client, rests_until: Mutex::default() }))
    }

    #[must_use]
    pub fn model(&self) -> &str {
        &self.model
    }

    pub(crate) async fn embed_query(&self, question: &str, timeout: Duration) -> Result<Vec<i8>, String> {
        if self.rests_until.lock().is_some_and(|until| Instant::now() < until) {
            return Err("the embeddings endpoint failed recently and is not called yet".to_owned());
        }
        let text = [clean(question)];
        let answer = self.embed_texts(&text, timeout).await;
        *self.rests_until.lock() = answer.is_err().then(|| Instant::now() + REST);
        answer?.pop().ok_or_else(|| "the endpoint returned no vector".to_owned())
    }

    /// Takes at most [`TEXTS_MAX`] texts. All vectors have the same length.
    pub(crate) async fn embed_texts(&self, texts: &[String], timeout: Duration) -> Result<Vec<Vec<i8>>, String> {
        let response = tokio::time::timeout(timeout, self.request(texts));
        let body = response.await.map_err(|_| format!("no answer within {} ms", timeout.as_millis()))??;
        let answer: EmbeddingResponse =
            serde_json::from_slice(&body).map_err(|_| "the response is not a list of embeddings")?;
        let mut vectors: Vec<Option<Vec<i8>>> = vec![None; texts.len()];
        for Embedding { index, embedding } in answer.data {
            let place = vectors.get_mut(index).ok_or("the response has more embeddings than texts")?;
            *place = Some(in_bytes(&embedding)?);
        }
        let vectors: Option<Vec<Vec<i8>>> = vectors.into_iter().collect();
        let vectors = vectors.ok_or("the response has fewer embeddings than texts")?;
        if vectors.windows(2).any(|pair| pair[0].len() != pair[1].len()) {
            return Err("the embeddings have different lengths".to_owned());
        }
        Ok(vectors)
    }

    async fn request(&self, texts: &[String]) -> Result<Vec<u8>, String> {
        let question = EmbeddingRequest { model: &self.model, input: texts, encoding_format: "float" };
        let body = serde_json::to_vec(&question).map_err(|error| error.to_string())?;
        let mut request = self.client.post(&self.url).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(key) = &self.key {
            let value = HeaderValue::from_str(&format!("Bearer {}", key.expose_secret()));
            let mut value = value.map_err(|_| "the API key contains invalid characters")?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        // The HTTP client's own message contains the address, which may contain secrets.
        let mut response = request.send().await.map_err(|error| match error {
            error if error.is_connect() => {
                format!("the endpoint cannot be reached: {}", tickfleet_outbound::connect_failure(&error))
            }
            _ => "the connection ended before the response".to_owned(),
        })?;
        if !response.status().is_success() {
            return Err(format!("the endpoint returned status {}", response.status().as_u16()));
        }
        read_body(&mut response, ANSWER_BYTES_MAX).await.map_err(|error| match error {
            BodyError::TooLarge => format!("the response has more than {ANSWER_BYTES_MAX} bytes"),
            BodyError::Lost(_) => "the connection ended within the response".to_owned(),
        })
    }
}

/// Replaces control characters and empty text, because endpoints reject them.
pub(crate) fn clean(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.trim().is_empty() { "-".to_owned() } else { text }
}

/// One byte for each number is a quarter of the size. Only the direction of a vector matters, and scaling preserves it.
fn in_bytes(vector: &[f32]) -> Result<Vec<i8>, String> {
    if vector.is_empty() || vector.len() > limits::EMBEDDING_NUMBERS_MAX {
        return Err(format!("an embedding has {} numbers; at most {}", vector.len(), limits::EMBEDDING_NUMBERS_MAX));
    }
    let largest = vector.iter().fold(0.0_f32, |largest, number| largest.max(number.abs()));
    if !largest.is_finite() || largest == 0.0 || vector.iter().any(|number| !number.is_finite()) {
        return Err("an embedding contains values that are not finite numbers".to_owned());
    }
    Ok(vector.iter().map(|number| (number / largest * LARGEST).round() as i8).collect())
}

/// From -1 to 1, or 0 if the vectors cannot be compared.
pub(crate) fn cosine_similarity(a: &[i8], b: &[i8]) -> f32 {
    if a.len() != b.len() {
        return 0.0;
    }
    let mut both = 0_i64;
    let mut of_a = 0_i64;
    let mut of_b = 0_i64;
    for (a, b) in a.iter().zip(b) {
        let a = i64::from(*a);
        let b = i64::from(*b);
        both += a * b;
        of_a += a * a;
        of_b += b * b;
    }
    let lengths = (of_a as f64).sqrt() * (of_b as f64).sqrt();
    if lengths == 0.0 { 0.0 } else { (both as f64 / lengths) as f32 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn byte_quantization_preserves_cosine_similarity() {
        let vector: Vec<f32> = (0..384).map(|i| (i as f32 * 0.37).sin() / 20.0).collect();
        let other: Vec<f32> = (0..384).map(|i| (i as f32 * 0.37 + 1.0).sin() * 3.0).collect();
        let exact: f32 = vector.iter().zip(&other).map(|(a, b)| a * b).sum::<f32>()
            / (vector.iter().map(|a| a * a).sum::<f32>().sqrt() * other.iter().map(|b| b * b).sum::<f32>().sqrt());
        let short = in_bytes(&vector).unwrap();
        let other = in_bytes(&other).unwrap();
        assert!((cosine_similarity(&short, &other) - exact).abs() < 0.01);
        assert!((cosine_similarity(&short, &short) - 1.0).abs() < 1e-6);
        assert_eq!(cosine_similarity(&short, &short[1..]), 0.0);
        for bad in [&[][..], &[0.0], &[f32::NAN, 1.0], &[f32::INFINITY]] {
            assert!(in_bytes(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_api_key_is_never_sent_to_another_endpoint() {
        tickfleet_outbound::install_crypto_provider();
        let of = |variables: &[(&str, &str)]| Embedder::from_environment(&Environment::of(variables.to_vec()));
        let key = |embedder: &Embedder| embedder.key.as_ref().map(|key| key.expose_secret().to_owned());
        assert!(of(&[("OPENAI_API_KEY", "k"), ("OPENAI_BASE_URL", "https://a.example/v1")]).unwrap().is_none());
        let openai = of(&[("EMBEDDINGS_MODEL", "m"), ("OPENAI_API_KEY", "k")]).unwrap().unwrap();
        assert_eq!((openai.url.as_str(), key(&openai)), ("https://api.openai.com/v1/embeddings", Some("k".into())));
        let other = [("EMBEDDINGS_MODEL", "m"), ("OPENAI_API_KEY", "k"), ("EMBEDDINGS_BASE_URL", "https://b.example/")];
        let other = of(&other).unwrap().unwrap();
        assert_eq!((other.url.as_str(), key(&other)), ("https://b.example/embeddings", None));
        let private = [("EMBEDDINGS_MODEL", "m"), ("EMBEDDINGS_BASE_URL", "http://127.0.0.1:9/v1")];
        assert!(of(&private).unwrap_err().contains("allow_private"));
    }
}
