//! Random interleavings of equal calls: their holders claim, begin, run, conclude and settle in any order, die in between,
//! and say what they know to a Redis that came back without the ledger's last writes. The effect takes place once, and
//! everybody is told what is true.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use redis::aio::MultiplexedConnection;
use tickfleet_model::TenantId;
use tickfleet_store::{
    Begin, Begun, Claimant, Claimed, Conclusion, EffectClaim, EffectEnd, EffectName, Scripts, TurnName,
};
use tickfleet_testkit::RedisOptions;
use tickfleet_testkit::guards::LEDGER;

use super::number_from_environment;
use super::targeted::Shard;

const TURNS: usize = 3;
const GAMES: u64 = 1_000;
/// Longer than a game lasts: within it the effect takes place once.
const WINDOW_MS: i64 = 3_600_000;
const LEASE_MS: i64 = 10_000;
const UNKNOWN: &str = "unknown";
const REFUSED: &str = "refused";

/// How far a holder has come with its call.
#[derive(Debug, Clone, PartialEq)]
enum Stage {
    Claim,
    Begin,
    Run,
    Conclude(EffectEnd, String),
    Settle(String),
    Over,
}

/// The process that has a turn's slice.
#[derive(Debug)]
struct Holder {
    nonce: String,
    stage: Stage,
    nothing: Option<Claimant>,
    has_claim: bool,
    /// What it says of its claim after a restart.
    says: Option<EffectEnd>,
    has_spoken: bool,
}

struct Game<'s> {
    shard: &'s Shard,
    redis: MultiplexedConnection,
    chance: StdRng,
    slices: Vec<(TurnName, String)>,
    holders: Vec<Holder>,
    /// Holders that left their slice to others, and live.
    left: Vec<(usize, Holder)>,
    nonces: usize,
    /// The effect's key after each step since somebody died.
    past: Vec<Option<Vec<u8>>>,
    /// When Redis restarted, ms of the game.
    restarted_ms: i64,
    elapsed_ms: i64,
    /// Whether holders tell a restarted Redis what they know.
    speaks: bool,
    died: bool,
    paid_by: Option<usize>,
    told: Vec<Option<String>>,
}

fn effect() -> EffectName {
    EffectName { tenant: TenantId::new("acme").unwrap(), tool: "pay".into(), hash: "0".repeat(64) }
}

fn ledger_of(result: &str) -> EffectEnd {
    match result {
        REFUSED => EffectEnd::Undone,
        UNKNOWN => EffectEnd::Unknown(UNKNOWN.into()),
        paid => EffectEnd::Ended(paid.into()),
    }
}

impl<'s> Game<'s> {
    async fn new(shard: &'s Shard, seed: u64, speaks: bool) -> Self {
        let mut redis = shard.server.connection().await;
        let () = redis::cmd("FLUSHALL").query_async(&mut redis).await.unwrap();
        shard.store.ensure_groups().await.unwrap();
        shard.store.announce("policy", None, false).await.unwrap();
        let mut batch = shard.inbound(TURNS).await;
        batch.iter_mut().for_each(|turn| turn.meta = r#"{"dg":"d"}"#.into());
        let admitted = shard.admit(&batch).await.unwrap();
        shard.beat("w").await;
        let entries = shard.reader("w").take("ready:normal", TURNS).await.unwrap();
        assert_eq!(entries.len(), TURNS, "of {} turns: {admitted:?}", batch.len());
        let name = |field: &[u8]| TurnName::parse(&String::from_utf8_lossy(field)).unwrap();
        let slices = entries.iter().map(|e| (name(e.field("t").unwrap()), e.id.clone())).collect();
        let mut game = Self {
            shard,
            redis,
            chance: StdRng::seed_from_u64(seed),
            slices,
            holders: Vec::new(),
            left: Vec::new(),
            nonces: 0,
            past: Vec::new(),
            restarted_ms: i64::MIN / 2,
            elapsed_ms: 0,
            speaks,
            died: false,
            paid_by: None,
            told: vec![None; TURNS],
        };
        for _ in 0..TURNS {
            let holder = game.holder();
            game.holders.push(holder);
        }
        game
    }

    fn holder(&mut self) -> Holder {
        self.nonces += 1;
        let nonce = format!("n{}", self.nonces);
        Holder { nonce, stage: Stage::Claim, nothing: None, has_claim: false, says: None, has_spoken: true }
    }

    fn claimant(&self, turn: usize) -> Claimant {
        Claimant::new(&self.slices[turn].0.turn, 0, "d")
    }

    fn key(&self) -> String {
        self.shard.store.keys().key(format_args!("effect:{}", effect()))
    }

    async fn conclude(&self, by: Claimant, end: EffectEnd) {
        let conclusion = Conclusion { effect: effect(), by, window_ms: WINDOW_MS, end };
        self.shard.store.conclude(&[conclusion]).await.unwrap();
    }

    /// One step of a holder, as a worker's.
    async fn act(&mut self, turn: usize) -> Result<(), String> {
        match self.holders[turn].stage.clone() {
            Stage::Claim => self.claim(turn).await?,
            Stage::Begin => self.begin(turn).await,
            Stage::Run => self.run(turn)?,
            Stage::Conclude(end, result) => {
                let holder = &mut self.holders[turn];
                if holder.has_claim {
                    holder.says = Some(end.clone());
                    self.conclude(self.claimant(turn), end).await;
                }
                self.holders[turn].stage = Stage::Settle(result);
            }
            Stage::Settle(result) => {
                // One of two: the record of the turn stays, with its result.
                self.shard.settle(&self.slices[turn], 1).await.map_err(|error| error.to_string())?;
                self.told[turn] = Some(result);
                self.holders[turn].stage = Stage::Over;
            }
            Stage::Over => {}
        }
        Ok(())
    }

    async fn claim(&mut self, turn: usize) -> Result<(), String> {
        let (name, fence) = self.slices[turn].clone();
        let nothing = self.holders[turn].nothing.take();
        let (digest, effect) = ("d".into(), effect());
        let asked =
            EffectClaim { name, fence, position: 0, digest, effect, window_ms: WINDOW_MS, nothing, knows: None };
        let claimed = self.shard.store.claim(&[asked]).await.unwrap().remove(0);
        let holder = &mut self.holders[turn];
        match claimed {
            Claimed::Ours => {
                (holder.has_claim, holder.says, holder.stage) = (true, Some(EffectEnd::Open), Stage::Begin);
            }
            Claimed::Begun => holder.stage = Stage::Begin,
            Claimed::Ended(_, result) => {
                self.check(turn, &result)?;
                self.holders[turn].stage = Stage::Settle(result);
            }
            Claimed::Gone(by, _) => {
                let (gone, _) = by.place().ok_or("a claim says whose it is")?;
                let of = self.slices.iter().position(|(name, _)| name.turn == gone).ok_or("a claim of nobody")?;
                // The result that the record of its turn has.
                let result = self.told[of].clone().unwrap_or_else(|| UNKNOWN.to_owned());
                if result == REFUSED {
                    self.holders[turn].nothing = Some(by);
                } else {
                    self.check(turn, &result)?;
                    self.conclude(by, ledger_of(&result)).await;
                    self.holders[turn].stage = Stage::Settle(result);
                }
            }
            Claimed::Waits(_) | Claimed::Hold => {}
            Claimed::Stale => return Err("the holder is held stale".into()),
        }
        Ok(())
    }

    /// What an equal call is told has to be true.
    fn check(&self, turn: usize, result: &str) -> Result<(), String> {
        match result {
            UNKNOWN if !self.died => Err(format!("turn {turn} is told that nobody knows, and nobody has died")),
            UNKNOWN => Ok(()),
            paid if self.paid_by.is_some_and(|by| paid == format!("paid by {by}")) => Ok(()),
            other => Err(format!("turn {turn} is told {other:?} of {:?}", self.paid_by)),
        }
    }

    async fn begin(&mut self, turn: usize) {
        let ((name, fence), nonce) = (self.slices[turn].clone(), Some(self.holders[turn].nonce.clone()));
        let begin = Begin { name, fence, position: 0, nonce, digest: "d".into(), knows: None };
        let begun = self.shard.store.begin(&[begin]).await.unwrap().remove(0);
        self.holders[turn].stage = match begun {
            Begun::Ok => Stage::Run,
            Begun::Unknown => Stage::Conclude(ledger_of(UNKNOWN), UNKNOWN.into()),
            Begun::Hold => Stage::Begin,
            other => panic!("{other:?}"),
        };
    }

    fn run(&mut self, turn: usize) -> Result<(), String> {
        let refused = self.chance.random_bool(0.3);
        if !refused && let Some(by) = self.paid_by.replace(turn) {
            return Err(format!("turn {turn} pays what turn {by} has paid"));
        }
        let result = if refused { REFUSED.to_owned() } else { format!("paid by {turn}") };
        let end = ledger_of(&result);
        // The ledger could not be told: the worker warns, and goes on.
        let is_unheard = self.chance.random_bool(0.1);
        let holder = &mut self.holders[turn];
        holder.stage = if is_unheard { Stage::Settle(result) } else { Stage::Conclude(end, result) };
        Ok(())
    }

    /// Somebody dies, and another takes the slice over.
    fn kill(&mut self, turn: usize) {
        if self.holders[turn].stage == Stage::Over {
            return;
        }
        self.died = true;
        self.past.clear();
        self.holders[turn] = self.holder();
    }

    /// A worker that stops hands a call back that has not begun; for a while it knows of the claim still.
    fn hand_back(&mut self, turn: usize) {
        if matches!(self.holders[turn].stage, Stage::Claim | Stage::Begin) {
            let next = self.holder();
            let holder = std::mem::replace(&mut self.holders[turn], next);
            self.left.push((turn, holder));
        }
    }

    /// Redis comes back without the last that was written into the ledger.
    async fn restart(&mut self) {
        let Some(value) = self.past.first().cloned() else { return };
        let mut pipe = redis::pipe();
        pipe.cmd("DEL").arg(self.key()).ignore();
        if let Some(value) = value {
            pipe.cmd("RESTORE").arg(self.key()).arg(WINDOW_MS).arg(value).ignore();
        }
        pipe.cmd("HSET").arg(self.shard.store.keys().key("meta")).arg("run_id").arg("another").ignore();
        let () = pipe.query_async(&mut self.redis).await.unwrap();
        // Anybody's next script opens the epoch.
        self.shard.store.ensure_groups().await.unwrap();
        self.shard.beat("w").await;
        self.past.clear();
        self.restarted_ms = self.elapsed_ms;
        let left = self.left.iter_mut().map(|(_, holder)| holder);
        self.holders.iter_mut().chain(left).for_each(|holder| holder.has_spoken = false);
    }

    /// The heartbeat of whoever has not spoken yet.
    async fn speak(&mut self) {
        let left = self.left.iter_mut().map(|(turn, holder)| (*turn, holder));
        let mut all: Vec<(usize, EffectEnd)> = left
            .chain(self.holders.iter_mut().enumerate())
            .filter_map(|(turn, holder)| {
                (!std::mem::replace(&mut holder.has_spoken, true)).then(|| (turn, holder.says.clone()))
            })
            .filter_map(|(turn, says)| Some((turn, says?)))
            .collect();
        all.shuffle(&mut self.chance);
        for (turn, end) in all {
            if self.speaks {
                self.conclude(self.claimant(turn), end).await;
            }
        }
    }

    async fn pass_time(&mut self) {
        let ms = self.chance.random_range(1..LEASE_MS / 2);
        // Rule 8: whoever lives beats within the lease.
        if self.elapsed_ms + ms >= self.restarted_ms + LEASE_MS / 2 {
            self.speak().await;
        }
        self.elapsed_ms += ms;
        self.shard.advance(ms);
    }

    async fn remember(&mut self) {
        let value = redis::cmd("DUMP").arg(self.key()).query_async(&mut self.redis).await.unwrap();
        self.past.push(value);
        if self.past.len() > 4 {
            self.past.remove(0);
        }
    }

    async fn play(&mut self) -> Result<(), String> {
        for _ in 0..60 {
            let turn = self.chance.random_range(0..TURNS);
            match self.chance.random_range(0..100) {
                0..4 => self.kill(turn),
                4..8 => self.hand_back(turn),
                8..12 => self.restart().await,
                12..30 => self.pass_time().await,
                _ => self.act(turn).await?,
            }
            self.remember().await;
        }
        for _ in 0..60 {
            self.pass_time().await;
            for turn in 0..TURNS {
                self.act(turn).await?;
            }
        }
        self.shard.advance(-self.elapsed_ms);
        let stuck = self.holders.iter().find(|holder| holder.stage != Stage::Over);
        stuck.map_or(Ok(()), |holder| Err(format!("a call never ends: {holder:?}")))
    }
}

/// Plays games until one goes wrong.
async fn violation(scripts: Scripts, speaks: bool) -> Option<String> {
    let shard = Shard::new(RedisOptions::default(), scripts).await;
    let seeds = number_from_environment("TICKFLEET_SEED").map_or(0..GAMES, |seed| seed..seed + 1);
    for seed in seeds {
        if let Err(violation) = Game::new(&shard, seed, speaks).await.play().await {
            return Some(format!("seed {seed}: {violation}"));
        }
    }
    None
}

#[tokio::test]
async fn of_equal_calls_one_takes_effect_whoever_dies_and_whatever_redis_forgets() {
    assert_eq!(violation(Scripts::embedded(), true).await, None);
}

#[tokio::test]
async fn switching_off_a_guard_of_the_ledger_is_noticed() {
    for (rule, what, from, to) in LEDGER {
        let noticed = violation(Scripts::embedded().sabotage(from, to).unwrap(), true).await;
        let noticed = noticed.unwrap_or_else(|| panic!("rule {rule}: not noticed in {GAMES} games: {what}"));
        println!("rule {rule}, {what}: {noticed}");
    }
    let silent = violation(Scripts::embedded(), false).await;
    assert!(silent.is_some(), "rule 8: workers that say nothing after a restart are not noticed");
}
