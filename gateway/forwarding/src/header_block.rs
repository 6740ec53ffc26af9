//! Encoding of header lines: for each line the lengths of name and value (two bytes each, big-endian), the
//! name, the value. The order of the lines is kept.
//!
//! Decoded values share the memory of their input, so decoding allocates no more than the map of headers, and
//! the number of lines is limited.

use bytes::{Buf as _, BufMut as _, Bytes};
use http::{HeaderMap, HeaderName, HeaderValue};
use mlgw_common::limits::REQUEST_HEADERS_MAX;

/// Bytes of the two lengths of a line.
const LENGTHS_BYTES: usize = 4;

/// Error of a header line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderBlockError {
    /// There are more lines than a head may have.
    #[error("there are more than {REQUEST_HEADERS_MAX} header lines")]
    TooMany,
    /// A name or value is longer than a line may be.
    #[error("a header line is too long")]
    TooLong,
    /// A line ends before its announced length.
    #[error("the header lines are incomplete")]
    Incomplete,
    /// A name or value has bytes that HTTP does not allow.
    #[error("a header line has bytes that HTTP does not allow")]
    Forbidden,
}

/// Encodes the lines of `headers`.
pub(crate) fn encode(headers: &HeaderMap) -> Result<Bytes, HeaderBlockError> {
    if headers.len() > REQUEST_HEADERS_MAX {
        return Err(HeaderBlockError::TooMany);
    }
    let lines = headers.iter().map(|(name, value)| LENGTHS_BYTES + name.as_str().len() + value.len());
    let mut block = Vec::with_capacity(lines.sum());
    for (name, value) in headers {
        let length = |bytes: usize| u16::try_from(bytes).map_err(|_| HeaderBlockError::TooLong);
        block.put_u16(length(name.as_str().len())?);
        block.put_u16(length(value.len())?);
        block.put_slice(name.as_str().as_bytes());
        block.put_slice(value.as_bytes());
    }
    Ok(block.into())
}

/// Decodes header lines.
pub(crate) fn decode(mut block: Bytes) -> Result<HeaderMap, HeaderBlockError> {
    let mut headers = HeaderMap::with_capacity(usize::from(!block.is_empty()) * 16);
    while !block.is_empty() {
        if headers.len() >= REQUEST_HEADERS_MAX {
            return Err(HeaderBlockError::TooMany);
        }
        if block.len() < LENGTHS_BYTES {
            return Err(HeaderBlockError::Incomplete);
        }
        let (name, value) = (usize::from(block.get_u16()), usize::from(block.get_u16()));
        if block.len() < name + value {
            return Err(HeaderBlockError::Incomplete);
        }
        let (name, value) = (block.split_to(name), block.split_to(value));
        let name = HeaderName::from_bytes(&name).map_err(|_| HeaderBlockError::Forbidden)?;
        let value = HeaderValue::from_maybe_shared(value).map_err(|_| HeaderBlockError::Forbidden)?;
        headers.append(name, value);
    }
    Ok(headers)
}
