//! `multipart/form-data` bodies (RFC 7578).

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tickfleet_model::hex;

/// Returns the body and its content type. The fields must be constants, because they are not escaped.
pub(super) fn form(fields: &[(&str, &str)], file: &[u8]) -> (Bytes, String) {
    let boundary = boundary(file);
    let mut body = Vec::with_capacity(file.len() + 1024);
    for (name, value) in fields {
        let part = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend_from_slice(part.as_bytes());
    }
    let part = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"media\"; filename=\"media\"\r\nContent-Type: \
         application/octet-stream\r\n\r\n"
    );
    body.extend_from_slice(part.as_bytes());
    body.extend_from_slice(file);
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    (body.into(), format!("multipart/form-data; boundary={boundary}"))
}

/// No one can make a file that contains its own digest, so the boundary does not occur in the file.
fn boundary(file: &[u8]) -> String {
    format!("tickfleet-{}", hex(&Sha256::digest(file)[..16]))
}
