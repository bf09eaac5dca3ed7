//! Who bears witness of caps: the append-only files of all servers, whatever became of these. Each file is held by a second
//! name as soon as it is there, for a server that follows another one anew throws its own away, and with them what nobody
//! else had heard.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::judge::Admitted;

/// How often it is looked for new files; a file lives for seconds at least.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Holds on to the files until it is dropped.
pub struct Witness {
    kept: tempfile::TempDir,
    watching: tokio::task::JoinHandle<()>,
}

impl Witness {
    /// Watches the servers with these folders.
    pub fn of(folders: Vec<PathBuf>) -> Self {
        let kept = tempfile::tempdir().unwrap();
        let into = kept.path().to_owned();
        let watching = tokio::spawn(async move {
            loop {
                for (server, folder) in folders.iter().enumerate() {
                    keep(server, folder, &into);
                }
                // Nobody tells of new files.
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        Self { kept, watching }
    }

    /// Each time that a call was admitted, once for all servers that have it.
    pub fn admitted(&self) -> Vec<Admitted> {
        let mut seen = Seen::default();
        for file in fs::read_dir(self.kept.path()).unwrap() {
            seen.read(&commands(&fs::read(file.unwrap().path()).unwrap()));
        }
        seen.admitted()
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// Gives each file of commands that is new a second name; the same file has the same one.
fn keep(server: usize, folder: &Path, into: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(files) = fs::read_dir(folder.join("appendonlydir")) else { return };
    for file in files.flatten() {
        let is_of_commands = file.file_name().to_string_lossy().ends_with(".incr.aof");
        let Some(found) = file.metadata().ok().filter(|_| is_of_commands) else { continue };
        let name = into.join(format!("{server}-{}", found.ino()));
        if !name.exists() {
            // One that has gone meanwhile was empty, or is held already.
            let _ = fs::hard_link(file.path(), name);
        }
    }
}

/// A call as a slice carries it out: its turn and position.
type Call = (String, u64);

/// What the files have: when each call was admitted, and when it went out.
#[derive(Default)]
struct Seen {
    /// By scripts that write budgets, whatever they write there: those that admit. A call is admitted again where what was
    /// written of the first time is lost.
    admitted: BTreeSet<(Call, u64)>,
    /// For the first time, by whatever script.
    first: BTreeMap<Call, u64>,
}

impl Seen {
    fn read(&mut self, commands: &[Vec<Vec<u8>>]) {
        // A script that writes more than once stands between MULTI and EXEC.
        let (mut sent, mut admits) = (Vec::new(), false);
        for words in commands {
            match words[0].as_slice() {
                b"MULTI" => (sent, admits) = (Vec::new(), false),
                b"HSET" if words.get(1).is_some_and(|key| key.ends_with(b":budgets")) => admits = true,
                b"XADD" => sent.extend(slice(words)),
                b"EXEC" => self.note(std::mem::take(&mut sent), admits),
                _ => {}
            }
        }
    }

    fn note(&mut self, sent: Vec<(Call, u64)>, admits: bool) {
        for (call, at_ms) in sent {
            let first = self.first.entry(call.clone()).or_insert(at_ms);
            *first = at_ms.min(*first);
            if admits {
                self.admitted.insert((call, at_ms));
            }
        }
    }

    fn admitted(mut self) -> Vec<Admitted> {
        self.admitted.extend(self.first);
        // Turns are named <agent>-<number>.
        let agent = |turn: &str| turn.split([':', '-']).nth(1).unwrap_or_default().to_owned();
        self.admitted.into_iter().map(|((turn, _), at_ms)| Admitted { agent: agent(&turn), at_ms }).collect()
    }
}

/// The calls of a slice that this command appends, and when; none of any other command.
fn slice(words: &[Vec<u8>]) -> Vec<(Call, u64)> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    let is_slice = words.len() > 4 && words[1].windows(7).any(|part| part == b":ready:");
    let Some(id) = words.iter().position(|word| is_entry_id(word)).filter(|_| is_slice) else { return Vec::new() };
    let at_ms = text(words[id].split(|b| *b == b'-').next().unwrap()).parse().unwrap();
    let (mut calls, mut turn, mut position) = (Vec::new(), String::new(), 0);
    for pair in words[id + 1..].chunks_exact(2) {
        match pair[0].as_slice() {
            b"t" => turn = text(&pair[1]),
            b"p" => position = text(&pair[1]).parse().unwrap(),
            b"c" => {
                calls.push(((turn.clone(), position), at_ms));
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

/// The commands of a file; a line beginning with `#` is none, and a last one that is cut off neither.
fn commands(mut bytes: &[u8]) -> Vec<Vec<Vec<u8>>> {
    fn line<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
        let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
        let (line, rest) = (&bytes[..end], &bytes[end + 2..]);
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
            all.push(words);
        }
    }
    all
}

#[test]
fn what_one_server_alone_had_counts_and_what_two_have_counts_once() {
    let words = |text: &str| text.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
    let script = |at: u64, admits: bool| {
        let slice = words(&format!("XADD {{tickfleet:0}}:ready:normal {at}-0 t demo:a1-7 p 0 c x c y"));
        let write = words(if admits { "HSET {tickfleet:0}:budgets demo:a1 z" } else { "HSET {tickfleet:0}:meta a z" });
        [words("MULTI"), slice, write, words("EXEC")]
    };
    let mut seen = Seen::default();
    // The first was lost with its server; the other two servers have that it was admitted again, and tried again.
    seen.read(&script(1_700_000_000_000, true));
    for _ in 0..2 {
        seen.read(&script(1_700_000_005_000, true));
        seen.read(&script(1_700_000_006_000, false));
    }
    let times: Vec<u64> = seen.admitted().iter().map(|call| call.at_ms).collect();
    assert_eq!(times, [1_700_000_000_000, 1_700_000_005_000, 1_700_000_000_000, 1_700_000_005_000]);
}
