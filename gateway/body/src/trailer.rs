//! Trailers: the lines after the last chunk of an aws-chunked body.

use mlgw_wire::error::{Code, S3Error};

/// Name of the trailer that signs the others.
const SIGNATURE: &str = "x-amz-trailer-signature";

/// A trailer; the name is in lower case, the value trimmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyTrailer {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// All trailers of a body, with their signature.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Trailers {
    pub(super) lines: Vec<BodyTrailer>,
    pub(super) signature: Option<String>,
}

impl Trailers {
    /// Parses all bytes after the line of the last chunk. SDKs end trailers with CR LF; minio-go ends them
    /// with LF and inserts a blank line. The section ends with a blank line.
    pub(super) fn parse(section: &[u8]) -> Result<Self, S3Error> {
        let malformed = || S3Error::new(Code::MalformedTrailerError);
        let incomplete = || S3Error::new(Code::IncompleteBody);
        let lines = section.strip_suffix(b"\n").ok_or_else(incomplete)?.split(|b| *b == b'\n');
        let mut trailers = Self::default();
        let mut ended = false;
        for line in lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)) {
            ended = line.is_empty();
            if ended {
                continue;
            }
            let line = std::str::from_utf8(line).map_err(|_| malformed())?;
            let (name, value) = line.split_once(':').ok_or_else(malformed)?;
            let (name, value) = (name.trim().to_ascii_lowercase(), value.trim().to_owned());
            if name.is_empty() || trailers.signature.is_some() {
                return Err(malformed());
            }
            if name == SIGNATURE {
                trailers.signature = Some(value);
            } else {
                trailers.lines.push(BodyTrailer { name, value });
            }
        }
        if ended { Ok(trailers) } else { Err(incomplete()) }
    }

    /// Returns the text whose hash is signed.
    pub(super) fn signed_text(&self) -> String {
        self.lines.iter().map(|line| format!("{}:{}\n", line.name, line.value)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{BodyTrailer, Trailers};
    use mlgw_wire::error::Code;

    #[test]
    fn sections_of_all_clients_are_read() {
        let line = BodyTrailer { name: "x-amz-checksum-crc32".to_owned(), value: "AAAAAA==".to_owned() };
        for (section, signature) in [
            ("x-amz-checksum-crc32:AAAAAA==\r\n\r\n", None),
            ("X-Amz-Checksum-Crc32: AAAAAA== \r\n\r\n", None),
            ("x-amz-checksum-crc32:AAAAAA==\n\r\n\r\n", None),
            ("x-amz-checksum-crc32:AAAAAA==\r\nx-amz-trailer-signature:ab\r\n\r\n", Some("ab")),
            ("x-amz-checksum-crc32:AAAAAA==\n\r\nx-amz-trailer-signature:ab\r\n\r\n", Some("ab")),
        ] {
            let trailers = Trailers::parse(section.as_bytes()).unwrap();
            assert_eq!(trailers.lines, std::slice::from_ref(&line), "{section:?}");
            assert_eq!(trailers.signature.as_deref(), signature, "{section:?}");
            assert_eq!(trailers.signed_text(), "x-amz-checksum-crc32:AAAAAA==\n");
        }
        assert_eq!(Trailers::parse(b"\r\n"), Ok(Trailers::default()));
    }

    #[test]
    fn a_section_without_its_end_is_incomplete() {
        for section in ["", "\r", "a:b", "a:b\r\n", "a:b\r\n\r"] {
            let error = Trailers::parse(section.as_bytes()).unwrap_err();
            assert_eq!(error.code(), Code::IncompleteBody, "{section:?}");
        }
    }

    #[test]
    fn malformed_trailers_are_refused() {
        for section in ["a\r\n\r\n", ":b\r\n\r\n", "x-amz-trailer-signature:a\r\nb:c\r\n\r\n"] {
            let error = Trailers::parse(section.as_bytes()).unwrap_err();
            assert_eq!(error.code(), Code::MalformedTrailerError, "{section:?}");
        }
    }
}
