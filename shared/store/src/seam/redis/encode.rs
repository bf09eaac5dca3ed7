//! Encodes transactions as the arguments of `commit.lua`, which documents their order.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use tickfleet_core::record::RecordText;
use tickfleet_core::view::Fields;
use tickfleet_core::{
    ConditionalDebit, CounterKey, EntryId, Guard, InboxKey, RecordKey, SetKey, StreamKey, TimerRule, Transaction,
    Window, Write,
};

#[derive(Debug, Default)]
pub(super) struct Arguments {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Arguments {
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let mut from = 0;
        self.ends.iter().map(move |end| {
            let argument = self.bytes.get(from..*end).unwrap_or_default();
            from = *end;
            argument
        })
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn push(&mut self, argument: impl AsRef<[u8]>) -> &mut Self {
        self.join(&[argument.as_ref()])
    }

    fn join(&mut self, parts: &[&[u8]]) -> &mut Self {
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.ends.push(self.bytes.len());
        self
    }

    fn show(&mut self, value: impl std::fmt::Display) -> &mut Self {
        use std::io::Write as _;
        let _ = write!(self.bytes, "{value}");
        self.ends.push(self.bytes.len());
        self
    }

    fn append(&mut self, other: &Self) {
        let from = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| from + end));
    }
}

/// This hash has the counters of all built-in limits, without a limit on their number.
const BUILT_IN: &str = "_";

pub(super) fn hash_of(limit: &str) -> &str {
    if tickfleet_core::keys::limits::is_built_in(limit) { BUILT_IN } else { limit }
}

pub(super) fn field_of(counter: &CounterKey) -> String {
    field_before(&counter.limit).concat() + &counter.counter
}

/// The counter's name follows this prefix in the field of the hash.
pub(super) fn field_before(limit: &str) -> [&str; 2] {
    if tickfleet_core::keys::limits::is_built_in(limit) { [limit, ":"] } else { ["", ""] }
}

/// Counters by hash, inboxes by tenant. Names are numbered from 1, in the order of the groups.
struct Numbered<'a> {
    groups: Vec<(&'a str, Vec<Name<'a>>)>,
    numbers: HashMap<Name<'a>, u32>,
}

type Name<'a> = (&'a str, &'a str);

/// The maximum number of items in a group. Lua cannot pass more arguments to one command.
const GROUP_MAX: usize = 1_000;

impl<'a> Numbered<'a> {
    fn new(names: impl Iterator<Item = Name<'a>>, group_of: fn(&str) -> &str) -> Self {
        let mut groups = Vec::<(&str, Vec<Name<'_>>)>::new();
        let mut numbers = HashMap::new();
        let mut last: HashMap<&str, usize> = HashMap::new();
        for name in names {
            if numbers.insert(name, 0).is_some() {
                continue;
            }
            let group = group_of(name.0);
            let place = last.entry(group).or_insert(usize::MAX);
            match groups.get_mut(*place) {
                Some((_, members)) if members.len() < GROUP_MAX => members.push(name),
                _ => {
                    *place = groups.len();
                    groups.push((group, vec![name]));
                }
            }
        }
        let all = groups.iter().flat_map(|(_, names)| names);
        all.zip(1..).for_each(|(name, number)| {
            numbers.insert(*name, number);
        });
        Self { groups, numbers }
    }

    fn number(&self, group: &str, name: &str) -> u32 {
        self.numbers.get(&(group, name)).copied().unwrap_or_default()
    }

    /// `before` is the prefix of each group, and `before_name` returns the prefix of each name.
    fn put(&self, before: &[&str], before_name: fn(&str) -> [&str; 2], arguments: &mut Arguments) {
        let before = before.concat();
        arguments.show(self.groups.len());
        for (group, names) in &self.groups {
            arguments.join(&[before.as_bytes(), group.as_bytes()]).show(names.len());
            for (of, name) in names {
                let [first, second] = before_name(of);
                arguments.join(&[first.as_bytes(), second.as_bytes(), name.as_bytes()]);
            }
        }
    }
}

/// An encoded batch can contain these commands. The Redis user needs the permission for each.
pub(crate) const CALLED: &[&str] =
    &["DEL", "HDEL", "PERSIST", "PEXPIRE", "SET", "XACK", "XADD", "XDEL", "ZADD", "ZREM"];

pub(super) struct Encoded {
    pub(super) arguments: Arguments,
    /// The counter with number n in the arguments has index n - 1.
    pub(super) counters: Vec<CounterKey>,
}

pub(super) fn encode(prefix: &str, batch: &[Transaction]) -> Encoded {
    let counters = Numbered::new(batch.iter().flat_map(counters_of), hash_of);
    let inboxes = Numbered::new(batch.iter().flat_map(inboxes_of), |tenant| tenant);
    let mut arguments = Arguments::default();
    counters.put(&[prefix, "counters:"], field_before, &mut arguments);
    inboxes.put(&[], |_| ["", ""], &mut arguments);
    let mut encoder =
        Encoder { prefix, counters: &counters, inboxes: &inboxes, words: Arguments::default(), packed: Vec::new() };
    for transaction in batch {
        encoder.transaction(transaction);
        arguments.show(encoder.words.len());
        arguments.append(&encoder.words);
        encoder.words = Arguments::default();
    }
    let keys = counters.groups.iter().flat_map(|(_, names)| names).map(|(limit, name)| CounterKey::new(limit, name));
    Encoded { counters: keys.collect(), arguments }
}

pub(super) fn encode_idle(prefix: &str, queue: &StreamKey, consumer: &str) -> Encoded {
    encode_word("idle", format!("{prefix}{queue}"), consumer)
}

/// Uses the script, because a plain command would fail while memory is full.
pub(super) fn encode_pressure(short: bool) -> Encoded {
    encode_word("note", "pressure", if short { "1" } else { "0" })
}

/// Uses the script, because Redis would refuse a plain `XGROUP CREATE` while memory is full.
pub(super) fn encode_queues(prefix: &str, queues: &[StreamKey]) -> Encoded {
    let mut arguments = Arguments::default();
    arguments.push("0").push("0").show(3 + 2 * queues.len()).push("- ").push("").push("");
    for queue in queues {
        arguments.push("group").push(format!("{prefix}{queue}"));
    }
    Encoded { arguments, counters: Vec::new() }
}

fn encode_word(word: &str, first: impl AsRef<[u8]>, second: &str) -> Encoded {
    let mut arguments = Arguments::default();
    arguments.push("0").push("0").push("6").push("- ").push("").push("");
    arguments.push(word).push(first).push(second);
    Encoded { arguments, counters: Vec::new() }
}

fn counters_of(transaction: &Transaction) -> impl Iterator<Item = (&str, &str)> {
    let guards = transaction.guards.iter().filter_map(|guard| match guard {
        Guard::Debit(debit) => Some(&debit.counter),
        _ => None,
    });
    let writes = transaction.writes.iter().filter_map(|write| match write {
        Write::Add { counter, .. } | Write::Restart { counter, .. } | Write::DeleteCounter(counter) => Some(counter),
        Write::AddMember { queue_of, .. } | Write::RemoveMember { queue_of, .. } => queue_of.as_ref(),
        _ => None,
    });
    guards.chain(writes).map(|counter| (&*counter.limit, &*counter.counter))
}

fn inboxes_of(transaction: &Transaction) -> impl Iterator<Item = (&str, &str)> {
    let guards = transaction.guards.iter().filter_map(|guard| match guard {
        Guard::Inbox { inbox, .. } => Some(inbox),
        _ => None,
    });
    let writes = transaction.writes.iter().filter_map(|write| match write {
        Write::Reply(inbox, _) => Some(inbox),
        _ => None,
    });
    guards.chain(writes).map(|inbox| (&*inbox.tenant, &*inbox.inbox))
}

/// Exact up to 2^53. Larger numbers occur only as bounds that no counter reaches.
#[allow(clippy::cast_precision_loss, reason = "bounds beyond 2^53 are not reached")]
const fn double(number: u64) -> f64 {
    number as f64
}

#[allow(clippy::cast_precision_loss, reason = "times and amounts are below 2^53")]
const fn signed(number: i64) -> f64 {
    number as f64
}

struct Encoder<'a> {
    prefix: &'a str,
    counters: &'a Numbered<'a>,
    inboxes: &'a Numbered<'a>,
    words: Arguments,
    packed: Vec<u8>,
}

impl Encoder<'_> {
    fn transaction(&mut self, transaction: &Transaction) {
        let dedupe_record = transaction.dedupe_record.as_ref();
        self.words.join(&[transaction.version.as_str().as_bytes(), b" "]);
        match dedupe_record {
            Some(key) => self.key(key.as_str()),
            None => self.words.push(""),
        };
        self.words.push(if transaction.stamped { "1" } else { "" });
        if dedupe_record.is_some_and(|dedupe_record| !detects_repetition(transaction, dedupe_record)) {
            self.words.push("dedupe");
        }
        self.guards(transaction);
        self.writes(transaction);
    }

    fn key(&mut self, key: &str) -> &mut Arguments {
        self.words.join(&[self.prefix.as_bytes(), key.as_bytes()])
    }

    fn parts_key(&mut self, key: &RecordKey) -> &mut Arguments {
        self.words.join(&[self.prefix.as_bytes(), b"parts:", key.as_str().as_bytes()])
    }

    /// `command` must be in [`CALLED`]. `words` also counts the command.
    fn call(&mut self, words: usize, command: &str) -> &mut Self {
        debug_assert!(CALLED.contains(&command), "{command}: no role has the right");
        self.words.push("call").show(words).push(command);
        self
    }

    fn remove(&mut self, stream: &StreamKey, entry: &EntryId) {
        self.call(4, "XACK").key(stream.as_str()).push("workers").push(entry.as_str());
        self.call(3, "XDEL").key(stream.as_str()).push(entry.as_str());
    }

    fn guards(&mut self, transaction: &Transaction) {
        let mut guards = transaction.guards.iter().filter(|guard| !matches!(guard, Guard::Held(..))).peekable();
        let mut absent = Vec::new();
        while let Some(guard) = guards.next() {
            match guard {
                Guard::Debit(debit) => {
                    self.pack_debit(debit);
                    if !matches!(guards.peek(), Some(Guard::Debit(_))) {
                        self.packed_word("debit");
                    }
                }
                Guard::Absent(key) => {
                    absent.push(key.as_str());
                    if absent.len() == GROUP_MAX || !matches!(guards.peek(), Some(Guard::Absent(_))) {
                        self.words.push("absent").show(absent.len());
                        absent.drain(..).for_each(|key| {
                            self.key(key);
                        });
                    }
                }
                _ => self.guard(guard),
            }
        }
        let held: Vec<_> = transaction.guards.iter().filter_map(held).collect();
        let Some(((stream, entry), others)) = held.split_last() else { return };
        for (stream, entry) in others {
            self.words.push("pending");
            self.key(stream.as_str()).push(entry.as_str());
        }
        self.words.push("held");
        self.key(stream.as_str()).push(entry.as_str());
        for (stream, entry) in others {
            self.remove(stream, entry);
        }
    }

    fn guard(&mut self, guard: &Guard) {
        match guard {
            Guard::Version(key, version) => {
                self.words.push("version");
                self.key(key.as_str()).join(&[version.as_str().as_bytes(), b" "])
            }
            Guard::Present(key) => {
                self.words.push("present");
                self.key(key.as_str())
            }
            Guard::Before(ms) => self.words.push("before").show(ms),
            Guard::Since(ms) => self.words.push("since").show(ms),
            Guard::Generation { policy, settings } => self.words.push("generation").show(policy).show(settings),
            Guard::Epoch { number, lease_ms } => self.words.push("epoch").show(number).show(lease_ms),
            Guard::Within(stream, max) => {
                self.words.push("delete_acknowledged");
                self.key(stream.as_str()).push("within");
                self.key(stream.as_str()).show(max)
            }
            Guard::Fits { set, member, max } => {
                self.words.push("write_timers").push("fits");
                self.key(set.as_str()).push(member.as_bytes()).show(max)
            }
            Guard::Member(set, member) => {
                self.words.push("write_timers").push("member");
                self.key(set.as_str()).push(member.as_bytes())
            }
            Guard::First(set, member) => {
                self.words.push("write_timers").push("first");
                self.key(set.as_str()).push(member.as_bytes())
            }
            Guard::MemoryAvailable => self.words.push("memory"),
            Guard::Inbox { inbox, unread_max, inboxes_max } => {
                let number = self.inbox(inbox);
                self.words.push("inbox").show(number).show(unread_max).show(inboxes_max)
            }
            Guard::Unread(stream, entry) => {
                self.words.push("delete_acknowledged");
                self.key(stream.as_str()).push("unread");
                self.key(stream.as_str()).push(entry.as_str())
            }
            Guard::Debit(_) | Guard::Absent(_) | Guard::Held(..) => &mut self.words,
        };
    }

    fn writes(&mut self, transaction: &Transaction) {
        for guard in &transaction.guards {
            if let Guard::Inbox { inbox, .. } = guard {
                let number = self.inbox(inbox);
                self.words.push("use_inbox").show(number);
            }
        }
        let mut writes = transaction.writes.iter().enumerate().peekable();
        while let Some((at, write)) = writes.next() {
            match write {
                Write::Add { counter, amount, ends_ms } => {
                    self.pack_amount(counter, *amount, *ends_ms);
                    if !matches!(writes.peek(), Some((_, Write::Add { .. }))) {
                        self.packed_word("add");
                    }
                }
                Write::Put { key, content, ttl_ms } => {
                    let before = transaction.writes.get(..at).unwrap_or_default();
                    self.put(transaction, before, key, content, *ttl_ms);
                }
                _ => self.write(transaction, write),
            }
        }
    }

    /// `before` contains the earlier writes of the transaction.
    fn put(
        &mut self,
        transaction: &Transaction,
        before: &[Write],
        key: &RecordKey,
        content: &Bytes,
        ttl_ms: Option<i64>,
    ) {
        let fresh = is_fresh(transaction, before, key);
        // Some records contain debits or the ID of an enqueued entry. Only the script knows these values, so it writes
        // such records.
        let framed = transaction.stamped || before.iter().any(|write| matches!(write, Write::Enqueue(..)));
        let ttl_ms = ttl_ms.map(|ttl_ms| ttl_ms.max(1));
        if let (Some(ttl_ms), false) = (ttl_ms, framed) {
            let text = RecordText::render(&transaction.version, None, &[], content);
            self.call(5, "SET").key(key.as_str()).push(text).push("PX").show(ttl_ms);
            self.call(3, "PEXPIRE").parts_key(key).show(ttl_ms);
            return;
        }
        self.words.push("put");
        self.key(key.as_str()).push(content);
        if let Some(ttl_ms) = ttl_ms {
            self.call(3, "PEXPIRE").key(key.as_str()).show(ttl_ms);
            self.call(3, "PEXPIRE").parts_key(key).show(ttl_ms);
        } else if !fresh {
            // If the record never expires, its parts must not expire either.
            self.call(2, "PERSIST").parts_key(key);
        }
    }

    fn write(&mut self, transaction: &Transaction, write: &Write) {
        match write {
            Write::PutPart(key, name, value) => {
                self.words.push("part");
                self.key(key.as_str());
                self.parts_key(key).push(name.as_bytes()).push(value);
            }
            Write::DeleteParts(key, names) => names.iter().for_each(|name| {
                self.call(3, "HDEL").parts_key(key).push(name.as_bytes());
            }),
            Write::Delete(key) => {
                self.call(3, "DEL").key(key.as_str());
                self.parts_key(key);
            }
            Write::Enqueue(stream, fields) => {
                // Create the consumer group, because runtimes read through it but do not create it.
                if ["external:", "local:"].iter().any(|start| stream.as_str().starts_with(start)) {
                    self.words.push("group");
                    self.key(stream.as_str());
                }
                self.words.push("enqueue");
                let stamp = usize::from(transaction.stamped);
                self.key(stream.as_str()).show((fields.len() + stamp) * 2);
                if transaction.stamped {
                    self.words.push("d").push("");
                }
                self.fields(fields);
            }
            Write::Remove(stream, entry) => self.remove(stream, entry),
            Write::DropQueue(queue) => {
                // Delete acknowledged entries first. If the batch recreates the queue, new entries may reuse their IDs.
                self.words.push("delete_acknowledged");
                self.key(queue.as_str());
                self.call(2, "DEL").key(queue.as_str());
            }
            Write::Append { log, fields, max_entries } => {
                // 0 means unlimited, so encode a number that no stream reaches.
                let max_entries = i64::try_from(*max_entries).ok().filter(|max| *max > 0).unwrap_or(i64::MAX);
                let command = self.call(6 + fields.len() * 2, "XADD").key(log.as_str());
                command.push("MAXLEN").push("~").show(max_entries).push("*");
                self.fields(fields);
            }
            Write::Timer { name, due_ms, rule } => {
                let due_ms = due_ms.max(&0);
                match rule {
                    // CH only fills the position of the option: it changes the command's reply, which the script
                    // ignores.
                    TimerRule::Set => self.words.push("timer").push("CH").push(name.as_bytes()).show(due_ms),
                    TimerRule::Earlier => self.words.push("timer").push("LT").push(name.as_bytes()).show(due_ms),
                    TimerRule::Wake => {
                        self.words.push("write_timers");
                        let command = self.call(6, "ZADD").key("timers").push("XX").push("LT");
                        command.show(due_ms).push(name.as_bytes())
                    }
                };
            }
            Write::ClearTimer(name) => {
                self.words.push("clear").push(name.as_bytes());
            }
            Write::Reply(inbox, message) => {
                let number = self.inbox(inbox);
                self.words.push("reply").show(number).push(message);
            }
            Write::AddMember { set, member, score, queue_of } => {
                self.words.push("write_timers");
                self.call(4, "ZADD").key(set.as_str()).show(score).push(member.as_bytes());
                self.queue_of(set, queue_of.as_ref());
            }
            Write::RemoveMember { set, member, queue_of } => {
                self.words.push("write_timers");
                self.call(3, "ZREM").key(set.as_str()).push(member.as_bytes());
                self.queue_of(set, queue_of.as_ref());
            }
            Write::Restart { counter, amount, ends_ms } => {
                let number = self.counter(counter);
                self.words.push("restart").show(number).show(amount).show(ends_ms);
            }
            Write::DeleteCounter(counter) => {
                let number = self.counter(counter);
                self.words.push("delete_counter").show(number);
            }
            Write::PolicyGeneration(generation) => {
                self.words.push("note").push("policy").show(generation);
            }
            Write::SettingsGeneration(generation) => {
                self.words.push("note").push("settings").show(generation);
            }
            Write::Put { .. } | Write::Add { .. } => {}
        }
    }

    fn fields(&mut self, fields: &Fields) {
        for (name, value) in fields {
            self.words.push(name.as_bytes()).push(value);
        }
    }

    fn queue_of(&mut self, set: &SetKey, counter: Option<&CounterKey>) {
        let Some(counter) = counter else { return };
        let number = self.counter(counter);
        self.words.push("queue");
        self.key(set.as_str()).show(number);
    }

    fn counter(&self, counter: &CounterKey) -> u32 {
        self.counters.number(&counter.limit, &counter.counter)
    }

    fn inbox(&self, inbox: &InboxKey) -> u32 {
        self.inboxes.number(&inbox.tenant, &inbox.inbox)
    }

    fn packed_word(&mut self, word: &str) {
        self.words.push(word).push(&self.packed);
        self.packed.clear();
    }

    fn pack_debit(&mut self, debit: &ConditionalDebit) {
        let (window, from, upto, length) = match debit.window {
            Window::Total => (0, 0, 0, 0),
            Window::Concurrency => (1, 0, 0, 0),
            Window::Rolling { length_ms } => (2, 0, 0, length_ms),
            Window::Fixed { start_ms, end_ms, length_ms } => (3, start_ms, end_ms, length_ms),
            Window::Day { start_ms, end_ms } => (4, start_ms, end_ms, 0),
        };
        let number = self.counter(&debit.counter);
        self.packed.extend_from_slice(&number.to_le_bytes());
        self.packed.extend_from_slice(&[window, u8::from(debit.behind_queue), u8::from(debit.shadow)]);
        let numbers = [
            double(debit.amount),
            double(debit.max),
            signed(from),
            signed(upto),
            signed(length),
            double(debit.counters_max),
        ];
        numbers.iter().for_each(|number| self.packed.extend_from_slice(&number.to_le_bytes()));
    }

    fn pack_amount(&mut self, counter: &CounterKey, amount: i64, ends_ms: Option<i64>) {
        let number = self.counter(counter);
        self.packed.extend_from_slice(&number.to_le_bytes());
        self.packed.extend_from_slice(&signed(amount).to_le_bytes());
        self.packed.extend_from_slice(&signed(ends_ms.unwrap_or(-1)).to_le_bytes());
    }
}

fn held(guard: &Guard) -> Option<(&StreamKey, &EntryId)> {
    match guard {
        Guard::Held(stream, entry) => Some((stream, entry)),
        _ => None,
    }
}

/// True if a guard always fails when the transaction is repeated. The script then reads the dedupe record only after a
/// guard has failed.
fn detects_repetition(transaction: &Transaction, dedupe_record: &RecordKey) -> bool {
    transaction.guards.iter().any(|guard| match guard {
        Guard::Held(..) => true,
        Guard::Absent(key) => key == dedupe_record,
        Guard::Version(key, version) => key == dedupe_record && *version != transaction.version,
        _ => false,
    })
}

/// A new record has no parts yet, so no lifetime of parts must be changed.
fn is_fresh(transaction: &Transaction, before: &[Write], key: &RecordKey) -> bool {
    let absent = transaction.guards.iter().any(|guard| matches!(guard, Guard::Absent(of) if of == key));
    absent && !before.iter().any(|write| matches!(write, Write::Put { key: of, .. } if of == key))
}

pub(super) fn name_of(name: &[u8]) -> Arc<str> {
    String::from_utf8_lossy(name).into()
}
