//! A game as a plan without versions, entry IDs and times, so that a failed game can be reduced by removing parts.

use super::dice::Dice;
use super::universe::{
    CONSUMERS, CONTENTS, COUNTERS, INBOXES, LIMITS, LOGS, MEMBERS, PARTS, PREFIXES, QUEUES, RECORDS, SETS, STREAMS,
    TIMERS,
};

#[derive(Debug, Clone)]
pub enum Step {
    Commit(Vec<Draft>),
    /// Commits an earlier batch again, this many batches back.
    Repeat(usize),
    Take {
        consumer: usize,
        queues: Vec<usize>,
        count: usize,
    },
    Read(Vec<QueryDraft>),
    /// In milliseconds.
    Clock(i64),
    /// Moves the clock to the end of a current window, rounded down to an even millisecond.
    ClockToEnd(usize),
    Restart,
    Sample(MemoryLevel),
    Trim {
        stream: usize,
        age: Option<Age>,
        entries: u64,
        read_through: Option<ReadUpto>,
    },
    Backlog,
    RemoveConsumer {
        queue: usize,
        consumer: usize,
    },
    Ensure(Vec<usize>),
    Scan {
        prefix: usize,
        count: usize,
    },
    ScanCounters {
        limit: usize,
        count: usize,
    },
}

#[derive(Debug, Clone, Copy)]
pub enum MemoryLevel {
    Plenty,
    Short,
    Full,
}

#[derive(Debug, Clone, Copy)]
pub enum Age {
    Ms(i64),
    /// The age of an entry (counted from the newest), plus a number of milliseconds.
    OfEntry(usize, i64),
}

#[derive(Debug, Clone, Copy)]
pub enum ReadUpto {
    Entry(Pick),
    /// The store never had this entry, or lost it in a restart.
    Lost,
}

#[derive(Debug, Clone)]
pub struct Draft {
    /// True if the first record of the transaction is its dedupe record.
    pub dedupe_record: bool,
    pub stamped: bool,
    pub guards: Vec<GuardDraft>,
    pub writes: Vec<WriteDraft>,
}

#[derive(Debug, Clone, Copy)]
pub enum Pick {
    /// A taken entry that the game believes to be held, counted from the newest.
    Held(usize),
    /// An enqueued or appended entry, counted from the newest.
    Known(usize),
    Foreign,
}

#[derive(Debug, Clone, Copy)]
pub enum Belief {
    Right,
    Absent,
    /// The current version without its last character.
    Shorter,
    Longer,
}

#[derive(Debug, Clone)]
pub enum GuardDraft {
    Record(usize, Belief),
    Present(usize),
    Debit(DebitDraft),
    /// `Before` and `Since` are relative to shard time, in milliseconds.
    Before(i64),
    Since(i64),
    /// Relative to the current generations.
    Generation {
        policy: i64,
        settings: i64,
    },
    Epoch {
        number: i64,
        lease_ms: i64,
    },
    Within(usize, u64),
    Fits {
        set: usize,
        member: usize,
        max: u64,
    },
    Member(usize, usize),
    First(usize, usize),
    MemoryAvailable,
    Inbox {
        inbox: usize,
        unread_max: u64,
        inboxes_max: u64,
    },
    Unread(usize, Pick),
    Held(usize, Pick),
}

#[derive(Debug, Clone)]
pub struct DebitDraft {
    pub limit: usize,
    pub counter: usize,
    pub kind: usize,
    pub amount: u64,
    pub max: u64,
    pub length: usize,
    pub phase: i64,
    /// By this number of windows, the decision is too early or too late.
    pub shift: i64,
    pub behind_queue: bool,
    pub shadow: bool,
    pub counters_max: u64,
}

#[derive(Debug, Clone)]
pub enum WriteDraft {
    Put {
        record: usize,
        content: usize,
        ttl_ms: Option<i64>,
    },
    PutPart {
        record: usize,
        part: usize,
        content: usize,
    },
    DeleteParts(usize, Vec<usize>),
    Delete(usize),
    Enqueue(usize, usize),
    Remove(usize, Pick),
    DropQueue(usize),
    /// The due time is relative to shard time.
    Timer {
        timer: usize,
        due: i64,
        rule: usize,
    },
    ClearTimer(usize),
    AddMember {
        set: usize,
        member: usize,
        score: u64,
    },
    RemoveMember {
        set: usize,
        member: usize,
    },
    /// Adds without a window, in the current window, or in another window.
    Add {
        limit: usize,
        counter: usize,
        amount: i64,
        window: usize,
    },
    Restart {
        limit: usize,
        counter: usize,
        amount: u64,
        window: usize,
    },
    DeleteCounter {
        limit: usize,
        counter: usize,
    },
    Append {
        log: usize,
        fields: usize,
        max_entries: u64,
    },
    Reply {
        inbox: usize,
        content: usize,
    },
    PolicyGeneration(i64),
    SettingsGeneration(i64),
}

#[derive(Debug, Clone)]
pub enum QueryDraft {
    Record(usize),
    Parts(usize, Vec<usize>),
    AllParts(usize),
    Counter(usize, usize),
    /// Timers if `set` is `None`. For timers, `upto` is relative to shard time.
    First {
        set: Option<usize>,
        upto: Option<i64>,
        count: usize,
    },
    Score(Option<usize>, usize),
    Size(Option<usize>),
    Entry(usize, Pick),
    Holder(usize, Pick),
    Holds {
        queue: usize,
        consumer: usize,
        count: usize,
    },
    Entries {
        stream: usize,
        after: Option<Pick>,
        count: usize,
    },
}

pub fn game(dice: &mut Dice<'_>, steps: usize) -> Vec<Step> {
    dice.list(1, steps, step)
}

fn step(dice: &mut Dice<'_>) -> Step {
    match dice.weighted(&[14, 3, 6, 5, 5, 1, 1, 3, 1, 1, 1, 1, 1, 3]) {
        0 => Step::Commit(dice.list(1, 8, draft)),
        1 => Step::Repeat(if dice.chance(75) { 0 } else { dice.below(4) }),
        2 => Step::Take {
            consumer: dice.below(CONSUMERS.len()),
            queues: dice.list(1, 3, |dice| dice.below(QUEUES.len())),
            count: 1 + dice.below(5),
        },
        3 => Step::Read(dice.list(1, 8, question)),
        4 => Step::Clock(clock(dice)),
        5 => Step::Restart,
        6 => Step::Sample([MemoryLevel::Plenty, MemoryLevel::Short, MemoryLevel::Full][dice.weighted(&[2, 1, 1])]),
        7 => Step::Trim {
            stream: QUEUES.len() + dice.below(STREAMS - QUEUES.len()),
            age: match dice.weighted(&[4, 1, 5]) {
                0 => None,
                1 => Some(Age::Ms(dice.within(1, 400))),
                _ => Some(Age::OfEntry(dice.below(4), dice.within(-1, 1))),
            },
            entries: dice.weighted(&[3, 1, 1, 1]) as u64,
            read_through: match dice.weighted(&[4, 2, 1]) {
                0 => None,
                1 => Some(ReadUpto::Entry(pick(dice))),
                _ => Some(ReadUpto::Lost),
            },
        },
        8 => Step::Backlog,
        9 => Step::RemoveConsumer { queue: dice.below(QUEUES.len()), consumer: dice.below(CONSUMERS.len()) },
        10 => Step::Ensure(dice.list(0, 3, |dice| dice.below(QUEUES.len()))),
        11 => Step::Scan { prefix: dice.below(PREFIXES.len()), count: 1 + dice.below(9) },
        12 => Step::ScanCounters { limit: dice.below(LIMITS.len()), count: 1 + dice.below(9) },
        _ => Step::ClockToEnd(dice.below(12)),
    }
}

/// Steps are even and lifetimes are odd, so that no step ends in the millisecond in which a lifetime ends. In that
/// millisecond, a server has already removed new parts, but still has the record.
fn clock(dice: &mut Dice<'_>) -> i64 {
    2 * match dice.weighted(&[6, 6, 2, 1, 2, 1, 1]) {
        0 => dice.within(0, 20),
        1 => dice.within(20, 150),
        2 => dice.within(450, 1_500),
        3 => 1_800_000,
        4 => dice.within(-20, 0),
        5 => dice.within(-1_500, -20),
        _ => -1_800_000,
    }
}

/// Few guards are more frequent than many, so that about half of the transactions are committed.
fn draft(dice: &mut Dice<'_>) -> Draft {
    let (least, most) = [(0, 1), (1, 3), (3, 5)][dice.weighted(&[2, 3, 1])];
    Draft {
        dedupe_record: dice.chance(50),
        stamped: dice.chance(50),
        guards: dice.list(least, most, guard),
        writes: dice.list(0, 8, write),
    }
}

fn pick(dice: &mut Dice<'_>) -> Pick {
    match dice.weighted(&[5, 3, 1]) {
        0 => Pick::Held(dice.below(4)),
        1 => Pick::Known(dice.below(6)),
        _ => Pick::Foreign,
    }
}

fn guard(dice: &mut Dice<'_>) -> GuardDraft {
    match dice.weighted(&[8, 1, 10, 1, 1, 1, 1, 1, 2, 2, 1, 2, 1, 4, 2]) {
        0 => {
            let beliefs = [Belief::Right, Belief::Absent, Belief::Shorter, Belief::Longer];
            GuardDraft::Record(dice.below(RECORDS.len()), beliefs[dice.weighted(&[20, 1, 1, 1])])
        }
        1 => GuardDraft::Present(dice.below(RECORDS.len())),
        2 => GuardDraft::Debit(debit(dice)),
        3 => GuardDraft::Before(if dice.chance(75) { dice.within(1, 200) } else { dice.within(-2, 2) }),
        4 => GuardDraft::Since(if dice.chance(75) { dice.within(-200, 1) } else { dice.within(-2, 3) }),
        5 => GuardDraft::Generation { policy: dice.within(-1, 2), settings: dice.within(-1, 2) },
        6 => GuardDraft::Epoch {
            number: [0, -1, 1][dice.weighted(&[8, 1, 1])],
            lease_ms: [0, 50, 1_000][dice.weighted(&[2, 1, 1])],
        },
        7 => GuardDraft::Within(dice.below(STREAMS), dice.below(12) as u64),
        8 => GuardDraft::Fits { set: dice.below(SETS), member: dice.below(MEMBERS.len()), max: dice.below(4) as u64 },
        9 => GuardDraft::Member(dice.below(SETS), dice.below(MEMBERS.len())),
        10 => GuardDraft::MemoryAvailable,
        11 => GuardDraft::Inbox {
            inbox: dice.below(INBOXES.len()),
            unread_max: dice.below(5) as u64,
            inboxes_max: dice.below(3) as u64,
        },
        12 => {
            let newest = dice.chance(85);
            let entry = if newest { Pick::Known(dice.below(2)) } else { pick(dice) };
            GuardDraft::Unread(dice.below(QUEUES.len()), entry)
        }
        13 => GuardDraft::Held(dice.below(QUEUES.len()), pick(dice)),
        _ => GuardDraft::First(dice.below(SETS), dice.below(MEMBERS.len())),
    }
}

fn debit(dice: &mut Dice<'_>) -> DebitDraft {
    let limit = dice.below(LIMITS.len());
    DebitDraft {
        limit,
        // One counter is more frequent, so that several debits use the same window.
        counter: dice.weighted(&[3, 1, 1, 1]),
        kind: if dice.chance(94) { limit } else { dice.below(LIMITS.len()) },
        amount: dice.below(4) as u64,
        max: match dice.weighted(&[12, 4, 1, 1]) {
            0 => 4 + dice.below(8) as u64,
            1 => dice.below(4) as u64,
            2 => 1 << 53,
            _ => u64::MAX,
        },
        length: dice.weighted(&[6, 2, 1]),
        phase: [0, 30][dice.weighted(&[4, 1])],
        shift: [0, -1, 1][dice.weighted(&[8, 1, 1])],
        behind_queue: dice.chance(30),
        shadow: dice.chance(15),
        counters_max: match dice.weighted(&[4, 2, 1]) {
            0 => 10,
            1 => 1 + dice.below(3) as u64,
            _ => 0,
        },
    }
}

fn write(dice: &mut Dice<'_>) -> WriteDraft {
    match dice.weighted(&[8, 3, 1, 2, 6, 1, 3, 1, 4, 2, 3, 1, 2, 2, 1, 1, 1, 1]) {
        0 => WriteDraft::Put {
            record: dice.below(RECORDS.len()),
            content: dice.below(CONTENTS),
            ttl_ms: match dice.weighted(&[5, 2, 2]) {
                0 => None,
                1 => Some(2 * dice.within(0, 50) + 1),
                _ => Some(2 * dice.within(50, 500) + 1),
            },
        },
        1 => WriteDraft::PutPart {
            record: dice.below(RECORDS.len()),
            part: dice.below(PARTS.len()),
            content: dice.below(CONTENTS),
        },
        2 => WriteDraft::DeleteParts(dice.below(RECORDS.len()), dice.list(0, 2, |dice| dice.below(PARTS.len()))),
        3 => WriteDraft::Delete(dice.below(RECORDS.len())),
        4 => WriteDraft::Enqueue(dice.below(QUEUES.len()), dice.below(3)),
        5 => WriteDraft::Remove(dice.below(QUEUES.len()), pick(dice)),
        6 => WriteDraft::Timer { timer: dice.below(TIMERS.len()), due: dice.within(-50, 500), rule: dice.below(3) },
        7 => WriteDraft::ClearTimer(dice.below(TIMERS.len())),
        8 => WriteDraft::AddMember {
            set: dice.below(SETS),
            member: dice.below(MEMBERS.len()),
            score: if dice.chance(80) { dice.below(5) as u64 } else { 1 << 53 },
        },
        9 => WriteDraft::RemoveMember { set: dice.below(SETS), member: dice.below(MEMBERS.len()) },
        10 => WriteDraft::Add {
            limit: dice.below(LIMITS.len()),
            counter: dice.below(COUNTERS.len()),
            amount: dice.within(-4, 4),
            window: dice.below(3),
        },
        11 => WriteDraft::DeleteCounter { limit: dice.below(LIMITS.len()), counter: dice.below(COUNTERS.len()) },
        12 => {
            WriteDraft::Append { log: dice.below(LOGS.len()), fields: dice.below(3), max_entries: dice.below(6) as u64 }
        }
        13 => WriteDraft::Reply { inbox: dice.below(INBOXES.len()), content: dice.below(CONTENTS) },
        14 => WriteDraft::Restart {
            limit: dice.below(LIMITS.len()),
            counter: dice.below(COUNTERS.len()),
            amount: dice.below(5) as u64,
            window: dice.below(2),
        },
        15 => WriteDraft::DropQueue(dice.below(QUEUES.len())),
        16 => WriteDraft::PolicyGeneration(dice.within(-1, 3)),
        _ => WriteDraft::SettingsGeneration(dice.within(-1, 3)),
    }
}

fn question(dice: &mut Dice<'_>) -> QueryDraft {
    let count = if dice.chance(80) { 1 + dice.below(4) } else { 10_000 };
    let set = dice.chance(70).then(|| dice.below(SETS));
    match dice.below(11) {
        0 => QueryDraft::Record(dice.below(RECORDS.len())),
        1 => QueryDraft::Parts(dice.below(RECORDS.len()), dice.list(0, 3, |dice| dice.below(PARTS.len()))),
        2 => QueryDraft::AllParts(dice.below(RECORDS.len())),
        3 => QueryDraft::Counter(dice.below(LIMITS.len()), dice.below(COUNTERS.len())),
        4 => QueryDraft::First { set, upto: dice.chance(50).then(|| dice.within(0, 6)), count },
        5 => QueryDraft::Score(set, dice.below(TIMERS.len())),
        6 => QueryDraft::Size(set),
        7 => QueryDraft::Entry(dice.below(STREAMS), pick(dice)),
        8 => QueryDraft::Holder(dice.below(QUEUES.len()), pick(dice)),
        9 => QueryDraft::Holds { queue: dice.below(QUEUES.len()), consumer: dice.below(CONSUMERS.len()), count },
        _ => QueryDraft::Entries { stream: dice.below(STREAMS), after: dice.chance(50).then(|| pick(dice)), count },
    }
}
