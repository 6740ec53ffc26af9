//! POST policies: verification of browser form uploads.
//!
//! The input is the fields before the file; `${filename}` has been replaced in them. The signature covers the
//! policy, and the policy must cover every field, so no field of a form is trusted unchecked. The length of
//! the file is only known at its end: the caller enforces [`FormGrant::length`].

mod policy;

use super::scope::CredentialScope;
use super::signing_key::SigningKey;
use super::time::AmzDate;
use super::{AuthRules, KeySource, find_key, header, mismatch, no_session_tokens, sigv2};
use crate::principal::Principal;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use mlgw_common::Timestamp;
use mlgw_common::hex;
use mlgw_wire::error::{Code, S3Error};
use policy::PostPolicy;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Permission that a form has.
#[derive(Debug)]
pub struct FormGrant {
    /// The signer of the policy; `None` for a form without one.
    pub principal: Option<Arc<Principal>>,
    /// Lengths of the file that the policy allows, in bytes.
    pub length: RangeInclusive<u64>,
}

/// Fields of a form before its file. Names are as sent and compared without regard to case.
#[derive(Clone, Copy, Debug)]
pub struct FormFields<'a>(&'a [(String, String)]);

impl<'a> FormFields<'a> {
    /// Checks that no field is repeated, so that the checked value is the one that is used.
    ///
    /// # Errors
    /// `InvalidArgument` with the name.
    pub fn new(fields: &'a [(String, String)]) -> Result<Self, S3Error> {
        for (i, (name, value)) in fields.iter().enumerate() {
            if fields[..i].iter().any(|(earlier, _)| earlier.eq_ignore_ascii_case(name)) {
                return Err(S3Error::invalid_argument(
                    "A form field is specified more than once.",
                    name,
                    value,
                ));
            }
        }
        Ok(Self(fields))
    }

    /// Returns the value of a field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    fn required(&self, name: &'static str) -> Result<&'a str, S3Error> {
        self.get(name).ok_or_else(|| {
            let text = format!(
                "Bucket POST must contain a field named '{name}'.  If it is specified, \
                 please check the order of the fields."
            );
            S3Error::invalid_argument(text, name, "")
        })
    }
}

/// Verifies the signature of the form's policy, and the form against the policy.
///
/// # Errors
/// AWS's code for the defect of the signature or of the policy, or for the violated condition.
pub fn verify(
    fields: &FormFields<'_>,
    bucket: &str,
    keys: &dyn KeySource,
    now: Timestamp,
    rules: &AuthRules,
) -> Result<FormGrant, S3Error> {
    let v4 = fields.get("x-amz-algorithm").is_some() || fields.get("x-amz-signature").is_some();
    let v2 = fields.get("AWSAccessKeyId").is_some() || fields.get("signature").is_some();
    if !v4 && !v2 && fields.get("policy").is_none() {
        return Ok(FormGrant { principal: None, length: 0..=u64::MAX });
    }
    let encoded = fields.required("policy")?;
    let principal =
        if v4 { verify_v4(fields, encoded, keys, rules)? } else { verify_v2(fields, encoded, keys, rules)? };
    if fields.get("x-amz-security-token").is_some() {
        return Err(no_session_tokens());
    }
    let length = PostPolicy::parse(encoded)?.check(fields, bucket, now)?;
    Ok(FormGrant { principal: Some(principal), length })
}

fn verify_v4(
    fields: &FormFields<'_>,
    policy: &str,
    keys: &dyn KeySource,
    rules: &AuthRules,
) -> Result<Arc<Principal>, S3Error> {
    let algorithm = fields.required("x-amz-algorithm")?;
    if algorithm != "AWS4-HMAC-SHA256" {
        let text = "X-Amz-Algorithm only supports \"AWS4-HMAC-SHA256\"";
        return Err(S3Error::invalid_argument(text, "x-amz-algorithm", algorithm));
    }
    let credential = fields.required("x-amz-credential")?;
    let scope = CredentialScope::parse(credential, rules).map_err(|e| e.in_form(credential))?;
    let date = fields.required("x-amz-date")?;
    if !AmzDate::parse(date).is_some_and(|date| scope.has_day_of(&date)) {
        let text = "X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\" and of the \
                    credential's date";
        return Err(S3Error::invalid_argument(text, "x-amz-date", date));
    }
    let signature = fields.required("x-amz-signature")?;
    let key = find_key(keys, scope.access_key)?;
    let signing = SigningKey::derive(key.secret.expose().as_bytes(), &scope);
    let right = hex::encode(&signing.sign(&[policy.as_bytes()]));
    if !hex::is_same(&right, signature.as_bytes()) {
        return Err(mismatch(scope.access_key, signature, policy.as_bytes()));
    }
    Ok(Arc::clone(&key.principal))
}

fn verify_v2(
    fields: &FormFields<'_>,
    policy: &str,
    keys: &dyn KeySource,
    rules: &AuthRules,
) -> Result<Arc<Principal>, S3Error> {
    if !rules.sigv2 {
        return Err(header::sigv4_required());
    }
    let access_key = fields.required("AWSAccessKeyId")?;
    let signature = fields.required("signature")?;
    let key = find_key(keys, access_key)?;
    if !sigv2::matches(&key, policy, signature) {
        return Err(mismatch(access_key, signature, policy.as_bytes()));
    }
    Ok(Arc::clone(&key.principal))
}

/// Decodes the policy's JSON from base64.
fn decode(encoded: &str) -> Result<Vec<u8>, S3Error> {
    // Some forms wrap the base64 in lines.
    let text: String = encoded.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    BASE64_STANDARD.decode(text).map_err(|_| {
        S3Error::new(Code::InvalidPolicyDocument).message("Invalid Policy: invalid Base64 encoding.")
    })
}
