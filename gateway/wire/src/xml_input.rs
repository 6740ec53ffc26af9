//! Parser of the XML documents of request bodies.

use super::error::{Code, S3Error};
use serde::de::DeserializeOwned;

/// Parses the document of a request. Unknown elements, namespaces and a prolog are ignored.
///
/// # Errors
/// `MalformedXML` with the parser's message.
pub fn parse<T: DeserializeOwned>(document: &[u8]) -> Result<T, S3Error> {
    let malformed = |why: String| S3Error::new(Code::MalformedXML).message(why);
    let text =
        std::str::from_utf8(document).map_err(|_| malformed("The XML you provided is not UTF-8.".into()))?;
    quick_xml::de::from_str(text).map_err(|e| {
        malformed(format!("The XML you provided does not match the schema of the operation: {e}"))
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[derive(serde::Deserialize, Debug, PartialEq)]
    struct R {
        #[serde(rename = "K")]
        k: String,
    }

    #[test]
    fn reads_with_and_without_prolog_and_name_space() {
        for text in [
            "<R><K>a&quot;&#34;</K></R>",
            "<?xml version=\"1.0\"?>\n<R xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"> <Z/> <K>a\"\"</K>\n</R>",
        ] {
            assert_eq!(parse::<R>(text.as_bytes()).unwrap(), R { k: "a\"\"".into() }, "{text}");
        }
        assert!(parse::<R>(b"<R><K>a</R>").is_err());
        assert!(parse::<R>(b"\xff").is_err());
        assert!(parse::<R>(b"").is_err());
    }
}
