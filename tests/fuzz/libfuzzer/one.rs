//! The source of every libFuzzer binary. The name of the binary selects the target.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: tickfleet_fuzz::on_main_thread(),
    |data: &[u8]| (tickfleet_fuzz::target(env!("CARGO_BIN_NAME")).run)(data)
);
