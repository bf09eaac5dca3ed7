// ANCHOR: tool
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tickfleet::{Effect, Program, ToolError, TypedTool};

#[derive(Deserialize, JsonSchema)]
struct Parcel {
    /// The destination: a country code of two letters, such as DE.
    country: String,
    /// The weight in grams.
    #[schemars(range(min = 1, max = 31_500))]
    weight_g: u32,
    /// Whether it must arrive the next day.
    #[serde(default)]
    express: bool,
    /// The discount that the customer was promised, in percent.
    #[schemars(range(max = 50))]
    discount: Option<u8>,
}

#[derive(Serialize, JsonSchema)]
struct Quote {
    /// The price in euro cents.
    price_cents: u32,
    /// Working days until it arrives.
    days: u8,
}

/// Cents per started kilogram, by country. A real tool would keep a connection here.
type Rates = BTreeMap<&'static str, u32>;

fn quote(rates: &Rates, parcel: &Parcel) -> Result<Quote, ToolError> {
    let known = || rates.keys().copied().collect::<Vec<_>>().join(", ");
    let per_kg = rates.get(parcel.country.as_str()).ok_or_else(|| {
        ToolError::Permanent(format!("We do not ship to {}. We ship to {}.", parcel.country, known()))
    })?;
    let full = per_kg * parcel.weight_g.div_ceil(1_000) * if parcel.express { 2 } else { 1 };
    let price_cents = full * (100 - u32::from(parcel.discount.unwrap_or(0))) / 100;
    Ok(Quote { price_cents, days: if parcel.express { 1 } else { 4 } })
}

fn quote_parcel() -> TypedTool {
    let rates: Arc<OnceLock<Rates>> = Arc::default();
    let loaded = Arc::clone(&rates);
    let description = "Returns the price and delivery time of a parcel. Books nothing.";
    TypedTool::new("quote_parcel", description, Effect::Read, move |_call, parcel: Parcel| {
        let rates = Arc::clone(&rates);
        async move { quote(rates.get().ok_or_else(|| ToolError::internal("no rates are loaded"))?, &parcel) }
    })
    .category("shipping")
    .secret_from_env("CARRIER_KEY", "CARRIER_KEY")
    .validate(|parcel: &Parcel| match parcel {
        Parcel { express: true, weight_g: 10_001.., .. } => Err("Express parcels have at most 10000 g.".into()),
        _ => Ok(()),
    })
    .on_start(move |start| {
        let loaded = Arc::clone(&loaded);
        async move {
            // Connect with the key here. The worker accepts no calls before this function returns.
            let _key = start.secret("CARRIER_KEY")?;
            loaded.set(Rates::from([("AT", 690), ("DE", 490), ("FR", 890)])).map_err(|_| "started twice")?;
            Ok(())
        }
    })
    .on_stop(|| async { eprintln!("own-fleet: the rates are released") })
}
// ANCHOR_END: tool

// ANCHOR: trucks
#[derive(Deserialize, JsonSchema)]
struct Pallets {
    /// The number of pallets.
    #[schemars(range(min = 1, max = 1_000))]
    count: u32,
}

#[derive(Serialize, JsonSchema)]
struct Trucks {
    /// The number of trucks.
    trucks: u32,
}

fn count_trucks() -> TypedTool {
    TypedTool::new(
        "count_trucks",
        "Returns the number of trucks that pallets fill.",
        Effect::Read,
        |_, pallets: Pallets| async move { Ok::<_, ToolError>(Trucks { trucks: pallets.count.div_ceil(33) }) },
    )
}
// ANCHOR_END: trucks

// ANCHOR: main
fn main() -> std::process::ExitCode {
    Program::new()
        .tool(quote_parcel())
        .beside_worker(|registrar| async move {
            if let Err(error) = registrar.register(count_trucks()).await {
                eprintln!("own-fleet: count_trucks is not registered: {error}");
            }
        })
        .main()
}
// ANCHOR_END: main
