//! The form of a PostObject: its fields, and then its file as a stream.
//!
//! Who sent a form is known only from its fields, so what comes before the file is bounded whatever
//! it is: fields, their names, and all that a parser may take for the begin of one.

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

/// Most fields of a form before its file.
const FIELDS_MAX: usize = 100;
/// What may come before the file begins: the fields, as much again for what separates them, and the
/// piece that the file begins in.
const BYTES_BEFORE_FILE_MAX: usize = 2 * POST_FORM_BYTES_MAX + BLOCK_BYTES as usize;

/// How often the parser may look for more than that: some times for each field that it already has.
const LOOKS_MAX: usize = 10 * FIELDS_MAX;

/// Stands for the name of the file in the key.
const FILE_NAME: &str = "${filename}";

/// A form being read.
pub struct Form {
    parts: Multipart<'static>,
    fields: Vec<(String, String)>,
    /// The file has begun: what comes now is its own.
    file_begun: Arc<AtomicBool>,
}

/// The file of a form.
pub struct FormFile(Field<'static>);

impl Form {
    /// A form with this head, whose bytes are `body`.
    ///
    /// # Errors
    /// `PreconditionFailed` when the head does not announce a form.
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
        let pieces = bounded(one_by_one(body), Arc::clone(&file_begun));
        let parts = Multipart::with_constraints(pieces, boundary, constraints);
        Ok(Self { parts, fields: Vec::new(), file_begun })
    }

    /// Reads the fields up to the file, and puts its name where the key asks for it.
    ///
    /// # Errors
    /// `MalformedPOSTRequest`, `MaxPostPreDataLengthExceeded`, `InvalidArgument` without a file.
    pub async fn read_fields(&mut self) -> Result<FormFile, S3Error> {
        let mut bytes = 0;
        while let Some(field) = self.parts.next_field().await.map_err(malformed)? {
            let name = field.name().unwrap_or_default().to_owned();
            if name.eq_ignore_ascii_case("file") {
                self.file_begun.store(true, Relaxed);
                self.fill_in(field.file_name().unwrap_or_default())?;
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

    /// The fields that were read.
    ///
    /// # Errors
    /// Those of [`post::Fields::new`].
    pub fn fields(&self) -> Result<post::Fields<'_>, S3Error> {
        post::Fields::new(&self.fields)
    }

    fn fill_in(&mut self, file_name: &str) -> Result<(), S3Error> {
        // Browsers may send a whole path as the name of a file.
        let name = file_name.rsplit(['/', '\\']).next().unwrap_or_default();
        let asks = |(field, value): &&mut (String, String)| {
            field.eq_ignore_ascii_case("key") && value.contains(FILE_NAME)
        };
        for (_, key) in self.fields.iter_mut().filter(asks) {
            if name.len() > KEY_LEN_MAX {
                return Err(S3Error::new(Code::KeyTooLongError));
            }
            *key = key.replace(FILE_NAME, name);
        }
        Ok(())
    }

    /// The fields as the headers of a PUT.
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
            // A field that cannot be a header is one for the page's own use.
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                head.headers.insert(name, sent_value(value));
            }
        }
        head
    }
}

impl FormFile {
    /// The file's bytes.
    pub fn frames(self) -> impl Stream<Item = Result<Frame<Bytes>, S3Error>> + Send + 'static {
        self.0.into_stream().map_ok(Frame::data).map_err(|error| match error {
            multer::Error::StreamReadFailed(cause) => broken_off(cause),
            error => S3Error::new(Code::IncompleteBody).caused_by(error),
        })
    }
}

/// The pieces of a body, at most one for each time the stream is looked at: the form's parser
/// takes all that is ready, which would be unbounded otherwise.
fn one_by_one<B>(mut body: B) -> impl Stream<Item = Result<Bytes, S3Error>> + Send + 'static
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
            // Nothing came, so there is nothing to rest from.
            rested = true;
        }
        frame.map_err(S3Error::from)
    });
    frames.filter_map(async |frame| frame.map(|frame| frame.into_data().ok()).transpose())
}

/// `pieces`, so many bytes of them until the file has begun. The form's parser takes a piece whenever it
/// looks, also while it has whole fields to give out; so who has taken enough is left to work through it
/// before it is too much.
fn bounded(
    pieces: impl Stream<Item = Result<Bytes, S3Error>> + Send + 'static,
    file_begun: Arc<AtomicBool>,
) -> impl Stream<Item = Result<Bytes, S3Error>> + Send + Unpin + 'static {
    let (mut pieces, mut bytes, mut looks) = (Box::pin(pieces), 0, 0);
    poll_fn(move |cx| {
        let begun = file_begun.load(Relaxed);
        if !begun && bytes > BYTES_BEFORE_FILE_MAX {
            looks += 1;
            if looks > LOOKS_MAX {
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
        multer::Error::StreamReadFailed(cause) => broken_off(cause),
        error => S3Error::new(Code::MalformedPOSTRequest).caused_by(error),
    }
}

fn broken_off(cause: Box<dyn std::error::Error + Send + Sync>) -> S3Error {
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

    /// The fields and the file of a form that comes in pieces of `piece` bytes.
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
            "--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{bytes}\r\n--x--\r\n"
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
    async fn a_large_file_is_no_large_form() {
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
    async fn what_comes_before_the_file_is_bounded_also_where_no_field_ever_begins() {
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
    async fn the_name_of_a_file_does_not_blow_up_the_key() {
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
