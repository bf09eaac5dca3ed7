//! The slots and shards of a whole cluster, for `doctor`.

use std::sync::Arc;

use super::view::View;
use super::{Cluster, slot_of};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterView {
    pub slots: Vec<u16>,
    pub holders: Vec<HolderView>,
    pub nodes: Vec<NodeReport>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HolderView {
    /// Host and port.
    pub address: String,
    pub slots: u32,
    pub shards: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    /// Host and port.
    pub node: String,
    /// For each shard, the primary's host and port; `None` if the node does not report the primary. The error says why
    /// the node did not answer.
    pub primaries: Result<Vec<Option<String>>, String>,
}

impl Cluster {
    pub(crate) async fn view(self: &Arc<Self>, prefixes: &[String]) -> ClusterView {
        let slots: Vec<u16> = prefixes.iter().map(|prefix| slot_of(prefix)).collect();
        let mut nodes: Vec<NodeReport> = Vec::new();
        let mut first: Option<View> = None;
        let mut to_ask = self.to_ask();
        let mut next = 0;
        while let Some(place) = to_ask.get(next).cloned() {
            next += 1;
            let reply = self.ask(&place).await;
            if let (Ok((view, _)), None) = (&reply, &first) {
                let nodes = view.nodes();
                to_ask.extend(nodes.into_iter().filter(|place| !to_ask.contains(place)).collect::<Vec<_>>());
                first = Some(view.clone());
            }
            let primary = |view: &View, slot: u16| view.primary_of(slot).ok().map(|place| self.shown(place));
            let primaries = reply.map(|(view, _)| slots.iter().map(|slot| primary(&view, *slot)).collect());
            nodes.push(NodeReport { node: self.shown(&place), primaries });
        }
        let holders = first.map(|view| self.holders(&view, &slots)).unwrap_or_default();
        ClusterView { slots, holders, nodes }
    }

    fn holders(&self, view: &View, slots: &[u16]) -> Vec<HolderView> {
        let of = |address: &str| {
            let is_there = |slot: u16| view.primary_of(slot).is_ok_and(|place| self.shown(place) == address);
            (0_u32..).zip(slots).filter(|(_, slot)| is_there(**slot)).map(|(shard, _)| shard).collect()
        };
        let holder = |(place, count)| {
            let address = self.shown(&place);
            HolderView { slots: count, shards: of(&address), address }
        };
        view.primaries().into_iter().map(holder).collect()
    }
}
