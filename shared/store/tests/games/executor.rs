//! A deterministic executor: a seeded generator chooses the next actor to poll. A crash drops an actor at its current
//! await. A pause stops an actor there while other actors run.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, Waker};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

pub struct Yield(bool);

pub fn yield_now() -> Yield {
    Yield(false)
}

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        Poll::Pending
    }
}

#[derive(Clone, Default)]
pub struct VirtualClock(Arc<AtomicI64>);

impl VirtualClock {
    pub fn now_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn set(&self, ms: i64) {
        self.0.store(ms, Ordering::SeqCst);
    }

    pub fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

type Body = Pin<Box<dyn Future<Output = ()>>>;

/// The argument is the number of the actor's starts so far.
pub type Start = Box<dyn Fn(u32) -> Body>;

struct Actor {
    start: Start,
    body: Option<Body>,
    incarnation: u32,
    paused_until_ms: i64,
    can_crash: bool,
}

/// Per 10,000 polls.
#[derive(Debug, Clone, Copy)]
pub struct Chances {
    pub crash: u32,
    pub pause: u32,
    pub pause_max_ms: i64,
    pub advance: u32,
    pub advance_max_ms: i64,
}

pub struct Executor {
    actors: Vec<Actor>,
    pub rng: StdRng,
    pub clock: VirtualClock,
    pub polls: u64,
    pub crashes: u64,
}

impl Executor {
    pub fn new(seed: u64, clock: VirtualClock) -> Self {
        Self { actors: Vec::new(), rng: StdRng::seed_from_u64(seed), clock, polls: 0, crashes: 0 }
    }

    pub fn add(&mut self, can_crash: bool, start: Start) {
        let body = Some(start(0));
        self.actors.push(Actor { start, body, incarnation: 0, paused_until_ms: 0, can_crash });
    }

    pub fn step(&mut self, chances: Chances) {
        self.polls += 1;
        if self.rng.random_range(0..10_000) < chances.advance {
            self.clock.advance(self.rng.random_range(1..=chances.advance_max_ms));
        }
        let now_ms = self.clock.now_ms();
        let index = self.rng.random_range(0..self.actors.len());
        let Some(actor) = self.actors.get_mut(index) else { return };
        if actor.paused_until_ms > now_ms {
            return;
        }
        if actor.can_crash && self.rng.random_range(0..10_000) < chances.crash {
            actor.body = None;
            self.crashes += 1;
        } else if actor.can_crash && self.rng.random_range(0..10_000) < chances.pause {
            // Half of the pauses are short: views become stale, but leases do not end.
            let most_ms = chances.pause_max_ms / if self.rng.random_range(0..2) == 0 { 16 } else { 1 };
            actor.paused_until_ms = now_ms + self.rng.random_range(1..=most_ms.max(1));
            return;
        }
        let body = match &mut actor.body {
            Some(body) => body,
            None => {
                actor.incarnation += 1;
                actor.body.insert((actor.start)(actor.incarnation))
            }
        };
        if body.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            actor.body = None;
        }
    }
}

/// Runs several futures of one actor to their ends. Each poll polls one of the futures, chosen by a seeded generator.
pub struct Slots {
    bodies: Vec<Body>,
    rng: StdRng,
}

impl Slots {
    pub fn new<F: Future<Output = ()> + 'static>(bodies: impl Iterator<Item = F>, seed: u64) -> Self {
        Self { bodies: bodies.map(|body| Box::pin(body) as Body).collect(), rng: StdRng::seed_from_u64(seed) }
    }
}

impl Future for Slots {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.bodies.is_empty() {
            return Poll::Ready(());
        }
        let bodies = self.bodies.len();
        let index = self.rng.random_range(0..bodies);
        if self.bodies[index].as_mut().poll(context).is_ready() {
            drop(self.bodies.swap_remove(index));
        }
        Poll::Pending
    }
}
