//! The process passes on the trace context of a producer. If an endpoint is configured, the process also exports its
//! own spans as OTLP over HTTP. Without an endpoint, spans cost almost nothing, because their level is not enabled.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider as _,
};
use opentelemetry::{Context as OtelContext, KeyValue};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::runtime::Tokio;
use opentelemetry_sdk::trace::span_processor_with_async_runtime::BatchSpanProcessor;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::LookupSpan;

use tickfleet_model::Context;

/// No other spans or events use this target.
pub const TARGET: &str = "tickfleet::span";

const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum wait for the export of the last spans at the end of a process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

static EXPORTING: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Clone, PartialEq)]
pub struct TraceOptions {
    /// Base URL, such as `http://otel-collector:4318`. Spans are posted to `/v1/traces` below this URL.
    pub endpoint: String,
    /// Sampled share of new traces, from 0 to 1. The producer decides about its own traces.
    pub sample_ratio: f64,
    /// `service.name` of the spans.
    pub service_name: String,
}

#[derive(Debug, thiserror::Error)]
#[error("spans cannot be exported to {endpoint}: {why}")]
pub struct TracesError {
    pub endpoint: String,
    pub why: String,
}

#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// Must be called inside a tokio runtime. If the collector rejects spans, the spans are dropped and the loss is
    /// logged.
    pub fn new(options: &TraceOptions) -> Result<Self, TracesError> {
        let endpoint = format!("{}/v1/traces", options.endpoint.trim_end_matches('/'));
        let fail = |why: String| TracesError { endpoint: endpoint.clone(), why };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(&endpoint)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|error| fail(error.to_string()))?;
        let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(options.sample_ratio)));
        let resource = Resource::builder()
            .with_service_name(options.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(BatchSpanProcessor::builder(exporter, Tokio).build())
            .with_sampler(sampler)
            .with_resource(resource)
            .build();
        Ok(Self { provider })
    }

    pub(super) fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        let ours = Targets::new().with_target(TARGET, LevelFilter::DEBUG);
        let layer = tracing_opentelemetry::layer().with_tracer(self.provider.tracer("tickfleet"));
        layer.with_tracked_inactivity(false).with_threads(false).with_location(false).with_filter(ours)
    }

    pub(super) fn started(&self) {
        EXPORTING.store(true, Ordering::Relaxed);
    }

    pub async fn flush(self) {
        let provider = self.provider;
        let flushed = tokio::task::spawn_blocking(move || provider.shutdown());
        match tokio::time::timeout(FLUSH_TIMEOUT, flushed).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "failed to export the last spans"),
            Ok(Err(error)) => tracing::error!(%error, "span export panicked"),
            Err(_) => tracing::warn!("timed out exporting the last spans"),
        }
    }
}

/// Sent to other services as the headers `traceparent` and `tracestate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The parent is the current span or, if spans are not exported, the producer's span.
    pub traceparent: String,
    pub tracestate: Option<String>,
}

/// Makes the producer's span the parent of `span`. Has no effect if spans are not exported, or if `traceparent` is
/// absent or invalid.
pub fn follow(span: &Span, traceparent: Option<&str>, tracestate: Option<&str>) {
    if span.is_disabled() || !EXPORTING.load(Ordering::Relaxed) {
        return;
    }
    if let Some(remote) = traceparent.and_then(|parent| remote(parent, tracestate)) {
        // `set_parent` fails only for a span that has begun. Such a span already has a parent.
        let _ = span.set_parent(OtelContext::new().with_remote_span_context(remote));
    }
}

/// `None` if spans are not exported.
#[must_use]
pub fn traceparent(span: &Span) -> Option<String> {
    if span.is_disabled() || !EXPORTING.load(Ordering::Relaxed) {
        return None;
    }
    let context = span.context();
    let context = context.span().span_context().clone();
    let flags = context.trace_flags().to_u8();
    context.is_valid().then(|| format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id()))
}

/// If spans are not exported, the producer's trace context is used.
#[must_use]
pub fn outgoing(context: &Context) -> Option<TraceContext> {
    let traceparent = traceparent(&Span::current()).or_else(|| context.traceparent.clone())?;
    Some(TraceContext { traceparent, tracestate: context.tracestate.clone() })
}

/// `None` if the context is invalid, although its format was checked on arrival.
fn remote(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
    let mut parts = traceparent.split('-').skip(1);
    let trace = TraceId::from_hex(parts.next()?).ok()?;
    let span = SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(parts.next()?, 16).ok()?) & TraceFlags::SAMPLED;
    let state = tracestate.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    Some(SpanContext::new(trace, span, flags, true, state)).filter(SpanContext::is_valid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_remote_span_is_parsed_with_its_trace_state() {
        let span = remote(PARENT, Some("vendor=x,other=y")).unwrap();
        assert_eq!(span.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(span.span_id().to_string(), "00f067aa0ba902b7");
        assert!(span.is_sampled() && span.is_remote());
        assert_eq!(span.trace_state().header(), "vendor=x,other=y");
        assert!(!remote(&PARENT.replace("-01", "-00"), None).unwrap().is_sampled());
        assert!(remote(PARENT, Some("no state")).is_some(), "a broken state costs only itself");
        assert_eq!(remote("00-0-0-01", None), None);
    }

    #[test]
    fn without_an_exporter_the_trace_context_passes_through_unchanged() {
        let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::debug_span!(target: TARGET, "call", tool = "x");
            assert!(span.is_disabled());
            follow(&span, Some(PARENT), None);
            let context =
                Context { traceparent: Some(PARENT.into()), tracestate: Some("vendor=x".into()), ..Context::default() };
            let sent = span.in_scope(|| outgoing(&context)).unwrap();
            assert_eq!((sent.traceparent.as_str(), sent.tracestate.as_deref()), (PARENT, Some("vendor=x")));
            assert_eq!(outgoing(&Context::default()), None);
        });
    }
}
