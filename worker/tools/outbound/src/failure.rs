//! Explains why a server could not be reached, without revealing addresses or secrets.

use std::error::Error;
use std::io;

use rustls::CertificateError;

use crate::response::find_source;

/// Unknown causes are reported as "the connection failed".
#[must_use]
pub fn connect_failure(error: &(dyn Error + 'static)) -> &'static str {
    let request = find_source::<reqwest::Error>(error);
    if request.is_some_and(reqwest::Error::is_timeout) {
        return "connection timed out";
    }
    if request.is_some_and(reqwest::Error::is_dns) {
        return "its name could not be resolved";
    }
    if let Some(tls) = tls_error(error) {
        return tls_failure(tls);
    }
    let Some(error) = find_source::<io::Error>(error) else { return "the connection failed" };
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "the connection was refused",
        io::ErrorKind::TimedOut => "connection timed out",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "it is not reachable",
        io::ErrorKind::InvalidData => "the TLS handshake failed",
        _ => "the connection failed",
    }
}

/// The sources of an I/O error do not include its wrapped error, so the wrapped error is searched separately.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let mut next = Some(error);
    while let Some(this) = next {
        if let Some(tls) = this.downcast_ref::<rustls::Error>() {
            return Some(tls);
        }
        let wrapped = this.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = wrapped.map(|wrapped| wrapped as &(dyn Error + 'static)).or_else(|| this.source());
    }
    None
}

fn tls_failure(error: &rustls::Error) -> &'static str {
    let rustls::Error::InvalidCertificate(certificate) = error else { return "the TLS handshake failed" };
    match certificate {
        CertificateError::UnknownIssuer => {
            "its certificate was issued by an authority that is not trusted here (UnknownIssuer)"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; is the clock right?"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for another name"
        }
        CertificateError::Revoked => "its certificate was revoked",
        _ => "its certificate is not valid",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_error_names_its_cause() {
        let wrapped = |error: rustls::Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let certificate = |error| connect_failure(&wrapped(rustls::Error::InvalidCertificate(error)));
        assert!(certificate(CertificateError::UnknownIssuer).contains("UnknownIssuer"));
        let twice = io::Error::other(wrapped(rustls::Error::InvalidCertificate(CertificateError::Revoked)));
        assert_eq!(connect_failure(&twice), "its certificate was revoked");
        assert_eq!(certificate(CertificateError::Expired), "its certificate has expired");
        assert_eq!(certificate(CertificateError::NotValidForName), "its certificate is for another name");
        assert_eq!(connect_failure(&wrapped(rustls::Error::DecryptError)), "the TLS handshake failed");
        assert_eq!(connect_failure(&io::Error::from(io::ErrorKind::ConnectionRefused)), "the connection was refused");
        assert_eq!(connect_failure(&io::Error::other("?")), "the connection failed");
    }
}
