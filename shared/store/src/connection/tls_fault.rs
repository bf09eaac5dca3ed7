use crate::StoreError;

/// A server without TLS does not reply at all, so this list has no such fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsFault {
    UnknownIssuer,
    Expired,
    NotYetValid,
    WrongName,
    Invalid,
    /// The server rejects this client's certificate, or requires one that this client does not have.
    OurCertificate,
}

impl TlsFault {
    /// Parts of rustls's messages. The first match counts.
    const MESSAGES: [(Self, &str); 12] = [
        (Self::UnknownIssuer, "invalid peer certificate: UnknownIssuer"),
        (Self::Expired, "invalid peer certificate: certificate expired"),
        (Self::Expired, "invalid peer certificate: Expired"),
        (Self::NotYetValid, "invalid peer certificate: certificate not valid yet"),
        (Self::NotYetValid, "invalid peer certificate: NotValidYet"),
        (Self::WrongName, "invalid peer certificate: certificate not valid for name"),
        (Self::WrongName, "invalid peer certificate: NotValidForName"),
        (Self::Invalid, "invalid peer certificate"),
        (Self::OurCertificate, "received fatal alert: CertificateRequired"),
        (Self::OurCertificate, "received fatal alert: UnknownCA"),
        (Self::OurCertificate, "received fatal alert: BadCertificate"),
        (Self::OurCertificate, "received fatal alert: CertificateExpired"),
    ];

    #[must_use]
    pub fn of(message: &str) -> Option<Self> {
        Self::MESSAGES.iter().find(|(_, text)| message.contains(text)).map(|(fault, _)| *fault)
    }

    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::UnknownIssuer => {
                "name the file with the certificate of its authority: redis.tls_ca (TICKFLEET_REDIS_TLS_CA), or tls_ca in the URL; with Helm: redis.tlsCA"
            }
            Self::Expired => {
                "renew the certificate of the Redis server and have the server load it; if it is still valid, correct \
                 the clock of this machine"
            }
            Self::NotYetValid => {
                "correct the clock of this machine, or wait until the certificate of the Redis server is valid"
            }
            Self::WrongName => {
                "use a host name in the URL that the certificate of the Redis server contains, or issue a certificate with this name"
            }
            Self::Invalid => {
                "look at the certificate of the Redis server: openssl s_client -showcerts -connect HOST:PORT"
            }
            Self::OurCertificate => {
                "name a certificate that the Redis server accepts, and its key, in the URL: ?tls_cert=FILE&tls_key=FILE"
            }
        }
    }
}

impl StoreError {
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        let of_tls = || match self {
            Self::Connect { source, .. } | Self::Verb { source, .. } => TlsFault::of(&source.to_string()),
            _ => None,
        };
        self.refusal().map(super::refusal::Refusal::remedy).or_else(|| of_tls().map(TlsFault::remedy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tls_failure_has_a_remedy() {
        for (message, expected) in [
            ("invalid peer certificate: UnknownIssuer", Some(TlsFault::UnknownIssuer)),
            (
                "invalid peer certificate: certificate expired: verification time 1795000000 (UNIX), but certificate is not valid after 1",
                Some(TlsFault::Expired),
            ),
            (
                "invalid peer certificate: certificate not valid yet: verification time 1 (UNIX), but certificate is not valid before 2",
                Some(TlsFault::NotYetValid),
            ),
            (
                "invalid peer certificate: certificate not valid for name \"127.0.0.1\"; certificate is only valid for DnsName(\"localhost\")",
                Some(TlsFault::WrongName),
            ),
            ("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", Some(TlsFault::Invalid)),
            ("received fatal alert: CertificateRequired", Some(TlsFault::OurCertificate)),
            ("Connection refused (os error 111)", None),
        ] {
            let text = format!("Redis at r:6380 cannot be reached: {message}- InvalidData");
            assert_eq!(TlsFault::of(&text), expected, "{message}");
            let source = redis::RedisError::from(std::io::Error::new(std::io::ErrorKind::InvalidData, message));
            let error = StoreError::Connect { address: "r:6380".into(), source };
            assert_eq!(error.remedy(), expected.map(TlsFault::remedy), "{message}");
        }
    }
}
