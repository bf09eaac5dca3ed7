//! Invalid agents, permissions and tenants.

use super::{TestConfig, given};

pub(super) fn agents(text: &str) -> TestConfig {
    given()
        .file("agents.yaml", text)
        .file("permissions.yaml", "permissions: {echo: {everyone: true}}\n")
        .file("tenants.yaml", "tenants: {acme: {}}\n")
}

pub(super) fn permissions(text: &str) -> TestConfig {
    agents("agents:\n  ada: {roles: [engineer]}\n  bob: {roles: [writer]}\n").file("permissions.yaml", text)
}

#[test]
fn permissions_for_an_unknown_tool_are_refused() {
    let errors = permissions("permissions:\n  post_to_y: {agents: [ada]}\n").errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    let error = &errors[0];
    let start = "permissions.yaml:2:3: permissions.post_to_y: found the unknown tool `post_to_y`; expected a tool of ";
    assert!(error.starts_with(start) && error.ends_with("did you mean `post_to_x`?"), "{error}");
}

#[test]
fn a_replaced_sample_file_reports_one_error_per_dependent_file() {
    let errors = given().file("agents.yaml", "agents: {bot: {roles: [support]}}\n").errors();
    let [error] = &*errors else { panic!("{errors:?}") };
    assert!(error.starts_with("built-in permissions.yaml:"), "{error}");
    assert!(error.contains(" names that your files do not have (`archy`, `atlas`, `binky`, …)"), "{error}");
    assert!(
        error
            .ends_with("a permissions.yaml of your own: each file that you bring replaces the built-in one as a whole")
    );

    let errors = given().file("tools.yaml", "tools: {}\n").errors();
    assert!(matches!(&*errors, [error] if error.contains("expected a permissions.yaml of your own")), "{errors:?}");

    let agents = include_str!("../../../../config/agents.yaml").replace("  archy:", "  archie:");
    let errors = given().file("agents.yaml", agents).errors();
    assert!(
        matches!(&*errors, [error] if error.contains("found the name `archy`, which your files do not")),
        "{errors:?}"
    );
}

#[test]
fn a_role_is_rejected_when_no_agent_has_roles() {
    agents("agents: {ada: {}}\n")
        .file_again("permissions.yaml", "permissions: {echo: {roles: [writer]}}\n")
        .assert_refused(
            "permissions.yaml:1:30: permissions.echo.roles[0]: found \"writer\"; expected a role that an agent of \
         agents.yaml has: there are none",
        );
}

#[test]
fn an_invalid_rule_reports_the_found_and_expected_values() {
    let rules = |rules: &str| permissions(&format!("permissions:\n  echo:\n    everyone: true\n    rules:\n{rules}"));
    rules("      - require: agrs.amount <= 500\n").assert_refused(
        "permissions.yaml:5:18: permissions.echo.rules[0].require: found \"agrs.amount <= 500\", which names the unknown \
         `agrs` (did you mean `args`?); expected one of args, agent.name, agent.roles, tenant.name, tenant.plan, \
         tenant.features, tenant.users, tool.name, tool.version, tool.category, tool.effect, task.id, task.chain, \
         user_context, session_data",
    );
    rules("      - {when: args.a > , require: args.b}\n").assert_refused(
        "permissions.yaml:5:16: permissions.echo.rules[0].when: found \"args.a >\", which is not CEL at line 1, column 9: Syntax error: mismatched input '<EOF>' expecting expression; expected a condition in CEL, such as `args.amount <= 500`",
    );
    rules("      - {require: args.a, mode: shadw}\n").assert_refused(
        "permissions.yaml:5:33: permissions.echo.rules[0].mode: found \"shadw\"; expected one of enforce, shadow; did you mean \
         `shadow`?",
    );
    rules("      - {require: args.to == 'a', message: 'to {args.password}'}\n").assert_refused(
        "permissions.yaml:5:44: permissions.echo.rules[0].message: found \"to {args.password}\", which shows `password`, which names a secret; expected a value that is not secret",
    );
    for (text, expected) in [
        ("      - {when: args.a}\n", "`require` is required"),
        ("      - {require: args.a, unless: args.b}\n", "expected one of name, when, require, message"),
        ("      - args.a\n", "permissions.echo.rules[0]: found \"args.a\"; expected a"),
        ("      - {name: Small, require: args.a}\n", "a name of a-z, 0-9 and `_`, of 64 at most"),
        ("      - {name: x, require: args.a}\n      - {name: x, require: args.b}\n", "each name once in a row"),
        (&"      - {require: args.a}\n".repeat(33), "expected at most 32 rules"),
    ] {
        let errors = rules(text).errors();
        assert!(errors.len() == 1 && errors[0].contains(expected), "{text}: {errors:?}");
    }
}

#[test]
fn unset_facts_and_invalid_fact_lists_are_rejected() {
    let facts = |facts: &str| permissions(&format!("permissions:\n  echo:\n    everyone: true\n    facts: {facts}\n"));
    facts("{sets: [quoted], require: [quoted], forbid: [{fact: quoted, mode: shadow}], of: agent}").load().unwrap();
    let refused = |text: &str, why: &str| {
        let errors = facts(text).errors();
        assert!(errors.len() == 1 && errors[0].contains(why), "{errors:?}");
    };
    refused(
        "{sets: [quoted], require: [qouted]}",
        "permissions.echo.facts.require: found the fact qouted, which no row sets",
    );
    refused("{sets: [quoted(/item)], forbid: [quoted]}", "found the fact quoted, which no row sets");
    refused("{sets: [Quoted]}", "permissions.echo.facts.sets[0]: found \"Quoted\"; expected a fact: a name");
    refused("{sets: []}", "expected 1 to 16 facts");
    refused("{sets: [{fact: quoted, on: [denied]}]}", "one of ok, permanent, transient, internal");
    refused("{sets: [{fact: quoted, for: 100d}]}", "expected a duration from 1s to");
    refused("{sets: [quoted], of: tenant}", "one of session, task, agent");
}

#[test]
fn the_session_facts_page_example_loads() {
    let page = include_str!("../../../../docs/govern/session-facts.md");
    let page = page.split("## Forbid a call after another").nth(1).unwrap();
    let yaml = page.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let rows = yaml.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let tools: String =
        rows.map(|row| format!("{row}\n    {{description: A tool., input_schema: {{type: object}}}}\n")).collect();
    let agents = "agents:\n  kelly: {task_handler: {typed: note}, roles: [supervisor]}\n";
    let given = permissions(yaml).file("agents.yaml", agents).file("tools.yaml", format!("tools:\n{tools}"));
    given.load().unwrap();
}

#[test]
fn an_empty_rule_list_keeps_the_policy_digest() {
    let digest = |row: &str| permissions(&format!("permissions:\n  echo: {row}\n")).load().unwrap().digest;
    let none = digest("{everyone: true}");
    assert_eq!(none, digest("{everyone: true, rules: []}"));
    assert_ne!(none, digest("{everyone: true, rules: [{require: args.a}]}"));
    assert_ne!(digest("{rules: [{require: args.a}]}"), digest("{rules: [{require: args.a, name: a}]}"));
}

#[test]
fn tenant_users_are_unique_names_or_mappings() {
    let users = |list: &str| {
        let tenants = format!("tenants:\n  acme:\n    users: {list}\n");
        agents("agents: {}\n").file("permissions.yaml", "permissions: {}\n").file("tenants.yaml", tenants)
    };
    let loaded = users("[owner, {name: Ada, roles: [operations], email: ada@example.com, status: invited}]").load();
    let policy = loaded.unwrap().policy;
    let found: Vec<_> = policy.tenants.values().next().unwrap().users.iter().collect();
    assert_eq!((found[0].name.as_str(), found[0].email.as_deref()), ("Ada", Some("ada@example.com")));
    assert_eq!(found[1], &tickfleet_model::TenantUser::named("owner"));
    let long = format!("[{{name: {}}}]", "x".repeat(300));
    for (list, expected) in [
        ("[owner, {name: owner}]", "tenants.acme.users[1]"),
        ("[{email: ada@example.com}]", "`name` is required"),
        ("[{name: Ada, e-mail: x}]", "did you mean `email`?"),
        ("[[owner]]", "expected text"),
    ] {
        let errors = users(list).errors();
        assert!(errors.len() == 1 && errors[0].contains(expected), "{list}: {errors:?}");
    }
    let errors = users(&long).errors();
    assert!(errors[0].contains("at most 254 bytes"), "{errors:?}");
}

#[test]
fn a_file_without_its_root_key_is_rejected() {
    let errors = agents("agents: {}\n").file("tenants.yaml", "acme: {}\n").errors();
    assert_eq!(
        errors,
        [
            "tenants.yaml:1:1: acme: found the unknown field `acme`; expected one of tenants",
            "tenants.yaml:1:1: tenants: found nothing; expected a value: `tenants` is required",
        ]
    );
}

#[test]
fn a_tenant_with_an_unknown_time_zone_or_agent_is_rejected() {
    let errors = agents("agents: {ada: {}}\n")
        .file("tenants.yaml", "tenants:\n  acme: {time_zone: utc, agents: [adda]}\n")
        .errors();
    assert_eq!(
        errors,
        [
            "tenants.yaml:2:21: tenants.acme.time_zone: found \"utc\"; expected an IANA time zone such as UTC or \
             America/New_York; did you mean `UTC`?",
            "tenants.yaml:2:35: tenants.acme.agents[0]: found \"adda\"; expected an agent of agents.yaml: ada; did you \
             mean `ada`?",
        ]
    );
}

#[test]
fn an_agent_has_exactly_one_known_task_handler() {
    let one = "exactly one of typed, http, llm, external";
    agents("agents:\n  ada: {task_handler: {}}\n")
        .assert_refused(&format!("agents.yaml:2:23: agents.ada.task_handler: found a mapping; expected {one}"));
    agents("agents:\n  ada: {task_handler: {typed: note, external: {}}}\n")
        .assert_refused(&format!("agents.yaml:2:23: agents.ada.task_handler: found a mapping; expected {one}"));
}

#[test]
fn only_http_task_handlers_accept_an_effect() {
    use crate::TaskHandlerDef;
    use tickfleet_model::{AgentId, Effect};
    let http = "http: {method: POST, base_url: \"https://a.example\", path: /t, not_executed: [503]}";
    let loaded = agents(&format!(
        "agents:\n  ada: {{task_handler: {{{http}, effect: idempotent, timeout_ms: 5000}}}}\n  \
         bob: {{task_handler: {{{http}}}}}\n"
    ))
    .load()
    .unwrap();
    let handler = |name: &str| match loaded.task_handlers.get(&AgentId::new(name).unwrap()) {
        Some(TaskHandlerDef::Http(def)) => (def.effect, def.timeout.map(|t| t.as_millis())),
        other => panic!("{other:?}"),
    };
    assert_eq!(handler("ada"), (Effect::Idempotent, Some(5_000)));
    assert_eq!(handler("bob"), (Effect::Once, None));
    agents(format!("agents:\n  ada: {{task_handler: {{{http}, effect: twice}}}}\n").as_str()).assert_refused(
        "agents.yaml:2:116: agents.ada.task_handler.effect: found \"twice\"; expected one of read, idempotent, once",
    );
    agents("agents:\n  ada: {task_handler: {effect: read}}\n").errors();
}

#[test]
fn an_http_task_handler_rejects_unknown_task_fields() {
    let handler = "agents:\n  ada:\n    task_handler:\n      http:\n        method: POST\n        base_url: \
                   https://a.example\n        path: /tasks/{{task_id}}\n        body: {text: \"{{descripton}}\"}\n";
    agents(handler).assert_refused(
        "agents.yaml:8:22: agents.ada.task_handler.http.body.text: found {{descripton}}; expected a field of the \
         task: agent, deadline, delegator, description, input, priority, task_id, tenant; did you mean `description`?",
    );
}

#[test]
fn an_invalid_approval_or_approver_is_rejected() {
    let rule = |rule: &str, people: &str| {
        permissions(&format!(
            "permissions:\n  echo: {{everyone: true, rules: [{{require: args.a, {rule}}}]}}\n{people}"
        ))
    };
    let ann = "approvers: {ann: {roles: [finance]}}\n";
    rule("otherwise: ask, approval: {by: [finanse]}", ann).assert_refused(
        "permissions.yaml:2:84: permissions.echo.rules[0].approval.by[0]: found the unknown role `finanse`; expected a role \
         that an approver of permissions.yaml has: finance; did you mean `finance`?",
    );
    rule("approval: {quorum: 1}", ann).assert_refused(
        "permissions.yaml:2:62: permissions.echo.rules[0].approval: found a mapping; expected `otherwise: ask` beside it: without it, the \
         rule denies calls that do not meet it",
    );
    for (text, people, expected) in [
        ("otherwise: aks", ann, "did you mean `ask`?"),
        ("otherwise: ask, approval: {quorum: 0}", ann, "a whole number from 1 to 16"),
        ("otherwise: ask, approval: {expires: 1ms}", ann, "a duration from 1s to"),
        ("otherwise: ask, approval: {narrow: [amount]}", ann, "JSON pointers to arguments, such as [/amount]"),
        ("otherwise: ask, approval: {roles: [finance]}", ann, "by, quorum, expires, narrow"),
        ("otherwise: ask", "approvers: {ada: {}}\n", "the name of a person: no agent may approve"),
        ("otherwise: ask", "approvers: {\"an n\": {}}\n", "a name: 1 to 64 of"),
        ("otherwise: ask", "approvers: {ann: {roles: [\"a,b\"]}}\n", "roles, each 1 to 64 of"),
    ] {
        let errors = rule(text, people).errors();
        assert!(errors.len() == 1 && errors[0].contains(expected), "{text}: {errors:?}");
    }
    let both = "approvers: {ann: {roles: [finance]}, bea: {roles: [finance, risk]}}\n";
    let loaded =
        rule("otherwise: ask, approval: {by: [finance], quorum: 2, expires: 1h, narrow: [/a]}", both).load().unwrap();
    let row = &loaded.policy.permissions.matrix["echo"];
    let demand = row.rules[0].otherwise_ask.clone().unwrap();
    assert_eq!((demand.quorum, demand.expires_ms, demand.narrow.len()), (2, Some(3_600_000), 1));
    assert!(loaded.policy.permissions.approvers["ann"].contains("finance"));
}

#[test]
fn an_approval_quorum_cannot_exceed_its_approvers() {
    let people = "approvers: {ann: {roles: [finance]}, bea: {roles: [finance, risk]}, cy: {}}\n";
    let rule = |approval: &str, people: &str| {
        let rule = format!("rules: [{{require: args.a, otherwise: ask, approval: {approval}}}]");
        permissions(&format!("permissions:\n  echo: {{everyone: true, {rule}}}\n{people}"))
    };
    rule("{by: [finance], quorum: 5}", people).assert_refused(
        "permissions.yaml:2:102: permissions.echo.rules[0].approval.quorum: found a quorum of 5; expected at most 2: permissions.yaml has only that many approvers for it",
    );
    for (approval, may) in [("{by: [risk], quorum: 2}", 1), ("{quorum: 4}", 3), ("{by: [risk, finance], quorum: 3}", 2)]
    {
        let errors = rule(approval, people).errors();
        let expected = format!("at most {may}: permissions.yaml has only that many approvers");
        assert!(errors.len() == 1 && errors[0].contains(&expected), "{approval}: {errors:?}");
    }
    for approval in ["{by: [finance], quorum: 2}", "{quorum: 3}", "{by: [risk]}"] {
        rule(approval, people).load().unwrap();
    }
    // Without approvers, such calls are denied at once, so the quorum causes no error.
    assert_eq!(rule("{by: [finanse], quorum: 2}", people).errors().len(), 1);
    rule("{quorum: 2}", "").load().unwrap();
}

#[test]
fn default_approval_settings_keep_the_policy_digest() {
    let digest = |rule: &str, people: &str| {
        let text = format!("permissions:\n  echo: {{everyone: true, rules: [{{require: args.a{rule}}}]}}\n{people}");
        permissions(&text).load().unwrap().digest
    };
    let none = digest("", "");
    assert_eq!(none, digest(", otherwise: deny", "approvers: {}\n"));
    assert_ne!(none, digest(", otherwise: ask", ""));
    assert_ne!(none, digest("", "approvers: {ann: {}}\n"));
    assert_ne!(digest(", otherwise: ask", ""), digest(", otherwise: ask, approval: {quorum: 2}", ""));
}
