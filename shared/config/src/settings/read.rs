//! Reads [`Settings`] from the merged tree.

mod seal;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::document::errors::{ConfigLocation, Errors};
use crate::document::reader::{Cursor, Section};
use crate::document::tree::{Node, Value};
use crate::document::units::format_duration;
use crate::settings::redis_url::RedisUrl;
use crate::settings::*;
use seal::seal;
use tickfleet_model::retry::RetryDelays;
use tickfleet_model::{DayCapAction, Durability, Priorities, Priority, day, limits};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const YEAR: Duration = Duration::from_secs(366 * 86_400);
const LEASE_MIN: Duration = Duration::from_millis(limits::LEASE_MS_MIN);
const LEASE_MAX: Duration = Duration::from_millis(limits::LEASE_MS_MAX);

/// The number of hash slots of a Redis Cluster.
const SHARDS_MAX: i128 = 16_384;
const RUNGS_MAX: usize = 16;

pub(crate) fn settings(tree: &Node, errors: &Errors) -> Option<Settings> {
    let before = errors.len();
    let mut root = Section::open(tree, "", errors);
    let mut section = |name: &'static str| root.required(name).map(|cursor| cursor.section());
    let settings = Settings {
        redis: redis(section("redis")?),
        caps: caps(section("caps")?),
        worker: worker(section("worker")?),
        scheduler: scheduler(section("scheduler")?),
        retention: retention(section("retention")?),
        queues: queues(section("queues")?),
        audit: audit(section("audit")?),
        seal: seal(section("seal")?),
        fairness: fairness(section("fairness")?),
        loops: loops(section("loops")?),
        permission: permission(section("permission")?),
        http: http(section("http")?),
        log: log(section("log")?),
        tracing: tracing(section("tracing")?),
    };
    root.close();
    // An unreadable setting has a placeholder, which must not be compared.
    if errors.len() == before {
        relate(&settings, tree, errors);
    }
    Some(settings)
}

fn redis(mut s: Section<'_>) -> RedisSettings {
    let url = s.required("url").and_then(|c| redis_url(&c)).unwrap_or_else(RedisUrl::stand_in);
    let redis = RedisSettings {
        url: s.required("tls_ca").and_then(|c| with_authority(&url, &c)).unwrap_or(url),
        namespace: s.required("namespace").and_then(|c| namespace(&c)).unwrap_or_default(),
        shards: integer(&mut s, "shards", 1, SHARDS_MAX),
        pool_size: integer(&mut s, "pool_size", 1, 1_000),
    };
    s.close();
    redis
}

/// An invalid URL can contain a password, so the error does not show it.
fn redis_url(cursor: &Cursor<'_>) -> Option<RedisUrl> {
    let url = cursor.text().and_then(RedisUrl::new);
    if url.is_none() {
        let expected = "a URL such as redis://host:6379/0, rediss://user:password@host/0, unix:///path, \
                        redis+sentinel://host1,host2,host3/name or redis+cluster://host1,host2,host3";
        cursor.errors.push(&cursor.node.place, &cursor.path, "something else (not shown)", expected);
    }
    url
}

fn with_authority(url: &RedisUrl, cursor: &Cursor<'_>) -> Option<RedisUrl> {
    let file = cursor.text()?;
    if file.is_empty() {
        return None;
    }
    // The path becomes part of a URL's query.
    if file.contains(|c: char| c.is_whitespace() || matches!(c, '&' | '@' | '?' | '#')) {
        cursor.refuse("a path without blanks and & @ ? #");
        return None;
    }
    if !url.is_tls() {
        cursor.refuse("no file with this redis.url, which is without TLS; did you mean rediss://?");
        return None;
    }
    url.with_authority(file)
}

fn namespace(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.text()?;
    let sound = !text.is_empty()
        && text.len() <= limits::NAME_BYTES_MAX
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    if !sound {
        cursor.refuse(format!("1 to {} characters of A-Z a-z 0-9 _ . -", limits::NAME_BYTES_MAX));
    }
    sound.then(|| text.to_owned())
}

fn caps(mut s: Section<'_>) -> CapSettings {
    let caps = CapSettings {
        tick: duration(&mut s, "tick", 100 * MILLISECOND, HOUR),
        max_calls_per_tick: integer(&mut s, "max_calls_per_tick", 1, limits::BATCH_CALLS_MAX as i128),
        max_actions_per_day: integer(&mut s, "max_actions_per_day", 0, u32::MAX.into()),
        time_zone: s.required("time_zone").and_then(|c| time_zone(&c)).unwrap_or_default(),
        on_day_cap: choice(&mut s, "on_day_cap", &[("reject", DayCapAction::Reject), ("defer", DayCapAction::Defer)]),
    };
    s.close();
    caps
}

pub(crate) fn time_zone(cursor: &Cursor<'_>) -> Option<String> {
    let name = cursor.text()?;
    match day::zone(name) {
        Ok(_) => Some(name.to_owned()),
        Err(unknown) => {
            cursor.refuse_with("an IANA time zone such as UTC or America/New_York", unknown.suggestion);
            None
        }
    }
}

const WITHOUT_SANDBOX: [(&str, WithoutSandbox); 2] =
    [("refuse_start", WithoutSandbox::RefuseStart), ("refuse_calls", WithoutSandbox::RefuseCalls)];

fn worker(mut s: Section<'_>) -> WorkerSettings {
    let worker = WorkerSettings {
        slots: integer(&mut s, "slots", 1, 10_000),
        lease: duration(&mut s, "lease", LEASE_MIN, LEASE_MAX),
        drain: duration(&mut s, "drain", SECOND, HOUR),
        priorities: s.required("priorities").and_then(|c| priorities(&c)).unwrap_or_default(),
        tool_timeout: duration(&mut s, "tool_timeout", MILLISECOND, HOUR),
        retry_delays: s.required("retry_delays").map(|c| retry_delays(&c)).unwrap_or_default(),
        allow_dynamic_registration: boolean(&mut s, "allow_dynamic_registration"),
        workspaces: s.required("workspaces").and_then(|c| folder(&c)).unwrap_or_default(),
        workspace_ttl: duration(&mut s, "workspace_ttl", MINUTE, 365 * 24 * HOUR),
        durable: choice(&mut s, "durable", &Durability::WORDS),
        durable_wait: duration(&mut s, "durable_wait", 10 * MILLISECOND, MINUTE),
        output_bytes_max: s
            .required("output_bytes_max")
            .and_then(|c| c.size(4 << 10, limits::TURN_OUTPUT_BYTES_MAX as u64))
            .unwrap_or_default(),
        breaker_failures: integer(&mut s, "breaker_failures", 0, 1_000),
        breaker_cooldown: duration(&mut s, "breaker_cooldown", 100 * MILLISECOND, HOUR),
        without_sandbox: choice(&mut s, "without_sandbox", &WITHOUT_SANDBOX),
    };
    s.close();
    worker
}

fn folder(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.text()?;
    if !text.is_empty() && !text.starts_with('/') {
        cursor.refuse("an absolute path, or \"\"");
    }
    Some(text.to_owned())
}

fn priorities(cursor: &Cursor<'_>) -> Option<Priorities> {
    let before = cursor.errors.len();
    // `words` notes an error if the value is not a list, or if the list has duplicates.
    cursor.words();
    if cursor.errors.len() > before {
        return None;
    }
    let choices = Priority::ALL.map(|priority| (priority.as_str(), priority));
    let served = Priorities::new(cursor.items().iter().filter_map(|item| item.choice(&choices)));
    if served.is_none() && cursor.errors.len() == before {
        cursor.refuse("at least one of urgent, high, normal, low");
    }
    served
}

fn retry_delays(cursor: &Cursor<'_>) -> RetryDelays {
    let rungs = cursor.items();
    if rungs.len() > RUNGS_MAX {
        let found = format!("a list of {} waits", rungs.len());
        cursor.errors.push(&cursor.node.place, &cursor.path, found, format!("at most {RUNGS_MAX} waits"));
    }
    RetryDelays::new(rungs.iter().filter_map(|rung| rung.duration(MILLISECOND, HOUR)).collect())
}

fn scheduler(mut s: Section<'_>) -> SchedulerSettings {
    let scheduler = SchedulerSettings {
        batch: integer(&mut s, "batch", 1, limits::BATCH_ENTRIES_MAX as i128),
        tick_poll: duration(&mut s, "tick_poll", MILLISECOND, MINUTE),
        collect_every: duration(&mut s, "collect_every", 100 * MILLISECOND, 10 * MINUTE),
        reap_every: duration(&mut s, "reap_every", 10 * MILLISECOND, 10 * MINUTE),
    };
    s.close();
    scheduler
}

fn retention(mut s: Section<'_>) -> RetentionSettings {
    let retention = RetentionSettings {
        records: duration(&mut s, "records", SECOND, 30 * DAY),
        dedupe_for: duration(&mut s, "dedupe_for", SECOND, 30 * DAY),
        replies: duration(&mut s, "replies", SECOND, 30 * DAY),
        audit: duration(&mut s, "audit", SECOND, YEAR),
        audit_bytes_max: s.required("audit_bytes_max").and_then(|c| c.size(1 << 20, 1 << 40)).unwrap_or_default(),
        dead: duration(&mut s, "dead", SECOND, YEAR),
    };
    s.close();
    retention
}

fn queues(mut s: Section<'_>) -> QueueSettings {
    const MOST: i128 = 1_000_000_000;
    let queues = QueueSettings {
        turns_max: integer(&mut s, "turns_max", 1, MOST),
        turns_bytes_max: s.required("turns_bytes_max").and_then(|c| c.size(1 << 20, 1 << 40)).unwrap_or_default(),
        tenant_turns_max: integer(&mut s, "tenant_turns_max", 1, MOST),
        tenant_bytes_max: s.required("tenant_bytes_max").and_then(|c| c.size(1 << 20, 1 << 40)).unwrap_or_default(),
        tenant_ready_max: integer(&mut s, "tenant_ready_max", 1, MOST),
        inbox_unread_max: integer(&mut s, "inbox_unread_max", 1, MOST),
        inboxes_max: integer(&mut s, "inboxes_max", 1, MOST),
    };
    s.close();
    queues
}

fn audit(mut s: Section<'_>) -> AuditSettings {
    let audit = AuditSettings {
        log_tool_calls: boolean(&mut s, "log_tool_calls"),
        redact_keys: s.required("redact_keys").map(|c| c.words()).unwrap_or_default(),
        result_chars: integer(&mut s, "result_chars", 0, limits::OUTPUT_BYTES_MAX as i128),
        admissions: boolean(&mut s, "admissions"),
        policy_inputs: boolean(&mut s, "policy_inputs"),
    };
    s.close();
    audit
}

fn fairness(mut s: Section<'_>) -> FairnessSettings {
    let fairness = FairnessSettings {
        tenants: boolean(&mut s, "tenants"),
        tool_slots_percent: integer(&mut s, "tool_slots_percent", 1, 100),
    };
    s.close();
    fairness
}

fn loops(mut s: Section<'_>) -> LoopSettings {
    let loops = LoopSettings {
        warn_after: s
            .required("warn_after")
            .and_then(|c| {
                let read = c.integer(0, 1_000);
                if read == Some(1) {
                    c.refuse("0, or 2 and more: the first call repeats nothing");
                }
                read
            })
            .unwrap_or_default(),
        deny_after: integer(&mut s, "deny_after", 1, 1_000_000),
        deny_for: duration(&mut s, "deny_for", SECOND, DAY),
        reset_after: duration(&mut s, "reset_after", SECOND, DAY),
        except: s.required("except").map(|c| c.words()).unwrap_or_default(),
    };
    s.close();
    loops
}

fn permission(mut s: Section<'_>) -> PermissionSettings {
    let permission = PermissionSettings {
        strict_capabilities: boolean(&mut s, "strict_capabilities"),
        // Unknown tools are reported once the tools are known.
        disabled_tools: s.required("disabled_tools").map(|c| c.words()).unwrap_or_default(),
        trial_tools: boolean(&mut s, "trial_tools"),
        samples: boolean(&mut s, "samples"),
    };
    s.close();
    permission
}

fn http(mut s: Section<'_>) -> HttpSettings {
    let address = s.required("address").and_then(|c| {
        let address = c.text()?.parse().ok();
        if address.is_none() {
            c.refuse("an address and port such as 0.0.0.0:9090 or [::]:9090");
        }
        address
    });
    s.close();
    HttpSettings { address: address.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)) }
}

fn log(mut s: Section<'_>) -> LogSettings {
    let formats = [("pretty", LogFormat::Pretty), ("json", LogFormat::Json)];
    let format = choice(&mut s, "format", &formats);
    let level = s.required("level").and_then(|c| log_level(&c)).unwrap_or_default();
    s.close();
    LogSettings { format, level }
}

fn tracing(mut s: Section<'_>) -> TracingSettings {
    let tracing = TracingSettings {
        otlp_endpoint: s.required("otlp_endpoint").and_then(|c| endpoint(&c)).unwrap_or_default(),
        sample_ppm: s.required("sample_ratio").and_then(|c| ratio_ppm(&c)).unwrap_or_default(),
        service_name: s.required("service_name").and_then(|c| plain_name(&c)).unwrap_or_default(),
        gen_ai: boolean(&mut s, "gen_ai"),
        gen_ai_content: boolean(&mut s, "gen_ai_content"),
    };
    s.close();
    tracing
}

fn endpoint(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.text()?;
    let sound = text.is_empty() || text.starts_with("http://") || text.starts_with("https://");
    if !sound {
        cursor.refuse("a URL such as http://otel-collector:4318, or nothing");
    }
    sound.then(|| text.to_owned())
}

/// Rejects line breaks, because lists show the name on one line.
fn plain_name(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.some_text()?;
    let sound = text.len() <= limits::NAME_BYTES_MAX && !text.contains(char::is_control);
    if !sound {
        cursor.refuse(format!("a name of at most {} bytes, without control characters", limits::NAME_BYTES_MAX));
    }
    sound.then_some(text)
}

fn ratio_ppm(cursor: &Cursor<'_>) -> Option<u32> {
    let ratio = match &cursor.node.value {
        Value::Integer(0) => Some(0.0),
        Value::Integer(1) => Some(1.0),
        Value::Float(ratio) => Some(*ratio),
        Value::Text(text) => text.parse().ok(),
        _ => None,
    };
    let ratio = ratio.filter(|ratio: &f64| (0.0..=1.0).contains(ratio));
    if ratio.is_none() {
        cursor.refuse("a share from 0 to 1, such as 0.1");
    }
    // The cast is lossless: the value is at most a million.
    ratio.map(|ratio| (ratio * 1_000_000.0).round() as u32)
}

/// A single word must be a level. Otherwise the filter would take a misspelled level for a module name, and log
/// everything of that module.
fn log_level(cursor: &Cursor<'_>) -> Option<String> {
    const LEVELS: [(&str, ()); 6] =
        [("off", ()), ("error", ()), ("warn", ()), ("info", ()), ("debug", ()), ("trace", ())];
    let text = cursor.text()?;
    if !text.contains(['=', ',', '[']) {
        cursor.choice(&LEVELS)?;
    } else if let Err(error) = tracing_subscriber::EnvFilter::builder().parse(text) {
        cursor.refuse(format!("log directives such as info,tickfleet_store=debug ({error})"));
        return None;
    }
    Some(text.to_owned())
}

fn relate(settings: &Settings, tree: &Node, errors: &Errors) {
    let relation = Relation { tree, errors };
    let Settings { caps, worker, scheduler, retention, queues, .. } = settings;
    let beat = worker.lease / u32::try_from(limits::BEATS_PER_LEASE).unwrap_or(1);
    let times = [
        (
            ("retention.dedupe_for", retention.dedupe_for),
            ("retention.records", retention.records),
            "a repeated id must be known for as long as its result is kept",
        ),
        (
            ("worker.drain", worker.drain),
            ("worker.lease / 4", beat),
            "a draining worker must live to its next heartbeat",
        ),
        (("caps.tick", caps.tick), ("scheduler.tick_poll", scheduler.tick_poll), "ticks would begin late"),
        (
            ("worker.lease", worker.lease),
            ("scheduler.reap_every", scheduler.reap_every),
            "dead workers would be found late",
        ),
    ];
    for ((large, is), (small, floor), why) in times {
        relation.at_least(large, is >= floor, format_duration(is), (small, format_duration(floor)), why);
    }
    let counts = [
        (("queues.turns_max", queues.turns_max), ("queues.tenant_turns_max", queues.tenant_turns_max)),
        (("queues.tenant_turns_max", queues.tenant_turns_max), ("queues.tenant_ready_max", queues.tenant_ready_max)),
    ];
    for ((large, is), (small, floor)) in counts {
        let why = "the narrower bound would never be reached";
        relation.at_least(large, is >= floor, is.to_string(), (small, floor.to_string()), why);
    }
}

struct Relation<'a> {
    tree: &'a Node,
    errors: &'a Errors,
}

impl Relation<'_> {
    /// Reports the error at `small` if `large` has its default value.
    fn at_least(&self, large: &str, holds: bool, is: String, (small, floor): (&str, String), why: &str) {
        if holds {
            return;
        }
        let other = small.split(' ').next().unwrap_or_default();
        let (at, path, found, bound, than) = match (self.place(large), self.place(other)) {
            (Some(place), Some(cause)) if place.is_built_in() => (cause, other, floor, "at most", (large, is)),
            (Some(place), _) => (place, large, is, "at least", (small, floor)),
            (None, _) => return,
        };
        self.errors.push(at, path, found, format!("{bound} {} ({}): {why}", than.0, than.1));
    }

    fn place(&self, path: &str) -> Option<&ConfigLocation> {
        path.split('.').try_fold(self.tree, |node, field| node.get(field)).map(|node| &node.place)
    }
}

fn duration(s: &mut Section<'_>, field: &'static str, min: Duration, max: Duration) -> Duration {
    s.required(field).and_then(|cursor| cursor.duration(min, max)).unwrap_or_default()
}

fn integer<T: TryFrom<i128> + Default>(s: &mut Section<'_>, field: &'static str, min: i128, max: i128) -> T {
    s.required(field).and_then(|cursor| cursor.integer(min, max)).unwrap_or_default()
}

fn boolean(s: &mut Section<'_>, field: &'static str) -> bool {
    s.required(field).and_then(|cursor| cursor.boolean()).unwrap_or_default()
}

fn choice<T: Copy + Default>(s: &mut Section<'_>, field: &'static str, choices: &[(&'static str, T)]) -> T {
    s.required(field).and_then(|cursor| cursor.choice(choices)).unwrap_or_default()
}
