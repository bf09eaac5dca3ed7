//! `tickfleet pauses`: lists what is paused.

use tickfleet_client::verbs::{ActivePause, ActivePauses, PauseTarget};
use tickfleet_model::{AgentId, TenantId};

use crate::failure::Failure;
use crate::output::time_format::{clock, from_now};
use crate::output::{Output, lines, table};
use crate::setup::Setup;

pub(crate) async fn list(setup: &Setup, output: &Output) -> Result<(), Failure> {
    let ActivePauses { pauses, now_ms } = ActivePauses::list(&setup.client().await?, None).await?;
    output.show(&pauses, |pauses| {
        if pauses.is_empty() {
            return "No pauses.".into();
        }
        let mut rows = table(&["TENANT", "AGENT", "TOOL", "SINCE", "BY", "REASON"]);
        for ActivePause { target, pause } in pauses {
            let (agent, tool) = match target {
                PauseTarget::Caller(who) => (who.agent.as_ref().map_or("all", AgentId::as_str), "all"),
                PauseTarget::Tool(paused) => ("all", paused.tool.as_str()),
            };
            let since = format!("{} ({})", clock(pause.since_ms), from_now(pause.since_ms, now_ms));
            let tenant = target.tenant().map_or("all", TenantId::as_str);
            rows.add_row([tenant, agent, tool, &since, &pause.by, &pause.reason]);
        }
        lines(rows)
    })
}
