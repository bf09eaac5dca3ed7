//! Exports the audit log with its seals, as lines that recipients can verify themselves. Also exports each seal that
//! was created after the start of the range, because anchors refer to the time of sealing. Each seal comes with all of
//! its entries, including entries before the range.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use tickfleet_model::TenantId;
use tickfleet_proof::lines::{self, End, Header, Line};
use tickfleet_proof::seal::{EntryId, SealBody};
use tickfleet_protocol::audit::tenant_of;
use tickfleet_store::{LogSeal, Store, StoreError};

const PAGE: usize = 500;

/// The range of an export.
#[derive(Debug, Clone, Default)]
pub struct ExportRange {
    /// Only entries of this tenant.
    pub tenant: Option<TenantId>,
    /// Start of the range (ms by Redis' clock).
    pub from_ms: Option<i64>,
    /// End of the range, exclusive (ms by Redis' clock).
    pub until_ms: Option<i64>,
}

/// The state of an interrupted export, read from its file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExportResume {
    entries: BTreeMap<u32, EntryId>,
    /// By shard and chain: the number of the last exported seal.
    seals: BTreeMap<(u32, String), u64>,
    counted: End,
    fleet: Option<String>,
    /// `None` if the export is of all tenants.
    tenant: Option<String>,
    keys: BTreeMap<String, String>,
    /// By shard: the text of the last exported entry.
    last: BTreeMap<u32, String>,
}

impl ExportResume {
    /// Reads a line of the existing file. Returns false for the end line, because the continued export writes a new
    /// one.
    pub fn take(&mut self, line: &str) -> bool {
        match Line::read(line) {
            Some(Line::Entry(entry)) => {
                self.last.insert(entry.shard, entry.text.to_string());
                if let Ok(id) = entry.id.parse::<EntryId>() {
                    let last = self.entries.entry(entry.shard).or_default();
                    *last = id.max(*last);
                }
                self.counted.entries += 1;
                true
            }
            Some(Line::Seal(seal)) => {
                if let Ok(body) = serde_json::from_str::<SealBody>(seal.body) {
                    let last = self.seals.entry((seal.shard, body.tenant)).or_default();
                    *last = body.number.max(*last);
                }
                self.counted.seals += 1;
                true
            }
            Some(Line::Header(header)) => {
                self.fleet.get_or_insert(header.fleet);
                self.tenant = header.tenant;
                self.keys.extend(header.keys);
                true
            }
            Some(Line::Lost(_)) => true,
            Some(Line::End(_)) | None => false,
        }
    }

    /// Returns true if the file has a header, so that the export can be identified.
    #[must_use]
    pub const fn has_header(&self) -> bool {
        self.fleet.is_some()
    }
}

impl ExportResume {
    /// Checks that the existing file is an export of this fleet, and of the tenant in `header`.
    pub async fn check(&self, stores: &[Store], header: &Header) -> Result<(), ExportError> {
        let differs = |what: &str, theirs: &str, ours: &str| {
            let why = format!("it is an export of the {what} {theirs:?}, and this one is of {ours:?}");
            ExportError::Other(format!("{why}; write to another file"))
        };
        if let Some(fleet) = self.fleet.as_ref().filter(|fleet| **fleet != header.fleet) {
            return Err(differs("fleet", fleet, &header.fleet));
        }
        if self.fleet.is_some() && self.tenant != header.tenant {
            let all = |tenant: &Option<String>| tenant.clone().unwrap_or_else(|| "all".to_owned());
            return Err(differs("tenant", &all(&self.tenant), &all(&header.tenant)));
        }
        let is_known = |(id, key): (&String, &String)| header.keys.get(id) == Some(key);
        if !self.keys.is_empty() && !self.keys.iter().any(is_known) {
            let theirs: Vec<&str> = self.keys.keys().map(String::as_str).collect();
            let why = format!("its seals are signed with keys that this fleet does not have ({})", theirs.join(", "));
            return Err(ExportError::Other(format!("{why}; write to another file")));
        }
        for store in stores {
            let shard = store.shard();
            let (Some(id), Some(text)) = (self.entries.get(&shard), self.last.get(&shard)) else { continue };
            let at = *id;
            let id = id.to_string();
            let is_ours = match store.log_entries_back(&id, &id, 1).await?.first() {
                Some(entry) => entry.text == *text,
                // The entry may have been trimmed from the log since the export. All remaining entries are then newer.
                None => {
                    let page = store.log_page("0-0", 1).await?;
                    let first = page.first.as_deref().and_then(|id| id.parse::<EntryId>().ok());
                    page.added > page.length && first.is_none_or(|first| first > at)
                }
            };
            if !is_ours {
                let why = format!("its last entry of shard {shard}, {id}, is not in the log of this fleet");
                return Err(ExportError::Other(format!("{why}; write to another file")));
            }
        }
        Ok(())
    }
}

/// An export in progress.
pub struct Export<'a, W> {
    stores: &'a [Store],
    range: ExportRange,
    resume: ExportResume,
    out: W,
}

struct SealedRange {
    seals: Vec<(LogSeal, SealBody)>,
    ids: BTreeSet<EntryId>,
    upto: EntryId,
}

impl<'a, W: io::Write> Export<'a, W> {
    /// Creates an export of `stores`, to be written to `out`.
    pub fn new(stores: &'a [Store], range: ExportRange, resume: ExportResume, out: W) -> Self {
        Self { stores, range, resume, out }
    }

    /// Writes the export. Returns the numbers of exported entries and seals. Writes `header` only to a new file.
    pub async fn write(mut self, header: &Header) -> Result<End, ExportError> {
        if self.resume == ExportResume::default() {
            let header = Header { begins: self.begins().await?, ..header.clone() };
            writeln!(self.out, "{}", lines::header(&header))?;
        }
        for store in self.stores {
            if self.range.tenant.as_ref().is_none_or(|tenant| store.is_home_of(tenant)) {
                self.shard(store).await?;
            }
        }
        writeln!(self.out, "{}", lines::end(self.resume.counted))?;
        self.out.flush()?;
        Ok(self.resume.counted)
    }

    /// Returns the start of each trimmed log, by shard (ms by Redis' clock).
    async fn begins(&self) -> Result<BTreeMap<u32, i64>, StoreError> {
        let mut begins = BTreeMap::new();
        for store in self.stores {
            let page = store.log_page("0-0", 1).await?;
            let first = page.first.as_deref().and_then(|id| id.parse::<EntryId>().ok());
            if let Some(first) = first.filter(|_| page.added > page.length) {
                begins.insert(store.shard(), i64::try_from(first.ms).unwrap_or(i64::MAX));
            }
        }
        Ok(begins)
    }

    async fn covered(&self, store: &Store) -> Result<SealedRange, StoreError> {
        let shard = store.shard();
        let mut found = SealedRange { seals: Vec::new(), ids: BTreeSet::new(), upto: EntryId::default() };
        let mut at = "0-0".to_owned();
        loop {
            let page = store.seals(&at, PAGE).await?;
            let full = page.len() == PAGE;
            for seal in page {
                at.clone_from(&seal.id);
                let Ok(body) = serde_json::from_str::<SealBody>(&seal.body) else { continue };
                let Ok(ids) = body.entry_ids() else { continue };
                found.upto = ids.last().map_or(found.upto, |last| found.upto.max(*last));
                let is_there =
                    self.resume.seals.get(&(shard, body.tenant.clone())).is_some_and(|at| *at >= body.number);
                let of_tenant = self.range.tenant.as_ref().is_none_or(|tenant| tenant.as_str() == body.tenant);
                if of_tenant && !is_there && body.is_in_time_range(self.range.from_ms, self.range.until_ms) {
                    found.ids.extend(ids);
                    found.seals.push((seal, body));
                }
            }
            if !full {
                return Ok(found);
            }
        }
    }

    fn is_inside(&self, id: EntryId) -> bool {
        let ms = i64::try_from(id.ms).unwrap_or(i64::MAX);
        self.range.from_ms.is_none_or(|from| ms >= from) && self.range.until_ms.is_none_or(|until| ms < until)
    }

    async fn shard(&mut self, store: &Store) -> Result<(), ExportError> {
        let shard = store.shard();
        let covered = self.covered(store).await?;
        let behind = self.resume.entries.get(&shard).copied();
        let first = covered.ids.first().map(|id| id.ms);
        let from_ms = self.range.from_ms.map(i64::unsigned_abs);
        let start = first.into_iter().chain(from_ms).min().filter(|_| from_ms.is_some()).unwrap_or(0);
        let mut from = behind.map_or_else(|| start.to_string(), |id| format!("({id}"));
        let last = covered.ids.last().map(|id| id.ms);
        let until = match self.range.until_ms {
            Some(until) => last.unwrap_or(0).max((until - 1).max(0).unsigned_abs()).to_string(),
            None => "+".to_owned(),
        };
        let mut seals = covered.seals.iter().peekable();
        loop {
            let page = store.log_entries(&from, &until, PAGE).await?;
            for entry in &page {
                let Ok(id) = entry.id.parse::<EntryId>() else { continue };
                // An entry that is not sealed yet is exported if it is in the range.
                let unsealed = id > covered.upto && self.is_inside(id) && self.is_of_tenant(&entry.text);
                if covered.ids.contains(&id) || unsealed {
                    while let Some((seal, body)) = seals.next_if(|(_, body)| ended(body) < id) {
                        self.seal(shard, seal, body)?;
                    }
                    writeln!(self.out, "{}", lines::entry(shard, &entry.id, &entry.admitted, &entry.text))?;
                    self.resume.counted.entries += 1;
                }
            }
            let Some(last) = page.last().filter(|_| page.len() == PAGE) else { break };
            from = format!("({}", last.id);
        }
        for (seal, body) in seals {
            self.seal(shard, seal, body)?;
        }
        Ok(())
    }

    fn is_of_tenant(&self, text: &str) -> bool {
        self.range.tenant.as_ref().is_none_or(|tenant| tenant_of(text) == tenant.as_str())
    }

    fn seal(&mut self, shard: u32, seal: &LogSeal, _: &SealBody) -> Result<(), ExportError> {
        writeln!(self.out, "{}", lines::seal(shard, &seal.body, &seal.signature))?;
        self.resume.counted.seals += 1;
        Ok(())
    }
}

fn ended(body: &SealBody) -> EntryId {
    body.entry_ids().ok().and_then(|ids| ids.last().copied()).unwrap_or_default()
}

/// Why an export failed.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The request to Redis failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The output could not be written.
    #[error("the export cannot be written: {0}")]
    Write(#[from] io::Error),
    /// The existing file does not belong to this export.
    #[error("nothing was exported: {0}")]
    Other(String),
}
