//! The control port: reads counters and log, and sets rules and shape, while requests pass.
//!
//! `GET /counters`, `GET /log`, `POST /clear`, `POST /rules` with a list that replaces all rules, `POST
//! /shape` with the fields to change. An invalid document changes nothing and is answered with status 400.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use mlgw_common::time::sleep;
use tokio::net::TcpListener;

use super::rule::Rule;
use super::rules::Rules;
use super::shape::ShapeChange;
use super::{ACCEPT_RETRY_DELAY, ProxyState};

/// The size limit of a document: some thousand rules.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;

type Reply = Result<String, String>;

pub(super) async fn serve(listener: TcpListener, shared: Arc<ProxyState>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let shared = shared.clone();
        let service = service_fn(move |request| answer(request, shared.clone()));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

async fn answer(
    request: Request<Incoming>,
    shared: Arc<ProxyState>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let (status, text) = match Limited::new(body, DOCUMENT_BYTES_MAX).collect().await {
        Ok(document) => match reply(&head.method, head.uri.path(), &document.to_bytes(), &shared) {
            Some(Ok(json)) => (StatusCode::OK, json),
            Some(Err(message)) => (StatusCode::BAD_REQUEST, message),
            None => (StatusCode::NOT_FOUND, "not found\n".to_owned()),
        },
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()),
    };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    Ok(response)
}

fn reply(method: &Method, path: &str, document: &[u8], shared: &ProxyState) -> Option<Reply> {
    Some(match (method.as_str(), path) {
        ("GET", "/counters") => json(&shared.traffic.counters()),
        ("GET", "/log") => json(&shared.traffic.log()),
        ("POST", "/clear") => {
            shared.traffic.clear();
            Ok(String::new())
        }
        ("POST", "/rules") => set_rules(document, shared),
        ("POST", "/shape") => set_shape(document, shared),
        _ => return None,
    })
}

fn json(what: &impl serde::Serialize) -> Reply {
    serde_json::to_string(what).map_err(|error| error.to_string())
}

fn set_rules(document: &[u8], shared: &ProxyState) -> Reply {
    let rules: Vec<Rule> = serde_json::from_slice(document).map_err(|error| error.to_string())?;
    *shared.rules() = Rules::new(rules).map_err(|error| error.to_string())?;
    Ok(String::new())
}

fn set_shape(document: &[u8], shared: &ProxyState) -> Reply {
    let change: ShapeChange = serde_json::from_slice(document).map_err(|error| error.to_string())?;
    shared.shaper.set(change.applied_to(shared.shaper.shape()));
    Ok(String::new())
}
