//! `tickfleet acl`: the rules of a user of Redis for one role of a fleet.

use clap::Args;
use serde::Serialize;
use tickfleet_store::Role;

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// Print the rules of a user of Redis: what a role of the fleet needs, and little else.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet acl --role worker                      a line for an aclfile
  tickfleet acl --role producer --user chat        for a user of another name
  tickfleet acl --role scheduler --json            the same as data

The password is <user>-secret: replace it.")]
pub(crate) struct Acl {
    /// Who: tickfleet (all of a fleet in one), scheduler, worker, operator, gateway, producer, onlooker, exporter.
    #[arg(long, value_parser = role)]
    role: Role,
    /// The user's name; the role's by default.
    #[arg(long)]
    user: Option<String>,
}

fn role(word: &str) -> Result<Role, String> {
    let found = Role::WORDS.iter().find(|(known, _)| *known == word).map(|(_, role)| *role);
    let words = Role::WORDS.map(|(word, _)| word).join(", ");
    found.ok_or_else(|| format!("there is no such role; it is one of {words}"))
}

#[derive(Serialize)]
struct User {
    user: String,
    rules: Vec<String>,
}

/// Prints.
///
/// # Errors
/// Nobody reads.
pub(crate) fn run(setup: &Setup, args: &Acl, output: &Output) -> Result<(), Failure> {
    let of_role = Role::WORDS.iter().find(|(_, role)| *role == args.role).map_or("", |(word, _)| word);
    let user = args.user.clone().unwrap_or_else(|| of_role.to_owned());
    let user = User { user, rules: args.role.rules(&setup.settings().redis.namespace) };
    output.show(&user, |user| format!("user {0} on >{0}-secret {1}\n", user.user, user.rules.join(" ")))
}
