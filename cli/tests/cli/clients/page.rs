//! docs/clients.md, step by step as it stands there.

use std::fs;
use std::path::Path;

use crate::operation::gateway::Gateway;
use crate::support::binary::{DevFleet, Said};
use crate::support::documents::{REPOSITORY, agrees, blocks, files, shown, with_binary};
use crate::support::node::Node;

const PAGE: &str = "docs/clients.md";

#[test]
fn every_step_of_the_clients_page_does_what_it_says() {
    let text = fs::read_to_string(Path::new(REPOSITORY).join(PAGE)).unwrap();
    let folder = tempfile::Builder::new().prefix("tf-").tempdir().unwrap();
    for (name, text) in files(&text, "python") {
        fs::write(folder.path().join(name), text).unwrap();
    }
    for (_, lines) in blocks(&text, "js") {
        let name = lines[0].strip_prefix("// ").unwrap();
        fs::write(folder.path().join(name), lines.join("\n")).unwrap();
    }
    // The page is for machines that have Node.js.
    let node = Node::unless_skipped().filter(Node::is_installed);
    let (mut fleet, mut gateway, mut key, mut steps) = (None::<DevFleet>, None::<Gateway>, String::new(), 0);
    for step in shown(&text) {
        steps += 1;
        if step.command == "tickfleet dev" {
            fleet = Some(DevFleet::start_in(folder.path(), &[], &[]));
            continue;
        }
        if step.command.starts_with("tickfleet gateway --keys") {
            let mut shell = fleet.as_ref().unwrap().shell("printenv REDIS_URL");
            let redis = Said::of(&mut shell, "").stdout;
            gateway = Some(Gateway::start(redis.trim(), &folder.path().join("keys.yaml")));
            continue;
        }
        let of_node = ["npm", "node"].iter().any(|program| step.command.starts_with(program));
        let line = match &node {
            // Nothing is installed into the checkout.
            Some(node) => step.command.replace("../tickfleet/typescript", &node.package.display().to_string()),
            None if of_node => continue,
            None => step.command.clone(),
        };
        let mut shell = fleet.as_ref().unwrap().shell(&line.replace("../tickfleet", REPOSITORY));
        let url = gateway.as_ref().map(Gateway::url).unwrap_or_default();
        shell.env("FLEET_URL", url).env("FLEET_KEY", &key);
        let said = Said::of(with_binary(&mut shell).current_dir(folder.path()), "");
        if let Some(told) = said.stderr.split_whitespace().find(|word| word.starts_with("tfk_")) {
            told.clone_into(&mut key);
        }
        let place = format!("{PAGE}:{}: `{}`", step.line, step.command);
        assert_eq!(said.code, 0, "{place}:\n{}{}", said.stdout, said.stderr);
        assert!(agrees(&step.output, &said.stdout), "{place} printed something else:\n{}{}", said.stdout, said.stderr);
    }
    assert_eq!(steps, 12);
    assert_eq!(fleet.unwrap().stop(), Some(0));
}
