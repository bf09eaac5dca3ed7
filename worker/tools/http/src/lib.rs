//! Tools declared in `tools.yaml` that call a web service. Read [`tool`] first.

mod client;
mod clients;
mod declared;
mod error;
mod kind;
mod mapping;
mod oauth2;
mod outcome;
mod template;
mod tokens;
pub mod tool;

pub use client::{Client, Request, SendError, UnfollowedRedirect};
pub use clients::HttpClients;
pub use kind::HttpKind;
pub use oauth2::{Credentials, TokenGrant};
pub use outcome::retry_after;
pub use tool::HttpTool;
