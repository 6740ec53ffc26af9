//! Self-check of an upstream: tries every kind of request once, and reports missing permissions.
//!
//! Each step reports success, or the fault and the permission to grant. Objects that the check wrote are
//! deleted again; if that fails, they are named. No segment is touched.

use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use tokio::net::{TcpStream, lookup_host};

use super::Upstream;
use super::error::UpstreamFault;
use super::metrics::UpstreamOp;
use super::objects::SEGMENTS_DIR;
use super::permissions::{CheckVerb, permission};
use super::resumable_upload::{BeginUploadError, UploadResumption};
use super::settings::UpstreamKind;
use super::upload::SegmentUpload;

/// Directory below the prefix to which a check writes.
const CHECK_DIR: &str = "check/";
/// Length of the object that is written in one piece.
const SMALL_BYTES: usize = 4096;
/// Minimum part size that all stores accept.
const PART_BYTES: usize = 5 << 20;
/// Range of the small object that is read.
const RANGE: std::ops::Range<u64> = 1000..2000;
/// Error codes by which stores reject unknown credentials, as opposed to known ones that lack a permission.
const UNKNOWN_CALLER: [&str; 17] = [
    "loading credential",
    "signing http request",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidToken",
    "ExpiredToken",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "RequestExpired",
    "AuthenticationFailed",
    "NoAuthenticationInformation",
    "InvalidSecurityToken",
    "SecurityTokenExpired",
    "AuthFailure",
    "InvalidCredentials",
    "Unauthorized",
    "invalid_grant",
];

/// Result of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckStep {
    /// Kind of request.
    pub verb: CheckVerb,
    /// Fault, if the step failed.
    pub fault: Option<String>,
    /// Missing permission, if the store rejected the request for lack of one.
    pub missing: Option<&'static str>,
}

impl Upstream {
    /// Runs all steps. Ends early if the store cannot be reached or rejects the credentials.
    pub async fn check(&self) -> Vec<CheckStep> {
        self.check_under(random_name()).await
    }

    /// Runs all steps with objects under `name`, if a name could be chosen.
    pub(super) async fn check_under(&self, name: Result<String, getrandom::Error>) -> Vec<CheckStep> {
        let mut steps = vec![step(CheckVerb::Reach, self.reach().await)];
        if steps[0].fault.is_none() {
            steps.push(step(CheckVerb::Credentials, self.check_credentials().await));
        }
        if steps.iter().any(|step| step.fault.is_some()) {
            return steps;
        }
        match name {
            Ok(name) => self.check_objects(&name, &mut steps).await,
            Err(error) => steps.push(step(CheckVerb::Write, Err(error.to_string()))),
        }
        steps
    }

    async fn check_objects(&self, name: &str, steps: &mut Vec<CheckStep>) {
        let parts_name = format!("{name}.parts");
        let mut wrote = Vec::new();
        self.record_step(steps, CheckVerb::List, self.list_some().await);
        if self.record_step(steps, CheckVerb::Write, self.write_small(name).await) {
            wrote.push(name.to_owned());
            self.record_step(steps, CheckVerb::Read, self.read_small(name, 0..SMALL_BYTES as u64).await);
            self.record_step(steps, CheckVerb::Range, self.read_small(name, RANGE).await);
        }
        if self.operator.info().capability().write_can_multi {
            // The object may have been stored even if the response reports an error.
            wrote.push(parts_name.clone());
            self.record_step(steps, CheckVerb::Multipart, self.write_parts(&parts_name).await);
            self.record_step(steps, CheckVerb::Abort, self.abort_parts(&format!("{name}.abort")).await);
        }
        self.record_step(steps, CheckVerb::Delete, self.delete_all(&wrote).await);
    }

    /// Records a step. Returns true if it succeeded.
    fn record_step(
        &self,
        steps: &mut Vec<CheckStep>,
        verb: CheckVerb,
        done: Result<(), UpstreamFault>,
    ) -> bool {
        let refused = matches!(done, Err(UpstreamFault::Refused(_)));
        let missing = permission(self.kind, verb).filter(|_| refused);
        let fault = done.err().map(UpstreamFault::into_message);
        let is_well = fault.is_none();
        steps.push(CheckStep { verb, fault, missing });
        is_well
    }

    /// Resolves the host name, connects to the host, and sends a request that needs no permission.
    async fn reach(&self) -> Result<(), String> {
        let (Some(endpoint), via) = (&self.endpoint, &self.proxy) else { return self.reach_dir().await };
        let url = via.as_ref().unwrap_or(endpoint).parse::<Uri>().map_err(|error| error.to_string())?;
        let host = url.host().ok_or("its URL has no host")?.trim_matches(['[', ']']).to_owned();
        let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("http") { 80 } else { 443 });
        let who = if via.is_some() { "the proxy " } else { "" };
        let found = in_time(self.timeout, lookup_host((host.clone(), port))).await;
        let found = found.map_err(|error| format!("DNS: cannot resolve {who}{host}: {error}"))?;
        let mut last = format!("DNS: {who}{host} has no address");
        for address in found {
            match in_time(self.timeout, TcpStream::connect(address)).await {
                Ok(_) => return self.probe_http().await,
                Err(error) => last = format!("TCP: cannot connect to {who}{host} ({address}): {error}"),
            }
        }
        Err(last)
    }

    /// Sends one request. Any response means that the store is reachable; over HTTPS it has presented its
    /// certificate as well.
    async fn probe_http(&self) -> Result<(), String> {
        let name = format!("{CHECK_DIR}nothing");
        match self.with_retries(UpstreamOp::Stat, 0, 0, || self.operator.stat(&name)).await {
            Err(UpstreamFault::Unreachable(message)) if message.contains("certificate") => {
                Err(format!("TLS: {message}; check ca_file"))
            }
            Err(UpstreamFault::Unreachable(message)) => Err(format!("HTTP: {message}")),
            _ => Ok(()),
        }
    }

    async fn reach_dir(&self) -> Result<(), String> {
        match self.operator.stat("/").await {
            Ok(_) => Ok(()),
            Err(error) => Err(UpstreamFault::from_directory(&error).into_message()),
        }
    }

    /// Reads an object that does not exist. A caller without the permission to read is authenticated all the
    /// same.
    async fn check_credentials(&self) -> Result<(), String> {
        let name = format!("{CHECK_DIR}nothing");
        let result =
            self.with_retries(UpstreamOp::Read, 0, 1, || self.operator.read_with(&name).range(0..1)).await;
        match result.map(drop) {
            Ok(()) | Err(UpstreamFault::Missing | UpstreamFault::Truncated) => Ok(()),
            Err(UpstreamFault::Refused(message))
                if !UNKNOWN_CALLER.iter().any(|code| message.contains(code)) =>
            {
                Ok(())
            }
            Err(UpstreamFault::Refused(message)) if message.contains("TimeTooSkewed") => {
                Err(format!("{message}: this machine's clock is wrong"))
            }
            Err(fault) => Err(fault.into_message()),
        }
    }

    async fn list_some(&self) -> Result<(), UpstreamFault> {
        let page = || async {
            let mut lister = self.operator.lister_with(SEGMENTS_DIR).limit(1).await?;
            futures_util::TryStreamExt::try_next(&mut lister).await
        };
        match self.with_retries(UpstreamOp::List, 0, 0, page).await {
            // A directory in which nothing was ever stored.
            Ok(_) | Err(UpstreamFault::Missing) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    async fn write_small(&self, name: &str) -> Result<(), UpstreamFault> {
        let bytes = content(SMALL_BYTES);
        self.with_retries(UpstreamOp::Write, SMALL_BYTES as u64, 0, || {
            self.operator.write(name, bytes.clone())
        })
        .await
        .map(drop)
    }

    async fn read_small(&self, name: &str, range: std::ops::Range<u64>) -> Result<(), UpstreamFault> {
        let wanted = content(SMALL_BYTES).slice(range.start as usize..range.end as usize);
        let read = || self.operator.read_with(name).range(range.clone());
        let reading = self.with_retries(UpstreamOp::Read, 0, wanted.len() as u64, read);
        let got = reading.await?.to_bytes();
        if got == wanted {
            return Ok(());
        }
        Err(UpstreamFault::UnexpectedAnswer(format!(
            "the bytes read differ from those written: {} of {} bytes",
            got.len(),
            wanted.len()
        )))
    }

    async fn write_parts(&self, name: &str) -> Result<(), UpstreamFault> {
        let parts = [content(PART_BYTES), content(SMALL_BYTES)];
        let mut upload = self.begin_for_check(name).await?;
        let written = async {
            for part in &parts {
                upload.write(part.clone()).await?;
            }
            upload.close().await
        };
        if let Err(fault) = written.await {
            upload.give_up().await;
            return Err(fault);
        }
        upload.mark_complete();
        let bytes = (PART_BYTES + SMALL_BYTES) as u64;
        let found =
            self.with_retries(UpstreamOp::Stat, 0, 0, || self.operator.stat(name)).await?.content_length();
        if found == bytes {
            return Ok(());
        }
        Err(UpstreamFault::UnexpectedAnswer(format!(
            "two parts of {bytes} bytes became an object of {found} bytes"
        )))
    }

    /// Begins an upload that is never resumed.
    async fn begin_for_check(&self, name: &str) -> Result<SegmentUpload<'_>, UpstreamFault> {
        let begun = self.begin_upload(name, UploadResumption::never()).await;
        begun.map_err(|error| match error {
            BeginUploadError::Fault(fault) => fault,
            BeginUploadError::RecordId(error) => UpstreamFault::Unreachable(error.to_string()),
        })
    }

    async fn abort_parts(&self, name: &str) -> Result<(), UpstreamFault> {
        let mut upload = self.begin_for_check(name).await?;
        // The first part is sent only when there is a second one.
        let mut written = upload.write(content(PART_BYTES)).await;
        if written.is_ok() {
            written = upload.write(content(PART_BYTES)).await;
        }
        let aborted = upload.abort().await;
        written.and(aborted)
    }

    async fn delete_all(&self, names: &[String]) -> Result<(), UpstreamFault> {
        for name in names {
            let left = |fault: UpstreamFault| match fault {
                UpstreamFault::Refused(message) => {
                    UpstreamFault::Refused(format!("{message}; {name} was not deleted"))
                }
                fault => UpstreamFault::UnexpectedAnswer(format!(
                    "{}; {name} was not deleted",
                    fault.into_message()
                )),
            };
            self.with_retries(UpstreamOp::Delete, 0, 0, || self.operator.delete(name)).await.map_err(left)?;
            match self.with_retries(UpstreamOp::Stat, 0, 0, || self.operator.stat(name)).await {
                Err(UpstreamFault::Missing) => {}
                Ok(_) => {
                    return Err(left(UpstreamFault::UnexpectedAnswer(
                        "the object still exists after the delete".to_owned(),
                    )));
                }
                Err(fault) => return Err(fault),
            }
        }
        match &self.dir {
            Some(dir) if self.kind == UpstreamKind::Fs => remove_empty(dir.join(CHECK_DIR)).await,
            _ => Ok(()),
        }
    }
}

/// Removes a directory that only checks need; another check may be using it.
async fn remove_empty(dir: std::path::PathBuf) -> Result<(), UpstreamFault> {
    match tokio::task::spawn_blocking(move || std::fs::remove_dir(dir)).await {
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(UpstreamFault::Refused(error.to_string()))
        }
        _ => Ok(()),
    }
}

fn step(verb: CheckVerb, done: Result<(), String>) -> CheckStep {
    CheckStep { verb, fault: done.err(), missing: None }
}

fn random_name() -> Result<String, getrandom::Error> {
    Ok(format!("{CHECK_DIR}{:016x}", getrandom::u64()?))
}

/// Test content whose bytes depend on their position.
fn content(bytes: usize) -> Bytes {
    (0..bytes).map(|n| (n % 251) as u8).collect::<Vec<u8>>().into()
}

async fn in_time<T>(timeout: Duration, work: impl Future<Output = std::io::Result<T>>) -> std::io::Result<T> {
    let late = |_| std::io::Error::from(std::io::ErrorKind::TimedOut);
    mlgw_common::time::timeout(timeout, work).await.unwrap_or_else(|after| Err(late(after)))
}
