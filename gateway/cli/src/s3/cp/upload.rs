//! Uploads of files and of standard input. The server verifies a checksum of every object.

use super::copy_run::{CopyRun, ItemFailure};
use super::multipart::{self, CRC_HEADER, checksum_headers, complete_checked, crc_value, put_part};
use super::names::content_type;
use super::open_upload::OpenUpload;
use super::parts::{
    CheckedBytes, StoredPart, check_fits_parts, parts_of, stream_part_bytes, upload_part_bytes,
};
use crate::CliError;
use crate::s3::client::S3Request;
use crate::s3::path::RemotePath;
use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use http::{HeaderMap, HeaderValue, Method, header};
use mlgw_common::limits::PART_NUMBER_MAX;
use mlgw_common::regular;
use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::{SemaphorePermit, mpsc};

/// Bytes of standard input that are passed on at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces of standard input that are read ahead.
const PIECES_AHEAD: usize = 4;

/// Uploads a file. Returns its size.
///
/// # Errors
/// The file cannot be read or changes meanwhile, or the server refused the object.
pub(super) async fn file(run: &CopyRun<'_>, from: &Path, to: &RemotePath) -> Result<u64, ItemFailure> {
    opened_file(run, SourceFile::open(from)?, to).await
}

async fn opened_file(run: &CopyRun<'_>, source: SourceFile, to: &RemotePath) -> Result<u64, ItemFailure> {
    check_fits_parts(source.bytes).map_err(|problem| source.failure(problem))?;
    let headers = headers_of(run, &source.path);
    let part_bytes = upload_part_bytes(source.bytes, run.settings.part_bytes);
    if source.bytes <= part_bytes {
        let _slot = run.slot(source.bytes).await;
        let body = source.read(0..source.bytes).await?;
        source.check_unchanged()?;
        return put(run, to, headers, body).await;
    }
    let upload = create(run, to, headers).await?;
    let (opened, file) = (&upload, &source);
    let parts = stream::iter(parts_of(source.bytes, part_bytes)).map(|part| async move {
        let _slot = run.slot(part_bytes).await;
        put_part(run, opened, part.number, file.read(part.range).await?).await
    });
    let completed = async {
        let parts: Vec<StoredPart> = parts.buffer_unordered(run.parallel()).try_collect().await?;
        source.check_unchanged()?;
        complete_checked(run, &upload, parts).await
    };
    let completed = completed.await;
    multipart::end(run, &upload, completed).await
}

/// Uploads standard input. Its length is unknown, so the first part decides whether it is sent as a whole.
/// Returns its length.
///
/// # Errors
/// Standard input cannot be read, or the server refused the object.
pub(super) async fn standard_input(run: &CopyRun<'_>, to: &RemotePath) -> Result<u64, ItemFailure> {
    let mut input = PieceReader::start();
    let first_bytes = stream_part_bytes(1, run.settings.part_bytes);
    let first = input.read(first_bytes).await?;
    let headers = headers_of(run, Path::new(&to.key));
    if first.length() < first_bytes {
        return put(run, to, headers, first).await;
    }
    let upload = create(run, to, headers).await?;
    let completed = match put_stream(run, &upload, first, input).await {
        Ok(parts) => complete_checked(run, &upload, parts).await,
        Err(failure) => Err(failure),
    };
    multipart::end(run, &upload, completed).await
}

/// Sends the first part and the rest of standard input.
async fn put_stream(
    run: &CopyRun<'_>,
    upload: &OpenUpload,
    first: CheckedBytes,
    input: PieceReader,
) -> Result<Vec<StoredPart>, ItemFailure> {
    let state = StreamState { input, next: Some(first), number: 1 };
    let parts = stream::try_unfold(state, |state| next_part(run, upload, state));
    let sent = parts.map(|part| async move {
        let StreamPart { number, body, _slot } = part?;
        put_part(run, upload, number, body).await
    });
    sent.buffer_unordered(run.parallel()).try_collect().await
}

/// Position in standard input.
struct StreamState {
    input: PieceReader,
    /// The part that is read already.
    next: Option<CheckedBytes>,
    /// Number of the next part.
    number: usize,
}

/// A part of standard input.
struct StreamPart<'a> {
    number: usize,
    body: CheckedBytes,
    _slot: Option<SemaphorePermit<'a>>,
}

/// Reads the next part; returns `None` after the last one.
async fn next_part<'a>(
    run: &'a CopyRun<'_>,
    upload: &OpenUpload,
    mut state: StreamState,
) -> Result<Option<(StreamPart<'a>, StreamState)>, ItemFailure> {
    let number = state.number;
    let bytes = stream_part_bytes(number, run.settings.part_bytes);
    let slot = run.slot(bytes).await;
    let body = match state.next.take() {
        Some(first) => first,
        None => state.input.read(bytes).await?,
    };
    if body.length() == 0 {
        return Ok(None);
    }
    if number > usize::from(PART_NUMBER_MAX) {
        let problem = "standard input is longer than 10,000 parts: set --part-size";
        return Err(ItemFailure::unsuitable(&upload.object, problem));
    }
    state.number += 1;
    Ok(Some((StreamPart { number, body, _slot: slot }, state)))
}

async fn create(
    run: &CopyRun<'_>,
    to: &RemotePath,
    mut headers: HeaderMap,
) -> Result<OpenUpload, ItemFailure> {
    headers.extend(checksum_headers());
    multipart::create(run, to, headers).await
}

/// Uploads an object as a whole. Returns its size.
async fn put(
    run: &CopyRun<'_>,
    to: &RemotePath,
    headers: HeaderMap,
    body: CheckedBytes,
) -> Result<u64, ItemFailure> {
    let length = body.length();
    let request = S3Request::new(Method::PUT, to.clone())
        .with_headers(headers)
        .with_header(CRC_HEADER, crc_value(body.crc))
        .with_body(body.bytes);
    run.client.document(&request).await.map_err(|failure| run.failure(failure, to))?;
    run.add_progress(length);
    Ok(length)
}

/// Returns the headers of an object by the name of its file.
fn headers_of(run: &CopyRun<'_>, name: &Path) -> HeaderMap {
    let by_name = || content_type(name).map(HeaderValue::from_static);
    let value = run.settings.content_type.clone().or_else(by_name);
    value.map(|value| (header::CONTENT_TYPE, value)).into_iter().collect()
}

/// A file that is uploaded.
struct SourceFile {
    file: Arc<File>,
    path: PathBuf,
    bytes: u64,
    modified: Option<SystemTime>,
}

impl SourceFile {
    fn open(path: &Path) -> Result<Self, ItemFailure> {
        let failed = |error: io::Error| ItemFailure::local(path, &error);
        // A pipe would wait for its writer.
        let file = regular::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let (bytes, modified) = (metadata.len(), metadata.modified().ok());
        Ok(Self { file: Arc::new(file), path: path.to_owned(), bytes, modified })
    }

    /// Reads a range and computes its checksum, on a thread of its own.
    async fn read(&self, range: Range<u64>) -> Result<CheckedBytes, ItemFailure> {
        let file = Arc::clone(&self.file);
        let read = tokio::task::spawn_blocking(move || {
            let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
            let mut bytes = vec![0; length];
            file.read_exact_at(&mut bytes, range.start)?;
            Ok(CheckedBytes::new(Bytes::from(bytes)))
        });
        let read = read.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.changed(),
            _ => ItemFailure::local(&self.path, &error),
        })
    }

    /// Checks that the length and the modification time of the file are those at its opening.
    fn check_unchanged(&self) -> Result<(), ItemFailure> {
        let metadata = self.file.metadata().map_err(|error| ItemFailure::local(&self.path, &error))?;
        match metadata.len() == self.bytes && metadata.modified().ok() == self.modified {
            true => Ok(()),
            false => Err(self.changed()),
        }
    }

    fn changed(&self) -> ItemFailure {
        self.failure("the file changed while it was read")
    }

    fn failure(&self, problem: &str) -> ItemFailure {
        ItemFailure::item(&format!("{}: {problem}", self.path.display()))
    }
}

/// Standard input, read by a thread that the command does not wait for at its end.
struct PieceReader {
    pieces: mpsc::Receiver<io::Result<Vec<u8>>>,
    /// Bytes that are received and not yet returned.
    rest: BytesMut,
}

impl PieceReader {
    fn start() -> Self {
        let (send, pieces) = mpsc::channel(PIECES_AHEAD);
        std::thread::spawn(move || {
            loop {
                let mut piece = Vec::new();
                let read = io::stdin().lock().take(PIECE_BYTES).read_to_end(&mut piece);
                let is_last = piece.is_empty() || read.is_err();
                if send.blocking_send(read.map(|_| piece)).is_err() || is_last {
                    return;
                }
            }
        });
        Self { pieces, rest: BytesMut::new() }
    }

    /// Returns the next `bytes` bytes, or fewer at the end.
    async fn read(&mut self, bytes: u64) -> Result<CheckedBytes, ItemFailure> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        while self.rest.len() < bytes {
            match self.pieces.recv().await {
                Some(Ok(piece)) => self.rest.extend_from_slice(&piece),
                Some(Err(error)) => {
                    return Err(ItemFailure::Command(CliError::Failed(format!("standard input: {error}"))));
                }
                None => break,
            }
        }
        let part = self.rest.split_to(bytes.min(self.rest.len()));
        Ok(CheckedBytes::new(part.freeze()))
    }
}

#[cfg(test)]
mod tests {
    use super::{SourceFile, opened_file};
    use crate::canned_server::{CannedServer, response};
    use crate::s3::cp::copy_run::{CopyRun, CopySettings, ItemFailure};
    use crate::s3::path::RemotePath;
    use std::fs::{self, File, FileTimes};
    use std::path::Path;
    use std::time::SystemTime;

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn assert_changed<T>(result: Result<T, ItemFailure>) {
        let error = result.err().unwrap().error().to_string();
        assert!(error.ends_with(": the file changed while it was read"), "{error}");
    }

    #[test]
    fn a_file_that_changes_is_not_uploaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let opened = || {
            fs::write(&path, "0123456789").unwrap();
            SourceFile::open(&path).unwrap()
        };
        let source = opened();
        assert_eq!(run(source.read(2..5)).unwrap().bytes, "234");
        assert_eq!(source.check_unchanged(), Ok(()));
        fs::write(&path, "0123").unwrap();
        assert_eq!(run(source.read(2..4)).unwrap().bytes, "23");
        assert_changed(source.check_unchanged());
        assert_changed(run(source.read(2..5)));
        let source = opened();
        fs::write(&path, "0123456789a").unwrap();
        assert_changed(source.check_unchanged());
        let source = opened();
        let earlier = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
        File::options().write(true).open(&path).unwrap().set_times(earlier).unwrap();
        assert_changed(source.check_unchanged());
    }

    #[test]
    fn a_pipe_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        for (path, kind) in [(path.as_path(), "a socket"), (Path::new("/dev/null"), "a device")] {
            let refused = SourceFile::open(path).err().unwrap().error().to_string();
            assert!(refused.ends_with(&format!(": {kind} is at the path of a file")), "{refused}");
        }
    }

    #[test]
    fn a_file_that_no_upload_stores_is_refused_beforehand() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        File::create(&path).unwrap();
        // Not every file system has files of this size.
        let source = SourceFile { bytes: 50_001 << 30, ..SourceFile::open(&path).unwrap() };
        let server = CannedServer::start(vec![response("200 OK", &[("content-length", "0")], "")]);
        let client = server.client();
        let settings = CopySettings { parallel: 1, part_bytes: None, content_type: None, quiet: true };
        let copy = CopyRun::new(&client, settings);
        let refused = run(opened_file(&copy, source, &RemotePath::new("b", "k"))).unwrap_err();
        assert!(refused.error().to_string().ends_with("has at most 10,000 parts of 5 GiB"));
        assert_eq!(server.received(), [""; 0]);
    }
}
