//! Tests the tools that modules offer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "shared with the tests of pools")]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::json;
use tickfleet_config::ModulesDef;
use tickfleet_tools_python::{Pools, code_fingerprint};

use support::{Tools, def, environment};

fn shop(folder: &Path, text: &str) -> ModulesDef {
    fs::write(folder.join("shop.py"), text).unwrap();
    ModulesDef { modules: vec!["shop".into()], path: vec![folder.display().to_string()], ..def() }
}

fn refused(def: ModulesDef) -> String {
    let errors = Pools::new(environment()).describe(&BTreeMap::from([("python.shop".to_owned(), def)])).unwrap_err();
    assert_eq!(errors.len(), 1);
    errors[0].to_string()
}

const STOCK: &str = "from tickfleet import tool\n\n@tool\ndef stock(sku: str) -> int:\n    'Counts.'\n    return 7\n";

#[test]
fn an_import_error_shows_only_lines_of_user_code() {
    let folder = tempfile::tempdir().unwrap();
    let error = refused(shop(folder.path(), "import json\njson.loads('{')\n"));
    assert!(error.starts_with("python.shop: a module cannot be imported:\nTraceback"), "{error}");
    assert!(error.contains("shop.py\", line 2") && error.contains("JSONDecodeError"), "{error}");
    assert!(!error.contains("json/decoder.py") && !error.contains("importlib"), "{error}");
    let error = refused(shop(folder.path(), "def stock(:\n"));
    assert!(error.contains("shop.py\", line 1") && error.contains("SyntaxError"), "{error}");
    let error = refused(shop(folder.path(), &format!("{STOCK}{STOCK}")));
    assert!(error.contains("DuplicateTool: the name 'stock' is registered twice"), "{error}");
    let error = refused(ModulesDef { modules: vec!["nowhere".into()], ..def() });
    assert!(error.ends_with("ModuleNotFoundError: No module named 'nowhere'"), "{error}");
}

#[test]
fn an_unusable_interpreter_is_reported_with_its_cause() {
    let error = refused(ModulesDef { interpreter: "no-such-python".into(), ..def() });
    assert!(error.contains("'no-such-python' could not be started"), "{error}");
    let error = refused(ModulesDef { interpreter: "cat".into(), ..def() });
    assert!(error.contains("it ended with exit status: 1") && error.contains("on standard error it said:"), "{error}");
    // Python's own error message reports a missing package.
    let error = refused(ModulesDef { env: BTreeMap::new(), ..def() });
    assert!(error.contains("No module named tickfleet") || error.contains("No module named 'tickfleet'"), "{error}");
}

#[test]
fn a_module_that_never_loads_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let def = shop(folder.path(), "import time\ntime.sleep(600)\n");
    let error = refused(ModulesDef { start_timeout: std::time::Duration::from_millis(700), ..def });
    assert!(error.contains("it was not ready within 0.7 s"), "{error}");
}

#[tokio::test]
async fn a_process_with_changed_tools_rejects_calls() {
    let folder = tempfile::tempdir().unwrap();
    let tools = Tools::with_timeout(shop(folder.path(), STOCK), std::time::Duration::from_secs(4));
    fs::write(folder.path().join("shop.py"), STOCK.replace("sku: str", "article: str")).unwrap();
    let call = tools.call("stock", json!({"sku": "a"})).await;
    assert!(matches!(call, Err(tickfleet_tools::ToolFailure::Transient { not_executed: true, .. })), "{call:?}");
    tools.stop().await;
}

#[test]
fn only_python_file_changes_alter_the_code_fingerprint() {
    let folder = tempfile::tempdir().unwrap();
    let def = shop(folder.path(), STOCK);
    let first = code_fingerprint([&def]);
    fs::create_dir(folder.path().join("__pycache__")).unwrap();
    fs::write(folder.path().join("__pycache__/shop.py"), "").unwrap();
    fs::write(folder.path().join("notes.txt"), "").unwrap();
    assert_eq!(code_fingerprint([&def]), first);
    fs::create_dir(folder.path().join("deep")).unwrap();
    fs::write(folder.path().join("deep/more.py"), "").unwrap();
    let second = code_fingerprint([&def]);
    assert_ne!(second, first);
    fs::write(folder.path().join("deep/more.py"), "x = 1\n").unwrap();
    assert_ne!(code_fingerprint([&def]), second);
}
