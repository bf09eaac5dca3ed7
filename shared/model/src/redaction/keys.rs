//! Recognizes names of secrets by words: `accessToken`, `ACCESS_TOKEN` and `x-access-token` are equal.

/// Keys up to this number of bytes are split on the stack.
const SHORT: usize = 64;

/// Returns the form `_word_word_` in lower case. In a series of capitals, the last capital begins the next word
/// (`APIKey`).
pub(super) fn words(key: &str) -> String {
    let mut words = String::with_capacity(key.len() + 8);
    split(key.as_bytes(), |byte| words.push(char::from(byte)));
    words
}

/// Calls `push` at most 2n + 2 times for a key of n bytes.
fn split(key: &[u8], mut push: impl FnMut(u8)) {
    push(b'_');
    let mut boundary = true;
    for (at, byte) in key.iter().enumerate() {
        // Bytes outside ASCII count as letters, because the lists of words contain no such bytes.
        if byte.is_ascii() && !byte.is_ascii_alphanumeric() {
            if !boundary {
                push(b'_');
            }
            boundary = true;
            continue;
        }
        let before = at.checked_sub(1).and_then(|at| key.get(at)).copied().unwrap_or(b'_');
        let after = key.get(at + 1).copied().unwrap_or(b'_');
        let new_word = (byte.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit()))
            || (byte.is_ascii_uppercase() && before.is_ascii_uppercase() && after.is_ascii_lowercase())
            || (byte.is_ascii_digit() && before.is_ascii_alphabetic())
            || (byte.is_ascii_lowercase() && before.is_ascii_digit());
        if new_word && !boundary {
            push(b'_');
        }
        push(if byte.is_ascii() { byte.to_ascii_lowercase() } else { b'?' });
        boundary = false;
    }
    if !boundary {
        push(b'_');
    }
}

pub(super) fn is_secret(key: &str, extra: &[String]) -> bool {
    let key = key.as_bytes();
    if key.len() > SHORT {
        let mut words = Vec::with_capacity(key.len() * 2);
        split(key, |byte| words.push(byte));
        return is_secret_key(&words, extra);
    }
    let mut words = [0; 2 * SHORT + 2];
    let mut len = 0;
    split(key, |byte| {
        if let Some(slot) = words.get_mut(len) {
            *slot = byte;
            len += 1;
        }
    });
    is_secret_key(words.get(..len).unwrap_or_default(), extra)
}

fn is_secret_key(words: &[u8], extra: &[String]) -> bool {
    let mut before: &[u8] = b"";
    let mut count = 0;
    let mut token = false;
    let mut measured = false;
    let mut pin = false;
    let mut pinned = false;
    for word in words.split(|byte| *byte == b'_').filter(|word| !word.is_empty()) {
        if is_secret_word(word) || is_secret_pair(before, word) {
            return true;
        }
        token |= matches!(word, b"token" | b"otp" | b"totp");
        measured |= is_measure(word);
        pin |= word == b"pin";
        pinned |= is_pinned(word);
        count += 1;
        before = word;
    }
    (token && !measured)
        || (pin && !measured && !pinned)
        || matches!(before, b"auth" | b"pass" | b"ssn")
        || (count == 1 && is_secret_alone(before))
        || extra.iter().any(|extra| words.windows(extra.len()).any(|window| window == extra.as_bytes()))
}

fn is_secret_word(word: &[u8]) -> bool {
    matches!(
        word,
        b"password"
            | b"passwords"
            | b"passwd"
            | b"passphrase"
            | b"passcode"
            | b"passcodes"
            | b"pwd"
            | b"secret"
            | b"secrets"
            | b"credential"
            | b"credentials"
            | b"authorization"
            | b"cookie"
            | b"cookies"
            | b"jwt"
            | b"bearer"
            | b"csrf"
            | b"xsrf"
            | b"csrftoken"
            | b"xsrftoken"
            | b"apikey"
            | b"apikeys"
            | b"apitoken"
            | b"accesskey"
            | b"secretkey"
            | b"privatekey"
            | b"accesstoken"
            | b"refreshtoken"
            | b"authtoken"
            | b"sessiontoken"
            | b"idtoken"
            | b"bottoken"
            | b"clientsecret"
            | b"sessionid"
            | b"sessid"
            | b"phpsessid"
            | b"jsessionid"
            | b"pincode"
            | b"cvv"
            | b"cvc"
            | b"ccnum"
            | b"cardnumber"
            | b"mnemonic"
            | b"userpassword"
            | b"dbpassword"
    )
}

/// True if both words together name a secret. The second word alone may name something else, such as `key` or `tokens`.
fn is_secret_pair(before: &[u8], word: &[u8]) -> bool {
    match word {
        b"key" | b"keys" => is_of_secret_key(before),
        b"tokens" => matches!(before, b"access" | b"refresh" | b"api" | b"auth" | b"session" | b"bot"),
        b"code" | b"codes" => {
            matches!(before, b"auth" | b"mfa" | b"verification" | b"security" | b"recovery" | b"backup" | b"login")
        }
        b"id" | b"ids" | b"cookie" => matches!(before, b"session" | b"sess"),
        b"sid" => before == b"connect",
        b"signature" => matches!(before, b"amz" | b"goog" | b"hub"),
        b"number" => before == b"card",
        b"card" => before == b"credit",
        b"string" => before == b"connection",
        b"phrase" => matches!(before, b"seed" | b"recovery" | b"pass"),
        b"word" => before == b"pass",
        b"assertion" => before == b"client",
        b"verifier" => before == b"code",
        _ => false,
    }
}

/// Excludes keys that only identify something: primary, foreign, sort, cache, object, idempotency, public.
fn is_of_secret_key(before: &[u8]) -> bool {
    matches!(
        before,
        b"api"
            | b"app"
            | b"application"
            | b"access"
            | b"account"
            | b"admin"
            | b"aes"
            | b"auth"
            | b"client"
            | b"consumer"
            | b"decryption"
            | b"deploy"
            | b"encryption"
            | b"functions"
            | b"gpg"
            | b"hmac"
            | b"license"
            | b"licence"
            | b"master"
            | b"pgp"
            | b"private"
            | b"root"
            | b"rsa"
            | b"service"
            | b"session"
            | b"shared"
            | b"signing"
            | b"ssh"
            | b"storage"
            | b"subscription"
            | b"wallet"
            | b"webhook"
    )
}

/// True for a word that is secret only as the whole key: `key` in a query string, `sig` in a signed URL.
fn is_secret_alone(word: &[u8]) -> bool {
    // An email address is not a secret, but it is personal data and must not be logged.
    matches!(word, b"key" | b"session" | b"sid" | b"sig" | b"pins" | b"email" | b"emails")
}

/// Next to `token`, these words name a count or an address: `token_count`, `token_url`.
fn is_measure(word: &[u8]) -> bool {
    matches!(
        word,
        b"count"
            | b"counts"
            | b"limit"
            | b"limits"
            | b"max"
            | b"min"
            | b"budget"
            | b"usage"
            | b"used"
            | b"type"
            | b"length"
            | b"size"
            | b"total"
            | b"price"
            | b"cost"
            | b"rate"
            | b"per"
            | b"name"
            | b"expires"
            | b"expiry"
            | b"expiration"
            | b"ttl"
            | b"endpoint"
            | b"url"
            | b"uri"
    )
}

/// Next to these words, `pin` is not a PIN: `pin_message`, `gpio_pin`.
fn is_pinned(word: &[u8]) -> bool {
    matches!(word, b"message" | b"post" | b"to" | b"top" | b"id" | b"ids" | b"gpio" | b"map" | b"board")
}
