//! The first line of a script: `#!lua flags=…`.

/// What a script declares of itself; none where it has no such line.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flags {
    is_declared: bool,
    no_writes: bool,
    allow_oom: bool,
}

impl Flags {
    /// Whether Redis does not even start it while memory is full.
    pub(super) const fn refuses_full_memory(self) -> bool {
        self.is_declared && !self.no_writes && !self.allow_oom
    }

    pub(super) const fn reads_only(self) -> bool {
        self.no_writes
    }

    pub(super) const fn allows_oom(self) -> bool {
        self.allow_oom
    }
}

/// A script's flags, and its text without that line, whose line break stays.
pub(super) fn split(text: &[u8]) -> Result<(Flags, &[u8]), String> {
    if !text.starts_with(b"#!") {
        return Ok((Flags::default(), text));
    }
    let Some(end) = text.iter().position(|b| *b == b'\n') else { return Err("ERR Invalid script shebang".into()) };
    let (line, body) = text.split_at(end);
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_ascii_whitespace();
    let engine = words.next().unwrap_or_default();
    if engine != "#!lua" {
        return Err(format!("ERR Unexpected engine in script shebang: {engine}"));
    }
    let mut flags = Flags { is_declared: true, ..Flags::default() };
    for word in words {
        let Some(list) = word.strip_prefix("flags=") else {
            return Err(format!("ERR Unknown lua shebang option: {word}"));
        };
        for flag in list.split(',').filter(|_| !list.is_empty()) {
            match flag {
                "no-writes" => flags.no_writes = true,
                "allow-oom" => flags.allow_oom = true,
                "allow-stale" | "no-cluster" | "allow-cross-slot-keys" => {}
                _ => return Err(format!("ERR Unexpected flag in script shebang: {flag}")),
            }
        }
    }
    Ok((flags, body))
}
