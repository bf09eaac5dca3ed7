//! Sends records to an OpenTelemetry collector with OTLP over HTTP. OpenTelemetry's own log exporter is not used,
//! because it does not report accepted batches and rejected records.

use std::collections::BTreeSet;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsServiceRequest, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Content;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs, SeverityNumber};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use reqwest::{StatusCode, Url, header};
use tickfleet_client::audit::{LogBatch, LogItem};
use tickfleet_model::Outcome;
use tickfleet_proof::lines::Header;
use tickfleet_proof::seal::EntryId;
use tickfleet_protocol::{AuditAction, AuditEntry};

use super::batch_text::SendError;

const TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: usize = 64 << 10;

pub(super) struct Collector {
    url: Url,
    client: reqwest::Client,
    headers: header::HeaderMap,
    begun: bool,
}

impl Collector {
    /// `given` is the value of `OTEL_EXPORTER_OTLP_HEADERS`. The error does not contain header values.
    pub(super) fn new(base: &str, given: &str) -> Result<Self, String> {
        let url = Url::parse(&format!("{base}/v1/logs")).map_err(|error| format!("invalid URL: {error}"))?;
        // The operator chooses the collector, so any host is allowed.
        let host: BTreeSet<String> = url.host_str().map(ToOwned::to_owned).into_iter().collect();
        let client = tickfleet_outbound::client_for(url.as_str(), &host, TIMEOUT)?;
        Ok(Self { url, client, headers: headers(given)?, begun: false })
    }

    pub(super) const fn is_new(&self) -> bool {
        !self.begun
    }

    pub(super) async fn send(&mut self, header: &Header, batch: &LogBatch) -> Result<u64, SendError> {
        self.begun = true;
        let records: Vec<LogRecord> = batch.items.iter().map(|item| record(&header.fleet, batch.shard, item)).collect();
        if records.is_empty() {
            return Ok(0);
        }
        match self.post(header, records.clone()).await? {
            CollectorResponse::Accepted { refused } => Ok(refused),
            // Send the records one by one, so that an invalid record does not affect the others.
            CollectorResponse::Refused(_) => {
                let mut refused = 0;
                for record in records {
                    let uid = uid_of(&record);
                    match self.post(header, vec![record]).await? {
                        CollectorResponse::Accepted { refused: here } => refused += here,
                        CollectorResponse::Refused(why) => {
                            tracing::error!(record = uid, why, "collector rejected an audit record");
                            refused += 1;
                        }
                    }
                }
                Ok(refused)
            }
        }
    }

    async fn post(&self, header: &Header, records: Vec<LogRecord>) -> Result<CollectorResponse, SendError> {
        let body = request(&header.fleet, records).encode_to_vec();
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).timeout(TIMEOUT);
        let request = request.header(header::CONTENT_TYPE, "application/x-protobuf").body(body);
        let answer = request.send().await.map_err(|error| match error {
            error if error.is_connect() => SendError::again(tickfleet_outbound::connect_failure(&error)),
            error => SendError::again(error.without_url()),
        })?;
        let status = answer.status();
        let wait = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let body = answer.bytes().await.map_err(|error| SendError::again(error.without_url()))?;
        let body = &body[..body.len().min(ANSWER_BYTES_MAX)];
        match status {
            _ if status.is_success() => Ok(CollectorResponse::Accepted { refused: refused(body) }),
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => {
                Ok(CollectorResponse::Refused(status.to_string()))
            }
            // The fault is in the address, in the headers or in the collector, not in the records, so send them again.
            _ => Err(SendError::Again {
                why: format!("the collector returned {status}"),
                wait: wait.map(Duration::from_secs),
            }),
        }
    }
}

enum CollectorResponse {
    /// The collector accepted the batch, except for this number of records.
    Accepted { refused: u64 },
    /// The rejection is permanent. The text is the reason.
    Refused(String),
}

/// Returns and logs the number of rejected records. Rejected records must not be sent again.
fn refused(body: &[u8]) -> u64 {
    let Ok(answer) = ExportLogsServiceResponse::decode(body) else { return 0 };
    let Some(partial) = answer.partial_success else { return 0 };
    if partial.rejected_log_records > 0 || !partial.error_message.is_empty() {
        let records = partial.rejected_log_records;
        let why = partial.error_message;
        tracing::error!(records, why, "collector accepted only part of an audit batch");
    }
    partial.rejected_log_records.max(0).unsigned_abs()
}

/// Takes `name=value,name=value` with percent-encoded values, as OpenTelemetry specifies.
fn headers(text: &str) -> Result<header::HeaderMap, String> {
    let mut headers = header::HeaderMap::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let bad = || "OTEL_EXPORTER_OTLP_HEADERS: expected NAME=VALUE,NAME=VALUE".to_owned();
        let (name, value) = part.split_once('=').ok_or_else(bad)?;
        let name = header::HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| bad())?;
        let mut value = header::HeaderValue::from_bytes(&decoded(value.trim())).map_err(|_| bad())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

fn decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut plain = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let code =
            bytes.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match code.filter(|_| *byte == b'%') {
            Some(code) => {
                plain.push(code);
                at += 3;
            }
            None => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    plain
}

fn request(fleet: &str, log_records: Vec<LogRecord>) -> ExportLogsServiceRequest {
    let resource = Resource {
        attributes: vec![
            text("service.name", "tickfleet"),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("tickfleet.fleet", fleet),
        ],
        ..Resource::default()
    };
    let scope = InstrumentationScope { name: "tickfleet.audit".to_owned(), ..InstrumentationScope::default() };
    let scope_logs = vec![ScopeLogs { scope: Some(scope), log_records, schema_url: String::new() }];
    ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs { resource: Some(resource), scope_logs, schema_url: String::new() }],
    }
}

/// The body is the entry's text in the log. Common search terms are also attributes.
fn record(fleet: &str, shard: u32, item: &LogItem) -> LogRecord {
    let (id, event, body, level) = match item {
        LogItem::Entry(entry) => (entry.id.as_str(), "tickfleet.audit", entry.text.clone(), SeverityNumber::Info),
        LogItem::Seal(seal) => (seal.id.as_str(), "tickfleet.audit.seal", item.line(shard), SeverityNumber::Info),
        LogItem::Lost(lost) => (lost.after.as_str(), "tickfleet.audit.lost", item.line(shard), SeverityNumber::Error),
    };
    let kind = event.rsplit('.').next().unwrap_or_default();
    let mut record = LogRecord {
        time_unix_nano: id.parse::<EntryId>().map_or(0, |id| id.ms.saturating_mul(1_000_000)),
        event_name: event.to_owned(),
        severity_number: level as i32,
        attributes: vec![
            // Receivers recognize repeated records by their equal `uid`.
            text("log.record.uid", &format!("{fleet}/{shard}/{kind}/{id}")),
            text("tickfleet.shard", &shard.to_string()),
            text("tickfleet.audit.id", id),
        ],
        body: Some(AnyValue { value: Some(Content::StringValue(body)) }),
        ..LogRecord::default()
    };
    if let LogItem::Entry(entry) = item {
        describe(&mut record, &entry.text, &entry.admitted);
    }
    record.severity_text =
        if record.severity_number == SeverityNumber::Error as i32 { "ERROR" } else { "INFO" }.to_owned();
    record
}

fn describe(record: &mut LogRecord, entry: &str, admitted: &str) {
    let entry = AuditEntry::read(entry).unwrap_or_default();
    if entry.level == "error" {
        record.severity_number = SeverityNumber::Error as i32;
    }
    for (name, value) in [
        ("tickfleet.tenant", entry.tenant()),
        ("tickfleet.action", entry.action.map_or("", AuditAction::as_str)),
        ("tickfleet.actor", &entry.actor_id),
        ("tickfleet.tool", &entry.entity_id),
        ("tickfleet.call", &entry.meta.call),
        ("tickfleet.outcome", entry.meta.outcome.map_or("", Outcome::as_str)),
    ] {
        record.attributes.extend((!value.is_empty()).then(|| text(name, value)));
    }
    if !admitted.is_empty() {
        record.attributes.push(text("tickfleet.admitted", admitted));
    }
}

fn uid_of(record: &LogRecord) -> String {
    let uid = record.attributes.first().and_then(|uid| uid.value.as_ref()?.value.as_ref());
    match uid {
        Some(Content::StringValue(uid)) => uid.clone(),
        _ => String::new(),
    }
}

fn text(name: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(Content::StringValue(value.to_owned())) });
    KeyValue { key: name.to_owned(), value, ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn headers_use_the_opentelemetry_format() {
        let read = headers("Authorization=Basic%20YWJj, x-tenant = a%zz").unwrap();
        assert_eq!((read["authorization"].as_bytes(), read["x-tenant"].as_bytes()), (&b"Basic YWJj"[..], &b"a%zz"[..]));
        assert!(read["authorization"].is_sensitive());
        assert!(headers("").unwrap().is_empty());
        let error = headers("secret").unwrap_err();
        assert!(!error.contains("secret"), "{error}");
    }
}
