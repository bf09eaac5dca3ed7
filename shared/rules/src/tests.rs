//! Tests the limits of the language, and hostile arguments.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use serde_json::value::RawValue;
use serde_json::{Value as Json, json};
use tickfleet_model::limits::{ARGUMENTS_BYTES_MAX, RULE_BYTES_MAX};
use tickfleet_model::policy::{AgentPolicy, TenantPolicy};
use tickfleet_model::{AgentId, Context, Effect, TaskGrant, TaskId, TenantId, TenantUser, ToolSpec};

use super::*;

struct Call {
    arguments: Box<RawValue>,
    agent: (AgentId, AgentPolicy),
    tenant: (TenantId, TenantPolicy),
    tool: ToolSpec,
    context: Context,
    task: Option<(TaskId, TaskGrant)>,
}

impl Call {
    fn with(arguments: &str) -> Self {
        let roles = ["support".to_owned()].into();
        let ada = TenantUser { email: Some("ada@acme.test".into()), ..TenantUser::named("Ada") };
        let tenant = TenantPolicy { plan: "pro".into(), users: [ada].into(), ..TenantPolicy::default() };
        Self {
            arguments: RawValue::from_string(arguments.to_owned()).unwrap(),
            agent: (AgentId::new("kelly").unwrap(), AgentPolicy { roles, ..AgentPolicy::default() }),
            tenant: (TenantId::new("acme").unwrap(), tenant),
            tool: spec(),
            context: Context::default(),
            task: None,
        }
    }

    fn facts(&self) -> Facts<'_> {
        Facts {
            arguments: &self.arguments,
            agent: (&self.agent.0, &self.agent.1),
            tenant: (&self.tenant.0, &self.tenant.1),
            tool: &self.tool,
            context: &self.context,
            task: self.task.as_ref(),
        }
    }

    fn holds(&self, condition: &str) -> Result<bool, Problem> {
        let node = compile::condition(condition).unwrap_or_else(|problem| panic!("{condition}: {problem}"));
        Evaluation::of(&self.facts()).holds(&node)
    }

    fn decide(&self, rule: Rule) -> Result<(), RuleDenial> {
        let row = ToolGrant { rules: vec![rule], ..ToolGrant::default() };
        Rulebook::of(&[("send_money".to_owned(), row)].into()).decide("send_money", &self.facts()).map(drop)
    }
}

pub(super) fn spec() -> ToolSpec {
    ToolSpec {
        id: "tool_send_money".into(),
        name: "send_money".into(),
        display_name: "Send money".into(),
        description: String::new(),
        input_schema: json!({"type": "object"}),
        output_schema: None,
        category: "finance".into(),
        version: "1.0.0".into(),
        effect: Effect::Once,
        timeout: std::time::Duration::from_secs(1),
        required_capabilities: Vec::new(),
        required_features: Vec::new(),
        requires_approval: false,
        approval: None,
        effect_key: None,
        cache: None,
        reconcile: None,
        durable: None,
        configured: true,
    }
}

fn require(condition: &str) -> Rule {
    Rule { require: condition.to_owned(), ..Rule::default() }
}

fn holds(condition: &str, arguments: &Json) -> Result<bool, Problem> {
    Call::with(&arguments.to_string()).holds(condition)
}

fn refused(condition: &str) -> String {
    let cut: String = condition.chars().take(60).collect();
    compile::condition(condition).map(|node| panic!("{cut}: {node:?}")).unwrap_err().to_string()
}

#[test]
fn conditions_evaluate_as_in_cel() {
    let arguments = json!({
        "amount": 500, "half": 1.5, "to": "Bob@acme.test", "cc": ["a@acme.test", "b@else.test"], "tags": {"a": 1},
        "none": null, "sure": true, "lines": [{"price": 3, "count": 2}, {"price": 1, "count": 1}],
    });
    for condition in [
        "args.amount <= 500",
        "args.amount == 500.0 && 1 <= 1.5 && args.half > 1 && 2u < args.half + 1",
        "args.amount - 1 < 500 && -args.amount < 0 && 2 * args.half == 3",
        "!(args.to == 'bob@acme.test') && args.to.lowerAscii() == 'bob@acme.test'",
        "args.to.endsWith('@acme.test') && args.to.startsWith(\"Bob\") && args.to.contains('@')",
        "args.to.matches('^[A-Za-z]+@acme[.]test$') && !args.to.matches('^b')",
        "args.cc.exists(a, a.endsWith('@else.test')) && !args.cc.all(a, a.endsWith('@else.test'))",
        "args.cc.exists_one(a, a.startsWith('b')) && size(args.cc) == 2 && args.cc.size() < 3",
        "args.lines.all(l, l.price * l.count <= 6) && args.lines[1].price == 1",
        "has(args.tags.a) && !has(args.tags.b) && 'a' in args.tags && args['amount'] == 500",
        "args.amount in [1, 500] && !(args.to in ['x', 'y']) && 'a@acme.test' in args.cc",
        "args.none == null && args.sure && (args.amount > 100 ? args.sure : false)",
        "args.cc == ['a@acme.test', 'b@else.test'] && args.tags != args.lines && args.tags.all(k, k == 'a')",
        "args.amount != '500' && 'b' > 'a' && size('äö') == 2",
        "double('500.10') > args.amount && double(args.amount) == 500",
        "true || args.missing > 1",
        "args.missing > 1 || true",
        "!(false && args.missing > 1) && !(args.missing > 1 && false)",
    ] {
        assert_eq!(holds(condition, &arguments), Ok(true), "{condition}");
    }
}

#[test]
fn conditions_can_use_agent_tenant_tool_task_and_turn_context() {
    let mut call = Call::with("{}");
    for condition in [
        "agent.name == 'kelly' && 'support' in agent.roles",
        "tenant.name == 'acme' && tenant.plan == 'pro' && size(tenant.features) == 0",
        "tenant.users.exists(u, u.email == 'ada@acme.test' && !has(u.status))",
        "tool.name == 'send_money' && tool.effect == 'once' && tool.category == 'finance' && tool.version != ''",
        "!has(task.id) && size(task.chain) == 0 && task.id == null",
        "!has(user_context.limit) && !has(session_data.x)",
        // A quantifier's variable hides a value with the same name.
        "['x'].all(agent, agent == 'x')",
    ] {
        assert_eq!(call.holds(condition), Ok(true), "{condition}");
    }
    call.task = Some((
        TaskId::new("t1").unwrap(),
        TaskGrant { chain: vec![AgentId::new("atlas").unwrap()], ..TaskGrant::default() },
    ));
    call.context.user_context = Some(RawValue::from_string(r#"{"limit":50.5,"may":["x"]}"#.into()).unwrap());
    call.context.session_data = Some(RawValue::from_string("\"plain\"".into()).unwrap());
    for condition in [
        "has(task.id) && task.id == 't1' && 'atlas' in task.chain",
        "user_context.limit == 50.5 && user_context.may.exists(m, m == 'x') && session_data == 'plain'",
    ] {
        assert_eq!(call.holds(condition), Ok(true), "{condition}");
    }
}

#[test]
fn numbers_are_compared_exactly_not_as_doubles() {
    let call = Call::with(r#"{"amount": 500.000000000000000001, "large": 9007199254740993, "a": 0.1, "b": 0.2}"#);
    assert_eq!(call.holds("args.amount <= 500"), Ok(false), "a double would be 500");
    assert_eq!(call.holds("args.large <= 9007199254740992"), Ok(false), "a double would be as large");
    assert_eq!(call.holds("args.a + args.b == 0.3"), Ok(true));
    assert!(matches!(Call::with(r#"{"n": 1e9999}"#).holds("args.n > 1"), Err(Problem::Cannot(_))));
}

#[test]
fn an_undecidable_condition_reports_its_reason() {
    let arguments = json!({"amount": "500", "list": [1, "two"], "deep": {"x": null}});
    for (condition, why) in [
        ("args.amount <= 500", "a text and a number cannot be compared"),
        ("args.missing == 1", "there is no `args.missing`"),
        ("args.deep.y.z == 1", "there is no `args.deep.y`"),
        ("args.deep.x.y == 1", "`y` is read from null, which has no members"),
        ("has(args.amount.x)", "`x` is read from a text, which has no members"),
        ("args.list[2] == 1", "there is no such item"),
        ("args.list[-1] == 1", "there is no such item"),
        ("args.list['x'] == 1", "a list cannot be indexed with a text"),
        ("args.list.all(n, n <= 2)", "a text and a number cannot be compared"),
        ("args.amount", "it gives a text, not true or false"),
        ("!args.amount", "`!` is for true and false, not for a text"),
        ("args.amount + 1 == 501", "`+` is for numbers, not for a text"),
        ("args.amount in args.amount", "`in` looks for a text in a text"),
        ("args.deep.matches('x')", "`matches` is for texts, not for an object"),
        ("double('x') == 1", "`double` is for texts that are a number"),
        ("size(1) == 1", "a number has no size"),
        ("true && args.missing", "there is no `args.missing`"),
        (
            "1e30 * 1e30 * 0.123456789012345 * 0.123456789012345 * 0.123456789012345 > 0",
            "`*` gives a number with more than 38 digits",
        ),
    ] {
        assert_eq!(holds(condition, &arguments), Err(Problem::Cannot(why.into())), "{condition}");
    }
    assert_eq!(holds("args.list.exists(n, n == 'two' || n > 5)", &arguments), Ok(true), "one that is so decides");
    assert_eq!(holds("args.list.all(n, n < 0)", &arguments), Ok(false), "and so does one that is not");
}

#[test]
fn an_invalid_condition_is_rejected_with_the_expected_form() {
    for (condition, problem) in [
        ("args.amount <=", "is not CEL at line 1, column "),
        ("args.amount <= 500 500", "is not CEL at line 1, column "),
        ("", "is not CEL"),
        ("agrs.amount <= 500", "names the unknown `agrs` (did you mean `args`?); expected one of args, agent.name,"),
        ("agent.nmae == 'x'", "names the unknown `agent.nmae` (did you mean `agent.name`?)"),
        ("agent == 'x'", "names the unknown `agent`"),
        ("has(task.ids)", "names the unknown `task.ids` (did you mean `task.id`?)"),
        ("args.x.foo()", "calls the unknown `foo`"),
        ("args.x.startWith('a')", "calls the unknown `startWith`"),
        ("now() > 1", "calls the unknown `now`"),
        ("args.a / 2 > 1", "divides; expected a product on the other side"),
        ("args.a % 2 == 1", "divides"),
        ("args.x.map(y, y + 1) == [1]", "uses map or filter; expected all, exists or exists_one"),
        ("size(args.x.filter(y, y > 1)) == 1", "uses map or filter"),
        ("args.x == {'a': 1}", "makes an object"),
        ("args.x == b'abc'", "has bytes"),
        ("args.x.matches(args.y)", "passes a computed pattern to `matches`"),
        ("args.x.matches('(')", "has an invalid pattern (unclosed group)"),
        ("args.x.matches('(a{1000}){1000}')", "has an invalid pattern (its program is too large)"),
        ("args.a.all(x, x.all(y, y.all(z, z == 1)))", "nests all, exists or exists_one"),
        ("500", "gives a value; expected a condition such as `args.amount <= 500`"),
        ("args.a + 1", "gives a value"),
        ("args.?a == 1", "is not CEL"),
        ("1e999 > args.a", "is not CEL at line 1, column 1: invalid double literal"),
        ("args.a > 99999999999999999999", "is not CEL"),
    ] {
        let found = refused(condition);
        assert!(found.starts_with(problem), "{condition}: {found}");
    }
}

#[test]
fn long_and_deep_conditions_are_refused_at_once() {
    let long = format!("args.a == '{}'", "x".repeat(RULE_BYTES_MAX));
    assert!(refused(&long).contains("bytes; expected at most 4096"), "{}", refused(&long));
    let deep = |open: &str, close: &str, times: usize| format!("{}args.a{}", open.repeat(times), close.repeat(times));
    for condition in [
        deep("(1 + ", ")", 680),
        deep("!-", "", 2_000),
        deep("! - ", "", 1_000),
        deep("[", "]", 2_000),
        deep("size(", ")", 600),
        deep("true ? true : ", "", 250),
        deep("args.a[", "]", 500),
        deep("", ".a", 2_000),
        deep("", "[0]", 1_000),
        deep("", " || args.a", 370),
        deep("", " + 1", 1_000),
    ] {
        let found = refused(&condition);
        assert!(
            found.contains("nested too deeply") || found.contains("too many parts") || found.contains("is not CEL"),
            "{found}"
        );
    }
    for signs in ["!", "! ", "--"] {
        let even = format!("args.a == {}", signs.repeat(4_000 / signs.len()));
        assert!(refused(&even).contains("is not CEL"), "{}", refused(&even));
        // The parser removes such signs and parentheses without deeper recursion.
        let sound = compile::expression(&deep(signs, "", 1_990));
        assert!(sound.is_ok(), "{sound:?}");
    }
    assert!(compile::condition(&deep("(", ")", 2_000)).is_ok());
    let names: Vec<String> = (0..300).map(|n| format!("'user{n}'")).collect();
    assert_eq!(
        holds(&format!("args.to in [{}]", names.join(",")), &json!({"to": "user299"})),
        Ok(true),
        "a long list fits"
    );
}

#[test]
fn hostile_arguments_cost_no_more_than_the_bound() {
    let numbers = format!(r#"{{"list":[{}]}}"#, vec!["1"; ARGUMENTS_BYTES_MAX / 2 - 10].join(","));
    let texts = format!(r#"{{"list":[{}]}}"#, vec![r#""a\nb""#; 30_000].join(","));
    let long = format!(r#"{{"text":"{}"}}"#, "a".repeat(ARGUMENTS_BYTES_MAX - 20));
    let deep = format!(r#"{{"deep":{}1{}}}"#, "[".repeat(60), "]".repeat(60));
    for (condition, arguments, expected) in [
        ("args.list.all(x, x == 1)", &numbers, Err(Problem::TooMuch)),
        ("args.list.all(x, args.list.all(y, x == y))", &numbers, Err(Problem::TooMuch)),
        ("args.list.exists(x, x == 'c')", &texts, Err(Problem::TooMuch)),
        ("args.list == args.list", &numbers, Err(Problem::TooMuch)),
        ("args.text.contains('b')", &long, Ok(false)),
        ("args.text == args.text", &long, Ok(true)),
        ("args.text.lowerAscii().lowerAscii() != ''", &long, Ok(true)),
        ("args.deep == args.deep", &deep, Ok(true)),
    ] {
        assert_eq!(Call::with(arguments).holds(condition), expected, "{condition}");
    }
    let too_long = Call::with(&long).holds("args.text.matches('^(a|aa)+$')");
    assert_eq!(too_long, Err(Problem::Cannot("`matches` is for texts of at most 8192 bytes".into())));
    let all = format!("{} != ''", ["args.text"; 40].join(" != '' && "));
    assert_eq!(Call::with(&long).holds(&all), Err(Problem::TooMuch), "reading a long text again and again");
    assert_eq!(
        Call::with(&numbers).holds("true || args.list.all(x, x == 1)"),
        Ok(true),
        "what is not asked costs nothing"
    );
    assert_eq!(
        Call::with(&numbers).holds("args.list.all(x, x == 1) || true"),
        Err(Problem::TooMuch),
        "nothing outweighs it"
    );
}

#[test]
fn usual_rules_take_few_steps() {
    let call = Call::with(r#"{"amount": 700, "to": "bob@acme.test"}"#);
    let facts = call.facts();
    for (condition, at_most) in [
        ("args.amount <= 500", 12),
        ("args.amount <= 500 && args.to.endsWith('@acme.test')", 25),
        ("args.to.matches('^[a-z]+@acme[.]test$')", 40),
    ] {
        let node = compile::condition(condition).unwrap();
        let mut evaluation = Evaluation::of(&facts);
        evaluation.holds(&node).unwrap();
        assert!(evaluation.work.done() <= at_most, "{condition}: {}", evaluation.work.done());
    }
}

#[test]
fn an_unmet_rule_denies_with_its_message() {
    let call = Call::with(r#"{"amount": 700, "to": "eve", "list": [1, 2]}"#);
    let rule = |name: Option<&str>, when: Option<&str>, message: Option<&str>| Rule {
        name: name.map(Into::into),
        when: when.map(Into::into),
        message: message.map(Into::into),
        ..require("args.amount <= 500")
    };
    let unmet = |rule: Rule| call.decide(rule).unwrap_err();
    let said = unmet(rule(
        Some("small"),
        None,
        Some("amount {args.amount} exceeds {{500}} for {agent.name}: {args.list}, {args.x}"),
    ));
    assert_eq!((said.rule.as_str(), said.why), ("permissions.send_money.rules.small", DenialCause::NotMet));
    assert_eq!(said.message, "amount 700 exceeds {500} for kelly: [2 items], ?");
    let said = unmet(rule(None, None, None));
    assert_eq!(said.rule, "permissions.send_money.rules[0]");
    assert_eq!(said.message, "they do not meet \"args.amount <= 500\"");
    assert_eq!(call.decide(rule(None, Some("agent.name == 'sam'"), None)), Ok(()), "it is about others");
    let said = unmet(rule(None, Some("args.x"), None));
    assert_eq!((said.why.reason(), said.message.contains(": there is no `args.x`")), ("rule_undecided", true));
    let said = unmet(Rule { require: "nonsense(".into(), ..Rule::default() });
    assert_eq!(said.why, DenialCause::Undecided, "a rule that does not compile stops every call");
    assert_eq!(Rulebook::default().decide("send_money", &call.facts()), Ok(RuleFindings::default()));
}

#[test]
fn messages_are_validated_truncated_and_redacted() {
    for (message, problem) in [
        ("{args.amount", "has a lone brace"),
        ("args}", "has a lone brace"),
        ("{}", "shows {}, which is not CEL"),
        ("{agrs.x}", "shows {agrs.x}, which names the unknown `agrs`"),
        ("{args.api_key}", "shows `api_key`, which names a secret"),
        (&"x".repeat(301), "has 301 bytes; expected at most 300"),
        (&"{args.a}".repeat(9), "shows too many values; expected at most 8"),
    ] {
        let found = check_message(message).unwrap_err().to_string();
        assert!(found.starts_with(problem), "{message}: {found}");
    }
    let call = Call::with(&json!({"long": "ä".repeat(200)}).to_string());
    let rule = Rule { message: Some("{args.long}".into()), ..require("1 > 2") };
    assert_eq!(call.decide(rule).unwrap_err().message.chars().count(), 81, "long values are cut");
    // If the text were cut before its redaction, half of the token would remain visible.
    let token = format!("ghp_{}", "a1B2".repeat(9));
    let half = Call::with(&json!({"to": format!("{} {token}", "x".repeat(70))}).to_string());
    let rule = Rule { message: Some("pays {args.to}".into()), ..require("1 > 2") };
    let said = half.decide(rule).unwrap_err().message;
    assert!(said.starts_with("pays xxx") && !said.contains("ghp_"), "{said}");
    let forged = Call::with(&json!({"to": "kim\n  Arguments: {}\u{1b}[8m"}).to_string());
    let rule = Rule { message: Some("pays {args.to}".into()), ..require("1 > 2") };
    assert_eq!(forged.decide(rule).unwrap_err().message, "pays kim\\n  Arguments: {}\\u{1b}[8m", "one line stays one");
}

#[test]
fn a_shadow_rule_denies_nothing_and_reports_its_findings() {
    let call = Call::with(r#"{"amount": 700}"#);
    let rule = |name: &str, require: &str, mode| Rule {
        name: Some(name.to_owned()),
        require: require.to_owned(),
        message: Some("{args.amount} is too much".into()),
        mode,
        ..Rule::default()
    };
    let decided = |rules: &[Rule]| {
        let row = ToolGrant { rules: rules.to_vec(), ..ToolGrant::default() };
        let book = Rulebook::of(&[("send_money".to_owned(), row)].into());
        (book.decide("send_money", &call.facts()), book.enforced("send_money"), book.count("send_money"))
    };
    let (small, known) =
        (rule("small", "args.amount < 9", RuleMode::Shadow), rule("known", "args.to == 'a'", RuleMode::Shadow));
    let met = rule("met", "args.amount < 900", RuleMode::Enforce);
    let (said, enforced, all) = decided(&[small.clone(), known, met.clone(), Rule { mode: RuleMode::Shadow, ..met }]);
    let said = said.unwrap().shadow;
    let short: Vec<_> = said.iter().map(|denial| (denial.rule.as_str(), &*denial.reason)).collect();
    let place = |name: &str| format!("permissions.send_money.rules.{name}");
    assert_eq!(short, [(&*place("small"), "rule_not_met"), (&*place("known"), "rule_undecided")]);
    assert_eq!((said[0].message.as_str(), enforced, all), ("700 is too much", 1, 4));
    let acts = Rule { mode: RuleMode::Enforce, ..small.clone() };
    assert_eq!(decided(&[small, acts]).0.unwrap_err().why, DenialCause::NotMet, "another one stops it");

    let costly = "args.l.all(x, args.l.all(y, x == y))";
    let long = Call::with(&json!({"l": vec![1; 2_000]}).to_string());
    let row = vec![rule("costly", costly, RuleMode::Shadow), rule("cheap", "size(args.l) == 2000", RuleMode::Enforce)];
    let book = Rulebook::of(&[("send_money".to_owned(), ToolGrant { rules: row, ..ToolGrant::default() })].into());
    let said = book.decide("send_money", &long.facts()).unwrap().shadow;
    assert!(said[0].message.contains("more work than a rule may"), "{said:?}: no other rule pays for it");
}

#[test]
fn an_approval_rule_asks_only_when_its_condition_is_decidable() {
    let rule = |name: &str, require: &str, asks: bool| Rule {
        name: Some(name.to_owned()),
        require: require.to_owned(),
        message: Some("{args.amount} is too much".into()),
        otherwise_ask: asks.then(ApprovalDemand::default),
        ..Rule::default()
    };
    let decided = |arguments: &str, rules: &[Rule]| {
        let row = ToolGrant { rules: rules.to_vec(), ..ToolGrant::default() };
        Rulebook::of(&[("send_money".to_owned(), row)].into()).decide("send_money", &Call::with(arguments).facts())
    };
    let asks = [rule("small", "args.amount <= 500", true), rule("tiny", "args.amount <= 5", true)];
    let places = |arguments: &str| {
        let approvals = decided(arguments, &asks).unwrap().approvals;
        approvals.into_iter().map(|reason| (reason.place, reason.why)).collect::<Vec<_>>()
    };
    let place = |name: &str| format!("permissions.send_money.rules.{name}");
    assert_eq!(places(r#"{"amount": 3}"#), []);
    assert_eq!(places(r#"{"amount": 50}"#), [(place("tiny"), "50 is too much".to_owned())]);
    assert_eq!(places(r#"{"amount": 700}"#).len(), 2);
    let undecided = decided(r#"{"amount": "a lot"}"#, &asks).unwrap_err();
    assert_eq!((undecided.rule, undecided.why), (place("small"), DenialCause::Undecided));
    let mixed = [asks[0].clone(), rule("never", "args.amount <= 600", false)];
    assert_eq!(decided(r#"{"amount": 700}"#, &mixed).unwrap_err().rule, place("never"));
    assert_eq!(decided(r#"{"amount": 550}"#, &mixed).unwrap().approvals.len(), 1);
}
