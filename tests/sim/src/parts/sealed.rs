//! Those who seal the audit log, and the one who exports it when the game is over.

use std::collections::BTreeMap;

use scheduler::{AnchorPlace, SealOptions};
use tickfleet_client::audit::{Export, ExportError, ExportRange, Resume};
use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::lines::{FORMAT, Header, TenantFacts};
use tickfleet_store::Store;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::{AGAIN, Site};
use crate::process::Main;
use crate::world::World;

/// Keeps what processes log as anchors: outside of Redis, for good.
pub(crate) struct AnchorLog(pub(crate) World);

/// The field that an anchor is logged in.
const ANCHOR: &str = "anchor";

impl Subscriber for AnchorLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.fields().field(ANCHOR).is_some()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut found = Found(None);
        event.record(&mut found);
        let Some(text) = found.0 else { return };
        match Anchor::read(&text) {
            Some(anchor) => self.0.facts().anchors.push(anchor),
            None => self.0.wrong(format!("what is logged as an anchor is none: {text}")),
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The anchor of an event.
struct Found(Option<String>);

impl Visit for Found {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == ANCHOR {
            self.0 = Some(format!("{value:?}"));
        }
    }
}

impl Site {
    /// How a scheduler that starts with this configuration seals, in a game that does.
    #[allow(clippy::expect_used, reason = "the keys of the simulation are fit to sign")]
    pub(super) fn seal_options(&self, version: usize) -> Option<SealOptions> {
        let sealed = self.settings.sealed.as_ref()?;
        let signer = sealed.signer(version).expect("a key of the simulation");
        Some(SealOptions { signer, every: sealed.every, anchor: Some(AnchorPlace::Log) })
    }

    /// Exports the log, as `tickfleet audit export` does, until it has it.
    pub(crate) fn auditor(&self, process: usize) -> Main {
        let (stores, world) = (self.stores(process), self.world.clone());
        let header = self.header();
        Box::pin(async move {
            loop {
                match export(&stores, header.clone()).await {
                    Ok(lines) => {
                        world.facts().export = Some(lines);
                        return;
                    }
                    Err(error) => world.tell(|| format!("the log cannot be exported: {error}")),
                }
                tokio::time::sleep(AGAIN).await;
            }
        })
    }

    fn header(&self) -> Header {
        let policy = self.settings.policy(0);
        let facts = policy.tenants.iter().map(|(tenant, owner)| {
            let day_cap = owner.max_actions_per_day.map(u64::from);
            (tenant.to_string(), TenantFacts { time_zone: policy.time_zone(owner).to_owned(), day_cap })
        });
        Header {
            export: FORMAT,
            fleet: self.settings.store.namespace.clone(),
            dedupe_ms: self.settings.store.dedupe_ms,
            tenants: facts.collect(),
            ..Header::default()
        }
    }
}

async fn export(stores: &[Store], mut header: Header) -> Result<Vec<String>, ExportError> {
    let (mut keys, mut bytes) = (BTreeMap::new(), Vec::new());
    for store in stores {
        keys.extend(store.seal_keys().await?);
    }
    header.keys = keys;
    Export::new(stores, ExportRange::default(), Resume::default(), &mut bytes).write(&header).await?;
    Ok(String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect())
}
