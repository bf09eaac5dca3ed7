//! `tickfleet tools import`: from an OpenAPI document to calls of a real service.

use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, DevFleet, tickfleet};
use crate::support::serve::serve;

const SHOP: &str = r##"openapi: 3.0.3
info: {title: Shop, version: "1.2"}
servers: [{url: "https://{region}.shop.example/v2", variables: {region: {default: eu}}}]
security: [{key: []}]
paths:
  /orders:
    get:
      operationId: listOrders
      summary: Lists orders
      description: The newest first.
      parameters:
        - {$ref: "#/components/parameters/Limit"}
        - {name: status, in: query, schema: {type: array, items: {type: string, enum: [open, sent]}}}
        - {name: "filter[customer]", in: query, description: Whose., schema: {type: string}}
        - {name: session, in: cookie, schema: {type: string}}
    post:
      operationId: createOrder
      requestBody:
        required: true
        content: {application/json: {schema: {$ref: "#/components/schemas/NewOrder"}}}
  /orders/{orderId}:
    parameters:
      - {name: orderId, in: path, required: true, schema: {type: string, maxLength: 40}}
    get: {operationId: getOrder, summary: One order, security: [{}]}
    put:
      operationId: replaceOrder
      security: [{login: [orders.write]}]
      requestBody:
        required: true
        content: {application/json: {schema: {oneOf: [{$ref: "#/components/schemas/NewOrder"}, {type: "null"}]}}}
    delete: {operationId: deleteOrder, description: Deletes an order.}
    head: {operationId: headOrder}
  /uploads:
    post:
      operationId: upload
      requestBody: {required: true, content: {multipart/form-data: {schema: {type: object}}}}
  /trees:
    post:
      operationId: plant
      requestBody: {content: {application/json: {schema: {$ref: "#/components/schemas/Tree"}}}}
  /machines: {get: {operationId: machines, security: [{mutual: []}]}}
components:
  parameters:
    Limit: {name: limit, in: query, description: The most orders., schema: {type: integer, minimum: 0, exclusiveMinimum: true}}
  schemas:
    NewOrder:
      type: object
      required: [id, item]
      properties:
        id: {type: string, readOnly: true}
        item: {type: string, description: What is ordered.}
        note: {type: string, nullable: true}
    Tree: {type: object, properties: {left: {$ref: "#/components/schemas/Tree"}}}
  securitySchemes:
    key: {type: apiKey, in: header, name: X-Key}
    mutual: {type: mutualTLS}
    login: {type: oauth2, flows: {clientCredentials: {tokenUrl: "https://id.shop.example/token", scopes: {}}}}
"##;

fn import(folder: &Path, more: &[&str]) -> CommandOutput {
    let file = folder.join("shop.yaml");
    std::fs::write(&file, SHOP).unwrap();
    tickfleet(&[&["tools", "import", file.to_str().unwrap()], more].concat())
}

#[test]
fn operations_become_tools_and_skipped_ones_have_reasons() {
    let folder = tempfile::tempdir().unwrap();
    let said = import(folder.path(), &["--json", "--prefix", "shop_"]).exits(0);
    let report = said.json();
    let tools = &report["tools"];
    let effects: Vec<_> = tools
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, tool)| (name.as_str(), tool["effect"].as_str().unwrap()))
        .collect();
    let expected = [
        ("shop_createOrder", "once"),
        ("shop_deleteOrder", "idempotent"),
        ("shop_getOrder", "read"),
        ("shop_listOrders", "read"),
        ("shop_replaceOrder", "idempotent"),
    ];
    assert_eq!(effects, expected);
    let list = &tools["shop_listOrders"];
    assert_eq!(list["description"], "Lists orders. The newest first.");
    let properties = json!({
        "limit": {"type": "integer", "exclusiveMinimum": 0, "description": "The most orders."},
        "status": {"type": "string", "enum": ["open", "sent"]},
        "filter_customer": {"type": "string", "description": "Whose."},
    });
    assert_eq!(list["input_schema"]["properties"], properties);
    let query = json!({"limit": "{{limit}}", "status": "{{status}}", "filter[customer]": "{{filter_customer}}"});
    assert_eq!((&list["http"]["query"], &list["http"]["headers"]), (&query, &json!({"X-Key": "${SHOP_KEY}"})));
    assert_eq!(list["http"]["base_url"], "https://eu.shop.example/v2");
    let create = &tools["shop_createOrder"];
    assert_eq!(create["input_schema"]["required"], json!(["item"]), "what only answers have is no argument");
    assert_eq!(create["http"]["body"], json!({"item": "{{item}}", "note": "{{note}}"}));
    let replace = &tools["shop_replaceOrder"]["http"];
    assert_eq!((&replace["path"], &replace["body"]), (&json!("/orders/{{orderId}}"), &json!("{{body}}")));
    let sign_in = json!({"grant": "client_credentials", "token_url": "https://id.shop.example/token",
        "client_id": "${SHOP_LOGIN_CLIENT_ID}", "client_secret": "${SHOP_LOGIN_CLIENT_SECRET}", "scope": "orders.write"});
    assert_eq!(replace["oauth2"], sign_in);
    assert_eq!(tools["shop_getOrder"]["http"].get("headers"), None, "nobody signs for it");
    let left_out = json!([
        ["HEAD /orders/{orderId} (headOrder)", "HEAD has no response that a tool could return"],
        ["POST /trees (plant)", "#/components/schemas/Tree refers to itself"],
        ["POST /uploads (upload)", "its body is not JSON but multipart/form-data"],
        ["GET /machines (machines)", "tools cannot use the security scheme mutual (mutualTLS)"],
    ]);
    let sorted = |list: &Value| {
        let mut lines: Vec<String> = list.as_array().unwrap().iter().map(ToString::to_string).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&report["left_out"]), sorted(&left_out));
    said.prints_error("left out: POST /uploads (upload): its body").prints_error("imported 5 of 9 operations");
    said.prints_error("shop_listOrders: without the cookie parameter session");
}

#[test]
fn an_import_passes_config_check_and_an_invalid_document_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let said = import(folder.path(), &["--per-tenant"]).exits(0);
    said.says("KEY_{tenant}");
    let conf = folder.path().join("conf");
    std::fs::create_dir(&conf).unwrap();
    std::fs::write(conf.join("tools.yaml"), &said.stdout).unwrap();
    std::fs::write(conf.join("permissions.yaml"), "permissions: {listOrders: {everyone: true}}").unwrap();
    tickfleet(&["config", "check", "--config", conf.to_str().unwrap()]).exits(0).says("5 declared tools");

    import(folder.path(), &["--only", "listOrders,nope"]).exits(2).prints_error("no operation \"nope\"");
    let only = import(folder.path(), &["--only", "machines"]).exits(1);
    only.prints_error("nothing could be imported");
    let local = import(folder.path(), &["--only", "getOrder", "--server", "http://127.0.0.1:9"]).exits(1);
    local.prints_error("allow_private");
    let file = folder.path().join("old.json");
    std::fs::write(&file, r#"{"swagger":"2.0"}"#).unwrap();
    tickfleet(&["tools", "import", file.to_str().unwrap()]).exits(2).prints_error("expected `openapi: 3.0` or `3.1`");
    tickfleet(&["tools", "import", "no-such-file"]).exits(1).prints_error("cannot be read");
}

#[tokio::test]
async fn an_imported_tool_calls_its_service() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let service = Arc::clone(&seen);
    let router = Router::new().fallback(move |request: Request| async move {
        let (head, body) = request.into_parts();
        let body = axum::body::to_bytes(body, 10_000).await.unwrap();
        let key = head.headers.get("x-key").map(|v| v.to_str().unwrap().to_owned());
        let line = format!("{} {} {key:?} {}", head.method, head.uri, String::from_utf8_lossy(&body));
        service.lock().unwrap().push(line);
        axum::Json(json!({"id": "o1"})).into_response()
    });
    let address = serve(router).await;

    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let server = format!("http://{address}/v2/");
    let imported = import(folder.path(), &["--server", &server, "--allow-private", &address, "--per-tenant"]).exits(0);
    let conf = folder.path().join("conf");
    std::fs::create_dir(&conf).unwrap();
    std::fs::write(conf.join("tools.yaml"), &imported.stdout).unwrap();
    let rows = "permissions: {listOrders: {everyone: true}, createOrder: {everyone: true}}";
    std::fs::write(conf.join("permissions.yaml"), rows).unwrap();
    let args = ["--redis-url", &redis.url(), "--config", conf.to_str().unwrap()];
    let fleet = DevFleet::start_in(folder.path(), &args, &[("IMPORTED_KEY_demo", "key-of-demo")]);
    // The service answers on this async runtime, so the command must wait on another thread.
    let reply = tokio::task::spawn_blocking(move || {
        let list = r#"listOrders {"limit":2,"filter_customer":"a&b"}"#;
        let create = r#"createOrder {"item":"a lamp"}"#;
        let turn =
            ["submit", "--tenant", "demo", "--agent", "kelly", "--call", list, "--call", create, "--wait", "--json"];
        let reply = fleet.run(&turn).exits(0).json();
        assert_eq!(fleet.stop(), Some(0));
        reply
    });
    let reply = reply.await.unwrap();
    assert_eq!(reply["results"][1]["output"], json!({"id": "o1"}));
    let expected = [
        r#"GET /v2/orders?filter%5Bcustomer%5D=a%26b&limit=2 Some("key-of-demo") "#,
        r#"POST /v2/orders Some("key-of-demo") {"item":"a lamp"}"#,
    ];
    assert_eq!(seen.lock().unwrap().as_slice(), expected);
}
