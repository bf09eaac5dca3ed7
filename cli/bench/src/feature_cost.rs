//! Measures the CPU time that an optional feature costs. The same load runs alternately on a fleet with the feature and
//! on a fleet without it.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::BenchArgs;
use super::extra::Extra;
use super::load::{Load, percentile};
use super::nodes::{Fleet, Shape};
use super::server::Server;

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Cost {
    redis_us: f64,
    schedulers_us: f64,
    workers_us: f64,
    turns_per_s: f64,
    not_ok: u64,
}

type Figure = fn(&Cost) -> f64;

impl Cost {
    fn together_us(&self) -> f64 {
        self.redis_us + self.schedulers_us + self.workers_us
    }
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct FeatureCost {
    what: &'static str,
    /// In each pair, the cost without the feature comes first.
    pairs: Vec<(Cost, Cost)>,
    /// The ratio of CPU time with the feature to CPU time without it: median, minimum and maximum of the pairs.
    together: [f64; 3],
    turns: f64,
}

pub(super) async fn run(args: &BenchArgs, extra: Extra, mut say: impl FnMut(&str)) -> Result<FeatureCost> {
    let mut pairs = Vec::with_capacity(args.runs.max(1));
    for pair in 0..args.runs.max(1) {
        say(&format!("pair {} of {}", pair + 1, args.runs.max(1)));
        let (first, second) = if pair % 2 == 0 { (None, Some(extra)) } else { (Some(extra), None) };
        let one = measure(args, first).await?;
        let other = measure(args, second).await?;
        pairs.push(if pair % 2 == 0 { (one, other) } else { (other, one) });
    }
    let ratios = |of: Figure| pairs.iter().map(move |(without, with)| of(with) / of(without));
    let mut together: Vec<f64> = ratios(Cost::together_us).collect();
    let mut turns: Vec<f64> = ratios(|cost| cost.turns_per_s).collect();
    let spread = [percentile(&mut together, 0.5), percentile(&mut together, 0.0), percentile(&mut together, 1.0)];
    Ok(FeatureCost { what: extra.word(), together: spread, turns: percentile(&mut turns, 0.5), pairs })
}

async fn measure(args: &BenchArgs, extra: Option<Extra>) -> Result<Cost> {
    let server = Server::start(args.on.as_deref(), args.aof, None).await?;
    let fleet = Fleet::start(&server, &Shape { extra, ..Shape::of(args, args.agents())? }).await;
    let fleet = fleet.context("starting the fleet")?;
    let load = Load::connect(&server, args).await?;
    load.warm_up().await.context("warming up")?;
    let redis = server.cpu().await?;
    let processes = fleet.cpu_seconds();
    let saturation = load.saturate(Duration::from_secs(args.seconds), args.window).await.context("the load")?;
    let redis = server.cpu().await? - redis;
    let now = fleet.cpu_seconds();
    fleet.stop().await;
    let of = |seconds: f64| seconds * 1e6 / saturation.all_turns.max(1) as f64;
    Ok(Cost {
        redis_us: of(redis.seconds),
        schedulers_us: of(now.0 - processes.0),
        workers_us: of(now.1 - processes.1),
        turns_per_s: saturation.turns as f64 / saturation.seconds,
        not_ok: saturation.not_ok,
    })
}

impl FeatureCost {
    pub(crate) fn text(&self) -> String {
        let of = |figure: Figure| {
            let (mut without, mut with): (Vec<f64>, Vec<f64>) =
                self.pairs.iter().map(|(without, with)| (figure(without), figure(with))).unzip();
            (percentile(&mut without, 0.5), percentile(&mut with, 0.5))
        };
        let mut text = format!("{}: {} pair(s) of runs\n\n", self.what, self.pairs.len());
        text += "CPU time of a turn       without         with\n";
        let rows: [(&str, Figure); 4] = [
            ("Redis", |cost| cost.redis_us),
            ("schedulers", |cost| cost.schedulers_us),
            ("workers", |cost| cost.workers_us),
            ("together", Cost::together_us),
        ];
        for (name, figure) in rows {
            let (without, with) = of(figure);
            text += &format!("{name:18} {without:>10.1} µs {with:>9.1} µs  × {:.3}\n", with / without);
        }
        let [median, least, most] = self.together;
        let (without, with) = of(|cost| cost.turns_per_s);
        text += &format!(
            "turns/s            {without:>10.0}    {with:>9.0}     × {:.3}\n\n\
             Of the pairs, together: × {median:.3} ({least:.3} to {most:.3})\n",
            self.turns
        );
        let not_ok: u64 = self.pairs.iter().map(|(without, with)| without.not_ok + with.not_ok).sum();
        if not_ok > 0 {
            text += &format!("WARNING            {not_ok} turns had calls that did not succeed\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use clap::Parser;

    use tickfleet_config::Sources;

    use super::*;
    use crate::nodes::write_config;

    #[tokio::test]
    async fn each_extra_adds_only_its_own_configuration() {
        let args = BenchArgs::parse_from(["bench", "--tickfleet", "/dev/null"]);
        for extra in [None, Some(Extra::Seal), Some(Extra::Rule), Some(Extra::Fact), Some(Extra::All)] {
            let dir = tempfile::tempdir().unwrap();
            write_config(dir.path(), &Shape { extra, ..Shape::of(&args, 3).unwrap() }).await.unwrap();
            let built_in_tools = ["echo", "fail"].map(String::from).into();
            let sources = Sources { dir: Some(dir.path().to_owned()), built_in_tools, ..Sources::default() };
            let configuration = tickfleet_config::load(&sources).unwrap();
            let row = &configuration.policy.permissions.matrix["echo"];
            let has = |what: Extra| extra.is_some_and(|extra| extra.has(what));
            assert_eq!(configuration.settings.seal.key.is_some(), has(Extra::Seal), "{extra:?}");
            assert_eq!(
                (row.rules.len(), row.facts.forbid.len()),
                (2 * usize::from(has(Extra::Rule)), usize::from(has(Extra::Fact)))
            );
        }
    }
}
