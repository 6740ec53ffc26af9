//! Form of a PostObject request: its fields, and then its file as a stream.
//!
//! The sender is known only from the fields, so all input before the file is bounded: fields, their names,
//! and any bytes that the parser may buffer as the beginning of a field.

use bytes::Bytes;
use futures_util::stream::{Stream, poll_fn};
use futures_util::{StreamExt, TryStreamExt};
use http::request::Parts;
use http::{HeaderName, header};
use http_body::{Body, Frame};
use mlgw_auth::post;
use mlgw_common::limits::{BLOCK_BYTES, KEY_LEN_MAX, POST_FORM_BYTES_MAX};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::values::sent_value;
use multer::{Constraints, Field, Multipart, SizeLimit};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Poll, ready};

/// Maximum number of fields before the file.
const FIELDS_MAX: usize = 100;
/// Maximum bytes before the file begins: the fields, the same again for separators, and the piece of the body
/// in which the file begins.
const BYTES_BEFORE_FILE_MAX: usize = 2 * POST_FORM_BYTES_MAX + BLOCK_BYTES as usize;

/// Maximum number of polls by the parser beyond that size: a few for each field that it has already buffered.
const POLLS_MAX: usize = 10 * FIELDS_MAX;

/// Placeholder in the key for the name of the file.
const FILE_NAME: &str = "${filename}";

/// A form that is being read.
pub struct Form {
    parts: Multipart<'static>,
    fields: Vec<(String, String)>,
    /// True once the file has begun: further bytes belong to the file.
    file_begun: Arc<AtomicBool>,
}

/// The file of a form.
pub struct FormFile(Field<'static>);

impl Form {
    /// Starts to read a form with this head and the bytes `body`.
    ///
    /// # Errors
    /// `PreconditionFailed` if the head does not announce a form.
    pub fn open<B>(head: &Parts, body: B) -> Result<Self, S3Error>
    where
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        S3Error: From<B::Error>,
    {
        let content_type = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let boundary = content_type.and_then(|value| multer::parse_boundary(value).ok());
        let boundary = boundary.ok_or_else(|| {
            let why = "Bucket POST must be of the enclosure-type multipart/form-data";
            S3Error::new(Code::PreconditionFailed).message(why)
        })?;
        let limits = SizeLimit::new().for_field("file", u64::MAX).per_field(POST_FORM_BYTES_MAX as u64);
        let constraints = Constraints::new().size_limit(limits);
        let file_begun = Arc::<AtomicBool>::default();
        let pieces = bounded(paced(body), Arc::clone(&file_begun));
        let parts = Multipart::with_constraints(pieces, boundary, constraints);
        Ok(Self { parts, fields: Vec::new(), file_begun })
    }

    /// Reads the fields up to the file, and replaces the placeholder in the key with the file's name.
    ///
    /// # Errors
    /// `MalformedPOSTRequest`, `MaxPostPreDataLengthExceeded`, `InvalidArgument` without a file.
    pub async fn read_fields(&mut self) -> Result<FormFile, S3Error> {
        let mut bytes = 0;
        while let Some(field) = self.parts.next_field().await.map_err(malformed)? {
            let name = field.name().unwrap_or_default().to_owned();
            if name.eq_ignore_ascii_case("file") {
                self.file_begun.store(true, Relaxed);
                self.insert_file_name(field.file_name().unwrap_or_default())?;
                return Ok(FormFile(field));
            }
            let value = field.text().await.map_err(malformed)?;
            bytes += name.len() + value.len();
            if bytes > POST_FORM_BYTES_MAX || self.fields.len() == FIELDS_MAX {
                return Err(S3Error::new(Code::MaxPostPreDataLengthExceeded));
            }
            self.fields.push((name, value));
        }
        let why = "POST requires exactly one file upload per request.";
        Err(S3Error::invalid_argument(why, "file", "0"))
    }

    /// Returns the fields that were read.
    ///
    /// # Errors
    /// Same as [`post::FormFields::new`].
    pub fn fields(&self) -> Result<post::FormFields<'_>, S3Error> {
        post::FormFields::new(&self.fields)
    }

    fn insert_file_name(&mut self, file_name: &str) -> Result<(), S3Error> {
        // Browsers may send a whole path as the name of a file.
        let name = file_name.rsplit(['/', '\\']).next().unwrap_or_default();
        let has_placeholder = |(field, value): &&mut (String, String)| {
            field.eq_ignore_ascii_case("key") && value.contains(FILE_NAME)
        };
        for (_, key) in self.fields.iter_mut().filter(has_placeholder) {
            if name.len() > KEY_LEN_MAX {
                return Err(S3Error::new(Code::KeyTooLongError));
            }
            *key = key.replace(FILE_NAME, name);
        }
        Ok(())
    }

    /// Returns the fields as the headers of a PUT.
    #[must_use]
    pub fn as_head(&self) -> Parts {
        let mut head = http::Request::new(()).into_parts().0;
        for (name, value) in &self.fields {
            let form_only = ["key", "policy", "tagging", "success_action_redirect", "success_action_status"];
            let lower = name.to_ascii_lowercase();
            let signs = ["x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"];
            if form_only.contains(&&*lower) || signs.contains(&&*lower) {
                continue;
            }
            let name = if lower == "acl" { "x-amz-acl" } else { &lower };
            // A field that is not a valid header name is for the page's own use.
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                head.headers.insert(name, sent_value(value));
            }
        }
        head
    }
}

impl FormFile {
    /// Returns the file's bytes as a stream.
    pub fn frames(self) -> impl Stream<Item = Result<Frame<Bytes>, S3Error>> + Send + 'static {
        self.0.into_stream().map_ok(Frame::data).map_err(|error| match error {
            multer::Error::StreamReadFailed(cause) => body_read_error(cause),
            error => S3Error::new(Code::IncompleteBody).caused_by(error),
        })
    }
}

/// Returns the pieces of a body, at most one for every second poll: the form's parser takes all pieces that
/// are ready, which would be unbounded otherwise.
fn paced<B>(mut body: B) -> impl Stream<Item = Result<Bytes, S3Error>> + Send + 'static
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    S3Error: From<B::Error>,
{
    let mut rested = true;
    let frames = poll_fn(move |cx| {
        rested = !rested;
        if rested {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = Pin::new(&mut body).poll_frame(cx);
        if frame.is_pending() {
            // No piece arrived, so the next poll need not be skipped.
            rested = true;
        }
        frame.map_err(S3Error::from)
    });
    frames.filter_map(async |frame| frame.map(|frame| frame.into_data().ok()).transpose())
}

/// Limits the bytes of `pieces` until the file has begun. The form's parser takes a piece at every poll, even
/// if it has buffered whole fields. Beyond the limit it therefore gets no further pieces for a number of
/// polls, so that it can return the buffered fields, before the form is refused.
fn bounded(
    pieces: impl Stream<Item = Result<Bytes, S3Error>> + Send + 'static,
    file_begun: Arc<AtomicBool>,
) -> impl Stream<Item = Result<Bytes, S3Error>> + Send + Unpin + 'static {
    let (mut pieces, mut bytes, mut looks) = (Box::pin(pieces), 0, 0);
    poll_fn(move |cx| {
        let begun = file_begun.load(Relaxed);
        if !begun && bytes > BYTES_BEFORE_FILE_MAX {
            looks += 1;
            if looks > POLLS_MAX {
                return Poll::Ready(Some(Err(S3Error::new(Code::MaxPostPreDataLengthExceeded))));
            }
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = ready!(pieces.as_mut().poll_next(cx));
        if let (false, Some(Ok(piece))) = (begun, &piece) {
            bytes += piece.len();
        }
        Poll::Ready(piece)
    })
}

fn malformed(error: multer::Error) -> S3Error {
    match error {
        multer::Error::FieldSizeExceeded { .. } | multer::Error::StreamSizeExceeded { .. } => {
            S3Error::new(Code::MaxPostPreDataLengthExceeded)
        }
        multer::Error::StreamReadFailed(cause) => body_read_error(cause),
        error => S3Error::new(Code::MalformedPOSTRequest).caused_by(error),
    }
}

fn body_read_error(cause: Box<dyn std::error::Error + Send + Sync>) -> S3Error {
    match cause.downcast::<S3Error>() {
        Ok(error) => *error,
        Err(cause) => S3Error::new(Code::IncompleteBody).caused_by(cause),
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, BYTES_BEFORE_FILE_MAX, Form};
    use bytes::Bytes;
    use http_body::Frame;
    use http_body_util::{BodyExt as _, StreamBody};
    use mlgw_wire::error::{Code, S3Error};
    use std::convert::Infallible;

    /// Reads the fields and the file of a form that arrives in pieces of `piece` bytes.
    async fn read(text: &str, piece: usize) -> Result<(Form, Vec<u8>), S3Error> {
        let (head, ()) = http::Request::post("/b")
            .header("content-type", "multipart/form-data; boundary=x")
            .body(())
            .unwrap()
            .into_parts();
        let pieces: Vec<Bytes> = text.as_bytes().chunks(piece).map(Bytes::copy_from_slice).collect();
        let frames = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
        let mut form = Form::open(&head, StreamBody::new(futures_util::stream::iter(frames)))?;
        let file = form.read_fields().await?;
        let file = StreamBody::new(Box::pin(file.frames())).collect().await?.to_bytes();
        Ok((form, file.into()))
    }

    fn field(name: &str, value: &str) -> String {
        format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    }

    fn file(name: &str, bytes: &str) -> String {
        format!(
            "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{bytes}\r\n\
             --x--\r\n"
        )
    }

    #[tokio::test]
    async fn fields_come_before_the_file_whose_name_fills_the_key() {
        for piece in [1, 7, 10_000] {
            let text = field("key", "in/${filename}") + &field("acl", "private") + &file("a/b.txt", "hello");
            let (form, bytes) = read(&text, piece).await.unwrap();
            assert_eq!(form.fields().unwrap().get("key"), Some("in/b.txt"));
            assert_eq!(form.as_head().headers["x-amz-acl"], "private");
            assert_eq!(bytes, b"hello");
        }
    }

    #[tokio::test]
    async fn the_size_of_the_file_is_not_limited_by_the_form() {
        let large = "7".repeat(10 * BYTES_BEFORE_FILE_MAX);
        for (fields, piece) in
            [(1, 1000), (8, BLOCK_BYTES as usize), (100, BLOCK_BYTES as usize), (8, usize::MAX)]
        {
            let text = field("key", "k").repeat(fields) + &file("f", &large);
            let (_, bytes) = read(&text, piece).await.unwrap();
            assert_eq!(bytes.len(), large.len(), "{fields} fields in pieces of {piece}");
        }
    }

    #[tokio::test]
    async fn input_before_the_file_is_bounded_even_without_a_field() {
        let long = "x".repeat(2 * BYTES_BEFORE_FILE_MAX);
        for text in [
            format!("--x\r\ncontent-disposition: form-data; name=\"{long}"),
            format!("--x\r\nheader: {long}"),
            long.clone(),
            field("a", &long),
            field("a", "b").repeat(110),
        ] {
            let error = read(&text, 1000).await.err().map(|error| error.code());
            assert_eq!(error, Some(Code::MaxPostPreDataLengthExceeded), "{}", &text[..40]);
        }
    }

    #[tokio::test]
    async fn a_long_file_name_in_the_key_is_refused() {
        let text = field("key", &"${filename}".repeat(1000)) + &file(&"n".repeat(2000), "");
        assert_eq!(read(&text, 1000).await.err().map(|error| error.code()), Some(Code::KeyTooLongError));
    }

    #[tokio::test]
    async fn a_form_that_ends_early_is_refused() {
        let whole = field("key", "k") + &file("f", "hello");
        for end in [10, 60, 120, whole.len() - 10] {
            assert!(read(&whole[..end], 1000).await.is_err(), "{end}");
        }
    }
}
