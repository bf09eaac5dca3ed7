//! What comes in: submitted, admitted, refused, cancelled before it came.

use tickfleet_sim_redis::Reply;
use tickfleet_store::fields::turn;

use super::look::{Look, list};
use super::{Call, Rules, number, text, words};

impl Rules {
    pub(super) fn submitted(&self, call: &Call, reply: &Reply) {
        for (was, word) in call.was.iter().zip(words(reply)) {
            if was.is_open && word != "DUPLICATE" && word != "CONFLICT" {
                self.wrong(9, &format!("{} is known, and its producer is told {word}", was.name));
            }
        }
    }

    /// A scheduler has decided by its policies and the bounds of its day.
    pub(super) fn decided(&self, call: &Call, reply: &Reply, now_ms: i64) -> bool {
        if words(reply).first().is_none_or(|word| word != "OK") {
            return false;
        }
        let (given, tenants) = call.arg(2).split_once(':').unwrap_or_default();
        let known = |at: usize| call.meta.get(at).cloned().flatten().and_then(|it| it.parse::<i64>().ok()).unwrap_or(0);
        let of = |text: &str| text.parse::<i64>().unwrap_or(0);
        if known(0) > of(given) {
            self.wrong(1, &format!("{} decided by policy {given}, and {} was announced", call.verb, known(0)));
        }
        if known(1) > of(tenants) {
            self.wrong(17, &format!("{} decided by tenants of generation {tenants}, of {}", call.verb, known(1)));
        }
        let policies_at = if call.verb == "admit" { 10 } else { 6 };
        for policy in 0..usize::try_from(call.number(policies_at)).unwrap_or(0) {
            let at = policies_at + 1 + policy * 7;
            let (start_ms, end_ms) = (call.number(at + 3), call.number(at + 4));
            if now_ms < start_ms || now_ms >= end_ms {
                self.wrong(1, &format!("{} decided at {now_ms} by a day from {start_ms} to {end_ms}", call.verb));
            }
        }
        true
    }

    pub(super) fn admitted(&self, look: &mut Look<'_>, call: &Call, reply: &Reply, now_ms: i64) {
        if matches!(reply, Reply::Error(_)) {
            for was in &call.was {
                let begun = look.exists(&format!("turn:{}", was.name));
                if begun && look.fields(&format!("turn:{}", was.name), &[turn::AGENT]).remove(0).is_none() {
                    self.wrong(11, &format!("a batch failed, and left a part of {}", was.name));
                }
            }
        }
        if !self.decided(call, reply, now_ms) {
            return;
        }
        let marks_ms = call.meta.get(3).cloned().flatten().and_then(|ms| ms.parse::<i64>().ok()).unwrap_or(0);
        for (was, word) in call.was.iter().zip(words(reply).into_iter().skip(2)) {
            let name = &was.name;
            // Behind it stand the limits that it met.
            let word = word.split(' ').next().unwrap_or_default().to_owned();
            let is_in = ["DISPATCHED", "LANED", "ENDING"].contains(&word.as_str());
            if is_in && !was.is_open {
                self.wrong(4, &format!("{name} was admitted by entry {}, which somebody else had ended", was.under));
            }
            let other = was.id.as_deref().is_some_and(|id| id.get(1..) != Some(was.digest.as_str()));
            if was.is_open && !was.digest.is_empty() && other && !word.starts_with("CONFLICT") {
                self.wrong(9, &format!("{name} stands for other content, and this one is {word}"));
            }
            if is_in && was.is_marked && now_ms < marks_ms {
                if word != "ENDING" {
                    self.wrong(22, &format!("{name} was cancelled before it came, and is {word}"));
                }
                if look.exists(&format!("early:{name}")) {
                    self.wrong(22, &format!("{name} has ended, and the mark of its cancel is left"));
                }
            }
            if (is_in || word == "DUPLICATE") && look.is_on("turns", &was.under) {
                self.wrong(21, &format!("entry {} of {name} was ended, and is on the stream", was.under));
            }
            if is_in && !was.inbox.ends_with(':') {
                let unread = number(Some(&look.ask(&["XLEN", &format!("replies:{}", was.inbox)]))).unwrap_or(0);
                if unread.unsigned_abs() >= self.options.inbox_unread_max {
                    self.wrong(14, &format!("{name} was admitted, and {unread} replies wait in {}", was.inbox));
                }
            }
        }
    }

    pub(super) fn rejected(&self, look: &mut Look<'_>, call: &Call, reply: &Reply) {
        for (was, word) in call.was.iter().zip(words(reply)) {
            if word != "OK" {
                continue;
            }
            if look.is_on(call.arg(5), &was.under) {
                self.wrong(21, &format!("entry {} was refused, and is on the stream", was.under));
            }
            let Some(id) = was.id.as_deref().filter(|_| !was.name.is_empty()) else { continue };
            let (is_its_own, now) = (id == format!("q{}", was.digest), look.get(&format!("id:{}", was.name)));
            if is_its_own && now.is_some() {
                self.wrong(9, &format!("{} was refused, and its id is not free", was.name));
            } else if !is_its_own && now.as_deref() != Some(id) {
                self.wrong(9, &format!("{} was refused with another's id, which is free now", was.name));
            }
        }
    }

    pub(super) fn cancelled(&self, look: &mut Look<'_>, call: &Call, reply: &Reply) {
        let Some(was) = call.was.first() else { return };
        let record = look.record(&was.name);
        // One that got lost with its holder was read: its holder has a lease to end it.
        let is_unread = !self.is_robbed && !record.is_external && record.slice().is_some();
        if text(reply).as_deref() == Some("OK") && is_unread {
            self.wrong(22, &format!("{} was cancelled, nobody holds it, and whoever reads it may begin it", was.name));
        }
    }

    /// Endings that were given out: none denies a call that was begun.
    pub(super) fn denied(&self, look: &mut Look<'_>, reply: &Reply) {
        for item in list(reply) {
            let parts = list(item);
            let name = parts.first().and_then(text).filter(|name| name.contains(':'));
            let (Some(name), true) = (name, parts.len() >= 12) else {
                self.denied(look, item);
                continue;
            };
            let done = number(parts.get(3)).unwrap_or(0);
            let is_begun = look.record(&name).begun_at().is_some_and(|position| position >= done);
            if is_begun && parts.get(6).and_then(text).is_none_or(|begun| begun.is_empty()) {
                self.wrong(7, &format!("{name} ends, and nobody is told of the call that was begun"));
            }
        }
    }
}
