//! Reads responses of services, which the fleet does not trust.

use std::error::Error;
use std::time::Duration;

use chrono::DateTime;
use reqwest::Response;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

#[derive(Debug)]
pub enum BodyError {
    TooLarge,
    Lost(reqwest::Error),
}

/// Memory use is at most `bytes_max` and one chunk.
pub async fn read_body(response: &mut Response, bytes_max: usize) -> Result<Vec<u8>, BodyError> {
    let announced = response.content_length().unwrap_or(0);
    if announced > u64::try_from(bytes_max).unwrap_or(u64::MAX) {
        return Err(BodyError::TooLarge);
    }
    let mut body = Vec::with_capacity(usize::try_from(announced).unwrap_or(0));
    while let Some(chunk) = response.chunk().await.map_err(BodyError::Lost)? {
        if body.len() + chunk.len() > bytes_max {
            return Err(BodyError::TooLarge);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// A date is compared with the response's own `Date`, because the local clock may be wrong.
#[must_use]
pub fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let date = |text: &str| DateTime::parse_from_rfc2822(text).ok();
    let after = text(RETRY_AFTER)?;
    if let Ok(seconds) = after.parse::<f64>() {
        // A number that is too large means a very long wait, not no wait.
        return Duration::try_from_secs_f64(seconds.min(f64::from(u32::MAX))).ok();
    }
    let wait = date(after)?.signed_duration_since(date(text(DATE)?)?);
    Some(wait.to_std().unwrap_or(Duration::ZERO))
}

/// Estimates the number of values in JSON: at least half of the actual number. Parsed values take far more memory than
/// their text.
#[must_use]
pub fn json_values(json: &[u8]) -> usize {
    let mut values = 1;
    let mut in_text = false;
    let mut escaped = false;
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            b',' | b':' | b'[' | b'{' if !in_text => values += 1,
            _ => {}
        }
    }
    values
}

/// Searches an error and its sources.
#[must_use]
pub fn find_source<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(this) = next {
        if let Some(found) = this.downcast_ref::<T>() {
            return Some(found);
        }
        next = this.source();
    }
    None
}
