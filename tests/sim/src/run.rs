//! Playing games: one, or as many as a time allows, each in a process of its own; and making a failing one small.

pub(crate) mod coverage;
mod mutants;
mod sabotage;
mod shrink;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tickfleet_testkit::guards::{self, Guard};

use crate::game::{self, Options, Verdict};
use crate::world::Audited;

pub use mutants::{MUTANTS, Mutant, Mutants};
pub use sabotage::Sabotage;

/// Plays one game in this process.
#[derive(Debug, Clone, clap::Args)]
pub struct Play {
    /// The game.
    #[arg(long)]
    pub(crate) seed: u64,
    /// The troubles to keep, by their place, or `none`; all where it is absent.
    #[arg(long, value_parser = places)]
    pub(crate) keep: Option<Kept>,
    /// The turns to keep; all where it is absent.
    #[arg(long)]
    pub(crate) turns: Option<usize>,
    /// Tell the story.
    #[arg(long)]
    pub(crate) story: bool,
    /// Switch a guard off, by its number in `guards`.
    #[arg(long)]
    pub(crate) without: Option<usize>,
    /// Note what is reached of the scripts.
    #[arg(long, conflicts_with = "without")]
    pub(crate) coverage: bool,
}

/// Places of troubles.
pub(crate) type Kept = std::sync::Arc<[usize]>;

fn places(text: &str) -> Result<Kept, std::num::ParseIntError> {
    text.split(',').filter(|place| *place != "none").map(str::parse).collect()
}

fn written(keep: &Kept) -> String {
    let keep: Vec<String> = keep.iter().map(ToString::to_string).collect();
    if keep.is_empty() { "none".into() } else { keep.join(",") }
}

/// The guard of this number.
pub(crate) fn guard(number: usize) -> anyhow::Result<&'static Guard> {
    guards::ALL.iter().copied().flatten().nth(number).ok_or_else(|| anyhow::anyhow!("there is no guard {number}"))
}

impl Play {
    pub(crate) fn of(seed: u64) -> Self {
        Self { seed, keep: None, turns: None, story: false, without: None, coverage: false }
    }

    /// Plays, and prints the story and, in the last line, the verdict as JSON.
    ///
    /// # Errors
    /// The game cannot be set up.
    pub fn run(&self) -> anyhow::Result<()> {
        // Tools panic on purpose; what panics by a bug is told as a violation.
        std::panic::set_hook(Box::new(|_| {}));
        let sabotage = self.without.map(guard).transpose()?.map(|(_, _, from, to)| (*from, *to));
        let (keep, turns, story, coverage) = (self.keep.clone(), self.turns, self.story, self.coverage);
        let options = Options { keep, turns, story, sabotage, coverage };
        let mut verdict = game::play(self.seed, &options)?;
        let mut out = std::io::stdout().lock();
        for line in verdict.story.drain(..) {
            writeln!(out, "{}", line.replace('\n', " "))?;
        }
        writeln!(out, "{}", serde_json::to_string(&verdict)?)?;
        Ok(())
    }

    /// Plays in a process of its own: nothing of one game is left for the next. Gives the story's lines, too.
    pub(crate) fn apart(&self) -> anyhow::Result<(Verdict, Vec<String>)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["play", "--seed", &self.seed.to_string()]);
        if let Some(keep) = &self.keep {
            command.args(["--keep", &written(keep)]);
        }
        if let Some(turns) = self.turns {
            command.args(["--turns", &turns.to_string()]);
        }
        if let Some(without) = self.without {
            command.args(["--without", &without.to_string()]);
        }
        if self.story {
            command.arg("--story");
        }
        if self.coverage {
            command.arg("--coverage");
        }
        let output = command.stdin(Stdio::null()).stderr(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(output.status.success(), "seed {}: {}: {complaint}", self.seed, output.status);
        let mut lines: Vec<String> = said.lines().map(str::to_owned).collect();
        let verdict = lines.pop().unwrap_or_default();
        Ok((serde_json::from_str(&verdict)?, lines))
    }

    /// The command that plays it again.
    pub(crate) fn again(&self) -> String {
        let mut words = vec![format!("SEED={}", self.seed)];
        words.extend(self.keep.as_ref().map(|keep| format!("KEEP={}", written(keep))));
        words.extend(self.turns.map(|turns| format!("TURNS={turns}")));
        words.extend(self.without.map(|guard| format!("WITHOUT={guard}")));
        format!("make sim {}", words.join(" "))
    }
}

/// Plays one game again and tells its story, if it fails.
#[derive(Debug, Clone, clap::Args)]
pub struct Replay {
    #[command(flatten)]
    play: Play,
}

impl Replay {
    /// Plays.
    ///
    /// # Errors
    /// The game fails, or cannot be played.
    pub fn run(&self) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if !shrink::tell(&self.play, &mut out)? {
            return Ok(());
        }
        anyhow::bail!("seed {} fails", self.play.seed)
    }
}

/// Plays game after game, and makes the first one small that fails.
#[derive(Debug, Clone, clap::Args)]
pub struct Run {
    /// How long, s.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How many games at most.
    #[arg(long)]
    games: Option<u64>,
    /// The first game's seed; the others follow.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Games at the same time.
    #[arg(long, default_value_t = 2)]
    at_once: usize,
    /// Switch a guard off, by its number in `guards`.
    #[arg(long)]
    without: Option<usize>,
    /// Go on after a game that fails.
    #[arg(long)]
    all: bool,
    /// Tell what the games reached of the scripts, and what they did not. They take longer.
    #[arg(long, conflicts_with = "without")]
    coverage: bool,
    /// Do not make the game small that fails.
    #[arg(long)]
    as_it_is: bool,
}

/// What games came to.
#[derive(Default)]
pub(crate) struct Sum {
    pub(crate) games: u64,
    pub(crate) commands: u64,
    slices: u64,
    seconds: u64,
    turns: usize,
    runs: usize,
    audited: Audited,
    troubles: BTreeMap<String, u64>,
    pub(crate) failed: Vec<(u64, Vec<String>)>,
    /// Games that could not be played.
    errors: Vec<String>,
    /// What they reached of the scripts, where that was asked for.
    coverage: Option<coverage::Map>,
}

impl Run {
    /// Plays until the time is over, or a game fails.
    ///
    /// # Errors
    /// A game failed, or could not be played.
    pub fn run(&self) -> anyhow::Result<()> {
        let sum = self.play();
        let mut out = std::io::stdout().lock();
        sum.tell(&mut out)?;
        sum.was_played()?;
        let Some((seed, _)) = sum.failed.first() else {
            writeln!(out, "No violation. First seed {}, last {}.", self.seed, self.seed + sum.games.saturating_sub(1))?;
            return Ok(());
        };
        anyhow::ensure!(!self.as_it_is, "{} of {} games failed", sum.failed.len(), sum.games);
        let play = Play { without: self.without, ..Play::of(*seed) };
        shrink::shrink_and_tell(play, &mut out)?;
        anyhow::bail!("{} of {} games failed", sum.failed.len(), sum.games)
    }

    /// Plays.
    #[allow(clippy::disallowed_methods, reason = "how long to play is a matter of the real clock")]
    pub(crate) fn play(&self) -> Sum {
        let began = Instant::now();
        let sum = Sum { coverage: self.coverage.then(coverage::Map::new), ..Sum::default() };
        let (next, stop, sum) = (AtomicU64::new(0), AtomicBool::new(false), Mutex::new(sum));
        let games = self.games.unwrap_or(u64::MAX);
        std::thread::scope(|scope| {
            for _ in 0..self.at_once.max(1) {
                scope.spawn(|| {
                    while began.elapsed() < Duration::from_secs(self.seconds) && !stop.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= games {
                            break;
                        }
                        let (without, coverage) = (self.without, self.coverage);
                        let play = Play { without, coverage, ..Play::of(self.seed + number) };
                        let verdict = play.apart().map(|(verdict, _)| verdict);
                        if self.all {
                            say_at_once(play.seed, &verdict);
                        }
                        let failed = sum.lock().add(play.seed, verdict);
                        if failed && !self.all {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        sum.into_inner()
    }
}

/// Whoever plays for an hour wants to know of a game that fails before the hour is over.
fn say_at_once(seed: u64, verdict: &anyhow::Result<Verdict>) {
    let what = match verdict {
        Ok(verdict) if verdict.violations.is_empty() => return,
        Ok(verdict) => verdict.violations.join("; "),
        Err(error) => error.to_string(),
    };
    // Nobody may be there to hear it.
    let _ = writeln!(std::io::stderr().lock(), "seed {seed}: {what}");
}

impl Sum {
    /// Adds a game. Gives whether it failed, or could not be played.
    fn add(&mut self, seed: u64, verdict: anyhow::Result<Verdict>) -> bool {
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) => {
                self.errors.push(error.to_string());
                return true;
            }
        };
        self.games += 1;
        self.commands += verdict.commands;
        self.slices += verdict.slices;
        self.seconds += verdict.seconds;
        self.turns += verdict.turns;
        self.runs += verdict.runs;
        self.audited += verdict.audited;
        for (kind, count) in verdict.troubles {
            *self.troubles.entry(kind).or_default() += count;
        }
        if let Some(coverage) = &mut self.coverage {
            coverage.add(&verdict.reached);
        }
        let failed = !verdict.violations.is_empty();
        if failed {
            self.failed.push((seed, verdict.violations));
            self.failed.sort();
        }
        failed
    }

    /// A game that cannot be played shows nothing.
    fn was_played(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.errors.is_empty(), "games could not be played: {}", self.errors.join("; "));
        Ok(())
    }

    /// Tells the figures.
    fn tell(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "{} games, {} simulated seconds", self.games, self.seconds)?;
        writeln!(out, "{} steps of processes, {} commands of Redis", self.slices, self.commands)?;
        writeln!(out, "{} turns answered, {} runs of tools", self.turns, self.runs)?;
        let Audited { sealed, changed, anew, by_facts, by_no_facts, found_out } = self.audited;
        if sealed > 0 {
            writeln!(out, "{sealed} sealed entries verified, {changed} changes of them found")?;
            writeln!(out, "{anew} calls decided anew, {by_facts} of them by facts, {by_no_facts} could not be")?;
            writeln!(out, "{found_out} calls of which nobody knew found out")?;
        }
        let troubles: Vec<String> = self.troubles.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        writeln!(out, "trouble: {}", troubles.join(", "))?;
        for (seed, violations) in &self.failed {
            writeln!(out, "seed {seed}: {}", violations.join("; "))?;
        }
        self.coverage.as_ref().map_or(Ok(()), |coverage| coverage.tell(out))
    }
}
