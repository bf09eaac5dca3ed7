use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use tickfleet_client::audit::{LogBatch, LogPosition};
use tickfleet_proof::lines::Header;

use super::batch_text::SendError;
use super::file::Files;
use super::otlp::Collector;
use super::stdout::StdoutSink;
use crate::failure::Failure;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    File(PathBuf),
    Stdout,
    /// The base URL of an OpenTelemetry collector.
    Otlp(String),
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            _ if text.is_empty() => Err("expected a file, stdout, or otlp:URL".to_owned()),
            Some(("otlp", url)) if url.starts_with("http://") || url.starts_with("https://") => {
                Ok(Self::Otlp(url.trim_end_matches('/').to_owned()))
            }
            Some(("otlp", _)) => Err("expected otlp:http://HOST:4318, the base URL of a collector".to_owned()),
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            _ if text == "stdout" || text == "-" => Ok(Self::Stdout),
            _ => Ok(Self::File(text.into())),
        }
    }
}

/// Hides the user and password of a URL.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::Stdout => f.write_str("stdout"),
            Self::Otlp(url) => {
                let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
                write!(f, "otlp:{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, host)| host))
            }
        }
    }
}

impl Destination {
    /// Returns the position of each shard if the destination stores positions.
    pub(super) fn open(
        &self,
        fleet: &str,
        size_max: u64,
        files_max: u32,
        headers: &str,
    ) -> Result<(Sink, BTreeMap<u32, LogPosition>), Failure> {
        Ok(match self {
            Self::File(path) => {
                let failed = |error| anyhow::anyhow!("{}: {error}", path.display());
                let (files, positions) =
                    Files::open(path, fleet, size_max, files_max).map_err(failed).map_err(Failure::failed)?;
                (Sink::File(files), positions)
            }
            Self::Stdout => (Sink::Stdout(StdoutSink::default()), BTreeMap::new()),
            Self::Otlp(url) => {
                let made =
                    Collector::new(url, headers).map_err(|why| Failure::failed(anyhow::anyhow!("--to otlp: {why}")))?;
                (Sink::Otlp(made), BTreeMap::new())
            }
        })
    }
}

pub(super) enum Sink {
    File(Files),
    Stdout(StdoutSink),
    Otlp(Collector),
}

impl Sink {
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::File(_) => "file",
            Self::Stdout(_) => "stdout",
            Self::Otlp(_) => "otlp",
        }
    }

    pub(super) const fn keeps_positions(&self) -> bool {
        matches!(self, Self::File(_))
    }

    pub(super) const fn wants_header(&self) -> bool {
        match self {
            Self::File(files) => files.is_empty(),
            Self::Stdout(standard) => standard.is_new(),
            Self::Otlp(collector) => collector.is_new(),
        }
    }

    /// Returns the number of records that the destination permanently rejected.
    pub(super) async fn send(&mut self, header: &Header, batch: &LogBatch) -> Result<u64, SendError> {
        match self {
            Self::File(files) => files.append(header, batch).map_err(SendError::again).map(|()| 0),
            Self::Stdout(standard) => standard.print(header, batch).await.map(|()| 0),
            Self::Otlp(collector) => collector.send(header, batch).await,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_destination_defaults_to_a_file() {
        let read = |text: &str| text.parse::<Destination>();
        assert_eq!(read("day.jsonl").unwrap(), Destination::File("day.jsonl".into()));
        assert_eq!(read("file:/var/a:b").unwrap(), Destination::File("/var/a:b".into()));
        assert_eq!((read("stdout").unwrap(), read("-").unwrap()), (Destination::Stdout, Destination::Stdout));
        let otlp = read("otlp:http://me:secret@collector:4318/").unwrap();
        assert_eq!(otlp.to_string(), "otlp:http://collector:4318");
        read("otlp:collector").unwrap_err();
        read("").unwrap_err();
    }
}
