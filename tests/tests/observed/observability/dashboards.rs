//! Checks the Grafana dashboards as files. Another test runs their queries on a fleet.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

use super::{exported, files, read, root, unknown_metrics};

const FOLDER: &str = "helm/tickfleet/dashboards";
const COLUMNS: u64 = 24;

fn dashboards() -> BTreeMap<String, Value> {
    let load = |path| {
        let dashboard: Value = serde_json::from_str(&read(path)).unwrap();
        (dashboard["uid"].as_str().unwrap().to_owned(), dashboard)
    };
    files(FOLDER, "json").into_iter().map(load).collect()
}

fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row")
}

#[test]
fn the_dashboards_match_the_output_of_their_script() {
    let script = root().join("helm/dashboards/generate.py");
    // With -B, Python writes no compiled files next to the sources.
    let run = Command::new("python3").arg("-B").arg(script).arg("--check").output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn four_dashboards_have_stable_ids_and_link_to_each_other() {
    let dashboards = dashboards();
    let uids: Vec<&str> = dashboards.keys().map(String::as_str).collect();
    assert_eq!(uids, ["tickfleet-fleet", "tickfleet-governance", "tickfleet-redis", "tickfleet-reliability"]);
    for (uid, dashboard) in &dashboards {
        let links: BTreeSet<&str> =
            dashboard["links"].as_array().unwrap().iter().map(|link| link["url"].as_str().unwrap()).collect();
        let others: Vec<String> =
            uids.iter().filter(|other| *other != uid).map(|other| format!("/d/{other}")).collect();
        assert_eq!(links, others.iter().map(String::as_str).collect(), "{uid}");
    }
}

#[test]
fn every_panel_has_a_description_unit_and_thresholds() {
    for (uid, dashboard) in dashboards() {
        let mut titles = BTreeSet::new();
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().unwrap();
            assert!(titles.insert((panel["type"].as_str().unwrap(), title)), "{uid}: {title} is there twice");
            assert!(panel["description"].as_str().unwrap().len() > 20, "{uid}: {title}");
            let defaults = &panel["fieldConfig"]["defaults"];
            assert!(!defaults["unit"].as_str().unwrap().is_empty(), "{uid}: {title}");
            assert!(!defaults["thresholds"]["steps"].as_array().unwrap().is_empty(), "{uid}: {title}");
            assert!(!panel["targets"].as_array().unwrap().is_empty(), "{uid}: {title}");
        }
        assert!(titles.len() >= 12, "{uid} has {} panels", titles.len());
    }
}

#[test]
fn panels_do_not_overlap_or_exceed_the_grid() {
    for (uid, dashboard) in dashboards() {
        let mut taken = BTreeSet::new();
        let mut ids = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{uid}: an id is there twice");
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
            assert!(x + w <= COLUMNS, "{uid}: {} leaves the grid", panel["title"]);
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(taken.insert(cell), "{uid}: {} lies on another", panel["title"]);
            }
        }
    }
}

#[test]
fn every_query_selects_the_chosen_fleet_and_uses_exported_metrics() {
    let exported = exported();
    for (uid, dashboard) in dashboards() {
        let variables: Vec<&str> =
            dashboard["templating"]["list"].as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap()).collect();
        assert_eq!(variables, ["datasource", "namespace", "job"], "{uid}");
        for panel in panels(&dashboard) {
            let title = &panel["title"];
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{uid}: {title}");
            for target in panel["targets"].as_array().unwrap() {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{uid}: {title}");
                let query = target["expr"].as_str().unwrap();
                assert_eq!(unknown_metrics(query, &exported), Vec::<String>::new(), "{uid}: {title}");
                let selectors: Vec<&str> = query.split('{').skip(1).collect();
                assert!(!selectors.is_empty(), "{uid}: {title}: {query}");
                assert!(selectors.iter().all(|s| s.contains("namespace=~\"$namespace\"")), "{uid}: {title}: {query}");
            }
        }
    }
}
