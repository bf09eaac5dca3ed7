//! `tickfleet approvals notify`: sends webhooks about approvals. Events that are not sent yet are pending in a consumer
//! group of each tenant's stream. Each event is sent at least once, always with the same ID.

mod sign;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use futures::StreamExt as _;
use reqwest::{Url, header};
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_config::SealKey;
use tickfleet_config::units::parse_duration;
use tickfleet_model::hidden::visible;
use tickfleet_model::redaction::string_end;
use tickfleet_model::{ConsumerId, TenantId};
use tickfleet_ops::metrics::{Metrics, NotificationResult, ProcessRole};
use tickfleet_ops::progress::{LoopHandle, Progress};
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::{Follower, Notice, Notices, Store, StoreError, incarnation};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::fleet::serve_probes;
use crate::setup::{Setup, now_ms as wall_ms};
use sign::Keys;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Waits in seconds between attempts to send one event. The last wait repeats.
const RETRY_WAITS_S: [u64; 5] = [1, 5, 30, 120, 300];
const TIMEOUT: Duration = Duration::from_secs(10);
const CONCURRENT_MAX: usize = 8;
/// Events between two renewals of the lease. If the receiver hangs, a batch takes 20 s. This time must stay below the
/// lease, or another process with the same name would send the same events.
const BATCH: usize = 2 * CONCURRENT_MAX;
/// One query reads `TENANTS` tenants, with `NOTICES` events each. If `NOTICES` events of a tenant fail, its later
/// events wait.
const TENANTS: usize = 50;
const NOTICES: usize = 100;
/// After this time (ms) without a renewal, another process with the same name takes over.
const LEASE_MS: u64 = 30_000;
const GAP_MAX: Duration = Duration::from_secs(300);
/// The use of an approval is not sent, because it concerns only the worker and the call.
const EVENTS: [&str; 6] = ["asked", "agreed", "approved", "denied", "expired", "void"];

/// Send a webhook for every requested and decided approval, until SIGTERM.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tickfleet approvals notify --to https://hooks.example.com/approvals --secret file:/etc/tickfleet/webhook.secret

Each POST request has the headers webhook-id, webhook-timestamp and webhook-signature of Standard Webhooks.")]
pub(super) struct Notify {
    /// URL that receives the POST requests.
    #[arg(long, value_name = "URL")]
    to: Url,
    /// Place of the signing secret: env:NAME or file:/PATH. Two secrets in it both sign.
    #[arg(long, value_name = "PLACE", value_parser = crate::setup::parse_secret_place)]
    secret: SealKey,
    /// Private host, host:port or CIDR block that requests can reach. Repeatable.
    #[arg(long, value_name = "HOST")]
    allow_private: Vec<String>,
    /// Name under which Redis stores the position. Only one process per name sends.
    #[arg(long, value_name = "NAME", default_value = "webhook", value_parser = crate::commands::audit::follow::name)]
    name: String,
    /// Time after which an undelivered notification is skipped.
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = duration)]
    give_up_after: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).filter(|time| !time.is_zero()).ok_or_else(|| "expected a duration such as 1h or 1d".to_owned())
}

/// Not stored in Redis: after a restart, a rejected event is sent again at once.
struct RetryState {
    tries: usize,
    next: Instant,
}

type EventName = (u32, TenantId, String);

struct Notifier<'a> {
    setup: &'a Setup,
    args: &'a Notify,
    stores: Vec<Store>,
    client: reqwest::Client,
    keys: Keys,
    process: ConsumerId,
    metrics: Arc<Metrics>,
    waiting: BTreeMap<EventName, RetryState>,
    /// Events that were sent, but are not acknowledged in Redis yet.
    sent: BTreeSet<EventName>,
}

enum SendResult {
    Sent,
    /// The event is acknowledged like a sent event.
    Skipped,
    Retry(Option<Duration>),
}

pub(super) async fn run(setup: &Setup, args: &Notify) -> Result<(), Failure> {
    let traces = setup.start_log()?;
    let failed = |why: String| Failure::failed(anyhow::anyhow!(why));
    let keys =
        Keys::read(&setup.secret("--secret", &args.secret)?).map_err(|why| failed(format!("--secret: {why}")))?;
    let allowed: BTreeSet<String> = args.allow_private.iter().cloned().collect();
    let client = tickfleet_outbound::client_for(args.to.as_str(), &allowed, TIMEOUT);
    let client = client.map_err(|why| failed(format!("--to: {why}")))?;
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    let metrics = Arc::new(Metrics::of(ProcessRole::Exporter).map_err(Failure::failed)?);
    let stores: Vec<Store> = setup.stores()?.into_iter().map(|store| store.observed_by(metrics.clone())).collect();
    let progress = Progress::default();
    let stopped = CancellationToken::new();
    let address = serve_probes(setup, &metrics, &progress, &stores, &stopped).await?;
    let process = incarnation("teller", &setup.name());
    let waiting = BTreeMap::new();
    let sent = BTreeSet::new();
    let mut notifier = Notifier { setup, args, stores, client, keys, process, metrics, waiting, sent };
    let host = args.to.host_str().unwrap_or_default();
    tracing::info!(to = host, health = %address, redis = %setup.shown_url(), "started");
    let handle = progress.register("notify", GAP_MAX);
    while !shutdown.draining.is_cancelled() {
        for shard in 0..notifier.stores.len() {
            if let Err(error) = notifier.shard(shard, &handle, &shutdown.draining).await {
                tracing::warn!(%error, shard, "failed to read approval events; retrying");
            }
        }
        handle.advanced();
        let _ = shutdown.draining.run_until_cancelled(tokio::time::sleep(POLL_INTERVAL)).await;
    }
    // Acknowledge the last events, so that the next process does not send them again.
    for shard in 0..notifier.stores.len() {
        let _ = notifier.note(shard).await;
    }
    handle.finished();
    stopped.cancel();
    tracing::info!("stopped");
    if let Some(traces) = traces {
        traces.flush().await;
    }
    Ok(())
}

impl Notifier<'_> {
    /// Includes tenants set at run time.
    async fn tenants(&self, store: &Store) -> Result<Vec<TenantId>, StoreError> {
        let mut tenants: BTreeSet<TenantId> = store.run_time_config().await?.tenants.into_keys().collect();
        tenants.extend(self.setup.active().load().policy.tenants.keys().cloned());
        Ok(tenants.into_iter().filter(|tenant| store.is_home_of(tenant)).collect())
    }

    async fn shard(
        &mut self,
        shard: usize,
        handle: &LoopHandle,
        draining: &CancellationToken,
    ) -> Result<(), StoreError> {
        let store = self.stores[shard].clone();
        let tenants = self.tenants(&store).await?;
        self.waiting.retain(|(number, tenant, _), _| *number != store.shard() || tenants.contains(tenant));
        for some in tenants.chunks(TENANTS) {
            let asked: Vec<(TenantId, Vec<String>)> =
                some.iter().map(|tenant| (tenant.clone(), self.sent_to(store.shard(), tenant))).collect();
            let Notices::Found { now_ms, of } = store.notices(self.follower(), NOTICES, &asked).await? else {
                self.drop_shard(store.shard());
                return Ok(());
            };
            for (tenant, ids) in asked {
                for id in ids {
                    self.sent.remove(&(store.shard(), tenant.clone(), id));
                }
            }
            let mut due = self.due(store.shard(), some.iter().cloned().zip(of).collect());
            while !due.is_empty() {
                let later = due.split_off(due.len().min(BATCH));
                self.send_due(now_ms, due).await;
                due = later;
                handle.advanced();
                if !self.note(shard).await? {
                    self.drop_shard(store.shard());
                    return Ok(());
                }
                if draining.is_cancelled() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Use this when another process has the lease of the shard.
    fn drop_shard(&mut self, shard: u32) {
        self.waiting.retain(|(number, ..), _| *number != shard);
    }

    /// Renews the lease and acknowledges the sent events. False if this process has lost the lease.
    async fn note(&mut self, shard: usize) -> Result<bool, StoreError> {
        let store = self.stores[shard].clone();
        let of_shard: BTreeSet<TenantId> = self
            .sent
            .iter()
            .filter(|(number, ..)| *number == store.shard())
            .map(|(_, tenant, _)| tenant.clone())
            .collect();
        let asked: Vec<(TenantId, Vec<String>)> = of_shard
            .into_iter()
            .map(|tenant| {
                let ids = self.sent_to(store.shard(), &tenant);
                (tenant, ids)
            })
            .collect();
        if asked.is_empty() {
            return Ok(matches!(store.notices(self.follower(), 1, &[]).await?, Notices::Found { .. }));
        }
        for some in asked.chunks(TENANTS) {
            let Notices::Found { .. } = store.notices(self.follower(), 1, some).await? else { return Ok(false) };
            for (tenant, ids) in some {
                for id in ids {
                    self.sent.remove(&(store.shard(), tenant.clone(), id.clone()));
                }
            }
        }
        Ok(true)
    }

    fn follower(&self) -> Follower<'_> {
        Follower { name: &self.args.name, process: &self.process, lease_ms: LEASE_MS }
    }

    fn sent_to(&self, shard: u32, tenant: &TenantId) -> Vec<String> {
        let of = |(number, whose, _): &&EventName| *number == shard && whose == tenant;
        self.sent.iter().filter(of).map(|(_, _, id)| id.clone()).collect()
    }

    fn due(&self, shard: u32, found: Vec<(TenantId, Vec<Notice>)>) -> Vec<(EventName, Notice)> {
        let all = found.into_iter().flat_map(|(tenant, notices)| {
            notices.into_iter().map(move |notice| ((shard, tenant.clone(), notice.id.clone()), notice))
        });
        all.filter(|(name, _)| !self.sent.contains(name))
            .filter(|(name, _)| self.waiting.get(name).is_none_or(|waiting| waiting.next <= Instant::now()))
            .collect()
    }

    async fn send_due(&mut self, now_ms: i64, due: Vec<(EventName, Notice)>) {
        let this = &*self;
        let posts = due.into_iter().map(|(name, notice)| async move {
            let result = this.post(&name, &notice, now_ms).await;
            (name, result)
        });
        let results: Vec<(EventName, SendResult)> =
            futures::stream::iter(posts).buffer_unordered(CONCURRENT_MAX).collect().await;
        for (name, result) in results {
            match result {
                SendResult::Sent | SendResult::Skipped => {
                    self.waiting.remove(&name);
                    self.sent.insert(name);
                }
                SendResult::Retry(wait) => {
                    let tries = self.waiting.get(&name).map_or(0, |waiting| waiting.tries);
                    let own = Duration::from_secs(RETRY_WAITS_S[tries.min(RETRY_WAITS_S.len() - 1)]);
                    let next = Instant::now() + wait.map_or(own, |wait| wait.clamp(own, Duration::from_secs(300)));
                    self.waiting.insert(name, RetryState { tries: tries + 1, next });
                }
            }
        }
    }

    async fn post(&self, (shard, tenant, entry): &EventName, notice: &Notice, now_ms: i64) -> SendResult {
        let Some(event) = notice.fields.get("event") else {
            tracing::error!(%tenant, entry, "approval event trimmed before delivery");
            self.metrics.notification_sent(NotificationResult::GivenUp);
            return SendResult::Skipped;
        };
        if !EVENTS.contains(&event.as_str()) {
            return SendResult::Skipped;
        }
        let id = format!("{}.{shard}.{tenant}.{entry}", self.setup.settings().redis.namespace);
        let age_ms = age_ms(entry, &notice.fields, now_ms, wall_ms());
        if Duration::from_millis(age_ms) > self.args.give_up_after {
            tracing::error!(id, event, "approval event not delivered in time; giving up");
            self.metrics.notification_sent(NotificationResult::GivenUp);
            return SendResult::Skipped;
        }
        let body = message(tenant, event, &notice.fields);
        // Receivers compare the timestamp with their own clocks. Shard time can stay ahead of them, so use wall time.
        let timestamp_s = wall_ms() / 1_000;
        let url = self.args.to.clone();
        let request = self
            .client
            .post(url)
            .timeout(TIMEOUT)
            .header(header::CONTENT_TYPE, "application/json")
            .header("webhook-id", &id)
            .header("webhook-timestamp", timestamp_s)
            .header("webhook-signature", self.keys.sign(&id, timestamp_s, &body));
        let (why, wait) = match request.body(body).send().await {
            Ok(answer) if answer.status().is_success() => {
                self.metrics.notification_sent(NotificationResult::Taken);
                return SendResult::Sent;
            }
            Ok(answer) => {
                let wait =
                    answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
                (answer.status().to_string(), wait.map(Duration::from_secs))
            }
            Err(error) if error.is_connect() => (tickfleet_outbound::connect_failure(&error).to_owned(), None),
            Err(error) => (error.without_url().to_string(), None),
        };
        self.metrics.notification_sent(NotificationResult::Failed);
        tracing::warn!(id, event, why, "receiver did not accept an approval event; retrying");
        SendResult::Retry(wait)
    }
}

/// Shard time or Redis' clock may be ahead, so the smaller of both ages counts.
fn age_ms(entry: &str, fields: &BTreeMap<String, String>, now_ms: i64, wall_ms: i64) -> u64 {
    let number = |text: &str| text.parse::<i64>().ok();
    let by_shard = fields.get("at_ms").and_then(|text| number(text)).map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
    let by_redis = entry.split('-').next().and_then(number).map_or(0, |ms| wall_ms.saturating_sub(ms));
    by_shard.min(by_redis).max(0).unsigned_abs()
}

/// Arguments are as in the stream: without secrets, and cut if they are long. Numbers keep all digits. Invisible
/// characters are escaped twice, so that they stay visible when a receiver displays the text.
fn message(tenant: &TenantId, event: &str, fields: &BTreeMap<String, String>) -> String {
    let text = |name: &str| fields.get(name).filter(|text| !text.is_empty());
    let time = |text: &String| Some(rfc3339(text.parse().ok()?));
    let quoted = |text: &str| Value::from(&*visible(text)).to_string();
    let mut data = vec![("tenant", quoted(tenant.as_str())), ("event", quoted(event))];
    let approval = text("approval").map_or_else(|| "null".to_owned(), |id| quoted(&format!("{tenant}:{id}")));
    data.push(("approval", approval));
    for name in ["call", "agent", "tool", "version", "by", "reason"] {
        data.extend(text(name).map(|value| (name, quoted(value))));
    }
    for name in ["arguments", "why", "missing", "changed"] {
        let json = |text: &String| match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => visible_in_strings(text),
            Err(_) => quoted(text),
        };
        data.extend(text(name).map(|value| (name, json(value))));
    }
    if text("arguments").is_some() {
        let exact = text("abridged").is_none();
        data.push(("arguments_exact", exact.to_string()));
        let all = text("approval").filter(|_| !exact);
        data.extend(all.map(|id| ("arguments_at", quoted(&format!("/v1/operate/approvals/{tenant}:{id}")))));
    }
    data.extend(text("until_ms").and_then(time).map(|until| ("until", quoted(&until))));
    if fields.values().any(|text| visible(text) != text.as_str() || visible_in_strings(text) != *text) {
        data.push(("hidden_characters", "true".to_owned()));
    }
    let data: Vec<String> = data.into_iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
    let at = text("at_ms").and_then(time).map_or_else(|| "null".to_owned(), |at| quoted(&at));
    format!("{{\"type\":{},\"timestamp\":{at},\"data\":{{{}}}}}", quoted(&format!("approval.{event}")), data.join(","))
}

/// Numbers keep all digits.
fn visible_in_strings(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    let mut rest = json;
    while let Some((before, from)) = rest.find('"').map(|at| rest.split_at(at)) {
        shown.push_str(before);
        let (quoted, after) = from.split_at(string_end(from.as_bytes(), 0));
        let text = serde_json::from_str::<String>(quoted).unwrap_or_default();
        match visible(&text) {
            Cow::Owned(text) => shown.push_str(&Value::from(text).to_string()),
            _ => shown.push_str(quoted),
        }
        rest = after;
    }
    shown + rest
}

fn rfc3339(ms: i64) -> String {
    let time = chrono::DateTime::from_timestamp_millis(ms).unwrap_or_default();
    time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

#[cfg(test)]
mod tests {
    use tickfleet_model::hidden::is_hidden;

    use super::*;

    #[test]
    fn a_message_keeps_every_digit_and_escapes_hidden_characters() {
        let fields = |arguments: &str| {
            let fields = [("approval", "apr-1"), ("tool", "pay"), ("arguments", arguments), ("at_ms", "1000")];
            fields.map(|(name, value)| (name.to_owned(), value.to_owned())).into_iter().collect::<BTreeMap<_, _>>()
        };
        let tenant = TenantId::new("acme").unwrap();
        let plain = message(&tenant, "asked", &fields(r#"{"amount":12345678901234567890.10,"to":"kim \\\"x\\\""}"#));
        assert!(plain.contains(r#""arguments":{"amount":12345678901234567890.10,"to":"kim \\\"x\\\""}"#), "{plain}");
        assert!(serde_json::from_str::<Value>(&plain).unwrap()["data"].get("hidden_characters").is_none(), "{plain}");
        assert!(plain.contains(r#""arguments_exact":true"#) && !plain.contains("arguments_at"), "{plain}");
        let mut abridged = fields(r#"{"to":"[REDACTED]"}"#);
        abridged.insert("abridged".to_owned(), "1".to_owned());
        let abridged: Value = serde_json::from_str(&message(&tenant, "asked", &abridged)).unwrap();
        assert_eq!(abridged["data"]["arguments_exact"], false, "{abridged}");
        assert_eq!(abridged["data"]["arguments_at"], "/v1/operate/approvals/acme:apr-1", "{abridged}");
        for hidden in ["\u{202e}001", "\\u202e001", "\u{e0041}", "\\udb40\\udc41"] {
            let text = message(&tenant, "asked", &fields(&format!(r#"{{"to":"kim {hidden}"}}"#)));
            let read: Value = serde_json::from_str(&text).unwrap();
            assert!(!read["data"]["arguments"]["to"].as_str().unwrap().contains(is_hidden), "{text}");
            assert_eq!(read["data"]["hidden_characters"], true, "{text}");
        }
    }

    #[test]
    fn an_events_age_uses_the_clock_that_did_not_jump() {
        const DAY: i64 = 86_400_000;
        let at = |ms: i64| BTreeMap::from([("at_ms".to_owned(), ms.to_string())]);
        for (entry, at_ms, now_ms, wall_ms, age) in [
            ("1000-0", 1_000, 4_000, 4_000, 3_000),
            // Shard time is permanently ahead.
            ("1000-0", 1_000 + DAY, 4_000 + DAY, 4_000, 3_000),
            // Shard time jumped ahead after the event, or Redis' clock was ahead when the event happened.
            ("1000-0", 1_000, 4_000 + DAY, 4_000, 3_000),
            ("86401000-0", 1_000 + DAY, 4_000 + DAY, 4_000, 0),
            ("1000-0", 1_000, 4_000 + DAY, 4_000 + DAY, DAY + 3_000),
        ] {
            assert_eq!(age_ms(entry, &at(at_ms), now_ms, wall_ms), age.unsigned_abs(), "{entry} {at_ms} {now_ms}");
        }
        assert_eq!(age_ms("x", &BTreeMap::new(), 9, 9), 0);
    }
}
