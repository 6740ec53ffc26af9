//! POST policy document: its expiration, and its conditions on the fields.

use super::{FormFields, decode};
use mlgw_common::Timestamp;
use mlgw_wire::error::{Code, S3Error};
use serde_json::Value;
use std::ops::RangeInclusive;

/// Fields that need no condition: they carry the signature or are the file.
const FIELDS_WITHOUT_CONDITION: &[&str] =
    &["awsaccesskeyid", "file", "policy", "signature", "x-amz-signature"];

/// A policy that was parsed, not yet checked against a form.
#[derive(Debug, PartialEq)]
pub(super) struct PostPolicy {
    expires: Timestamp,
    conditions: Vec<PostPolicyCondition>,
}

/// A condition of a policy.
#[derive(Debug, PartialEq)]
enum PostPolicyCondition {
    /// The field (lower-case) has exactly this value.
    Equals(String, String),
    /// The field's value begins with this text.
    StartsWith(String, String),
    /// The file's length in bytes is within these bounds.
    Length(u64, u64),
}

impl PostPolicy {
    /// Parses a policy from its base64.
    pub(super) fn parse(encoded: &str) -> Result<Self, S3Error> {
        let document: Value =
            serde_json::from_slice(&decode(encoded)?).map_err(|_| invalid("Invalid JSON."))?;
        let document = document.as_object().ok_or_else(|| invalid("Invalid JSON."))?;
        if let Some(other) = document.keys().find(|key| !matches!(key.as_str(), "expiration" | "conditions"))
        {
            return Err(invalid(&format!("Unexpected: \"{other}\"")));
        }
        let expiration = document.get("expiration").ok_or_else(|| invalid("Policy missing expiration."))?;
        // AWS accepts only this form of a time: with a `T`, in UTC.
        let iso = |text: &&str| text.as_bytes().get(10) == Some(&b'T') && text.ends_with('Z');
        let expires = expiration.as_str().filter(iso).and_then(|text| text.parse::<jiff::Timestamp>().ok());
        let expires =
            expires.ok_or_else(|| invalid(&format!("Invalid 'expiration' value: '{expiration}'")))?;
        let conditions = document.get("conditions").ok_or_else(|| invalid("Policy missing conditions."))?;
        let conditions =
            conditions.as_array().ok_or_else(|| invalid("Invalid 'conditions' value: must be a List."))?;
        let conditions = conditions.iter().map(PostPolicyCondition::parse).collect::<Result<_, _>>()?;
        Ok(Self { expires: Timestamp(expires.as_millisecond()), conditions })
    }

    /// Checks a form against the policy and returns the lengths that it allows for the file.
    pub(super) fn check(
        &self,
        fields: &FormFields<'_>,
        bucket: &str,
        now: Timestamp,
    ) -> Result<RangeInclusive<u64>, S3Error> {
        if now >= self.expires {
            return Err(denied("Policy expired."));
        }
        let (mut from, mut to) = (0, u64::MAX);
        for condition in &self.conditions {
            match condition {
                PostPolicyCondition::Length(min, max) => (from, to) = (from.max(*min), to.min(*max)),
                _ if condition.holds(fields, bucket) => {}
                _ => return Err(denied(&format!("Policy Condition failed: {}", condition.show()))),
            }
        }
        let uncovered = fields.0.iter().find(|(name, _)| !self.covers(&name.to_ascii_lowercase()));
        match uncovered {
            Some((name, _)) => Err(denied(&format!("Extra input fields: {name}"))),
            None => Ok(from..=to),
        }
    }

    fn covers(&self, name: &str) -> bool {
        FIELDS_WITHOUT_CONDITION.contains(&name)
            || name.starts_with("x-ignore-")
            || self.conditions.iter().any(|condition| condition.field() == Some(name))
    }
}

impl PostPolicyCondition {
    fn parse(value: &Value) -> Result<Self, S3Error> {
        match value {
            Value::Object(object) => {
                let mut entries = object.iter();
                let (Some((name, value)), None) = (entries.next(), entries.next()) else {
                    return Err(invalid(
                        "Invalid Simple-Condition: Simple-Conditions must have exactly one property \
                         specified.",
                    ));
                };
                let value = value
                    .as_str()
                    .ok_or_else(|| invalid("Invalid Simple-Condition: value must be a string."))?;
                Ok(Self::Equals(name.to_ascii_lowercase(), value.to_owned()))
            }
            Value::Array(list) => Self::parse_list(list),
            _ => Err(invalid("Invalid condition test: must be a List or Object.")),
        }
    }

    fn parse_list(list: &[Value]) -> Result<Self, S3Error> {
        let Some(operator) = list.first().and_then(Value::as_str) else {
            return Err(invalid("Invalid Condition: missing operation identifier."));
        };
        let lower = operator.to_ascii_lowercase();
        if !matches!(lower.as_str(), "eq" | "starts-with" | "content-length-range") {
            return Err(invalid(&format!("Invalid Condition: unknown operation '{operator}'.")));
        }
        let [_, first, second] = list else {
            return Err(invalid(&format!("Invalid {operator}: wrong number of arguments.")));
        };
        let malformed = || invalid(&format!("Invalid {operator}: malformed arguments."));
        if lower == "content-length-range" {
            return match (length(first), length(second)) {
                (Some(min), Some(max)) if min <= max => Ok(Self::Length(min, max)),
                _ => Err(malformed()),
            };
        }
        let (Some(field), Some(value)) = (first.as_str(), second.as_str()) else { return Err(malformed()) };
        let field = field.strip_prefix('$').ok_or_else(malformed)?.to_ascii_lowercase();
        let value = value.to_owned();
        Ok(if lower == "eq" { Self::Equals(field, value) } else { Self::StartsWith(field, value) })
    }

    fn field(&self) -> Option<&str> {
        match self {
            Self::Equals(field, _) | Self::StartsWith(field, _) => Some(field),
            Self::Length(..) => None,
        }
    }

    fn holds(&self, fields: &FormFields<'_>, bucket: &str) -> bool {
        let value =
            |field: &str| if field == "bucket" { bucket } else { fields.get(field).unwrap_or_default() };
        match self {
            Self::Equals(field, right) => value(field) == right,
            // A list of types matches if each type has the prefix.
            Self::StartsWith(field, right) if field == "content-type" => {
                value(field).split(',').all(|one| one.trim_start().starts_with(right.as_str()))
            }
            Self::StartsWith(field, right) => value(field).starts_with(right.as_str()),
            Self::Length(..) => true,
        }
    }

    fn show(&self) -> String {
        match self {
            Self::Equals(field, value) => format!("[\"eq\", \"${field}\", \"{value}\"]"),
            Self::StartsWith(field, value) => format!("[\"starts-with\", \"${field}\", \"{value}\"]"),
            Self::Length(min, max) => format!("[\"content-length-range\", {min}, {max}]"),
        }
    }
}

fn length(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

fn invalid(text: &str) -> S3Error {
    S3Error::new(Code::InvalidPolicyDocument).message(format!("Invalid Policy: {text}"))
}

fn denied(text: &str) -> S3Error {
    S3Error::new(Code::AccessDenied).message(format!("Invalid according to Policy: {text}"))
}

#[cfg(test)]
mod tests {
    use super::PostPolicy;
    use crate::post::FormFields;
    use base64::Engine;
    use base64::prelude::BASE64_STANDARD;
    use mlgw_common::Timestamp;
    use mlgw_wire::error::{Code, S3Error};
    use std::ops::RangeInclusive;

    const NOW: Timestamp = Timestamp::from_secs(1_400_000_000);

    fn check(conditions: &str, fields: &[(&str, &str)]) -> Result<RangeInclusive<u64>, S3Error> {
        let json = format!("{{\"expiration\":\"2030-01-01T00:00:00.000Z\",\"conditions\":[{conditions}]}}");
        let fields: Vec<_> = fields.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        PostPolicy::parse(&BASE64_STANDARD.encode(json))?.check(&FormFields::new(&fields)?, "photos", NOW)
    }

    #[test]
    fn a_form_that_meets_its_policy_is_accepted() {
        let conditions = concat!(
            r#"{"bucket":"photos"},["StArTs-WiTh","$KeY","user/"],{"AcL":"private"},
            ["starts-with","$Content-Type","image/"],"#,
            r#"["content-length-range",10,"20"],["content-length-range",0,15]"#
        );
        let fields = [
            ("key", "user/a"),
            ("acl", "private"),
            ("Content-Type", "image/png, image/gif"),
            ("x-ignore-b", "1"),
        ];
        assert_eq!(check(conditions, &fields), Ok(10..=15));
    }

    #[test]
    fn a_field_that_breaks_a_condition_is_named() {
        for (conditions, fields) in [
            (r#"["eq","$key","a"]"#, &[("key", "b")][..]),
            (r#"["starts-with","$key","user/"]"#, &[("key", "other/a")]),
            (r#"{"bucket":"others"}"#, &[]),
            (r#"["starts-with","$x-amz-meta-a","b"]"#, &[]),
            (r#"["starts-with","$content-type","image/"]"#, &[("Content-Type", "image/png,text/html")]),
        ] {
            let error = check(conditions, fields).unwrap_err();
            assert_eq!(error.code(), Code::AccessDenied, "{conditions}");
            assert!(error.text().contains("Policy Condition failed"), "{}", error.text());
        }
    }

    #[test]
    fn a_field_without_a_condition_is_refused() {
        let error = check(r#"["eq","$key","a"]"#, &[("key", "a"), ("x-amz-meta-b", "1")]).unwrap_err();
        assert_eq!(error.text(), "Invalid according to Policy: Extra input fields: x-amz-meta-b");
        for exempt in ["policy", "file", "signature", "AWSAccessKeyId", "X-Amz-Signature", "x-ignore-me"] {
            assert!(check("", &[(exempt, "1")]).is_ok(), "{exempt}");
        }
    }

    #[test]
    fn an_expired_policy_is_refused() {
        let json = "{\"expiration\":\"2014-05-13T16:53:20Z\",\"conditions\":[]}";
        let policy = PostPolicy::parse(&BASE64_STANDARD.encode(json)).unwrap();
        let fields = FormFields::new(&[]).unwrap();
        assert!(policy.check(&fields, "photos", Timestamp(NOW.0 - 1)).is_ok());
        let error = policy.check(&fields, "photos", NOW).unwrap_err();
        assert_eq!(error.text(), "Invalid according to Policy: Policy expired.");
    }

    #[test]
    fn malformed_policies_are_refused() {
        for bad in [
            "",
            "[]",
            "{}",
            "{\"expiration\":\"2030-01-01T00:00:00Z\"}",
            "{\"expiration\":\"soon\",\"conditions\":[]}",
            "{\"expiration\":\"2030-01-01T00:00:00Z\",\"conditions\":{}}",
            "{\"EXPIRATION\":\"2030-01-01T00:00:00Z\",\"conditions\":[]}",
        ] {
            let error = PostPolicy::parse(&BASE64_STANDARD.encode(bad)).unwrap_err();
            assert_eq!(error.code(), Code::InvalidPolicyDocument, "{bad}");
        }
        for bad in [
            "1",
            "[]",
            "[1]",
            r#"["eq","$key"]"#,
            r#"["eq","key","a"]"#,
            r#"["ne","$key","a"]"#,
            "{}",
            r#"{"a":"1","b":"2"}"#,
            r#"{"a":1}"#,
            r#"["content-length-range",2,1]"#,
            r#"["content-length-range",-1,1]"#,
        ] {
            assert_eq!(check(bad, &[]).unwrap_err().code(), Code::InvalidPolicyDocument, "{bad}");
        }
        assert_eq!(PostPolicy::parse("!").unwrap_err().code(), Code::InvalidPolicyDocument);
    }
}
