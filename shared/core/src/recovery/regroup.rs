//! Redelivers the slices of a crashed worker in groups. Each further crash halves the groups.

use tickfleet_model::{Priority, TenantId};

use crate::turn::Suspect;

/// Limited, because one transaction redelivers a group.
pub const GROUP_MAX: u32 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldSlice {
    pub priority: Priority,
    pub suspect: Option<Suspect>,
    /// For a slice that is not a suspect, false can also mean unknown.
    pub started: bool,
    /// A slice is exempted only once.
    pub exempted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    pub regular: u32,
    pub suspects: u32,
}

impl Load {
    #[must_use]
    pub fn of(slices: &[HeldSlice]) -> Self {
        let count = |is_it: fn(&HeldSlice) -> bool| {
            u32::try_from(slices.iter().filter(|slice| is_it(slice)).count()).unwrap_or(u32::MAX)
        };
        Self {
            regular: count(|slice| slice.suspect.is_none()),
            suspects: count(|slice| slice.suspect.is_some() && slice.started),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redelivery {
    /// A suspect that did not run: no crash counts against it.
    Unchanged,
    /// A suspect ran at the same time, and is the likely cause.
    Exempted,
    Suspect(Suspect),
    /// Crashed the maximum number of workers while it ran alone.
    Quarantine(Suspect),
}

impl HeldSlice {
    #[must_use]
    pub fn redelivery(&self, load: Load, crashes_max: u32) -> Redelivery {
        let (suspect, ran) = match self.suspect {
            Some(_) if !self.started => return Redelivery::Unchanged,
            Some(suspect) => (suspect, load.suspects),
            None if load.suspects > 0 && !self.exempted => return Redelivery::Exempted,
            None => (Suspect { group_max: u32::MAX, solo_crashes: 0 }, load.regular + load.suspects),
        };
        let group_max = suspect.group_max.min(ran).div_ceil(2).clamp(1, GROUP_MAX);
        let solo_crashes = suspect.solo_crashes + u32::from(ran <= 1);
        let next = Suspect { group_max, solo_crashes };
        if solo_crashes >= crashes_max { Redelivery::Quarantine(next) } else { Redelivery::Suspect(next) }
    }
}

/// Indexes into the list of [`regroup`].
pub type Group = Vec<usize>;

/// `load` is the worker's load when the crash was detected.
#[must_use]
pub fn regroup(slices: &[HeldSlice], load: Load, crashes_max: u32) -> (Vec<Redelivery>, Vec<Group>) {
    let redeliveries: Vec<Redelivery> = slices.iter().map(|slice| slice.redelivery(load, crashes_max)).collect();
    let mut groups = Vec::new();
    let mut kinds: Vec<(Priority, u32)> = Vec::new();
    let kind_of = |at: usize| {
        let size = match redeliveries.get(at)? {
            Redelivery::Unchanged => slices.get(at)?.suspect?.group_max,
            Redelivery::Exempted => GROUP_MAX + 1,
            Redelivery::Suspect(suspect) => suspect.group_max,
            Redelivery::Quarantine(_) => 0,
        };
        Some((slices.get(at)?.priority, size))
    };
    for at in 0..slices.len() {
        kinds.extend(kind_of(at).filter(|kind| !kinds.contains(kind)));
    }
    for kind in kinds {
        let members: Group = (0..slices.len()).filter(|at| kind_of(*at) == Some(kind)).collect();
        let size = usize::try_from(kind.1.clamp(1, GROUP_MAX)).unwrap_or(1);
        groups.extend(members.chunks(size).map(<[usize]>::to_vec));
    }
    (redeliveries, groups)
}

#[derive(Debug, Clone, Copy)]
pub struct TakenSuspect<'a> {
    pub tenant: &'a TenantId,
    /// See [`Suspect::group_max`].
    pub group_max: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuspectCapacity {
    pub slots: usize,
    pub tenant_slots: usize,
}

/// Indexes into `taken`. The first suspect always runs. The worker releases the others.
#[must_use]
pub fn choose(taken: &[TakenSuspect<'_>], room: SuspectCapacity) -> Group {
    let mut chosen = Group::new();
    let mut group_max = usize::MAX;
    for (at, suspect) in taken.iter().enumerate() {
        let with_it = group_max.min(usize::try_from(suspect.group_max.max(1)).unwrap_or(1));
        let of_tenant = chosen.iter().filter_map(|at| taken.get(*at)).filter(|other| other.tenant == suspect.tenant);
        let fits = chosen.len() < with_it && chosen.len() < room.slots && of_tenant.count() < room.tenant_slots;
        if fits || chosen.is_empty() {
            chosen.push(at);
            group_max = with_it;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRASHES_MAX: u32 = 3;

    fn regular() -> HeldSlice {
        HeldSlice { priority: Priority::Normal, suspect: None, started: false, exempted: false }
    }

    fn suspect(group_max: u32, solo_crashes: u32, started: bool) -> HeldSlice {
        HeldSlice { suspect: Some(Suspect { group_max, solo_crashes }), started, ..regular() }
    }

    fn sizes(groups: &[Group]) -> Vec<usize> {
        groups.iter().map(Vec::len).collect()
    }

    #[test]
    fn groups_are_halved_after_each_crash() {
        let held = [regular(); 7];
        let (redeliveries, groups) = regroup(&held, Load::of(&held), CRASHES_MAX);
        assert_eq!(redeliveries, [Redelivery::Suspect(Suspect { group_max: 4, solo_crashes: 0 }); 7]);
        assert_eq!(sizes(&groups), [4, 3]);
        let held = [suspect(4, 0, true); 4];
        assert_eq!(sizes(&regroup(&held, Load::of(&held), CRASHES_MAX).1), [2, 2]);
        let held = [suspect(16, 0, true); 3];
        assert_eq!(sizes(&regroup(&held, Load::of(&held), CRASHES_MAX).1), [2, 1]);
    }

    #[test]
    fn a_lone_slice_is_quarantined_at_the_crash_maximum() {
        let held = [regular()];
        let load = Load::of(&held);
        assert_eq!(held[0].redelivery(load, 3), Redelivery::Suspect(Suspect { group_max: 1, solo_crashes: 1 }));
        assert_eq!(held[0].redelivery(load, 1), Redelivery::Quarantine(Suspect { group_max: 1, solo_crashes: 1 }));
        let held = [suspect(1, 2, true)];
        let last = Suspect { group_max: 1, solo_crashes: 3 };
        assert_eq!(held[0].redelivery(Load::of(&held), 3), Redelivery::Quarantine(last));
    }

    #[test]
    fn only_the_group_that_ran_counts_a_crash() {
        let held = [regular(), suspect(2, 0, true), suspect(2, 0, true), suspect(2, 0, false)];
        let (redeliveries, groups) = regroup(&held, Load::of(&held), CRASHES_MAX);
        let alone = Redelivery::Suspect(Suspect { group_max: 1, solo_crashes: 0 });
        assert_eq!(redeliveries, [Redelivery::Exempted, alone, alone, Redelivery::Unchanged]);
        assert_eq!(groups, [vec![0], vec![1], vec![2], vec![3]]);
        // A poison slice that always runs together with suspects must be found.
        let held = [HeldSlice { exempted: true, ..regular() }, suspect(1, 0, true)];
        assert_eq!(held[0].redelivery(Load::of(&held), 3), alone);
    }

    #[test]
    fn a_suspect_group_respects_slot_and_tenant_limits() {
        let a = TenantId::new("a").unwrap();
        let b = TenantId::new("b").unwrap();
        let of = |tenant, group_max| TakenSuspect { tenant, group_max };
        let taken = [of(&a, 4), of(&a, 4), of(&b, 4), of(&a, 1), of(&b, 4), of(&b, 4)];
        let room = |slots, tenant_slots| SuspectCapacity { slots, tenant_slots };
        assert_eq!(choose(&taken, room(16, 16)), [0, 1, 2, 4]);
        assert_eq!(choose(&taken, room(3, 16)), [0, 1, 2]);
        assert_eq!(choose(&taken, room(16, 1)), [0, 2]);
        assert_eq!(choose(&taken, room(0, 0)), [0]);
        assert_eq!(choose(&taken[3..], room(16, 16)), [0]);
    }
}
