//! The clients of other languages, and that all of them do the same: tests/conformance/cases.json.

mod adapters;
mod conformance;
mod gateway;
mod rust;
mod rust_page;
