#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;

use super::*;

fn redactor() -> Redactor {
    Redactor::new(["iban", "customerRef"])
}

const SECRET: &str = "\
    password Password userPassword password2 db_passwd api_key apiKey \
    X-API-Key APIKey apikey OPENAI_API_KEY accessToken access_token token \
    bot_token refresh-token client_secret AWS_SECRET_ACCESS_KEY Authorization proxy-authorization Set-Cookie \
    private_key auth credentials seed_phrase connectionString iban customerIban \
    customer_ref accessTokens key Key pass db_pass smtpPass \
    pin userPin pin_code PIN2 otp otpCode totp_seed \
    session_id sessionId sessionid mcp-session-id PHPSESSID connect.sid sid \
    session Cookie cookie_header X-CSRF-Token csrfmiddlewaretoken_csrf XSRF-TOKEN Ocp-Apim-Subscription-Key \
    x-functions-key consumer_key license_key webhookKey mfa_code verificationCode recovery_codes \
    id_token board_token token_id client_assertion code_verifier X-Amz-Signature sig card_number ssn employee_ssn \
";

const PLAIN: &str = "\
    max_tokens maxTokens tokens total_tokens token_count tokenCount tokenizer \
    keywords keys primary_key foreignKey sort_key cache_key object_key \
    public_key idempotency_key key_id keyboard passenger passes bypass \
    pass_rate spin pinned pinning pin_message pin_to_top pin_id gpio_pin \
    opinion session_data session_count account_sid message_sid side signature \
    design otp_length hotplug postal_code country_code error_code card_type \
    author authors monkey passenger compass secretary cookiecutter \
    token_limit token_url customer ref urban \
";

#[test]
fn keys_match_by_their_words() {
    for key in SECRET.split_whitespace() {
        assert!(redactor().is_secret_key(key), "{key}");
    }
    for key in PLAIN.split_whitespace().chain([""]) {
        assert!(!redactor().is_secret_key(key), "{key}");
    }
}

#[test]
fn json_is_redacted_at_any_depth_and_otherwise_untouched() {
    for (from, to) in [
        (r#"{"password":"x","n":12345678901234567890123}"#, r#"{"password":"[REDACTED]","n":12345678901234567890123}"#),
        (r#"{"a":[{"api_key" : {"x":[1,"]"]} , "b":1}]}"#, r#"{"a":[{"api_key" : "[REDACTED]" , "b":1}]}"#),
        (
            r#"{"token":12,"secret":null,"pwd":"","jwt":true}"#,
            r#"{"token":"[REDACTED]","secret":null,"pwd":"","jwt":true}"#,
        ),
        (r#"{"pass\u0077ord":"x"}"#, r#"{"pass\u0077ord":"[REDACTED]"}"#),
        (r#"{"password":"a\"b","c":1}"#, r#"{"password":"[REDACTED]","c":1}"#),
        (r#"{"h":"Bearer abc"}"#, r#"{"h":"[REDACTED]"}"#.replace("[", "Bearer [").as_str()),
        (r#"{"body":"{\"password\":\"a b\",\"n\":1}"}"#, r#"{"body":"{\"password\":\"[REDACTED]\",\"n\":1}"}"#),
        (r#"["x ghp_0123456789abcdefghij y"]"#, r#"["x [REDACTED] y"]"#),
        (
            r#"{"key":"AIza","pin":4711,"pinned":3,"Cookie":"a=b; c=d"}"#,
            r#"{"key":"[REDACTED]","pin":"[REDACTED]","pinned":3,"Cookie":"[REDACTED]"}"#,
        ),
        (
            r#"[{"name":"Cookie","value":"a=b"},{"name" : "Accept" , "value" : "x"}]"#,
            r#"[{"name":"Cookie","value":"[REDACTED]"},{"name" : "Accept" , "value" : "x"}]"#,
        ),
        (
            r#"[{"key":"X-Api-Key","value":{"a":[1]}},{"key":"Accept","value":"x"}]"#,
            r#"[{"key":"X-Api-Key","value":"[REDACTED]"},{"key":"Accept","value":"x"}]"#,
        ),
        (r#"{"name":"Cookie","note":"n"}"#, r#"{"name":"Cookie","note":"n"}"#),
        (r#"{"password":"cut off he"#, r#"{"password":"[REDACTED]""#),
        (r#"{"text":"a\nsk-0123456789abcdefghij\u0021"}"#, r#"{"text":"a\n[REDACTED]!"}"#),
        (r#"["\ud800\nghp_0123456789abcdefghij"]"#, "[\"\u{fffd}\\n[REDACTED]\"]"),
        (r#"["\nghp_0123456789abcdefghij and \u00"#, "[\"\\n[REDACTED] and \u{fffd}"),
        (r#"["\udc00ghp_0123456789abcdefghij"]"#, "[\"\u{fffd}[REDACTED]\"]"),
        (r#"["\ud83d\ude00ghp_0123456789abcdefghij"]"#, r#"["😀[REDACTED]"]"#),
    ] {
        assert_eq!(redactor().json(from), to);
    }
    for same in
        [r#"{"max_tokens": 10,"keywords":["a:b","c=d"],"url":"https://x.test/a?b=c","t":"10:30:59"}"#, "[]", "12"]
    {
        assert!(matches!(redactor().json(same), Cow::Borrowed(_)), "{same}");
    }
}

#[test]
fn a_key_that_redaction_makes_secret_hides_its_value_at_once() {
    let json = r#"{"token: name":"John Doe","n":1}"#;
    let clean = redactor().json(json).into_owned();
    assert_eq!(clean, r#"{"token: [REDACTED]":"[REDACTED]","n":1}"#);
    assert_eq!(redactor().json(&clean), clean);
    // The text becomes valid JSON only after its secret is replaced.
    let json =
        r#"{"token: body":"{\"api_key\":\"x9xce_id":2,"province_id":29x9x9\",\"in\&:\"{\\\"otp\\\":123456}\"}"}"#;
    let clean = redactor().json(json).into_owned();
    assert_eq!(redactor().json(&clean), clean);
}

#[test]
fn free_text_is_redacted_by_shape_and_by_key() {
    for (from, to) in [
        ("password=hunter2&x=1", "password=[REDACTED]&x=1"),
        ("Cookie: a=b; c=d\nHost: x", "Cookie: [REDACTED]\nHost: x"),
        ("https://maps.test/x?key=abc123&q=1", "https://maps.test/x?key=[REDACTED]&q=1"),
        ("pin=4711 otp=123456", "pin=[REDACTED] otp=[REDACTED]"),
        ("?api_key=abc&x=1", "?api_key=[REDACTED]&x=1"),
        ("login with password: 'a b' ok", "login with password: '[REDACTED]' ok"),
        ("Authorization: Bearer abc, def\nHost: x", "Authorization: [REDACTED]\nHost: x"),
        ("{password:\"x y\"}", "{password:\"[REDACTED]\"}"),
        ("err {\\\"secret\\\":\\\"x\\\\\\\" y\\\"} end", "err {\\\"secret\\\":\\\"[REDACTED]\\\"} end"),
        ("curl -H 'authorization: basic dXNlcjpwYXNz'", "curl -H 'authorization: [REDACTED]'"),
        ("GET https://api.test/bot123456:AAbbccddeeff00112233/send", "GET https://api.test/bot[REDACTED]/send"),
        ("postgres://joe:s3cret@db:5432/x", "postgres://joe:[REDACTED]@db:5432/x"),
        ("key AKIAABCDEFGHIJKLMNOP.", "key [REDACTED]."),
        ("slack xoxb-123456789-abcdef!", "slack [REDACTED]!"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln end", "jwt [REDACTED] end"),
        ("a -----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- b", "a [REDACTED] b"),
        ("a -----BEGIN PRIVATE KEY-----\nMIIE cut", "a [REDACTED]"),
        ("AKIAABCDEFGHIJKLMNOPghp_0123456789abcdefghij", "[REDACTED]"),
        ("sk-0123456789abcdefghij-----BEGIN PRIVATE KEY-----\nMIIE", "[REDACTED][REDACTED]"),
    ] {
        assert_eq!(redactor().text(from), to);
    }
    for same in [
        "bearer of bad news",
        "a task-management-service-for-you",
        "the max_tokens: 100 limit",
        "at 10:30",
        "x == y",
        "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
        "https://x.test:8080/a:b@c",
        "keywords: a, b",
    ] {
        assert!(matches!(redactor().text(same), Cow::Borrowed(_)), "{same}");
    }
}

#[test]
fn the_head_of_a_message_is_redacted_wherever_it_is_cut() {
    let hidden = "hunter2-hunter2-hunter2";
    for before in [0, 10, 3_000, 4_060, 4_090, 4_096, 48_000, 50_480, 50_500, 67_560, 67_580, 90_000] {
        for (open, close) in [("{\"password\":\"", "\"}"), ("broken password=", " "), ("", "")] {
            let fill = "x ".repeat(before / 2);
            let secret = if open.is_empty() { format!("ghp_{}", "hunter2".repeat(6)) } else { hidden.to_owned() };
            for text in [
                format!("[\"{fill}\",{open}{secret}{close}"),
                format!("{open}{secret}{close} {fill}"),
                format!("{{\"token\":\"{}\",\"text\":\"{fill} {open}{secret}{close}", "t".repeat(17_000)),
            ] {
                let head = redactor().head(text.as_bytes(), 4_096);
                assert!(head.len() <= 4_096 && !head.contains("hunter2"), "{before} {open}: {head}");
            }
        }
    }
    assert_eq!(redactor().head(b"a \xff password=x", 4_096), "a \u{fffd} password=[REDACTED]");
}

fn secret() -> impl Strategy<Value = String> {
    prop_oneof![
        "sk-[A-Za-z0-9_-]{16,40}",
        "gh[pousr]_[A-Za-z0-9]{36}",
        "xox[abeoprs]-[0-9]{6,12}-[a-zA-Z0-9]{8,24}",
        "A(K|S)IA[A-Z0-9]{16}",
        "eyJ[A-Za-z0-9_-]{10,30}\\.[A-Za-z0-9_-]{10,30}\\.[A-Za-z0-9_-]{10,30}",
        "[0-9]{6,10}:AA[A-Za-z0-9_-]{30,35}",
        "-----BEGIN (RSA |EC |)PRIVATE KEY-----\n[A-Za-z0-9+/=\n]{40,80}\n-----END (RSA |EC |)PRIVATE KEY-----",
    ]
}

/// All secrets of a kind share the first half as a prefix, so only the second half counts.
fn leaks(text: &str, secret: &str) -> bool {
    let from = secret.len() / 2;
    text.contains(&secret[from..])
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i64>().prop_map(Into::into),
        any::<String>().prop_map(Into::into),
        "[a-zA-Z:=/ \"\\\\{}\\[\\],-]{0,30}".prop_map(Into::into),
        secret().prop_map(Into::into),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop_oneof![any::<String>(), "(api_key|note|password|max_tokens|a b)"];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            proptest::collection::hash_map(key, inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

fn plant(value: serde_json::Value, secret: &str, way: u8) -> serde_json::Value {
    match way % 5 {
        0 => serde_json::json!([value, format!("see {secret}, ok")]),
        1 => serde_json::json!({"deep": [{"note": secret, "value": value}]}),
        2 => serde_json::json!({"body": serde_json::json!({"x\"y": secret, "value": value}).to_string()}),
        3 => serde_json::json!({secret: value}),
        _ => serde_json::json!({"text": format!("é\n\"{secret}\"\u{1}"), "value": value}),
    }
}

proptest! {
    #[test]
    fn a_planted_secret_never_leaks_from_json(value in json(), secret in secret(), way in any::<u8>()) {
        let text = plant(value, &secret, way).to_string();
        let clean = redactor().json(&text).into_owned();
        let shown = clean.replace("\\\\n", "\n").replace("\\n", "\n");
        prop_assert!(!leaks(&shown, &secret), "{clean}");
        prop_assert!(serde_json::from_str::<serde_json::Value>(&clean).is_ok(), "{clean}");
        let twice = redactor().json(&clean).into_owned();
        prop_assert_eq!(twice, clean);
    }

    #[test]
    fn a_secret_key_hides_its_entire_value(value in json(), plain in "[g-z]{12,20}") {
        let text = serde_json::json!({"a": [{"clientSecret": {"x": plain, "y": value}}], "b": 1}).to_string();
        prop_assert_eq!(redactor().json(&text), r#"{"a":[{"clientSecret":"[REDACTED]"}],"b":1}"#);
    }

    #[test]
    fn a_planted_secret_never_leaks_from_text(before in any::<String>(), secret in secret(), after in any::<String>()) {
        let text = format!("{before} {secret} {after}");
        let clean = redactor().text(&text).into_owned();
        prop_assert!(!leaks(&clean, &secret), "{clean}");
        prop_assert_eq!(redactor().text(&clean).into_owned(), clean);
    }

    #[test]
    fn redaction_is_idempotent_and_never_panics_on_anything(
        text in prop_oneof![
            any::<String>(),
            "(password|token|:|=| |\"|'|\\\\|\\[|\\]|\\{|\\}|,|sk-0123456789abcdefgh|Bearer|abc1|://|@|-----BEGIN |PRIVATE KEY-----|\\[REDACTED\\]){0,14}",
        ]
    ) {
        let once = redactor().text(&text).into_owned();
        prop_assert_eq!(redactor().text(&once).into_owned(), once);
        let once = redactor().json(&text).into_owned();
        prop_assert_eq!(redactor().json(&once).into_owned(), once);
    }
}

proptest! {
    #[test]
    fn escapes_are_read_as_serde_reads_them(text in any::<String>(), ascii in any::<bool>()) {
        let mut quoted = serde_json::to_string(&text).unwrap();
        if ascii {
            let escape = |c: char| if c.is_ascii() { c.to_string() } else {
                c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
            };
            quoted = quoted.chars().map(escape).collect();
        }
        prop_assert_eq!(unescape(&quoted[1..quoted.len() - 1]), text);
    }
}
