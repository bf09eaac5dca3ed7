//! Entry points of the fuzz targets. They parse stored records, which operators may have changed by hand.

use tickfleet_core::Record;
use tickfleet_core::settings::read_tenant;
use tickfleet_core::turn::Turn;
use tickfleet_core::turn::state::Finished;
use tickfleet_model::policy::TenantPolicy;

use crate::{AdmissionNote, FailedAttempt};

#[must_use]
pub fn turn(content: &[u8]) -> Option<(Turn, Vec<AdmissionNote>, Vec<FailedAttempt>)> {
    let turn = Turn::decode(content).ok()?;
    let admissions = crate::admissions(&turn.notes);
    let tries = crate::failed_attempts(&turn.notes);
    Some((turn, admissions, tries))
}

#[must_use]
pub fn finished(content: &[u8]) -> Option<Finished> {
    Finished::decode(content).ok()
}

pub fn tenant(declaration: &[u8]) -> Result<TenantPolicy, String> {
    read_tenant(declaration)
}
