//! POST policies with valid signatures. Property: a form gets no more than its policy grants, and nothing
//! if the signature is that of another policy.

use crate::input::Input;
use crate::signing::{ACCESS_KEY, DATE, Keys, NOW, RULES, SCOPE, sign};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use mlgw_auth::post::{FormFields, verify};

/// The input: lines `name:value` of further fields, a blank line, the JSON of the policy.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut fields = vec![
        ("x-amz-algorithm".to_owned(), "AWS4-HMAC-SHA256".to_owned()),
        ("x-amz-credential".to_owned(), format!("{ACCESS_KEY}/{SCOPE}")),
        ("x-amz-date".to_owned(), DATE.to_owned()),
    ];
    loop {
        let line = String::from_utf8_lossy(input.line()).into_owned();
        let Some((name, value)) = line.split_once(':') else { break };
        fields.push((name.to_owned(), value.to_owned()));
    }
    let policy = BASE64_STANDARD.encode(input.0);
    let signature = sign(policy.as_bytes());
    fields.extend([("policy".to_owned(), policy), ("x-amz-signature".to_owned(), signature)]);
    let granted = check(&fields);
    if let Some((_, signature)) = fields.last_mut() {
        signature.replace_range(..1, if signature.starts_with('0') { "1" } else { "0" });
    }
    assert!(!check(&fields), "a wrong signature");
    let _ = granted;
}

fn check(fields: &[(String, String)]) -> bool {
    let Ok(fields) = FormFields::new(fields) else { return false };
    verify(&fields, "bucket", &Keys, NOW, &RULES).is_ok_and(|grant| {
        assert!(grant.principal.is_some());
        true
    })
}
