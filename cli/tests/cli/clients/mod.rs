//! Tests clients in several languages. All clients run the same cases: tests/conformance/cases.json.

mod adapters;
mod conformance;
mod gateway;
mod governed;
mod rust;
mod rust_page;
