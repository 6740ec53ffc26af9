//! Reads of configurations that buckets and objects of mlgw do not have yet.
//!
//! AWS answers such a read with an empty document or with an error of its own for each configuration.
//! Clients query many of them at start and rely on exactly these responses.

use super::Gateway;
use super::get::find_object;
use super::list::write_owner;
use super::request::AuthenticatedRequest;
use super::response::{S3Result, xml};
use mlgw_wire::error::{Code, S3Error};
use mlgw_wire::operation::{AbsentConfiguration, ResourceLevel};
use mlgw_wire::xml::Xml;
use std::sync::Arc;

/// Answers a read of a configuration that does not exist.
///
/// # Errors
/// `NoSuchBucket`, `NoSuchKey`, and the error that AWS returns for the absent configuration.
pub fn absent_configuration(
    gateway: &Arc<Gateway>,
    request: &AuthenticatedRequest<'_>,
    absent: AbsentConfiguration,
) -> S3Result {
    use AbsentConfiguration as A;
    let owner = match request.target.level() {
        ResourceLevel::Object if gateway.objects.bucket(request.bucket())?.binding.is_none() => {
            find_object(gateway, request)?.object.owner
        }
        _ => gateway.objects.bucket(request.bucket())?.owner.clone(),
    };
    let missing = |code| Err(S3Error::new(code).field("BucketName", request.bucket()));
    match absent {
        A::GetBucketAcl | A::GetObjectAcl => Ok(xml(private_acl(&owner))),
        A::GetBucketVersioning => Ok(document("VersioningConfiguration")),
        A::GetBucketLogging => Ok(document("BucketLoggingStatus")),
        A::GetBucketNotificationConfiguration => Ok(document("NotificationConfiguration")),
        A::GetBucketAccelerateConfiguration => Ok(document("AccelerateConfiguration")),
        A::GetBucketRequestPayment => {
            let mut out = Xml::new("RequestPaymentConfiguration");
            out.text("Payer", "BucketOwner");
            Ok(xml(out.finish("RequestPaymentConfiguration")))
        }
        A::GetBucketPolicy | A::GetBucketPolicyStatus => missing(Code::NoSuchBucketPolicy),
        A::GetBucketCors => missing(Code::NoSuchCORSConfiguration),
        A::GetBucketLifecycleConfiguration => missing(Code::NoSuchLifecycleConfiguration),
        A::GetBucketEncryption => missing(Code::ServerSideEncryptionConfigurationNotFoundError),
        A::GetBucketTagging => missing(Code::NoSuchTagSet),
        A::GetBucketWebsite => missing(Code::NoSuchWebsiteConfiguration),
        A::GetBucketReplication => missing(Code::ReplicationConfigurationNotFoundError),
        A::GetBucketOwnershipControls => Ok(xml(owner_enforced())),
        A::GetPublicAccessBlock => Ok(xml(public_access_block())),
        A::GetObjectLockConfiguration => missing(Code::ObjectLockConfigurationNotFoundError),
        A::GetObjectRetention | A::GetObjectLegalHold => {
            let why = "Bucket is missing Object Lock Configuration";
            Err(S3Error::new(Code::InvalidRequest).message(why))
        }
    }
}

/// Returns AWS's default for a new bucket, which holds for every bucket here: its owner owns every object.
fn owner_enforced() -> String {
    let mut out = Xml::new("OwnershipControls");
    out.open("Rule").text("ObjectOwnership", "BucketOwnerEnforced").close("Rule");
    out.finish("OwnershipControls")
}

/// Returns AWS's default for a new bucket, which holds for every bucket here: unsigned requests are
/// refused.
fn public_access_block() -> String {
    let mut out = Xml::new("PublicAccessBlockConfiguration");
    for tag in ["BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"] {
        out.value(tag, true);
    }
    out.finish("PublicAccessBlockConfiguration")
}

fn document(root: &str) -> super::response::S3Response {
    xml(Xml::new(root).finish(root))
}

/// Returns the ACL of every bucket and object: full control for the owner, no other grant.
fn private_acl(owner: &str) -> String {
    let mut out = Xml::new("AccessControlPolicy");
    write_owner(&mut out, "Owner", owner);
    out.open("AccessControlList").open("Grant");
    out.open("Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\"");
    out.text("ID", owner).text("DisplayName", "mlgw").close("Grantee");
    out.text("Permission", "FULL_CONTROL").close("Grant").close("AccessControlList");
    out.finish("AccessControlPolicy")
}
