//! Keeps hard links to the append-only files of all servers, as evidence about caps. A server that becomes a replica
//! deletes its files, and with them writes that no other server received.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::verdict::AdmittedCall;

/// Every file exists for at least some seconds, so the witness detects every file.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// By path of the link: each length of the file, and the time when the file grew.
type Growth = Arc<Mutex<BTreeMap<PathBuf, Vec<(u64, Interval)>>>>;
/// Two times since the start of the witness.
type Interval = (Duration, Duration);

pub struct Witness {
    kept: tempfile::TempDir,
    growth: Growth,
    began: Instant,
    watching: tokio::task::JoinHandle<()>,
}

impl Witness {
    pub fn of(folders: Vec<PathBuf>) -> Self {
        let kept = tempfile::tempdir().unwrap();
        let growth = Growth::default();
        let began = Instant::now();
        let into = kept.path().to_owned();
        let grown = growth.clone();
        let watching = tokio::spawn(async move {
            let mut last = Duration::ZERO;
            loop {
                for (server, folder) in folders.iter().enumerate() {
                    keep(server, folder, &into);
                }
                let now = began.elapsed();
                measure(&into, &mut grown.lock().unwrap(), (last, now));
                last = now;
                // New files cause no event, so the folders are polled.
                tokio::time::sleep(POLL_EVERY).await;
            }
        });
        Self { kept, growth, began, watching }
    }

    pub fn since(&self, moments: &[Instant]) -> Vec<Duration> {
        moments.iter().map(|at| at.duration_since(self.began)).collect()
    }

    /// An entry counts once, even if the files of several servers contain it.
    pub fn admitted(&self) -> Vec<AdmittedCall> {
        let end = self.began.elapsed();
        let grown = self.growth.lock().unwrap();
        let mut seen = DispatchRecord::default();
        for file in fs::read_dir(self.kept.path()).unwrap() {
            let file = file.unwrap().path();
            let bytes = fs::read(&file).unwrap();
            let lengths = grown.get(&file).map_or(&[][..], Vec::as_slice);
            seen.read(commands(&bytes).into_iter().map(|(words, upto)| {
                let upto = u64::try_from(bytes.len() - upto).unwrap();
                let look = lengths.partition_point(|(length, _)| *length < upto);
                // An entry that appeared after the last check may have appeared at any time of the run.
                (words, lengths.get(look).map_or((Duration::ZERO, end), |(_, at)| *at))
            }));
        }
        seen.admitted()
    }
}

/// `between` has the times of the previous check and of this check. A stopped server writes its commands only when it
/// continues.
fn measure(kept: &Path, growth: &mut BTreeMap<PathBuf, Vec<(u64, Interval)>>, between: Interval) {
    for file in fs::read_dir(kept).into_iter().flatten().flatten() {
        let Ok(length) = file.metadata().map(|found| found.len()) else { continue };
        let lengths = growth.entry(file.path()).or_default();
        match lengths.last() {
            None => lengths.push((length, between)),
            Some((last, before)) if *last < length => {
                let since = before.0;
                lengths.push((length, (since, between.1)));
            }
            Some(_) => {}
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

fn keep(server: usize, folder: &Path, into: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(files) = fs::read_dir(folder.join("appendonlydir")) else { return };
    for file in files.flatten() {
        let is_of_commands = file.file_name().to_string_lossy().ends_with(".incr.aof");
        let Some(found) = file.metadata().ok().filter(|_| is_of_commands) else { continue };
        let name = into.join(format!("{server}-{}", found.ino()));
        if !name.exists() {
            // The link fails if another check has already linked the file, or if the server has deleted it. Between the
            // listing and the link, a server deletes only empty files.
            let _ = fs::hard_link(file.path(), name);
        }
    }
}

type Call = (String, u64);

/// `at_ms` is the time in the entry's ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct DispatchTime {
    shard_ms: u64,
    at_ms: u64,
}

#[derive(Default)]
struct DispatchRecord {
    /// Entries that debit the window of a cap. A call has several entries if the writes of an admission were lost.
    admitted: BTreeSet<(Call, DispatchTime)>,
    first: BTreeMap<Call, DispatchTime>,
    /// The primary that wrote each entry, and the earliest interval in which the entry appeared in a file.
    looks: BTreeMap<(Call, DispatchTime), (Interval, PrimaryId)>,
}

/// `None` if the file does not contain the ID before the entry. A replica's file may lack the ID.
type PrimaryId = Option<Vec<u8>>;

#[derive(Default, Clone)]
struct Shard {
    now_ms: Option<u64>,
    led: PrimaryId,
}

impl DispatchRecord {
    fn read(&mut self, commands: impl IntoIterator<Item = (CommandWords, Interval)>) {
        // A script that writes more than once has its commands between MULTI and EXEC.
        let mut sent = Vec::new();
        let mut shards: BTreeMap<Vec<u8>, Shard> = BTreeMap::new();
        for (words, look) in commands {
            match words[0].as_slice() {
                b"MULTI" => sent = Vec::new(),
                b"HSET" if words.get(1).is_some_and(|key| key.ends_with(b":meta")) => {
                    shards.entry(shard_of(&words[1]).to_owned()).or_default().hear(&words[2..]);
                }
                b"XADD" => {
                    let shard = shards.get(shard_of(&words[1])).cloned().unwrap_or_default();
                    sent.extend(slice(&words).into_iter().map(|AppendedCall { call, at_ms, admits }| {
                        let when = DispatchTime { shard_ms: shard.now_ms.unwrap_or(at_ms), at_ms };
                        (call, when, shard.led.clone(), admits)
                    }));
                }
                b"EXEC" => self.note(std::mem::take(&mut sent), look),
                _ => {}
            }
        }
    }

    fn note(&mut self, sent: Vec<(Call, DispatchTime, PrimaryId, bool)>, look: Interval) {
        for (call, when, led, admits) in sent {
            let first = self.first.entry(call.clone()).or_insert(when);
            *first = when.min(*first);
            if admits {
                self.admitted.insert((call.clone(), when));
            }
            let (earliest, known) = self.looks.entry((call, when)).or_insert((look, None));
            *earliest = look.min(*earliest);
            *known = known.take().or(led);
        }
    }

    fn admitted(mut self) -> Vec<AdmittedCall> {
        self.admitted.extend(self.first);
        let admitted = self.admitted.into_iter().map(|found| {
            let (seen, led) = self.looks[&found].clone();
            let ((turn, _), DispatchTime { shard_ms, at_ms }) = found;
            // Names of turns have the form <tenant>:<agent>-<number>.
            let turn = turn.split_once(':').map_or_else(|| turn.clone(), |(_, id)| id.to_owned());
            let agent = turn.split('-').next().unwrap_or_default().to_owned();
            AdmittedCall { agent, turn, at_ms, shard_ms, led, seen }
        });
        admitted.collect()
    }
}

fn shard_of(key: &[u8]) -> &[u8] {
    key.split_inclusive(|byte| *byte == b'}').next().unwrap_or_default()
}

impl Shard {
    /// A script writes shard time first, if it has changed. The second word of `state` is the ID of the primary.
    fn hear(&mut self, fields: &[Vec<u8>]) {
        for pair in fields.chunks_exact(2) {
            match pair[0].as_slice() {
                b"last_ms" => self.now_ms = std::str::from_utf8(&pair[1]).ok().and_then(|ms| ms.parse().ok()),
                b"state" => self.led = pair[1].split(|byte| *byte == b' ').nth(1).map(<[u8]>::to_vec),
                _ => {}
            }
        }
    }
}

struct AppendedCall {
    call: Call,
    at_ms: u64,
    admits: bool,
}

fn slice(words: &[Vec<u8>]) -> Vec<AppendedCall> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let is_slice = words.len() > 4 && words[1].windows(7).any(|part| part == b":ready:");
    let Some(id) = words.iter().position(|word| is_entry_id(word)).filter(|_| is_slice) else { return Vec::new() };
    let at_ms = text(words[id].split(|b| *b == b'-').next().unwrap()).parse().unwrap();
    let mut calls = Vec::new();
    let mut turn = String::new();
    let mut position = 0;
    let mut admits = false;
    for pair in words[id + 1..].chunks_exact(2) {
        match pair[0].as_slice() {
            b"t" => turn = text(&pair[1]),
            // The value has the used amount, end and beginning of each counter, separated by colons. A permit has the
            // end 0.
            b"d" => {
                admits =
                    text(&pair[1]).split(',').any(|counter| counter.split(':').nth(1).is_some_and(|end| end != "0"))
            }
            // The value is a schema number, followed by JSON.
            b"r" => {
                let record: serde_json::Value = serde_json::from_slice(&pair[1][1..]).unwrap();
                position = record["p"].as_u64().unwrap_or(0);
            }
            b"c" => {
                calls.push(AppendedCall { call: (turn.clone(), position), at_ms, admits });
                position += 1;
            }
            _ => {}
        }
    }
    calls
}

fn is_entry_id(word: &[u8]) -> bool {
    let mut parts = word.split(|b| *b == b'-');
    let digits = |part: Option<&[u8]>| part.is_some_and(|part| !part.is_empty() && part.iter().all(u8::is_ascii_digit));
    word.len() > 13 && digits(parts.next()) && digits(parts.next()) && parts.next().is_none()
}

type CommandWords = Vec<Vec<u8>>;

/// Returns each command, with the number of bytes after it. Ignores `#` lines and a truncated last command.
fn commands(mut bytes: &[u8]) -> Vec<(CommandWords, usize)> {
    fn line<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let line = &bytes[..end];
        let rest = &bytes[end + 2..];
        *bytes = rest;
        Some(line)
    }
    fn number(line: &[u8]) -> Option<usize> {
        std::str::from_utf8(line.get(1..)?).ok()?.parse().ok()
    }
    let mut all = Vec::new();
    while let Some(head) = line(&mut bytes) {
        if head.first() != Some(&b'*') {
            continue;
        }
        let mut words = Vec::new();
        for _ in 0..number(head).unwrap_or(0) {
            let Some(length) = line(&mut bytes).and_then(number) else { return all };
            let Some(word) = bytes.get(..length) else { return all };
            words.push(word.to_vec());
            bytes = bytes.get(length + 2..).unwrap_or_default();
        }
        if !words.is_empty() {
            all.push((words, bytes.len()));
        }
    }
    all
}

#[test]
fn a_lost_admission_counts_and_a_replicated_one_counts_once() {
    let words = |text: &str| text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<CommandWords>();
    let script = |at: u64, admits: bool| {
        let time = words(&format!("HSET {{tickfleet:0}}:meta last_ms {}", at - 50));
        let stamp = if admits { "1:1700000009000:1700000008000,1:0:0" } else { "1:0:0" };
        let slice = words(&format!("XADD {{tickfleet:0}}:ready:normal {at}-0 d {stamp} t demo:a1-7 r 1{{}} c x c y"));
        let mut led = words("HSET {tickfleet:0}:meta state");
        led.push(b"0 primary-1 5 0 7 0 0".to_vec());
        [words("MULTI"), time, led, slice, words("EXEC")]
    };
    let look = |ms: u64| (Duration::from_millis(ms), Duration::from_millis(ms + 20));
    let mut seen = DispatchRecord::default();
    // The first server died, and its admission was lost. Both other servers have the second admission and a retry.
    seen.read(script(1_700_000_000_000, true).map(|words| (words, look(100))));
    for ms in [9_000, 8_000] {
        seen.read(script(1_700_000_005_000, true).map(|words| (words, look(ms))));
        seen.read(script(1_700_000_006_000, false).map(|words| (words, look(ms))));
    }
    let admitted = seen.admitted();
    assert!(admitted.iter().all(|call| call.led.as_deref() == Some(b"primary-1")));
    let found: Vec<_> = admitted.into_iter().map(|call| (call.at_ms, call.shard_ms, call.seen)).collect();
    let (first, again) =
        ((1_700_000_000_000, 1_699_999_999_950, look(100)), (1_700_000_005_000, 1_700_000_004_950, look(8_000)));
    assert_eq!(found, [first, again, first, again]);
}
