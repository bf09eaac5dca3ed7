use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::{Deserialize, Serialize};
use tickfleet_client::rules::{RuleCounts, RuleRow, rule_rows};
use tickfleet_client::verbs::FilteredNames;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::stats::{DAY_MS, DAYS, count_new_entries};
use super::{Operator, bounded, check_filter, optional};
use crate::Shared;
use crate::problem::{Problem, ProblemBody};
use crate::turns::query;
use crate::verbs::Verb;

pub(super) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(show))
}

/// Includes today.
const USUAL_DAYS: usize = 7;

/// Filter of rules.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RulesQuery {
    /// Only calls of this tenant.
    tenant: Option<String>,
    /// Days in UTC, including today. Default: 7.
    #[param(minimum = 1, maximum = 400)]
    days: Option<usize>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RulesResponse {
    rules: Vec<RuleRow>,
    calls: u64,
    counted_upto_ms: i64,
    /// True if the log has entries that are not counted yet: repeat the request.
    more: bool,
    /// True if entries may have been trimmed from the log before they were counted.
    gap: bool,
    now_ms: i64,
}

/// List rules, fact conditions and limits with their modes and the calls that each denied, or would deny in shadow
/// mode. Requires a key of all tenants.
///
/// Other causes of denials follow. The request counts new audit entries first, as `stats` does.
#[utoipa::path(get, path = "/v1/operate/rules", tag = "operators", params(RulesQuery),
    responses((status = 200, description = "`rules` with `mode`, `shadow` and `denied`; counted `calls`; the counted time, `more` and `gap`", body = Object),
        (status = 404, description = "No calls were counted, and the fleet does not have the tenant", body = ProblemBody)))]
pub(crate) async fn show(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    filters: Result<Query<RulesQuery>, QueryRejection>,
) -> Result<Json<RulesResponse>, Problem> {
    operator.require_permission(Verb::View)?;
    operator.require_all_tenants()?;
    let filters = query(filters)?;
    let tenant = optional("tenant", filters.tenant)?;
    let days = i64::try_from(bounded("days", filters.days, USUAL_DAYS, DAYS.1)?).unwrap_or(1);
    let counted = count_new_entries(&shared, tenant.as_ref()).await?;
    let today = counted.now_ms.div_euclid(DAY_MS);
    let here = shared.backend.rules().await?;
    let found = rule_rows(shared.client.stores(), here, tenant.as_ref(), (today - days + 1, today)).await?;
    if found.calls == 0 {
        check_filter(&shared, FilteredNames { tenant: tenant.as_ref(), ..FilteredNames::default() }).await?;
    }
    let counted_upto_ms = counted.upto_ms;
    let more = counted.more;
    let gap = counted.gap;
    let RuleCounts { rules, calls } = found;
    Ok(Json(RulesResponse { rules, calls, counted_upto_ms, more, gap, now_ms: counted.now_ms }))
}
