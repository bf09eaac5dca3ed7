//! Observes dispatched and running calls without the fleet's counters.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::State;
use futures::StreamExt as _;
use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::course::{Call, LIMITS, Limit, PlannedTurn};

const TAKES: Duration = Duration::from_millis(25);

/// (number, start, end) of each call.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<Vec<(usize, Instant, Instant)>>>);

pub(super) struct Service {
    ledger: Ledger,
    pub(super) address: String,
}

/// Dropping this value records the end of the call, even if the client has disconnected.
struct RunningCall(Ledger, usize, Instant);

impl Drop for RunningCall {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().push((self.1, self.2, Instant::now()));
    }
}

async fn serve(State(ledger): State<Ledger>, Json(body): Json<Value>) -> Json<Value> {
    let number = body["number"].as_u64().unwrap();
    let _running = RunningCall(ledger, usize::try_from(number).unwrap(), Instant::now());
    // Each call takes some time, so that calls overlap.
    tokio::time::sleep(TAKES).await;
    Json(json!({"number": number}))
}

impl Service {
    pub(super) async fn start() -> Self {
        let ledger = Ledger::default();
        let router = Router::new().fallback(serve).with_state(ledger.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { ledger, address }
    }

    pub(super) fn judge(&self, made: &[PlannedTurn]) {
        let by_number: HashMap<usize, (&PlannedTurn, &Call)> =
            made.iter().flat_map(|turn| turn.calls.iter().map(move |call| (call.number, (turn, call)))).collect();
        let ledger = self.ledger.0.lock().unwrap();
        for limit in LIMITS.iter().filter(|limit| limit.window_ms.is_none()) {
            let mut steps: BTreeMap<String, Vec<(Instant, i64)>> = BTreeMap::new();
            for (number, from, to) in ledger.iter() {
                let (turn, call) = by_number[number];
                if let Some((counter, _)) = (limit.debits)(turn, call) {
                    steps.entry(counter).or_default().extend([(*from, 1), (*to, -1)]);
                }
            }
            let most = steps.into_iter().map(|(counter, steps)| (at_once(steps), counter)).max().unwrap();
            eprintln!("{}: {} ran at once at most, of {}", limit.name, most.0, limit.max);
            assert!(most.0 <= i64::try_from(limit.max).unwrap(), "{}: {most:?}", limit.name);
        }
        assert!(ledger.len() >= by_number.len());
    }
}

/// Returns the highest number of overlapping calls. Calls do not overlap if one ends at the instant at which another
/// begins.
fn at_once(mut steps: Vec<(Instant, i64)>) -> i64 {
    steps.sort_unstable();
    let mut running = 0;
    steps
        .iter()
        .map(|(_, step)| {
            running += step;
            running
        })
        .max()
        .unwrap_or(0)
}

pub(super) struct Witness {
    reader: JoinHandle<Vec<Slice>>,
    stop: tokio::sync::oneshot::Sender<()>,
}

/// `at_ms` is the start of the script by Redis' clock.
struct Slice {
    at_ms: i64,
    turn: String,
    calls: std::ops::Range<usize>,
}

impl Witness {
    pub(super) async fn of(server: &RedisServer) -> Self {
        let monitor = redis::Client::open(server.url()).unwrap().get_async_monitor().await.unwrap();
        let mut lines = monitor.into_on_message::<String>();
        let (stop, mut stopped) = tokio::sync::oneshot::channel();
        let reader = tokio::spawn(async move {
            let mut slices = Vec::new();
            let mut script_ms = 0;
            loop {
                tokio::select! {
                    line = lines.next() => {
                        let line = line.unwrap_or_default();
                        // Each script reads the time first, and uses this time for all decisions.
                        script_ms = time_of_script(&line).unwrap_or(script_ms);
                        slices.extend(Slice::read(&line, script_ms));
                    }
                    _ = &mut stopped => return slices,
                }
            }
        });
        Self { reader, stop }
    }

    pub(super) async fn judge(self, made: &[PlannedTurn]) {
        self.stop.send(()).unwrap();
        let slices = self.reader.await.unwrap();
        let by_id: HashMap<&str, &PlannedTurn> = made.iter().map(|turn| (turn.id.as_str(), turn)).collect();
        let mut seen = BTreeSet::new();
        let mut out: Vec<(i64, &PlannedTurn, &Call)> = Vec::new();
        for slice in &slices {
            let turn = by_id[slice.turn.as_str()];
            // A call that was already dispatched in an earlier slice debits nothing again.
            let fresh = turn.calls[slice.calls.clone()].iter().filter(|call| seen.insert(call.number));
            out.extend(fresh.map(|call| (slice.at_ms, turn, call)));
        }
        assert_eq!(out.len(), made.iter().map(|turn| turn.calls.len()).sum::<usize>(), "calls that went out");
        LIMITS.iter().for_each(|limit| judge(limit, &out));
    }
}

/// The windows of each counter begin at a different offset.
fn judge(limit: &Limit, out: &[(i64, &PlannedTurn, &Call)]) {
    let Some(window_ms) = limit.window_ms else { return };
    let mut counters: BTreeMap<String, Vec<(i64, u64)>> = BTreeMap::new();
    for (at_ms, turn, call) in out {
        if let Some((counter, amount)) = (limit.debits)(turn, call) {
            counters.entry(counter).or_default().push((*at_ms, amount));
        }
    }
    let fullest = counters.iter().map(|(counter, debits)| (least(debits, window_ms), counter)).max().unwrap();
    eprintln!("{}: {} in a window at most, of {}", limit.name, fullest.0, limit.max);
    assert!(fullest.0 <= limit.max, "{}: {fullest:?}", limit.name);
}

/// The offset of the windows is unknown, so the lowest result of all offsets counts.
fn least(debits: &[(i64, u64)], window_ms: i64) -> u64 {
    let offsets: BTreeSet<i64> = debits.iter().map(|(at_ms, _)| at_ms.rem_euclid(window_ms)).collect();
    let fullest = |offset: &i64| {
        let mut windows: HashMap<i64, u64> = HashMap::new();
        debits.iter().for_each(|(at_ms, amount)| {
            *windows.entry((at_ms - offset).div_euclid(window_ms)).or_default() += amount;
        });
        windows.into_values().max().unwrap_or(0)
    };
    offsets.iter().map(fullest).min().unwrap_or(0)
}

impl Slice {
    /// `<s.µs> [<db> lua] "XADD" "<key>" "*" "<field>" "<value>"…`
    fn read(line: &str, at_ms: i64) -> Option<Self> {
        let (_, command) = line.split_once("] \"XADD\" \"")?;
        let (key, fields) = command.split_once("\" \"*\" ")?;
        if !key.contains(":ready:") {
            return None;
        }
        let words = words(fields);
        let value = |name: &str| words.chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
        // Redis escapes quotes and backslashes in the same way as JSON.
        let record: String = serde_json::from_str(&format!("\"{}\"", value("r")?)).unwrap();
        // The schema number precedes the JSON.
        let record: Value = serde_json::from_str(record.trim_start_matches(|c: char| c.is_ascii_digit())).unwrap();
        let first = record["p"].as_u64().map_or(0, |first| usize::try_from(first).unwrap());
        let calls = words.chunks(2).filter(|pair| pair[0] == "c").count();
        let turn = value("t")?.strip_prefix("demo:")?.to_owned();
        Some(Self { at_ms, turn, calls: first..first + calls })
    }
}

/// In ms. `None` if the line shows another command.
fn time_of_script(line: &str) -> Option<i64> {
    let time = line.strip_suffix("lua] \"TIME\"")?.split(' ').next()?;
    Some((time.parse::<f64>().ok()? * 1_000.0) as i64)
}

fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut begun = None;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match (byte, begun) {
            _ if escaped => escaped = false,
            (b'\\', Some(_)) => escaped = true,
            (b'"', None) => begun = Some(at + 1),
            (b'"', Some(from)) => {
                words.push(&text[from..at]);
                begun = None;
            }
            _ => {}
        }
    }
    words
}
