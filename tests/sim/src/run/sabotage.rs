//! What each guard of the scripts is for: without it, some game fails. `missed.txt` says which.

use std::io::Write;
use std::path::PathBuf;

use tickfleet_testkit::guards;

use super::{Play, Run};
use crate::settings::sealed::SEALED_FROM;
use crate::settings::{GOVERNED_FROM, LIMITED_FROM};

/// Switches each guard of the scripts off, and plays until a game misses it.
#[derive(Debug, Clone, clap::Args)]
pub struct Sabotage {
    /// How long each may take, s.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only these guards, by number.
    #[arg(long, value_delimiter = ',')]
    only: Option<Vec<usize>>,
    /// The first game's seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Games at the same time.
    #[arg(long, default_value_t = 2)]
    at_once: usize,
    /// How many games that miss a guard are looked for: the cheapest is told.
    #[arg(long, default_value_t = 3)]
    choose: u64,
    /// Write what was found to this file, as `missed.txt` has it.
    #[arg(long)]
    write: Option<PathBuf>,
}

/// A game that misses a guard.
struct Found {
    seed: u64,
    /// How many games were played until the first one was found.
    games: u64,
    /// What the game itself asks of Redis.
    commands: u64,
    what: String,
}

impl Sabotage {
    /// Plays without each guard.
    ///
    /// # Errors
    /// A guard that no game missed; a game that cannot be played; a file that cannot be written.
    pub fn run(&self) -> anyhow::Result<()> {
        let (mut missed, mut lines) = (Vec::new(), Vec::new());
        for (number, (rule, what, ..)) in guards::ALL.iter().copied().flatten().enumerate() {
            if self.only.as_ref().is_some_and(|only| !only.contains(&number)) {
                continue;
            }
            let mut out = std::io::stdout().lock();
            if let Some(found) = self.look_for(number)? {
                let Found { seed, games, commands, what: said } = found;
                writeln!(out, "{number} | {rule} | {what} | {games} games, {commands} commands | seed {seed}: {said}")?;
                lines.push(format!("{number} {rule} {seed} {games} {commands} {what}"));
            } else {
                writeln!(out, "{number} | {rule} | {what} | NOT FOUND")?;
                missed.push(number);
            }
        }
        if let Some(path) = &self.write {
            std::fs::write(path, format!("{HEAD}{}\n", lines.join("\n")))?;
        }
        anyhow::ensure!(missed.is_empty(), "not found: {missed:?}");
        Ok(())
    }

    /// The cheapest of the first games that miss a guard.
    fn look_for(&self, number: usize) -> anyhow::Result<Option<Found>> {
        let mut best: Option<Found> = None;
        // Other games have no limits, govern nothing, and seal nothing.
        let first = match number {
            _ if guards::is_of_sealing(number) => self.seed + SEALED_FROM,
            _ if guards::is_of_limits(number) => self.seed + LIMITED_FROM,
            _ if guards::is_of_governance(number) => self.seed + GOVERNED_FROM,
            _ => self.seed,
        };
        let (mut seed, mut games, mut found, mut failing) = (first, 0, 0, 0);
        while found < self.choose.max(1) && failing < FAILING_MAX {
            let run = Run {
                seconds: self.seconds,
                games: None,
                seed,
                at_once: self.at_once,
                without: Some(number),
                all: false,
                as_it_is: true,
                coverage: false,
            };
            let sum = run.play();
            sum.was_played()?;
            let Some((failed, _)) = sum.failed.first() else { break };
            seed = failed + 1;
            // A game that fails with all guards on shows nothing of this one.
            let (whole, _) = Play::of(*failed).apart()?;
            if !whole.violations.is_empty() {
                failing += 1;
                continue;
            }
            found += 1;
            games = if best.is_none() { sum.games } else { games };
            let (verdict, _) = Play { without: Some(number), ..Play::of(*failed) }.apart()?;
            let what = verdict.violations.first().cloned().unwrap_or_default();
            if best.as_ref().is_none_or(|best| verdict.commands < best.commands) {
                best = Some(Found { seed: *failed, games, commands: verdict.commands, what });
            }
        }
        Ok(best.map(|best| Found { games, ..best }))
    }
}

/// Games that fail with all guards on, before a guard is given up: the games want mending first.
const FAILING_MAX: u32 = 5;

/// What stands over the lines of the file.
const HEAD: &str = "\
# Games that miss a guard of the scripts when it is switched off. Written by `tickfleet-sim sabotage --write`.
# A line: the guard's number in `tickfleet_testkit::guards`, its rule, the seed of a game that misses it, how many games
# were played until the first such one, the commands of Redis until the game fails, and what is switched off.
";
