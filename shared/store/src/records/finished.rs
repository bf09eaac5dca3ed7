//! The record of a turn or task that has ended: one line about it, then the reply as it was sent. `settle.lua` writes it.

use super::notes::{AdmissionNote, FailedTry, RestNote};
use super::turn::whole;

/// A turn that has ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FinishedTurn {
    /// When it was admitted, ms of shard time.
    pub admitted_ms: Option<i64>,
    /// When it ended, ms of shard time.
    pub ended_ms: Option<i64>,
    /// Its admissions.
    pub admissions: Vec<AdmissionNote>,
    /// Its tries that failed.
    pub tries: Vec<FailedTry>,
    /// The rests of its calls.
    pub rests: Vec<RestNote>,
    /// The number of times that a holder of its last slice died.
    pub crashes: u64,
    /// Retries in all.
    pub retries: u64,
    /// Why its last calls ended without running, where they did.
    pub end_reason: Option<String>,
    /// Why it was cancelled, where it was.
    pub cancelled: Option<String>,
    /// The digest of its content, where more happened to it than that it was carried out, or one of its calls claimed an
    /// effect.
    pub digest: Option<Box<str>>,
    /// The reply, JSON; empty where memory was short when the turn ended: then its inbox alone has it.
    pub reply: String,
}

impl FinishedTurn {
    /// Reads a record.
    pub(crate) fn read(text: &str) -> Self {
        let (line, reply) = text.split_once('\n').unwrap_or((text, ""));
        let mut turn = Self { reply: reply.to_owned(), ..Self::default() };
        for (word, value) in line.split(' ').filter_map(|part| part.split_once('=')) {
            let count = || whole(value).and_then(|number| u64::try_from(number).ok()).unwrap_or(0);
            match word {
                "ts" => turn.admitted_ms = whole(value),
                "end" => turn.ended_ms = whole(value),
                "lg" => {
                    turn.admissions = AdmissionNote::read_all(value);
                    turn.tries = FailedTry::read_all(value);
                    turn.rests = RestNote::read_all(value);
                }
                "cr" => turn.crashes = count(),
                "rt" => turn.retries = count(),
                "er" => turn.end_reason = Some(value.to_owned()).filter(|reason| !reason.is_empty()),
                "dg" => turn.digest = Some(value.into()),
                "cx" => turn.cancelled = Some(decoded(value)).filter(|reason| !reason.is_empty()),
                _ => {}
            }
        }
        turn
    }
}

/// A text as `settle.lua` writes it into a record's first line: some bytes as `%` and two hexadecimal digits.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        match part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
            }
            None => bytes.extend_from_slice(part.as_bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_break_a_records_first_line_is_read_as_it_was() {
        assert_eq!(decoded("the%20price%0Ais%20100%25%20zu%20groß"), "the price\nis 100% zu groß");
        assert_eq!(decoded("50%x%"), "50x");
    }

    #[test]
    fn a_record_is_its_line_and_its_reply() {
        let log = "A1000,10,10,10,5000,10,100;R1200,3,1,1000,no%20answer";
        let turn =
            FinishedTurn::read(&format!("f=1-0 ts=900 end=2e3 lg={log} cr=1 rt=2 er= cx=too%20late dg=0a\n{{}}"));
        assert_eq!((turn.admitted_ms, turn.ended_ms, turn.crashes, turn.retries), (Some(900), Some(2_000), 1, 2));
        assert_eq!((turn.admissions.len(), turn.tries.len()), (1, 1));
        assert_eq!((turn.end_reason, turn.cancelled.as_deref(), turn.reply.as_str()), (None, Some("too late"), "{}"));
        assert_eq!(turn.digest.as_deref(), Some("0a"));
    }
}
