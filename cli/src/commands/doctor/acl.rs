//! `tickfleet acl`: prints the access rules of a Redis user for one role of a fleet.

use clap::Args;
use serde::Serialize;
use tickfleet_store::Role;

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// Print the Redis access rules of a role.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet acl --role worker                      a line for an ACL file
  tickfleet acl --role producer --user chat        with another user name
  tickfleet acl --role scheduler --json            as data

Replace the password, which is <user>-secret.")]
pub(crate) struct Acl {
    /// Role: tickfleet (a whole fleet), scheduler, worker, operator, gateway, producer, viewer or exporter.
    #[arg(long, value_parser = role)]
    role: Role,
    /// Name of the user. Default: the role.
    #[arg(long)]
    user: Option<String>,
}

fn role(word: &str) -> Result<Role, String> {
    let found = Role::WORDS.iter().find(|(known, _)| *known == word).map(|(_, role)| *role);
    let words = Role::WORDS.map(|(word, _)| word).join(", ");
    found.ok_or_else(|| format!("unknown role; expected one of {words}"))
}

#[derive(Serialize)]
struct User {
    user: String,
    rules: Vec<String>,
}

pub(crate) fn run(setup: &Setup, args: &Acl, output: &Output) -> Result<(), Failure> {
    let of_role = Role::WORDS.iter().find(|(_, role)| *role == args.role).map_or("", |(word, _)| word);
    let user = args.user.clone().unwrap_or_else(|| of_role.to_owned());
    let user = User { user, rules: args.role.rules(&setup.settings().redis.namespace) };
    output.show(&user, |user| format!("user {0} on >{0}-secret {1}\n", user.user, user.rules.join(" ")))
}
