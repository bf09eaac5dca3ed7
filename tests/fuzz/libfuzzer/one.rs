//! Runs under libFuzzer. Every binary is built from this file; its name selects the target.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: tickfleet_fuzz::on_main_thread(),
    |data: &[u8]| (tickfleet_fuzz::target(env!("CARGO_BIN_NAME")).run)(data)
);
