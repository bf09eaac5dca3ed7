//! One target under libFuzzer. Every binary is this file; its name says which target it plays.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: tickfleet_fuzz::on_main_thread(),
    |data: &[u8]| (tickfleet_fuzz::target(env!("CARGO_BIN_NAME")).run)(data)
);
