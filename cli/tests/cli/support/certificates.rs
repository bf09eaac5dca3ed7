//! Creates keys and certificates for a test.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::binary::CommandOutput;
use crate::support::documents::{REPOSITORY, blocks};

pub fn certificates(folder: &Path, names: &str) {
    let text = fs::read_to_string(Path::new(REPOSITORY).join("docs/operate/redis-users-and-tls.md")).unwrap();
    let (_, lines) = blocks(&text, "sh").into_iter().find(|(_, lines)| lines[0].starts_with("openssl")).unwrap();
    let lines = lines.join("\n");
    assert!(lines.contains("subjectAltName=DNS:localhost"), "{lines}");
    let lines = lines.replace("subjectAltName=DNS:localhost", &format!("subjectAltName={names}"));
    let mut shell = Command::new("sh");
    shell.args(["-ec", &lines]).current_dir(folder);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    CommandOutput::of(&mut shell, "").exits(0);
}
