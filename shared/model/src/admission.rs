//! Parses the notes about admissions in audit entries. The core's `audit::admitted` writes these notes.

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct AdmissionNote {
    pub at_ms: i64,
    pub calls: u32,
    /// Includes the calls of this admission.
    pub tick_used: u32,
    pub tick_cap: u32,
    pub tick_ends_ms: i64,
    /// Includes the calls of this admission.
    pub day_used: u32,
    pub day_cap: u32,
}

impl AdmissionNote {
    /// Format: `A<now>,<calls>,<tick used>,<tick cap>,<tick end>,<day used>,<day cap>`, separated by `;`. Other kinds
    /// of notes are skipped.
    #[must_use]
    pub fn read_all(log: &str) -> Vec<Self> {
        log.split(';').filter_map(Self::read).collect()
    }

    #[must_use]
    pub fn read(entry: &str) -> Option<Self> {
        // In an audit entry, notes about earlier waits follow this note.
        let entry = entry.split(';').next()?;
        let numbers: Vec<i64> = entry.strip_prefix('A')?.split(',').map(|n| n.parse().ok()).collect::<Option<_>>()?;
        let [at_ms, calls, tick_used, tick_cap, tick_ends_ms, day_used, day_cap] = numbers[..] else { return None };
        let count = |number: i64| u32::try_from(number.max(0)).unwrap_or(u32::MAX);
        Some(Self {
            at_ms,
            calls: count(calls),
            tick_used: count(tick_used),
            tick_cap: count(tick_cap),
            tick_ends_ms,
            day_used: count(day_used),
            day_cap: count(day_cap),
        })
    }

    /// The number of calls of the turn's task, including the admitted calls, and the maximum number. Format:
    /// `T<used>,<granted>`.
    #[must_use]
    pub fn task(entry: &str) -> Option<(u32, u32)> {
        let (used, max) = entry.split(';').find_map(|note| note.strip_prefix('T')?.split_once(','))?;
        used.parse().ok().zip(max.parse().ok())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct WaitNote {
    pub at_ms: i64,
    pub cause: WaitCause,
    /// When the calls may be admitted (shard time); 0 if unknown.
    pub until_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub enum WaitCause {
    Limit(String),
    Tick,
    Day,
    /// The tenant already had its maximum number of dispatched slices.
    Room,
}

impl WaitNote {
    /// Formats: `L<now>,<limit>,<until>` and `W<now>,<t, d or r>,<until>`, separated by `;`. Other kinds
    /// of notes are skipped.
    #[must_use]
    pub fn read_all(log: &str) -> Vec<Self> {
        log.split(';').filter_map(Self::read).collect()
    }

    fn read(entry: &str) -> Option<Self> {
        let kind = entry.chars().next()?;
        let mut parts = entry.get(1..)?.split(',');
        let mut part = || parts.next();
        let number = |text: &str| text.parse::<i64>().ok();
        let at_ms = number(part()?)?;
        let cause = part()?;
        let until_ms = number(part()?)?;
        let cause = match (kind, cause) {
            ('L', limit) => WaitCause::Limit(limit.to_owned()),
            ('W', "t") => WaitCause::Tick,
            ('W', "d") => WaitCause::Day,
            ('W', "r") => WaitCause::Room,
            _ => return None,
        };
        Some(Self { at_ms, cause, until_ms })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DebitNote {
    /// Format: `limit@counter`.
    pub counter: String,
    /// The number of calls, or the sum of amounts in millionths.
    pub debited: u64,
    pub used: u64,
    pub max: u64,
    pub ends_ms: i64,
    /// In shard time. An operator's reset also starts a window.
    pub began_ms: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct DebitNotes {
    pub debits: Vec<DebitNote>,
    /// True if the log states the debits, even if there were none.
    pub are_stated: bool,
    /// True if the log was full and further debits are missing.
    pub is_cut: bool,
}

impl DebitNotes {
    /// Format: `D<limit>@<counter>,<debited>,<used>,<max>,<end>,<begin>`, separated by `;`. `D0` means no debits. A
    /// final `D` alone means that further debits were cut. Other kinds of notes are skipped.
    #[must_use]
    pub fn read(entry: &str) -> Self {
        let mut notes = Self::default();
        for text in entry.split(';').filter_map(|note| note.strip_prefix('D')) {
            notes.are_stated = true;
            if text == "0" {
                continue;
            }
            // Keys beyond a limit's maximum share one counter. A turn debits this counter once for each such key.
            match DebitNote::read(text) {
                Some(more) => match notes.debits.iter_mut().find(|note| note.counter == more.counter) {
                    Some(note) => note.debited = note.debited.saturating_add(more.debited),
                    None => notes.debits.push(more),
                },
                None => notes.is_cut = true,
            }
        }
        notes
    }
}

impl DebitNote {
    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(',');
        let mut part = || parts.next();
        Some(Self {
            counter: part()?.to_owned(),
            debited: part()?.parse().ok()?,
            used: part()?.parse().ok()?,
            max: part()?.parse().ok()?,
            ends_ms: part()?.parse().ok()?,
            began_ms: part()?.parse().ok()?,
        })
    }
}

/// Waiting calls returned their permits, or acquired permits again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PermitsNote {
    pub at_ms: i64,
    /// False if the permits were returned.
    pub again: bool,
    /// 0 if later notes are missing. Returned permits are those of the slice's last calls, and acquired permits are for
    /// the next calls.
    pub calls: usize,
}

impl PermitsNote {
    /// Formats: `G<now>,<calls>` and `H<now>,<calls>`, separated by `;`. Other kinds of notes are skipped.
    #[must_use]
    pub fn read_all(log: &str) -> Vec<Self> {
        log.split(';').filter_map(Self::read).collect()
    }

    fn read(entry: &str) -> Option<Self> {
        let (at_ms, calls) = entry.strip_prefix(['G', 'H'])?.split_once(',')?;
        Some(Self { at_ms: at_ms.parse().ok()?, again: entry.starts_with('H'), calls: calls.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admission_notes_parse_and_malformed_entries_are_skipped() {
        let read = AdmissionNote::read_all("A1000,10,10,10,5000,10,100;A5000,2,2,10,10000,12,100;what;A1,2");
        assert_eq!(read.len(), 2);
        let second = &read[1];
        assert_eq!((second.at_ms, second.calls, second.tick_ends_ms, second.day_used), (5_000, 2, 10_000, 12));
        let entry = "A9000,1,1,10,10000,13,100;L2000,mails,10000;W7000,t,9000;Wx;W1,q,2";
        assert_eq!(AdmissionNote::read(entry).map(|note| note.day_used), Some(13));
        let waits = WaitNote::read_all(entry);
        let mails = WaitNote { at_ms: 2_000, cause: WaitCause::Limit("mails".into()), until_ms: 10_000 };
        assert_eq!(waits, [mails, WaitNote { at_ms: 7_000, cause: WaitCause::Tick, until_ms: 9_000 }]);
        assert_eq!(AdmissionNote::task("A9000,1,1,10,10000,13,100;T5,20;L2000,part,0"), Some((5, 20)));
        assert_eq!(AdmissionNote::task("A9000,1,1,10,10000,13,100;Tx"), None);
        let entry =
            "A9000,1,1,10,10000,13,100;Dmails@demo:kelly,2,5,9,60000,0;Dmails@~,1,3,9,60000,0;Dmails@~,1,3,9,60000,0";
        let notes = DebitNotes::read(entry);
        assert_eq!(notes.debits.iter().map(|note| note.debited).collect::<Vec<_>>(), [2, 2]);
        let mails =
            DebitNote { counter: "mails@demo:kelly".into(), debited: 2, used: 5, max: 9, ends_ms: 60_000, began_ms: 0 };
        assert_eq!((&notes.debits[0], notes.is_cut), (&mails, false));
        assert!(DebitNotes::read("A9000,1,1,10,10000,13,100;Dmails@x,1,1,9,60000,0;D").is_cut);
        let none = DebitNotes { are_stated: true, ..DebitNotes::default() };
        assert_eq!(DebitNotes::read("A9000,1,1,10,10000,13,100;D0;L2000,mails,10000"), none);
        assert_eq!(DebitNotes::read("A9000,1,1,10,10000,13,100"), DebitNotes::default());
        let [gave, again] = PermitsNote::read_all("G9100,2;H9300,2;Gx;H7")[..] else { panic!("two notes") };
        assert_eq!((gave.at_ms, gave.again, gave.calls), (9_100, false, 2));
        assert_eq!((again.at_ms, again.again, again.calls), (9_300, true, 2));
    }
}
