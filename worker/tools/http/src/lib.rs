//! Tools declared in `tools.yaml` that call a web service.
//!
//! Read in this order:
//!
//! - [`tool`]: a call from end to end.
//! - `declared`: the checks of a declaration.
//! - `template`: arguments and secrets in a request.
//! - `client`: sending requests.
//! - `outcome` and `mapping`: the interpretation of a response.
//! - `oauth2` and `tokens`: signing in.

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

pub use client::{BodyError, Client, Request, SendError, UnfollowedRedirect, read_body};
pub use clients::HttpClients;
pub use kind::HttpKind;
pub use oauth2::{Credentials, TokenGrant};
pub use outcome::retry_after;
pub use tool::HttpTool;
