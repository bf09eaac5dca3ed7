//! `sales_report`: reports the sales in the tenant's `sales.json`. If the file is missing, the result has no figures,
//! so that a model does not invent figures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet::{CallContext, Effect, ToolError, TypedTool};

use crate::folder::{Folder, on_disk};

const BYTES_MAX: u64 = 1024 * 1024;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Question {
    /// The month, such as 2026-11.
    #[schemars(regex(pattern = "^[0-9]{4}-[0-9]{2}$"))]
    month: String,
    /// Only this region. Default: all regions.
    #[serde(default)]
    #[schemars(length(min = 1, max = 64))]
    region: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Report {
    /// The requested month.
    month: String,
    /// The requested region.
    region: Option<String>,
    /// True if sales data exists.
    has_data: bool,
    /// The number of sales.
    sales: usize,
    /// The total of the sales, in cents.
    total_cents: u64,
}

#[derive(Deserialize)]
struct Sale {
    date: String,
    region: String,
    cents: u64,
}

pub fn sales_report() -> TypedTool {
    let description = "Reports the sales of a month. Where there are no figures, it says so.";
    TypedTool::new("sales_report", description, Effect::Read, |context: CallContext, asked: Question| {
        on_disk(move || {
            let text = Folder::of(&context, None, true)?.read("sales.json", BYTES_MAX)?;
            let sales = text.as_deref().map(serde_json::from_str::<Vec<Sale>>).transpose();
            let sales = sales.map_err(|error| ToolError::Internal(format!("sales.json: {error}")))?;
            let fits = |sale: &&Sale| {
                sale.date.starts_with(&asked.month) && asked.region.as_ref().is_none_or(|region| *region == sale.region)
            };
            let found: Vec<&Sale> = sales.iter().flatten().filter(fits).collect();
            Ok(Report {
                has_data: sales.is_some(),
                sales: found.len(),
                total_cents: found.iter().fold(0, |sum: u64, sale| sum.saturating_add(sale.cents)),
                month: asked.month,
                region: asked.region,
            })
        })
    })
    .category("examples")
}
