use super::{TestConfig, given};

/// `line` is line 10 of the file, in the section `http:`.
pub(super) fn tool(line: &str) -> TestConfig {
    tools(&format!(
        "tools:\n  call:\n    description: Calls.\n    input_schema:\n      type: object\n      properties: {{id: \
         {{type: string}}, note: {{type: string}}}}\n      required: [id]\n    http:\n      base_url: \
         https://a.example\n      {line}\n      secrets: {{KEY: {{env: KEY}}}}\n"
    ))
}

pub(super) fn tools(text: &str) -> TestConfig {
    given().file("tools.yaml", text).file("permissions.yaml", "permissions: {echo: {everyone: true}}\n")
}

#[test]
fn a_valid_http_tool_is_accepted() {
    let line =
        "method: POST\n      path: /v1/{{id}}\n      headers: {X-Key: \"${KEY}\"}\n      body: {n: \"{{note}}\"}";
    assert!(tool(line).load().is_ok());
}

#[test]
fn a_base_url_is_validated_after_variable_expansion() {
    let with = |url: &str| {
        tools(&format!(
            "tools:\n  call:\n    description: Calls.\n    input_schema: {{type: object}}\n    http:\n      method: \
             GET\n      path: /\n      base_url: \"{url}\"\n"
        ))
    };
    let rule = "expected http:// or https://, a host, and no query, template or password";
    let place = "tools.yaml:8:17: tools.call.http.base_url";
    with("a.example").assert_refused(&format!("{place}: found \"a.example\"; {rule}"));
    with("https://u:p@a.example").assert_refused(&format!("{place}: found \"https://u:***@a.example\"; {rule}"));
    with("${BASE:-ftp://a}").assert_refused(&format!("{place}: found \"ftp://a\"; {rule}"));
    with("${BASE}").assert_refused(&format!(
        "{place}: found \"${{BASE}}\"; expected the environment variable BASE to be set, or a default: ${{BASE:-…}}"
    ));
    assert!(with("${BASE}").variable("BASE", "https://a.example/v1").load().is_ok());
}

#[test]
fn a_tool_requires_a_description_and_an_input_schema() {
    let errors = tools("tools:\n  call: {effect: write}\n").errors();
    assert_eq!(
        errors,
        [
            "tools.yaml:2:9: tools.call.description: found nothing; expected a value: `description` is required",
            "tools.yaml:2:9: tools.call.input_schema: found nothing; expected a value: `input_schema` is required",
            "tools.yaml:2:18: tools.call.effect: found \"write\"; expected one of read, idempotent, once",
        ]
    );
}

#[test]
fn a_known_tool_may_be_overridden_field_by_field() {
    let read = tools("tools:\n  echo: {timeout_ms: 500, effect_key: [/text]}\n").load().unwrap();
    let echo = &read.tools.tools["echo"];
    assert_eq!((&echo.description, &echo.input_schema, echo.effect, echo.timeout_ms), (&None, &None, None, Some(500)));
    assert_eq!(echo.effect_key.as_ref().unwrap().arguments, ["/text"]);
    let own = read.policy.known_tools.traits("echo").unwrap();
    assert_eq!((own.effect, own.category.as_str()), (None, ""), "limits do not guess the tool's own effect");
    // A tool of the module may have the missing fields.
    let python = "python:\n  shop: {module: shop}\n";
    assert!(tools(&format!("{python}tools:\n  stock: {{timeout_ms: 500}}\n")).load().is_ok());
    let http = "http: {method: GET, base_url: 'https://a.example', path: /}";
    let errors = tools(&format!("{python}tools:\n  stock: {{{http}}}\n")).errors();
    assert_eq!(errors.len(), 2, "{errors:?}");
}

#[test]
fn duplicate_ids_and_invalid_versions_are_rejected() {
    let rest = "description: Calls., input_schema: {type: object}";
    let errors = tools(&format!("tools:\n  one: {{{rest}}}\n  two: {{id: tool_one, {rest}}}\n")).errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = &errors[0];
    assert!(
        error.starts_with("tools.yaml:3:3: tools.two: found the id `tool_one` again; expected a unique id "),
        "{error}"
    );
    assert!(error.ends_with("/tools.yaml:2:3)"), "{error}");
    tools(&format!("tools:\n  one: {{{rest}, version: 1.0}}\n"))
        .assert_refused("tools.yaml:2:69: tools.one.version: found 1.0; expected text; put it in quotes");
    tools(&format!("tools:\n  one: {{{rest}, version: v1}}\n"))
        .assert_refused("tools.yaml:2:69: tools.one.version: found \"v1\"; expected a semantic version such as 1.0.0");
}

#[test]
fn a_built_in_tool_cannot_be_declared_as_http() {
    let text = "tools:\n  echo:\n    description: Calls.\n    input_schema: {type: object}\n    http: {method: GET, \
                base_url: https://a.example, path: /}\n";
    tools(text).assert_refused(
        "tools.yaml:2:3: tools.echo: found the name of a built-in tool; expected another name for a fully declared tool",
    );
}

/// `lines` begin on line 7 of the file, in the section `http:`.
pub(super) fn http(lines: &str) -> TestConfig {
    tools(&format!(
        "tools:\n  call:\n    description: Calls.\n    input_schema: {{type: object, properties: {{id: {{type: \
         string}}}}}}\n    http:\n      {{method: POST, base_url: https://a.example, path: /, secrets: {{S: {{env: \
         S}}}},\n      {lines}}}\n"
    ))
}

#[test]
fn a_secret_source_accepts_only_the_tenant_placeholder() {
    assert!(http("headers: {X: \"${S}\"}").load().is_ok());
    let odd = "tools:\n  call:\n    description: Calls.\n    input_schema: {type: object}\n    http: {method: GET, \
               base_url: https://a.example, path: /, secrets: {A: {env: \"A_{tenant}\"}, B: {file: \"/s/{tennant}\"}}}\n";
    tools(odd).assert_refused(
        "tools.yaml:5:107: tools.call.http.secrets.B.file: found \"/s/{tennant}\"; expected no braces but {tenant}, which \
         stands for the calling tenant",
    );
}

#[test]
fn an_oauth2_grant_requires_its_fields_and_secret_references() {
    let good = "grant: client_credentials, token_url: https://id.example/t, client_id: me";
    assert!(http(&format!("oauth2: {{{good}, client_secret: \"${{S}}\"}}")).load().is_ok());
    let place = |column: u32, field: &str| format!("tools.yaml:7:{column}: tools.call.http.oauth2{field}: ");
    http(&format!("oauth2: {{{good}}}")).assert_refused(&format!(
        "{}found nothing; expected a value: `client_secret` is required",
        place(15, ".client_secret")
    ));
    http(&format!("oauth2: {{{good}, client_secret: hunter2}}")).assert_refused(&format!(
        "{}found a text without a reference; expected a reference such as ${{CLIENT_SECRET}} to one declared under \
         `secrets`",
        place(106, ".client_secret")
    ));
    http("oauth2: {grant: refresh_token, token_url: https://id.example/t, client_id: \"{{id}}\", refresh_token: \"${S}\"}")
        .assert_refused(&format!(
            "{}found \"{{{{id}}}}\"; expected no {{{{argument}}}}: a call must not choose its sign-in account",
            place(82, ".client_id")
        ));
    http(&format!("headers: {{authorization: x}}, oauth2: {{{good}, client_secret: \"${{S}}\"}}")).assert_refused(
        "tools.yaml:7:32: tools.call.http.headers.authorization: found \"***\"; expected no Authorization beside oauth2, \
         which sets it",
    );
}

#[test]
fn an_outcome_rule_requires_a_valid_condition() {
    let good = "outcomes: [{status: [404], outcome: ok}, {at: /ok, equals: false, outcome: permanent, message: /e}]";
    assert!(http(good).load().is_ok());
    let place = "tools.yaml:7:18: tools.call.http.outcomes[0]";
    http("outcomes: [{outcome: ok}]")
        .assert_refused(&format!("{place}: found a mapping; expected `status`, `at` or both: the rule's condition"));
}

#[test]
fn a_parameter_without_a_description_causes_a_warning() {
    let schema = "{type: object, properties: {a: {type: string}, b: {description: B., type: object, properties: {c: {}}}, \
                  d: {description: D., type: array, items: {type: object, properties: {e: {type: string}}}}}}";
    let loaded =
        tools(&format!("tools:\n  call:\n    description: Calls.\n    input_schema: {schema}\n")).load().unwrap();
    let warned: Vec<String> = loaded.warnings.iter().map(ToString::to_string).collect();
    let at = |column: usize, path: &str| {
        format!(
            "tools.yaml:4:{column}: tools.call.input_schema.properties.{path}: it has no description: models see only \
             its name and type"
        )
    };
    assert_eq!(warned.len(), 3, "{warned:?}");
    for (warning, wanted) in
        warned.iter().zip([at(50, "a"), at(121, "b.properties.c"), at(204, "d.items.properties.e")])
    {
        let end = |text: &str| text.split_once(": ").map(|(_, rest)| rest.to_owned());
        assert_eq!(end(warning), end(&wanted));
        assert!(warning.contains("tools.yaml:4:"), "{warning}");
    }
    assert_eq!(given().load().unwrap().warnings, [], "ours say what their parameters are");
}

pub(super) fn paying(lines: &str) -> TestConfig {
    tools(&format!(
        "tools:\n  pay:\n    description: Pays.\n    input_schema:\n      type: object\n      properties: {{to: {{type: \
         string}}, amount: {{type: number}}, text: {{type: string}}}}\n      required: [to, amount]\n{lines}\n"
    ))
}

#[test]
fn a_tool_of_any_effect_can_be_durable() {
    for effect in ["once", "idempotent", "read"] {
        assert!(paying(&format!("    effect: {effect}\n    durable: replica")).load().is_ok(), "{effect}");
    }
}

#[test]
fn an_effect_key_needs_a_once_tool_and_required_arguments() {
    assert!(paying("    effect_key: [/to, /amount]\n    effect_window: 2d").load().is_ok());
    assert!(paying("    effect: once\n    effect_key: [/to]").load().is_ok());
    for lines in ["    effect_key: []", "    effect_key: [/to, /to]"] {
        paying(lines).assert_refused(
            "tools.yaml:8:17: tools.pay.effect_key: found a list; expected 1 to 16 arguments, each once, such as [/to, \
             /amount]",
        );
    }
}

const RECONCILED: &str = "tools:
  pay:
    description: Pays.
    effect: once
    effect_key: [/to, /amount]
    reconcile:
      tool: find_payment
      arguments:
        reference: $idempotency_key
        to: /to
        kind: payment
      happened: /found
      output: /payment
      tries: 5
      grace: 60s
    input_schema: {type: object, required: [to, amount], properties: {to: {type: string, description: Who.}, amount: {type: number, description: How much.}}}
  find_payment:
    description: Finds a payment by its reference.
    effect: read
    input_schema: {type: object, properties: {reference: {type: string, description: Its reference.}, to: {type: string, description: Who.}, kind: {type: string, description: What.}}}
";

#[test]
fn a_reconcile_tool_must_be_another_read_tool() {
    let yaml = RECONCILED;
    let with = |text: &str| {
        let permissions = "permissions:\n  pay: {everyone: true}\n";
        let agents = "agents:\n  kelly: {task_handler: {typed: note}}\n";
        let given = given().file("tools.yaml", text).file("permissions.yaml", permissions).file("agents.yaml", agents);
        given.file("tenants.yaml", "tenants: {acme: {}}\n")
    };
    let read = with(yaml).load().unwrap();
    let by = read.tools.tools["pay"].reconcile.clone().unwrap();
    assert_eq!((by.tool.as_str(), by.happened.as_str(), by.tries, by.grace_ms), ("find_payment", "/found", 5, 60_000));
    for (from, to, why) in [
        ("tool: find_payment", "tool: find_paymnt", "the unknown tool `find_paymnt`"),
        ("tool: find_payment", "tool: pay", "another tool, with `effect: read`"),
        ("effect: read", "effect: idempotent", "another tool, with `effect: read`"),
        ("happened: /found\n", "happened: found\n", "a JSON pointer into what the tool returns"),
        ("$idempotency_key\n", "$key\n", "$idempotency_key, $call"),
        ("tries: 5\n", "tries: 0\n", "a whole number from 1 to 20"),
    ] {
        let errors = with(&yaml.replacen(from, to, 1)).errors();
        assert!(errors.iter().any(|error| error.contains(why)), "{to}: {errors:?}");
    }
}

#[test]
fn a_root_error_comes_first_and_hides_follow_up_errors() {
    let permissions = "permissions:\n  pay: {everyone: true}\n  look: {everyone: true, rules: [{require: args.a}]}\n";
    let files = |tools: &str| given().file("tools.yaml", tools).file("permissions.yaml", permissions);
    // The tools could not be read, so the names of tools in rows cause no error.
    let errors = files("tool: {pay: {description: Pays., input_schema: {type: object}}}").errors();
    assert!(errors.iter().all(|error| error.starts_with("tools.yaml:")), "{errors:#?}");
    let errors = files("tools: [pay, look]").errors();
    assert!(errors.len() == 1 && errors[0].starts_with("tools.yaml:1:8: tools: "), "{errors:#?}");
    // The tool's arguments could not be read, so the names of arguments cause no error.
    let request = "http: {method: GET, base_url: 'https://a.example', path: '/v1/{{id}}', query: {q: '{{note}}'}}";
    for schema in ["", "input_schema: [id], ", "input_schema: {type: string}, "] {
        let pay = format!("tools: {{pay: {{description: Pays., effect: once, effect_key: [/id], {schema}{request}}}}}");
        let errors =
            files(&format!("{}\n", pay.replace("}}}}", "}}}, look: {description: x, input_schema: {type: object}}}")))
                .errors();
        assert!(errors.len() == 1 && errors[0].contains("input_schema"), "{schema:?}: {errors:#?}");
    }
    let errors = given()
        .file("tools.yaml", "tools: {}\n")
        .file("mcp.yaml", "servers: {git: {command: git-mcp}}\n")
        .file("permissions.yaml", "permissions: {git_push: {everyone: true}}\n")
        .errors();
    assert!(errors.len() == 1 && errors[0].starts_with("mcp.yaml:"), "{errors:#?}");
    let errors = files("tools:\n  pay: {description: Pays., effect: onec, input_schema: {type: object}}\n")
        .file("agents.yaml", "agents: {kelly: {max_actions_per_tick: none}}\n")
        .errors();
    let found: Vec<&str> = errors.iter().filter_map(|error| error.split(':').next()).collect();
    assert_eq!(found, ["tools.yaml", "agents.yaml", "permissions.yaml"], "{errors:#?}");
}
