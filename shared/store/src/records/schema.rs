//! The fields of what is kept in Redis: their names there, which are short, and the names that code goes by.
//!
//! Lua writes `TURN.fence`, and Redis gets `'f'`: names are replaced when a script's text is put together, for a table
//! of constants would be made anew with every run of a script. Rust reads by the same names, as `turn::FENCE`. What is
//! stored must not change: two builds may work on one Redis. A name that is not listed makes a script that Redis
//! refuses to load, and a test finds it first.

/// A record's fields: a module of names for Rust, and a list for scripts.
macro_rules! records {
    ($($(#[$about:meta])* $record:ident as $lua:literal { $($(#[$doc:meta])* $field:ident = $short:literal,)* })*) => {
        $(
            $(#[$about])*
            pub mod $record {
                $($(#[$doc])* pub const $field: &str = $short;)*

                /// Every field: the name in code, and the name in Redis.
                pub const ALL: &[(&str, &str)] = &[$((stringify!($field), $short)),*];
            }
        )*

        /// The records by the word that scripts have for them.
        const RECORDS: &[(&str, &[(&str, &str)])] = &[$(($lua, $record::ALL)),*];
    };
}

records! {
    /// A turn or task under way: the hash `turn:<tenant>:<id>`.
    turn as "TURN" {
        /// The agent that makes the calls.
        AGENT = "ag",
        /// The queue that its slices go to.
        QUEUE = "q",
        /// The number of its calls.
        CALLS = "n",
        /// Calls admitted.
        ADMITTED = "ad",
        /// Calls that have their result.
        DONE = "dn",
        /// When it was admitted, ms of shard time.
        ADMITTED_MS = "ts",
        /// Its deadline, ms of shard time.
        DEADLINE_MS = "dl",
        /// The entry id of the slice that is out, or `s:<number>` of an ending; absent while it waits.
        FENCE = "f",
        /// The fence under which its last slice ended: by it a repeated settle is recognised.
        SETTLED_FENCE = "sf",
        /// The fence under which it was parked last: by it a repeated retry is recognised.
        PARKED_FENCE = "pf",
        /// The meta that all its slices carry, JSON.
        META = "m",
        /// A call, JSON; the position stands behind.
        CALL = "c",
        /// A call's result, JSON; the position stands behind.
        RESULT = "r",
        /// A call's message, JSON; the position stands behind.
        MESSAGE = "w",
        /// A call's audit entry, JSON; the position stands behind.
        AUDIT = "u",
        /// The call that was begun: `<position>:<nonce>`, or `0:runtime` of a task that a runtime outside held.
        BEGUN = "b",
        /// The fence under which a suspect slice was started.
        STARTED = "st",
        /// Tries made of the call that is tried again.
        ATTEMPTS = "at",
        /// The position of that call.
        ATTEMPTS_AT = "ap",
        /// Since when its next call has not been sent, for its tool rests: `<position> <ms>`. It stays while that call is
        /// tried.
        RESTS = "rs",
        /// Retries in all.
        RETRIES = "rt",
        /// The number of times that a holder of its slice has died.
        CRASHES = "cr",
        /// Since when its slice is known to be nowhere, ms, and that slice's fence. It stays until a slice of it ends.
        LOST = "lo",
        /// The number of times that a worker could not read its slice.
        UNREAD = "ur",
        /// The turn or task that its next call waits for, while it is parked for that.
        AWAITS = "aw",
        /// The position of a call that has begun work which goes on elsewhere, and waited for it.
        WAITED = "wt",
        /// Limits in whose shadow calls of its last slice are, as slices have it.
        SHADES = "sw",
        /// The approval that its next call waits for, or has waited for last.
        APPROVAL = "av",
        /// The call that entered its session last, and that session: `<position> <tenant>:<session>`.
        ENTERED = "en",
        /// Why it was cancelled.
        CANCELLED = "cx",
        /// Why its calls end without running.
        END_REASON = "er",
        /// The position that an ending goes up to.
        END_UPTO = "eu",
        /// A number that belongs to the reason.
        END_INFO = "ei",
        /// Since when, ms of shard time. A build before this one writes none, and removes none.
        END_MS = "em",
        /// Set where there may be crashes, retries, an ending's reason or a claim of an effect: most turns have none, and nobody
        /// need look.
        HAS_HISTORY = "hx",
        /// Of a turn that is out as one slice, and to which nothing has happened since: how its finished record begins,
        /// `f=<fence> n=<calls> ` and on, with `gv=1` behind where its producer gave the id. It belongs to that fence,
        /// and whoever writes under it what a settle must know empties it.
        FRESH = "fr",
        /// Set where its producer gave the id.
        GIVEN = "gv",
        /// The task that it runs under.
        TASK = "tk",
        /// Bytes that its tenant's count has for it: its meta and calls, and the results that it keeps so far.
        BYTES = "by",
        /// Its place on the lane.
        LANE_PLACE = "sq",
        /// The lane of the counter that stopped it, `<limit>@<counter>`: it waits there, or goes there when its slice is
        /// back. Absent where that is its agent's lane.
        LANE = "ln",
        /// The places of limits that its calls hold while they are out: counter, number, counter, number, with blanks
        /// between. Absent where there are none.
        HOLDS = "ho",
        /// Of one whose call waited, or waits, without having begun: up to which position calls have debited what has a window,
        /// though they are not admitted: they need places again. And a counter that they had one of: `<position> <counter>`.
        PAID = "pd",
        /// A note for each admission, each wait for a limit, each try that failed and each row of rests.
        LOG = "lg",
        /// `task` of a task; else absent.
        KIND = "k",
        /// Of a task: calls that turns under it may make.
        BUDGET = "bm",
        /// Of a task: what is used of that.
        BUDGET_USED = "bu",
        /// Of a task: the task that it was delegated from, which its budget was carved from.
        PARENT = "pt",
        /// Of a task: silence after which an outside runtime loses it, ms.
        EXTERNAL_LEASE_MS = "el",
        /// Of a task: since when its runtime holds it, by shard time: `<fence> <ms>`.
        HELD_SINCE = "hs",
        /// Of a task that is carried out in steps: the bytes of its history.
        STEPS_BYTES = "sb",
        /// Of a task that a model carries out: the id of the request whose use was counted last.
        COUNTED = "cd",
        /// Likewise: tokens of its requests.
        SPENT_INPUT = "si",
        /// Likewise: tokens of its answers.
        SPENT_OUTPUT = "so",
        /// Likewise: what they cost, in millionths.
        SPENT_COST = "sc",
        /// Likewise: what the request that is under way has debited of budgets: its id, and for each budget its counter,
        /// `t<tokens>` or `m<money>`, and the end of the window that it was debited in, with blanks between.
        RESERVED = "rv",
        /// Likewise: the counter of the budget that it waits for.
        SHORT = "sh",
        /// Of a task: when its runtime last said that it works on it, ms of shard time.
        TOUCHED_MS = "hb",
    }

    /// A slice on its queue: the fields of a stream's entry.
    slice as "SLICE" {
        /// The turn, `<tenant>:<turn>`.
        NAME = "t",
        /// The meta that all slices of the turn carry, JSON.
        META = "m",
        /// Position of the first call; absent for 0.
        FIRST = "p",
        /// The number of times that a holder of it has died; absent for 0.
        CRASHES = "x",
        /// Tries that the first call has behind it; absent for 0.
        ATTEMPTS = "a",
        /// Set where these calls were out before, and that slice got lost: somebody may have held it.
        LOST = "l",
        /// Set where the first call has begun work that went on elsewhere.
        WAITED = "w",
        /// Limits in whose shadow calls of it are: `<first>-<behind the last> <limit>`, with commas between; absent where
        /// there is none.
        SHADES = "s",
        /// A call, JSON; once for each.
        CALL = "c",
        /// The task itself, JSON, where an outside runtime reads it.
        TASK = "task",
    }

    /// An entry of an inbound stream.
    inbound as "INBOUND" {
        /// A turn's message, JSON.
        TURN = "turn",
        /// A task's message, JSON.
        TASK = "task",
        /// The id that its producer gave, `<tenant>:<turn>`.
        GIVEN = "i",
        /// The entry that it was at first.
        ORIGIN = "o",
        /// The number of times that its readers died.
        CRASHES = "x",
    }

    /// A tenant's counters: the hash `tenant:<tenant>`.
    tenant as "TENANT" {
        /// Turns that have not ended.
        UNFINISHED = "q",
        /// Slices that are out.
        OUT = "out",
        /// Bytes of the turns that have not ended, as their records count them.
        BYTES = "by",
        /// Calls used in the day.
        DAY_USED = "du",
        /// When that day ends, ms of shard time.
        DAY_END = "de",
    }

    /// What models have used in a day: the hash `usage:<tenant>:<start of the day, ms>`. An agent's fields have its name and a
    /// colon before these.
    usage as "USAGE" {
        /// Requests that were answered.
        REQUESTS = "n",
        /// Tokens of requests.
        INPUT = "i",
        /// Tokens of answers.
        OUTPUT = "o",
        /// What they cost, in millionths.
        COST = "c",
    }

    /// The calls that workers said they had begun, of turns that Redis had lost: the hash `ran:<tenant>:<turn>`.
    mark as "MARK" {
        /// Digest of the turn's content.
        DIGEST = "d",
        /// The nonce of a call; the position stands behind.
        NONCE = "b",
        /// The result of a call, where it is known; the position stands behind.
        RESULT = "r",
        /// The message of a call, likewise.
        MESSAGE = "w",
        /// The audit entry of a call, likewise.
        AUDIT = "u",
    }

    /// What calls with an effect key do: the hash `effect:<tenant>:<tool>:<hash>`.
    effect as "EFFECT" {
        /// The call that has claimed it, `<turn>/<position>/<digest of the turn's content>`.
        BY = "b",
        /// The result of that call, JSON, once it has ended.
        ENDED = "r",
        /// When all of this counts no more, ms of shard time.
        UNTIL_MS = "e",
        /// A turn that waits for that call; `<tenant>:<turn>` stands behind.
        WAITER = "w:",
    }

    /// What people are asked about a call: the hash `approval:<tenant>:<approval>`.
    approval as "APPROVAL" {
        /// `waiting`, `approved` (nothing has begun yet), `used` (the call has it), `denied`, `expired`, or `void` (its call
        /// has ended otherwise, or is another one by now).
        STATE = "s",
        /// The hash of all that it is about.
        BINDING = "b",
        /// The call, `<turn>/<position>`.
        CALL = "c",
        /// The agent that makes it.
        AGENT = "ag",
        /// The tool.
        TOOL = "t",
        /// Its version.
        VERSION = "v",
        /// The arguments for lists, notices and whoever may not decide, JSON: without secrets, within a bound.
        ARGUMENTS = "a",
        /// Set where these are not the arguments of the call: secrets were taken out, or they were cut.
        ABRIDGED = "ab",
        /// In that case, the arguments that the call runs with, JSON. Gone when the approval has ended.
        EXACT = "ax",
        /// Bytes of the arguments that the call runs with.
        BYTES = "an",
        /// What asks, JSON: a list of `place` and `why`.
        WHY = "w",
        /// Who has to agree: `<quorum>:<role>,<role>`, with `;` between; no role stands for any.
        DEMANDS = "d",
        /// The arguments that may be changed, JSON: a list of pointers.
        MAY_NARROW = "n",
        /// What was changed of them, JSON: pointer to value; empty where nothing was.
        NARROWED = "nv",
        /// When it was asked for, ms of shard time.
        ASKED_MS = "ts",
        /// Until when it may be decided, and once it was given, until when it counts, ms of shard time.
        UNTIL_MS = "e",
        /// For so long it counts once it was given, ms; empty: as long as its turn may run.
        EXPIRES_MS = "x",
        /// When it ended, ms of shard time.
        ENDED_MS = "te",
        /// Who denied it.
        ENDED_BY = "by",
        /// Why.
        ENDED_WHY = "er",
        /// A person who has agreed; the name stands behind: `<ms> <role>,<role>`.
        VOTE = "y:",
        /// What that person said about it; the name stands behind.
        REASON = "r:",
    }

    /// The kept answers of a tenant's reads: the hash `cached:<tenant>`. Each answer has the hash of what was asked for its
    /// field.
    cached as "CACHED" {
        /// Bytes of all answers.
        BYTES = "b",
    }

    /// The last calls of an agent, or of one of its tasks: the hash `row:<tenant>:<agent>` or `row:<tenant>:<agent>:<task>`.
    row as "ROW" {
        /// The hash of the last call's tool and arguments.
        CALL = "c",
        /// The hash of its result.
        RESULT = "r",
        /// Which call it was, `<turn>/<position>`.
        BY = "i",
        /// How often it came in a row.
        COUNT = "n",
        /// Until when a call is refused, ms of shard time; the hash of its tool and arguments stands behind.
        REFUSED = "x:",
    }
}

/// A script's text with the names of fields as Redis has them. One that is not listed becomes no Lua at all.
pub(crate) fn resolved(text: &str) -> String {
    let in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut resolved = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('.') {
        let word = before.rsplit(|c| !in_name(c)).next().unwrap_or_default();
        let Some((_, fields)) = RECORDS.iter().find(|(record, _)| *record == word) else {
            resolved.extend([before, "."]);
            rest = after;
            continue;
        };
        let name = after.split(|c| !in_name(c)).next().unwrap_or_default();
        resolved.push_str(before.strip_suffix(word).unwrap_or(before));
        match fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name)) {
            Some((_, short)) => resolved.extend(["'", short, "'"]),
            None => resolved.extend([NO_FIELD, word, ".", name, ">"]),
        }
        rest = after.strip_prefix(name).unwrap_or(after);
    }
    resolved.push_str(rest);
    resolved
}

/// Stands before a name that no record has.
pub(crate) const NO_FIELD: &str = "<no field ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_fields_and_one_that_no_record_has_no_lua() {
        let lua = "call('HSET', key, TURN.fence, f, TURN.call .. i, x.fence)";
        assert_eq!(resolved(lua), "call('HSET', key, 'f', f, 'c' .. i, x.fence)");
        assert_eq!(resolved("TURN.fenc, RETURN.x. é"), "<no field TURN.fenc>, RETURN.x. é");
    }

    #[test]
    fn no_record_has_a_field_or_a_name_twice() {
        for (record, fields) in RECORDS {
            let names: std::collections::BTreeSet<_> = fields.iter().map(|(name, _)| name).collect();
            let shorts: std::collections::BTreeSet<_> = fields.iter().map(|(_, short)| short).collect();
            assert_eq!((names.len(), shorts.len()), (fields.len(), fields.len()), "{record}");
        }
    }
}
