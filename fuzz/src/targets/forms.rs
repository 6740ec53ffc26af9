//! Forms of PostObject. Property: however a form is cut, its fields and its file are the same.

use crate::input::{Input, run as wait};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body::Frame;
use http_body_util::StreamBody;
use mlgw_body::form::Form;
use std::convert::Infallible;

type Read = Result<(Vec<(String, String)>, Vec<u8>), ()>;

/// The input: the size of the pieces, then the form; its boundary is `x`.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let step = input.byte();
    let whole = read(&[input.0]);
    let cut = read(&input.pieces(step));
    assert_eq!(whole, cut);
}

fn read(pieces: &[&[u8]]) -> Read {
    let head = http::Request::post("/b").header("content-type", "multipart/form-data; boundary=x");
    let head = head.body(()).expect("our own head").into_parts().0;
    let pieces = pieces.iter().map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))));
    let stream = futures_util::stream::iter(pieces.collect::<Vec<_>>());
    let mut form = Form::open(&head, StreamBody::new(stream)).map_err(drop)?;
    wait(async {
        let file = form.read_fields().await.map_err(drop)?;
        let mut frames = Box::pin(file.frames());
        let mut bytes = Vec::new();
        while let Some(frame) = frames.next().await {
            bytes.extend_from_slice(&frame.map_err(drop)?.into_data().map_err(drop)?);
        }
        let head = form.as_head();
        let fields = head.headers.iter().map(|(name, value)| (name.to_string(), format!("{value:?}")));
        let mut fields: Vec<_> = fields.collect();
        fields.extend(
            form.fields().ok().and_then(|fields| Some(("key".to_owned(), fields.get("key")?.to_owned()))),
        );
        Ok((fields, bytes))
    })
}
