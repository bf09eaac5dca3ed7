//! What becomes of slices: who may begin, commit, park and return, and what is done about one that is nowhere.

use tickfleet_sim_redis::Reply;
use tickfleet_store::ASKS;

use super::call::Was;
use super::look::Look;
use super::{Call, Rules, number, words};

impl Rules {
    pub(super) fn begun(&mut self, call: &Call, reply: &Reply, now_ms: i64) {
        let is_early = self.is_early(&call.prefix, now_ms);
        for (was, word) in call.was.iter().zip(words(reply)) {
            let record = &was.record;
            let mine = format!("{}:{}", was.position, was.nonce);
            let is_in_force = record.fence.as_deref() == Some(was.under.as_str());
            let is_again = !was.nonce.is_empty() && record.begun.as_deref() == Some(mine.as_str());
            let of = format!("{}/{}", was.name, was.position);
            if is_in_force && is_again && was.position >= record.done && word != "OK" {
                self.wrong(7, &format!("{of} was begun by its holder, who asks again and is told {word}"));
            }
            if word != "OK" || was.nonce == ASKS {
                continue;
            }
            self.started.insert(was.under.clone());
            if !is_in_force {
                self.wrong(4, &format!("{of} was begun under {}, and {:?} is in force", was.under, record.fence));
            } else if !was.nonce.is_empty() && !is_again && record.begun_at() == Some(was.position) {
                self.wrong(7, &format!("{of} was begun by {:?}, and is begun again", record.begun));
            } else if !was.nonce.is_empty() && !is_again && is_early {
                self.wrong(8, &format!("{of} was begun less than a lease after Redis restarted"));
            }
        }
    }

    /// Only the holder may commit, park or return.
    pub(super) fn fenced(&self, look: &mut Look<'_>, call: &Call, reply: &Reply) {
        for (was, word) in call.was.iter().zip(words(reply)) {
            let has_done = ["DONE", "LANED", "OK", "CANCELLED"].contains(&word.as_str());
            // A batch may end a slice and go on with the next of its turn.
            let is_alone = call.was.iter().filter(|other| other.name == was.name).count() == 1;
            if has_done && is_alone && was.record.fence.as_deref() != Some(was.under.as_str()) {
                let in_force = &was.record.fence;
                self.wrong(
                    4,
                    &format!("{} of {} under {}, and {in_force:?} is in force", call.verb, was.name, was.under),
                );
            }
            if call.verb == "retry" && word == "OK" {
                self.parked(look, was);
            }
        }
    }

    fn parked(&self, look: &mut Look<'_>, was: &Was) {
        let record = look.record(&was.name);
        if record.begun.is_some() && record.fence.is_none() && !was.stays_begun {
            self.wrong(7, &format!("{} is parked, and its next try is taken for begun", was.name));
        }
        let due = number(Some(&look.ask(&["ZSCORE", "timers", &format!("t:{}", was.name)])));
        if due.is_some_and(|due| due > record.deadline_ms) {
            self.wrong(
                15,
                &format!("{} is tried again at {due:?}, and its deadline is {}", was.name, record.deadline_ms),
            );
        }
    }

    pub(super) fn promoted(&self, look: &mut Look<'_>, call: &Call, reply: &Reply, now_ms: i64) {
        for (was, word) in call.was.iter().zip(words(reply).into_iter().skip(2)) {
            let Some(fence) = was.record.slice().filter(|_| !was.record.is_external) else { continue };
            if word == "ENDING" && was.is_held {
                self.wrong(6, &format!("{} is held under {fence}, and somebody else ends it", was.name));
            }
            if word != "RESTORED" {
                continue;
            }
            let since = was.record.lost.as_deref().and_then(|lost| lost.split_once(' '));
            let since = since.filter(|(_, of)| *of == fence).and_then(|(since, _)| since.parse::<i64>().ok());
            if since.is_none_or(|since| since + self.options.ending_lease_ms > now_ms) {
                self.wrong(21, &format!("{} is dispatched anew, and its holder may still end it", was.name));
            }
            let record = &was.record;
            let is_begun = record.begun_at().is_some_and(|at| at >= record.done);
            if (is_begun || record.started.as_deref() == Some(fence))
                && look.record(&was.name).crashes <= was.record.crashes
            {
                self.wrong(21, &format!("{} was begun, is dispatched anew, and that counts no crash", was.name));
            }
        }
    }
}
