//! Tests of settings: every kind opens with the settings that it needs, and rejects unsupported ones by name.

use mlgw_common::Secret;
use std::path::PathBuf;

use super::*;

fn of(kind: UpstreamKind) -> UpstreamSettings {
    let base = UpstreamSettings { kind, endpoint: None, region: String::new(), ..settings() };
    match kind {
        UpstreamKind::S3 => UpstreamSettings { region: "eu-west-1".to_owned(), ..base },
        UpstreamKind::Oss | UpstreamKind::Cos | UpstreamKind::Obs => {
            UpstreamSettings { region: "r-1".to_owned(), ..base }
        }
        UpstreamKind::Gcs | UpstreamKind::Azure => {
            UpstreamSettings { credentials: CredentialSource::Env, ..base }
        }
        UpstreamKind::WebHdfs => base,
        UpstreamKind::Fs => UpstreamSettings {
            bucket: std::env::temp_dir().display().to_string(),
            prefix: "mlgw-upstream-opening/".to_owned(),
            credentials: CredentialSource::Anonymous,
            ..base
        },
    }
}

fn with_endpoint(settings: UpstreamSettings, url: &str) -> UpstreamSettings {
    UpstreamSettings { endpoint: Some(url.to_owned()), ..settings }
}

fn refused(settings: &UpstreamSettings) -> String {
    Upstream::open(settings).expect_err("refused").to_string()
}

#[test]
fn every_kind_has_its_default_endpoint() {
    use UpstreamKind::{Azure, Cos, Gcs, Obs, Oss, S3, WebHdfs};
    let static_key = |kind| UpstreamSettings { credentials: settings().credentials, ..of(kind) };
    let base64_key = UpstreamSettings {
        credentials: CredentialSource::Static {
            access_key: "account".to_owned(),
            secret: Secret::new("a2V5"),
            session_token: None,
        },
        ..of(Azure)
    };
    let wanted = [
        (of(S3), "https://s3.eu-west-1.amazonaws.com"),
        (
            UpstreamSettings { region: "cn-north-1".to_owned(), ..of(S3) },
            "https://s3.cn-north-1.amazonaws.com.cn",
        ),
        (with_endpoint(of(S3), "http://minio:9000"), "http://minio:9000"),
        (of(Gcs), "https://storage.googleapis.com"),
        (base64_key, "https://account.blob.core.windows.net"),
        (static_key(Oss), "https://oss-r-1.aliyuncs.com"),
        (static_key(Cos), "https://cos.r-1.myqcloud.com"),
        (static_key(Obs), "https://obs.r-1.myhuaweicloud.com"),
        (with_endpoint(of(WebHdfs), "http://name:9870"), "http://name:9870"),
    ];
    for (settings, endpoint) in wanted {
        let upstream = Upstream::open(&settings).unwrap_or_else(|error| panic!("{endpoint}: {error}"));
        assert_eq!(upstream.endpoint.as_deref(), Some(endpoint));
    }
}

#[test]
fn an_unsupported_setting_is_rejected_by_name() {
    use UpstreamKind::{Azure, Cos, Fs, Gcs, Obs, Oss, S3, WebHdfs};
    let file = || CredentialSource::File { path: PathBuf::from("/c"), profile: "p".to_owned() };
    let token = || match settings().credentials {
        CredentialSource::Static { access_key, secret, .. } => {
            CredentialSource::Static { access_key, secret, session_token: Some(Secret::new("token-hush")) }
        }
        other => other,
    };
    let cases: Vec<(&str, UpstreamSettings)> = vec![
        ("region", UpstreamSettings { region: String::new(), ..of(S3) }),
        ("bucket", UpstreamSettings { bucket: String::new(), ..of(S3) }),
        ("prefix", UpstreamSettings { prefix: "no-slash".to_owned(), ..of(S3) }),
        ("prefix", UpstreamSettings { prefix: "a/../b/".to_owned(), ..of(S3) }),
        ("endpoint", with_endpoint(of(S3), "minio:9000")),
        (
            "addressing",
            UpstreamSettings { bucket: "a.b".to_owned(), addressing: BucketAddressing::Virtual, ..of(S3) },
        ),
        ("addressing", UpstreamSettings { addressing: BucketAddressing::Path, ..of(Gcs) }),
        ("region", UpstreamSettings { region: "r".to_owned(), ..of(Gcs) }),
        ("access_key", UpstreamSettings { credentials: settings().credentials, ..of(Gcs) }),
        ("credentials", UpstreamSettings { credentials: CredentialSource::Chain, ..of(Gcs) }),
        ("endpoint", of(Azure)),
        ("credentials", with_endpoint(UpstreamSettings { credentials: file(), ..of(Azure) }, "http://a")),
        ("session_token", UpstreamSettings { credentials: token(), ..of(Azure) }),
        ("endpoint", UpstreamSettings { region: String::new(), ..of(Oss) }),
        ("credentials", UpstreamSettings { credentials: CredentialSource::Chain, ..of(Oss) }),
        ("credentials", UpstreamSettings { credentials: CredentialSource::Anonymous, ..of(Cos) }),
        ("session_token", UpstreamSettings { credentials: token(), ..of(Obs) }),
        ("endpoint", of(WebHdfs)),
        (
            "credentials",
            with_endpoint(UpstreamSettings { credentials: CredentialSource::Env, ..of(WebHdfs) }, "http://a"),
        ),
        ("endpoint", with_endpoint(of(Fs), "http://a")),
        ("proxy", UpstreamSettings { proxy: Some("http://p".to_owned()), ..of(Fs) }),
        ("credentials", UpstreamSettings { credentials: CredentialSource::Chain, ..of(Fs) }),
        ("proxy", UpstreamSettings { proxy: Some("not a url :user:pass-hush@".to_owned()), ..of(S3) }),
        ("ca_file", UpstreamSettings { ca_file: Some(PathBuf::from("/absent.pem")), ..of(S3) }),
    ];
    for (setting, settings) in cases {
        let message = refused(&settings);
        assert!(message.starts_with(&format!("upstream.lake.{setting} ")), "{setting}: {message}");
        assert!(!message.contains("hush"), "{message}");
    }
}

#[test]
fn a_ca_file_without_certificates_is_refused() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "hello").expect("written");
    let message =
        refused(&UpstreamSettings { ca_file: Some(file.path().to_owned()), ..of(UpstreamKind::S3) });
    assert!(message.contains("has no certificate"), "{message}");
}

#[tokio::test]
async fn credentials_of_a_file_are_those_of_the_profile_and_a_missing_profile_is_rejected() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let text = "[lake]\naws_access_key_id = AKIAFILE\naws_secret_access_key = file-hush\n";
    std::fs::write(file.path(), text).expect("written");
    for (profile, is_known) in [("lake", true), ("river", false)] {
        let store = FakeStore::default();
        let credentials =
            CredentialSource::File { path: file.path().to_owned(), profile: profile.to_owned() };
        let upstream = upstream_with(&UpstreamSettings { credentials, ..settings() }, &store);
        match upstream.length(OBJECT).await {
            Ok(None) => assert!(is_known, "{profile}"),
            Err(UpstreamError::Refused { message, .. }) => {
                assert!(!is_known && !message.contains("hush"), "{message}")
            }
            other => panic!("{profile}: {other:?}"),
        }
    }
}
