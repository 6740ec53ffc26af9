//! Signs the requests to an S3 origin.

use super::credentials::OriginCredentials;
use crate::origin::OriginError;
use http::Request;
use mlgw_carrier::{SignableBody, SigningScope};
use mlgw_common::Timestamp;

/// Signs requests for one region.
#[derive(Debug)]
pub(super) struct OriginSigner {
    pub(super) credentials: OriginCredentials,
    pub(super) region: String,
}

impl OriginSigner {
    /// Signs a request as of `now`. The signature of a streamed body does not cover its bytes, which TLS and
    /// their checksum protect.
    pub(super) async fn sign<B>(
        &self,
        request: &mut Request<B>,
        body: SignableBody<'static>,
        now: Timestamp,
    ) -> Result<(), OriginError> {
        let Some(credentials) = self.credentials.get().await? else { return Ok(()) };
        let scope = SigningScope { region: &self.region, service: "s3", time: now };
        mlgw_carrier::sign(request, body, credentials, scope)
            .map_err(|error| OriginError::InvalidResponse(error.to_string()))
    }
}
