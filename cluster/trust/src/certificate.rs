//! Node and cluster in a certificate, as a DNS name among its alternative names: `n7.CLUSTER.mlgw.internal`
//! with the cluster's 16 hexadecimal digits. Pure.

use mlgw_common::{ClusterId, NodeId};
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Domain of the names of nodes. `internal` is reserved for private use.
const DOMAIN: &str = "mlgw.internal";

/// Node that a certificate names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CertifiedNode {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its number.
    pub node: NodeId,
}

/// Error of a certificate that does not identify a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCertificate {
    /// It is no X.509 certificate.
    #[error("it is not a valid X.509 certificate")]
    Encoding,
    /// It does not name exactly one node.
    #[error("it does not name exactly one node of a cluster")]
    Name,
}

impl CertifiedNode {
    /// The DNS name of the node.
    #[must_use]
    pub fn domain(self) -> String {
        format!("n{}.{}.{DOMAIN}", self.node, self.cluster)
    }

    /// Parses the DNS name of a node; `None` for every other name.
    #[must_use]
    pub fn of_domain(name: &str) -> Option<Self> {
        let mut labels = name.strip_suffix(DOMAIN)?.strip_suffix('.')?.split('.');
        let node = NodeId(labels.next()?.strip_prefix('n')?.parse().ok()?);
        let cluster = labels.next()?.parse().ok()?;
        let named = Self { cluster, node };
        (node.0 != 0 && labels.next().is_none() && named.domain() == name).then_some(named)
    }

    /// Reads the node from a certificate. The signature of the certificate is not verified here.
    ///
    /// # Errors
    /// See [`BadCertificate`].
    pub fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, BadCertificate> {
        let certificate = EndEntityCert::try_from(certificate).map_err(|_| BadCertificate::Encoding)?;
        let mut names = certificate.valid_dns_names();
        let named = names.next().and_then(Self::of_domain).ok_or(BadCertificate::Name)?;
        if names.next().is_some() { Err(BadCertificate::Name) } else { Ok(named) }
    }
}

#[cfg(test)]
mod tests {
    use super::{BadCertificate, CertifiedNode};
    use mlgw_common::{ClusterId, NodeId};
    use proptest::prelude::*;
    use rustls::pki_types::CertificateDer;

    fn named(names: &[&str]) -> Result<CertifiedNode, BadCertificate> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let certificate = rcgen::generate_simple_self_signed(names).unwrap().cert;
        CertifiedNode::of_certificate(certificate.der())
    }

    proptest! {
        #[test]
        fn a_domain_is_read_back(node in 1_u64.., cluster: u64) {
            let certified = CertifiedNode { cluster: ClusterId(cluster), node: NodeId(node) };
            prop_assert_eq!(CertifiedNode::of_domain(&certified.domain()), Some(certified));
        }

        #[test]
        fn any_other_name_is_none(name in "n?[0-9+]{1,3}\\.[0-9a-fA-F]{15,17}\\.(x\\.)?mlgw\\.internal") {
            if let Some(certified) = CertifiedNode::of_domain(&name) {
                prop_assert_eq!(certified.domain(), name);
            }
        }
    }

    #[test]
    fn a_certificate_names_exactly_one_node() {
        let seven = CertifiedNode { cluster: ClusterId(0xab), node: NodeId(7) };
        assert_eq!(seven.domain(), "n7.00000000000000ab.mlgw.internal");
        assert_eq!(named(&[&seven.domain()]), Ok(seven));
        let zero = "n0.00000000000000ab.mlgw.internal";
        for names in [&[][..], &["localhost"], &[zero], &[&seven.domain(), "localhost"], &["10.0.0.1"]] {
            assert_eq!(named(names), Err(BadCertificate::Name), "{names:?}");
        }
        let garbage = CertificateDer::from(&b"garbage"[..]);
        assert_eq!(CertifiedNode::of_certificate(&garbage), Err(BadCertificate::Encoding));
    }
}
