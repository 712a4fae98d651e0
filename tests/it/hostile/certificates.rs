//! Certificates of a root that only these tests trust; `certificates/make.sh` has made them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Who a receiver says that it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TestCertificate {
    /// Itself.
    Good,
    /// Itself, and insists on HTTP/2.
    GoodForHttp2,
    /// Itself, until 2021.
    Expired,
    /// Another.
    OtherHost,
    /// By itself: a self-signed certificate.
    SelfSigned,
}

/// The root, as `SSL_CERT_FILE` takes it.
pub(crate) fn root() -> PathBuf {
    file("root")
}

/// What such a receiver serves with.
pub(crate) fn server(identity: TestCertificate) -> Arc<ServerConfig> {
    let name = match identity {
        TestCertificate::Good | TestCertificate::GoodForHttp2 => "good",
        TestCertificate::Expired => "expired",
        TestCertificate::OtherHost => "elsewhere",
        TestCertificate::SelfSigned => "self-signed",
    };
    let certificate = CertificateDer::from_pem_file(file(name)).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.unwrap().with_no_client_auth();
    let mut config = builder.with_single_cert(vec![certificate], key).unwrap();
    if matches!(identity, TestCertificate::GoodForHttp2) {
        config.alpn_protocols = vec![b"h2".to_vec()];
    }
    Arc::new(config)
}

fn file(name: &str) -> PathBuf {
    let folder = Path::new("tests/it/hostile/certificates");
    folder.join(name).with_extension("pem")
}
