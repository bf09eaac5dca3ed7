//! One game: a fleet, its users and its trouble, from a seed to a verdict. START HERE: [`play`].

mod aimed;
mod audit;
mod calm;
mod end;
mod probe;
mod story;
mod strike;
mod watch;

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tickfleet_store::{Scripts, TurnName};

use crate::net::Net;
use crate::oracle::Oracle;
use crate::parts::operator::RunTime;
use crate::parts::tasks::Tasks;
use crate::parts::{self, AnchorLog, Live, Site};
use crate::process::Process;
use crate::rules::Rules;
use crate::run::coverage::{self, Reached};
use crate::server::{Done, Server};
use crate::settings::calendar::{self, Calendar};
use crate::settings::{Settings, governed};
use crate::trouble::{self, Ambush, Trouble};
use crate::world::{Audited, World};

/// What a game is played with, beside its seed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// Which troubles of the game's are kept, by their place; none: all.
    pub(crate) keep: Option<crate::run::Kept>,
    /// How many of its turns; none: all.
    pub(crate) turns: Option<usize>,
    /// Whether the story is told.
    pub(crate) story: bool,
    /// A guard that is switched off: what is replaced in the scripts, and by what.
    pub(crate) sabotage: Option<(&'static str, &'static str)>,
    /// Whether it is noted what is reached of the scripts.
    pub(crate) coverage: bool,
}

/// How a game went.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Verdict {
    /// What is wrong; empty where nothing is.
    pub(crate) violations: Vec<String>,
    /// Commands that Redis carried out.
    pub(crate) commands: u64,
    /// Runs of processes between two looks at the network.
    pub(crate) slices: u64,
    /// Simulated time, s.
    pub(crate) seconds: u64,
    /// Turns that were answered.
    pub(crate) turns: usize,
    /// Runs of handlers.
    pub(crate) runs: usize,
    /// What its audit log came to, where that is sealed.
    #[serde(default)]
    pub(crate) audited: Audited,
    /// Troubles by kind.
    pub(crate) troubles: BTreeMap<String, u64>,
    /// How many troubles the game has.
    pub(crate) planned: usize,
    /// A digest of everything that Redis was asked and answered: two plays of one seed have the same.
    pub(crate) digest: u64,
    /// What happened, where it was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) story: Vec<String>,
    /// What was reached of the scripts, where it was asked for.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) reached: Reached,
}

/// Users beside schedulers and workers: two producers and one who cancels.
const PRODUCERS: usize = 2;

/// The part that a process plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Scheduler,
    Worker,
    Producer(usize),
    Canceller,
    Operator,
    Tasks,
    Approver,
    Auditor,
    /// It counts the shards otherwise than all others.
    Stray,
}

struct Place {
    role: Role,
    name: String,
    process: Process,
    live: Option<Live>,
    version: usize,
    starts: u64,
    /// When another starts in its place.
    back_us: Option<i64>,
    ahead_us: i64,
    /// How often in a row its liveness probe has failed.
    stalls: u32,
}

struct Game {
    seed: u64,
    site: Site,
    server: Server,
    oracle: Oracle,
    places: Vec<Place>,
    troubles: Vec<Trouble>,
    now_us: i64,
    /// When Redis answers again.
    frozen_us: i64,
    /// When Redis comes back, and how much it has lost then.
    down: Option<(i64, i64)>,
    kept_us: i64,
    /// By how much Redis' clock has stepped ahead in all, µs.
    leapt_us: i64,
    /// Whether Redis will lose writes in this game, so that states are kept to go back to.
    loses_writes: bool,
    chance: StdRng,
    verdict: Verdict,
    rules: Rules,
    /// When records were looked at last.
    looked_us: i64,
    /// When processes were asked last whether they live.
    probed_us: i64,
    /// Who lies in wait.
    ambushes: Vec<Ambush>,
    /// How many odd turns strangers have written.
    odds: u32,
}

/// Plays one game.
///
/// # Errors
/// The guard to switch off is not there; a runtime cannot be made.
pub(crate) fn play(seed: u64, options: &Options) -> anyhow::Result<Verdict> {
    let mut game = Game::new(seed, options)?;
    game.trouble()?;
    game.calm()?;
    game.audit()?;
    game.end();
    let mut facts = game.site.world.facts();
    game.verdict.violations = facts.violations.clone();
    let start_us = game.site.settings.calendar.start_us;
    game.verdict.seconds = ((game.now_us - start_us) / 1_000_000).unsigned_abs();
    game.verdict.commands = game.server.commands;
    if options.coverage {
        game.verdict.reached = coverage::reached(&game.server.redis);
    }
    (game.verdict.turns, game.verdict.runs) = (facts.replies.len(), facts.runs.len());
    game.verdict.audited = facts.audited;
    game.verdict.story = facts.story.drain(..).collect();
    Ok(std::mem::take(&mut game.verdict))
}

/// The generator of a part. Each has one of its own: what is left out of one changes nothing of another.
fn of(seed: u64, part: u64) -> StdRng {
    StdRng::seed_from_u64(seed.wrapping_mul(0x1000).wrapping_add(part))
}

/// The settings and troubles of a game.
fn drawn(seed: u64) -> (Settings, Vec<Trouble>) {
    let of = |part: u64| of(seed, part);
    let mut settings = Settings::draw(&mut of(1))
        .sharpened(&mut of(11))
        .limited(seed, &mut of(14))
        .governed(seed, &mut of(15))
        .sealed(seed, &mut of(16));
    let mut troubles = trouble::draw(&settings, &mut of(2));
    settings.calendar = Calendar::draw(settings.span_us, &mut of(5));
    calendar::lengthen(&mut troubles, &mut of(6));
    trouble::aim(&mut troubles, &settings, &mut of(12));
    trouble::theme(&mut troubles, &mut settings, &mut of(13));
    trouble::at_sealers(&mut troubles, &settings, &mut of(17));
    settings = settings.united().shortened();
    if settings.governed.is_some() {
        troubles.retain(|trouble| governed::may_be(&trouble.kind));
    }
    (settings, troubles)
}

/// The world of a game, before anything has happened.
fn world_of(settings: &Settings, is_told: bool) -> anyhow::Result<World> {
    let world = World::default();
    {
        let mut facts = world.facts();
        (facts.is_told, facts.now_us) = (is_told, settings.calendar.start_us);
        facts.kept_us = settings.governed.as_ref().map(|governed| governed.kept.as_micros() as i64);
    }
    world.tell(|| format!("{settings:#?}"));
    if settings.sealed.is_some() {
        // A process plays one game.
        tracing::subscriber::set_global_default(AnchorLog(world.clone()))?;
    }
    Ok(world)
}

impl Game {
    fn new(seed: u64, options: &Options) -> anyhow::Result<Self> {
        let (settings, mut troubles) = drawn(seed);
        let start_us = settings.calendar.start_us;
        let planned = troubles.len();
        if let Some(keep) = &options.keep {
            let all = std::mem::take(&mut troubles);
            troubles = all.into_iter().enumerate().filter(|(at, _)| keep.contains(at)).map(|(_, t)| t).collect();
        }
        let mut scripts = Scripts::embedded();
        if let Some((from, to)) = &options.sabotage {
            scripts = scripts.sabotage(from, to).map_err(anyhow::Error::msg)?;
        }
        let world = world_of(&settings, options.story)?;
        let site = Site { net: Net::new(seed ^ 0x5eed, start_us), world: world.clone(), scripts, settings };
        let mut game = Self {
            seed,
            server: Server::new(seed),
            oracle: Oracle::new(&site.settings, &world),
            places: Vec::new(),
            now_us: start_us,
            frozen_us: 0,
            down: None,
            kept_us: 0,
            leapt_us: 0,
            loses_writes: troubles.iter().any(|trouble| trouble.kind.word() == "redis_lost_writes"),
            chance: of(seed, 3),
            verdict: Verdict { planned, ..Verdict::default() },
            rules: Rules::new(&site.settings.store, &site.scripts, &world),
            looked_us: 0,
            probed_us: start_us,
            ambushes: Vec::new(),
            odds: 0,
            troubles,
            site,
        };
        if options.coverage {
            game.server.redis.cover(true);
        }
        game.server.redis.set_maxmemory(game.site.settings.maxmemory);
        game.server.set_now(start_us);
        game.populate(seed, options)?;
        let mut run_time = RunTime::draw(&game.site.settings, &mut of(seed, 4));
        if game.site.settings.sealed.as_ref().is_some_and(|sealed| sealed.is_one_policy) {
            run_time = RunTime::default();
        }
        game.operate(run_time, seed, options)?;
        let tasks = Tasks::draw(&game.site.settings, &mut of(seed, 7));
        game.delegate(tasks, seed, options)?;
        game.decide(seed)?;
        Ok(game)
    }

    /// Starts everybody.
    fn populate(&mut self, seed: u64, options: &Options) -> anyhow::Result<()> {
        let settings = self.site.settings.clone();
        for number in 0..settings.schedulers {
            self.start(Role::Scheduler, format!("s{number}"), seed)?;
        }
        for number in 0..settings.workers {
            self.start(Role::Worker, format!("w{number}"), seed)?;
        }
        let mut left = options.turns.unwrap_or(settings.turns).min(settings.turns);
        let mut named = Vec::new();
        for number in 0..PRODUCERS {
            let mut turns =
                parts::turns(&settings, number, settings.turns / PRODUCERS, seed.wrapping_add(number as u64));
            turns.truncate(left);
            left -= turns.len();
            self.site.world.facts().turns.extend(parts::by_name(&turns));
            named.extend(turns.iter().filter_map(|(wait, turn, _)| {
                Some((*wait, TurnName { tenant: turn.tenant.clone(), turn: turn.id.clone()? }))
            }));
            let turns = turns.into_iter().map(|(wait, turn, _)| (wait, turn)).collect::<Vec<_>>();
            let place = self.places.len();
            let site = &self.site;
            let process = Process::start(self.now_us, 0, seed ^ place as u64, |shutdown| {
                site.producer(place, number, turns, shutdown)
            })?;
            self.seat(Role::Producer(number), format!("p{number}"), process, None);
        }
        let cancels = cancels(named, &mut StdRng::seed_from_u64(seed ^ 0xca_9ce1));
        let place = self.places.len();
        let site = &self.site;
        let process = Process::start(self.now_us, 0, seed ^ place as u64, |_| site.canceller(place, cancels))?;
        self.seat(Role::Canceller, "c0".into(), process, None);
        Ok(())
    }

    /// Starts the operator, in a game that has one.
    fn operate(&mut self, mut run_time: RunTime, seed: u64, options: &Options) -> anyhow::Result<()> {
        if run_time.is_empty() {
            return Ok(());
        }
        self.site.world.tell(|| format!("{run_time:#?}"));
        let turns = run_time.truncate(options.turns.unwrap_or(usize::MAX));
        self.site.world.facts().turns.extend(turns);
        let place = self.places.len();
        let site = &self.site;
        let process = Process::start(self.now_us, 0, seed ^ place as u64, |_| site.operator(place, run_time))?;
        self.seat(Role::Operator, "o0".into(), process, None);
        Ok(())
    }

    /// Starts who delegates, in a game that has tasks.
    fn delegate(&mut self, mut tasks: Tasks, seed: u64, options: &Options) -> anyhow::Result<()> {
        if tasks.is_empty() {
            return Ok(());
        }
        let named = tasks.truncate(options.turns.unwrap_or(usize::MAX));
        self.site.world.facts().turns.extend(named);
        let place = self.places.len();
        let site = &self.site;
        let process = Process::start(self.now_us, 0, seed ^ place as u64, |_| site.tasks(place, tasks))?;
        self.seat(Role::Tasks, "t0".into(), process, None);
        Ok(())
    }

    /// Starts the people who decide about calls, in a game that has some.
    fn decide(&mut self, seed: u64) -> anyhow::Result<()> {
        if self.site.settings.governed.is_none() {
            return Ok(());
        }
        for who in governed::APPROVERS {
            let (place, site) = (self.places.len(), &self.site);
            let chance = seed ^ place as u64;
            let process = Process::start(self.now_us, 0, chance, |_| site.approver(place, who, chance))?;
            self.seat(Role::Approver, who.into(), process, None);
        }
        Ok(())
    }

    fn seat(&mut self, role: Role, name: String, process: Process, live: Option<Live>) {
        let place = Place { role, name, process, live, version: 0, starts: 1, back_us: None, ahead_us: 0, stalls: 0 };
        self.places.push(place);
    }

    fn start(&mut self, role: Role, name: String, seed: u64) -> anyhow::Result<()> {
        let place = self.places.len();
        let (process, live) = self.run(role, place, &name, 0, 0, seed ^ (place as u64) << 8)?;
        self.seat(role, name, process, Some(live));
        Ok(())
    }

    fn run(
        &self,
        role: Role,
        place: usize,
        name: &str,
        version: usize,
        ahead_us: i64,
        seed: u64,
    ) -> anyhow::Result<(Process, Live)> {
        let mut live = None;
        let process = Process::start(self.now_us, ahead_us, seed, |shutdown| {
            let (main, made) = match role {
                Role::Scheduler => self.site.scheduler(place, name, version, shutdown),
                _ => self.site.worker(place, name, version, shutdown),
            };
            live = Some(made);
            main
        })?;
        live.map(|live| (process, live)).ok_or_else(|| anyhow::anyhow!("{name} was not made"))
    }

    /// The time of trouble.
    fn trouble(&mut self) -> anyhow::Result<()> {
        let start_us = self.site.settings.calendar.start_us;
        let until = start_us + self.site.settings.span_us;
        let mut troubles = std::mem::take(&mut self.troubles).into_iter().peekable();
        while self.now_us < until && !self.is_decided() {
            while let Some(trouble) = troubles.next_if(|trouble| start_us + trouble.at_us <= self.now_us) {
                self.strike(&trouble.kind)?;
            }
            self.step()?;
        }
        Ok(())
    }

    fn is_decided(&self) -> bool {
        !self.site.world.facts().violations.is_empty()
    }

    /// A little time for everybody.
    fn step(&mut self) -> anyhow::Result<()> {
        // Where nothing is under way, only time has to pass.
        let most_us = if self.site.net.is_idle() { 12_000 } else { 2_500 };
        self.now_us += self.chance.random_range(most_us / 8..most_us);
        let now_us = self.now_us;
        self.site.net.set_now(now_us);
        self.site.world.facts().now_us = now_us;
        self.come_back()?;
        let first = self.chance.random_range(0..self.places.len());
        for turn in 0..self.places.len() {
            let at = (first + turn) % self.places.len();
            self.places[at].process.run_to(now_us);
            self.verdict.slices += 1;
        }
        if self.down.is_some_and(|(until, _)| until <= now_us) {
            self.down = None;
            self.site.net.set_open(true);
        }
        if self.down.is_none() && self.frozen_us <= now_us {
            self.serve();
        }
        self.site.net.deliver();
        self.probe();
        if now_us - self.kept_us > 100_000 {
            self.kept_us = now_us;
            if self.loses_writes {
                self.server.keep(now_us);
            }
            self.oracle.look_at_world();
            self.oracle.look_at_run_time(&mut self.server.redis);
        }
        if now_us - self.looked_us > 500_000 && self.down.is_none() {
            self.looked_us = now_us;
            self.rules.look_at_records(&mut self.server.redis);
        }
        Ok(())
    }

    /// Whoever died or has drained starts again.
    fn come_back(&mut self) -> anyhow::Result<()> {
        for at in 0..self.places.len() {
            let place = &mut self.places[at];
            if !matches!(place.role, Role::Scheduler | Role::Worker) {
                continue;
            }
            if place.process.is_alive() && place.process.has_ended() && place.back_us.is_none() {
                place.process.die_after(0);
                place.back_us = Some(self.now_us + 100_000);
                self.note_death(at);
            }
            let place = &mut self.places[at];
            if place.process.is_alive() || place.back_us.is_none_or(|back| back > self.now_us) {
                continue;
            }
            place.back_us = None;
            place.starts += 1;
            let (role, name, version, ahead_us) = (place.role, place.name.clone(), place.version, place.ahead_us);
            let seed = (at as u64) << 8 ^ place.starts << 32 ^ 0x5eed;
            let (process, live) = self.run(role, at, &name, version, ahead_us, seed)?;
            (self.places[at].process, self.places[at].live) = (process, Some(live));
            self.site.world.tell(|| format!("{name} starts again"));
        }
        Ok(())
    }
}

/// Which turns are cancelled: each with the wait before it, ms.
fn cancels(mut named: Vec<(u64, TurnName)>, chance: &mut StdRng) -> Vec<(u64, TurnName)> {
    named.sort_by_key(|(wait, _)| *wait);
    let (mut last, mut cancels) = (0, Vec::new());
    for (wait, name) in named {
        if chance.random_range(0..8) != 0 {
            continue;
        }
        let at = wait + [0, 5, 50, 3_000][chance.random_range(0..4)];
        cancels.push((at.saturating_sub(last), name));
        last = last.max(at);
    }
    cancels
}

/// FNV-1a over what was asked and answered.
fn fold(digest: u64, done: &Done<'_>) -> u64 {
    let mut bytes = Vec::new();
    done.reply.encode(&mut bytes);
    let all = done.args.iter().flatten().chain(&bytes);
    all.fold(digest, |digest, byte| (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
