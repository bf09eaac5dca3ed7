//! The sections `python` and `node` of `tools.yaml`.

use std::time::Duration;

use super::{TestConfig, given};
use crate::tools::{ShellLevel, ToolRuntime};

fn shop(fields: &str) -> TestConfig {
    given()
        .file("tools.yaml", format!("python:\n  shop: {{{fields}}}\n"))
        .file("permissions.yaml", "permissions: {stock: {everyone: true}}\n")
}

#[test]
fn a_module_has_defaults_and_permissions_may_name_its_tools() {
    let loaded = shop("module: shop.tools, path: ['${WHERE:-./tools}'], secrets: {K: {env: KEY}}, env: {A: 'k ${K}'}");
    let loaded = loaded.load().unwrap();
    let shop = &loaded.tools.modules["python.shop"];
    assert_eq!((&shop.modules[..], &shop.path[..]), (&["shop.tools".to_owned()][..], &["./tools".to_owned()][..]));
    assert_eq!((shop.interpreter.as_str(), shop.processes, shop.concurrency), ("python3", 2, 8));
    assert_eq!((shop.recycle_after_calls, shop.memory_max), (10_000, 512 << 20));
    assert_eq!((shop.start_timeout, shop.cancel_grace), (Duration::from_secs(60), Duration::from_secs(5)));
    assert_eq!(shop.env["A"], "k ${K}");
    assert!(loaded.policy.permissions.matrix.contains_key("stock"));
}

#[test]
fn a_module_list_and_custom_limits_are_loaded() {
    let loaded = shop("module: [a, b.c], processes: 4, concurrency: 1, memory_max: 64MiB, cancel_grace: 1s");
    let shop = loaded.load().unwrap().tools.modules["python.shop"].clone();
    assert_eq!(shop.modules, ["a", "b.c"]);
    assert_eq!((shop.processes, shop.concurrency, shop.memory_max), (4, 1, 64 << 20));
    assert_eq!(shop.cancel_grace, Duration::from_secs(1));
}

#[test]
fn an_interpreter_may_run_in_a_sandbox() {
    let fields = "module: a, sandbox: {level: strict, paths: [{path: /srv/data}], tcp_ports: [443]}";
    let sandbox = shop(fields).load().unwrap().tools.modules["python.shop"].sandbox.clone().unwrap();
    assert_eq!((sandbox.level, sandbox.tcp_ports.contains(&443)), (ShellLevel::Strict, true));
    assert_eq!((sandbox.paths[0].path.as_str(), sandbox.paths[0].write), ("/srv/data", false));
}

#[test]
fn a_tool_host_loads_its_socket_and_limits() {
    let loaded =
        shop("host: /run/tickfleet/shop.sock, processes: 3, concurrency: 4, start_timeout: 20s").load().unwrap();
    let shop = &loaded.tools.modules["python.shop"];
    assert_eq!((shop.host.as_deref(), &shop.modules[..]), (Some("/run/tickfleet/shop.sock"), &[][..]));
    assert_eq!((shop.processes, shop.concurrency, shop.start_timeout), (3, 4, Duration::from_secs(20)));
}

#[test]
fn each_module_error_reports_its_path_and_expected_value() {
    for (fields, path, expected) in [
        ("processes: 2", "python.shop.module", "`module` is required"),
        ("module: a-b", "python.shop.module", "the name of a module"),
        ("module: a..b", "python.shop.module", "the name of a module"),
        ("module: []", "python.shop.module", "1 to 64 modules"),
        ("module: [a, a]", "python.shop.module[1]", "each module once"),
        ("module: a, processes: 0", "python.shop.processes", "a whole number from 1 to 64"),
        ("module: a, concurrency: 300", "python.shop.concurrency", "a whole number from 1 to 256"),
        ("module: a, memory_max: 1MiB", "python.shop.memory_max", "a size from 16MiB"),
        ("module: a, cancel_grace: 5m", "python.shop.cancel_grace", "a duration from"),
        ("module: a, env: {A: '${K}'}", "python.shop.env.A", "a secret declared under `secrets`; none found"),
        ("module: a, secrets: {K: {env: 'K_{tenant}'}}", "python.shop.secrets", "no {tenant}"),
        ("host: run/shop.sock", "python.shop.host", "the absolute path of a Unix socket"),
        ("host: /run/shop.sock, module: a", "python.shop.module", "no `module` beside `host`"),
        ("host: /run/shop.sock, env: {A: b}", "python.shop.env", "no `env` beside `host`"),
        ("host: /run/shop.sock, sandbox: {level: basic}", "python.shop.sandbox", "no `sandbox` beside `host`"),
        ("module: a, sandbox: {level: docker}", "python.shop.sandbox.level", "basic, strict"),
        ("module: a, sandbox: {}", "python.shop.sandbox.level", "`level` is required"),
        ("module: a, sandbox: {level: basic}, cwd: /srv", "python.shop", "no `cwd` beside `sandbox`"),
        ("module: a, proceses: 2", "python.shop.proceses", "one of"),
    ] {
        let errors = shop(fields).load().unwrap_err();
        let error = &errors.as_slice()[0];
        assert_eq!(error.path, path, "{errors}");
        assert!(error.expected.contains(expected), "{errors}");
    }
}

#[test]
fn an_empty_tools_file_is_rejected() {
    let errors = given().file("tools.yaml", "{}\n").load().unwrap_err();
    assert!(errors.to_string().contains("`tools` is required"), "{errors}");
}

fn node_shop(fields: &str) -> TestConfig {
    given()
        .file("tools.yaml", format!("node:\n  shop: {{{fields}}}\n"))
        .file("permissions.yaml", "permissions: {stock: {everyone: true}}\n")
}

#[test]
fn node_modules_load_the_same_fields_as_python_modules() {
    let loaded = node_shop("module: [orders/stock.js, refunds.ts], path: ['${WHERE:-./tools}'], processes: 4");
    let shop = loaded.load().unwrap().tools.modules["node.shop"].clone();
    assert_eq!(shop.runtime, ToolRuntime::Node);
    assert_eq!((shop.interpreter.as_str(), shop.processes), ("node", 4));
    assert_eq!(shop.modules, ["orders/stock.js", "refunds.ts"]);
    assert_eq!(shop.path, ["./tools"]);
}

#[test]
fn a_node_module_must_be_a_file_below_its_path() {
    for module in ["../stock.js", "/srv/stock.js", "--eval.js", "a//b.js", "stock"] {
        let errors = node_shop(&format!("module: '{module}'")).load().unwrap_err();
        let error = &errors.as_slice()[0];
        assert_eq!(error.path, "node.shop.module", "{errors}");
        assert!(error.expected.contains("a file below a folder of `path`"), "{errors}");
    }
}

#[test]
fn python_and_node_may_share_an_entry_name() {
    let tools = "python:\n  shop: {module: shop}\nnode:\n  shop: {module: shop.js}\n";
    let loaded = given().file("tools.yaml", tools).load().unwrap();
    assert_eq!(loaded.tools.modules.keys().collect::<Vec<_>>(), ["node.shop", "python.shop"]);
}
