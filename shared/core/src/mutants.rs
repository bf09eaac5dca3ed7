//! Mutants: guards that tests can switch off one by one, to prove that a test detects a missing guard. A guard checks
//! [`mutant!`](crate::mutant), which is always `false` outside test builds:
//!
//! ```text
//! if !mutant!("settle_guards_the_version") {
//!     transaction.guard(Guard::Version(key, version));
//! }
//! ```
//!
//! A test compares [`MUTANTS`] with the guards in the code, and with the tests that switch them off.

/// The number is the invariant that the mutant breaks. [`crate`] lists the invariants.
pub const MUTANTS: &[(&str, u32)] = &[
    ("a_concluded_call_has_begun", 21),
    ("a_correction_is_of_its_window", 1),
    ("a_history_is_bounded", 11),
    ("a_recovered_call_of_several_attempts_stays", 21),
    ("a_task_with_an_ended_lease_has_begun", 21),
    ("admit_bounds_the_tenant", 19),
    ("admit_holds_the_entry", 3),
    ("admit_knows_the_cancel", 18),
    ("admit_knows_the_cancel_of_the_task", 18),
    ("advance_reads_recovered_calls", 21),
    ("an_inbound_entry_is_of_its_epoch", 9),
    ("ask_guards_the_approval", 4),
    ("ask_guards_the_bound_of_the_agent", 19),
    ("ask_guards_the_bound_of_the_tenant", 19),
    ("begin_guards_the_cancel", 18),
    ("begin_guards_the_deadline", 15),
    ("begin_guards_the_epoch", 8),
    ("begin_guards_the_recovered_calls", 8),
    ("begin_guards_the_version", 4),
    ("begin_respects_the_intent_record", 7),
    ("begin_writes_the_intent_record", 7),
    ("budget_wait_looks_again", 15),
    ("cache_guards_the_bucket", 4),
    ("cascade_waits_for_the_end", 18),
    ("claim_guards_its_record", 7),
    ("claim_guards_that_the_claimant_is_gone", 7),
    ("claim_knows_who_waits_for_it", 15),
    ("conclude_guards_the_version", 4),
    ("consent_guards_its_time", 15),
    ("consent_guards_the_approval", 7),
    ("decide_guards_the_approval", 4),
    ("decide_guards_the_time", 15),
    ("decide_guards_the_turn", 3),
    ("delegate_acknowledges_the_message", 9),
    ("delegate_carves_the_budget", 1),
    ("delegate_guards_the_absence", 9),
    ("delegate_guards_the_cancel_of_the_parent", 18),
    ("delegate_guards_the_parent", 3),
    ("delegate_guards_the_tenant", 19),
    ("delegate_joins_all_ancestors", 3),
    ("dispatch_before_the_deadline", 15),
    ("due_guards_the_cancellation", 18),
    ("due_guards_the_time", 2),
    ("due_guards_the_version", 4),
    ("early_cancel_guards_the_absence", 18),
    ("early_cancel_guards_the_bound", 19),
    ("early_knows_redelivery", 15),
    ("end_calls_guards_the_session", 4),
    ("end_claim_guards_its_record", 7),
    ("end_guards_the_epoch", 8),
    ("end_waits_for_the_lease", 8),
    ("expire_guards_that_nobody_has_read", 21),
    ("facts_guard_other_turns", 3),
    ("facts_guard_the_session", 4),
    ("facts_let_in_this_turn", 16),
    ("holder_guards_the_version", 4),
    ("lease_timer_acknowledges_the_old_entry", 4),
    ("limits_guard_the_generation", 16),
    ("limits_guard_the_room", 1),
    ("no_call_begins_during_a_report", 21),
    ("park_guards_what_it_waits_for", 15),
    ("reap_acknowledges_the_old_entry", 4),
    ("reap_acknowledges_the_old_message", 4),
    ("reap_guards_the_end_of_the_lease", 12),
    ("reap_guards_the_epoch", 8),
    ("reap_guards_the_heartbeat", 12),
    ("reap_guards_the_version", 4),
    ("rearm_guards_the_first", 15),
    ("refusals_read_recovered_calls", 21),
    ("refuse_waits_for_the_lease", 8),
    ("reject_keeps_the_id_of_another", 9),
    ("release_guards_the_version", 4),
    ("release_in_order", 3),
    ("report_begun_guards_the_turn", 8),
    ("requeue_guards_the_epoch", 21),
    ("reserve_debits_each_holder", 1),
    ("reserve_debits_the_budget", 1),
    ("restate_guards_the_session", 8),
    ("step_guards_the_version", 4),
    ("steps_are_in_order", 4),
    ("streak_guards_its_record", 4),
    ("submit_knows_the_id", 9),
    ("unrun_guards_the_epoch", 21),
    ("unrun_guards_the_recovered_calls", 21),
    ("void_guards_the_approval", 4),
    ("wait_for_claim_guards_the_claim", 7),
    ("wake_knows_all_that_wait", 15),
];

#[cfg(any(test, feature = "mutants"))]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

#[cfg(any(test, feature = "mutants"))]
#[must_use]
pub fn is_active(name: &str) -> bool {
    ACTIVE.get() == Some(name)
}

#[cfg(not(any(test, feature = "mutants")))]
#[must_use]
#[inline]
pub const fn is_active(_name: &str) -> bool {
    false
}

#[cfg(any(test, feature = "mutants"))]
pub fn with<T>(name: &'static str, test: impl FnOnce() -> T) -> T {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            ACTIVE.set(None);
        }
    }
    let _reset = Reset;
    ACTIVE.set(Some(name));
    test()
}

/// See [`mutants`](crate::mutants).
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutants::is_active($name)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts_below(folder: &std::path::Path) -> Vec<String> {
        let mut texts = Vec::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                texts.extend(self::texts_below(&path));
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("mutants.rs") {
                texts.push(std::fs::read_to_string(path).unwrap());
            }
        }
        texts
    }

    #[test]
    fn each_guard_is_listed_and_a_test_switches_it_off() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let texts = [texts_below(&root.join("src")), texts_below(&root.join("../store/tests"))].concat().join("\n");
        let listed: std::collections::BTreeSet<&str> = MUTANTS.iter().map(|(name, _)| *name).collect();
        let guards = texts.split("mutant!(\"").skip(1).filter_map(|text| text.split('"').next());
        let guards: std::collections::BTreeSet<&str> = guards.collect();
        assert_eq!(guards, listed);
        for name in listed {
            let uses = texts.matches(&format!("\"{name}\"")).count();
            let in_code = texts.matches(&format!("mutant!(\"{name}\")")).count();
            assert!(uses > in_code, "no test switches {name} off");
        }
    }

    #[test]
    fn one_guard_is_off_while_the_test_runs() {
        assert!(!mutant!("sample"));
        assert!(with("sample", || mutant!("sample") && !mutant!("other")));
        assert!(!mutant!("sample"));
    }
}
