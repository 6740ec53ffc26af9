//! The table of S3's error codes: AWS's name, HTTP status and default message, one row each.

use http::StatusCode;

macro_rules! codes {
    ($($code:ident: $status:ident $message:literal,)*) => {
        /// An error code of the S3 API, under the name AWS gives it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "AWS's names; the message of each row describes it")]
        pub enum Code {
            $($code,)*
        }

        impl Code {
            /// All codes, in the order of the table.
            pub const ALL: &[Code] = &[$(Code::$code,)*];

            /// Returns the code with this name.
            #[must_use]
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|code| code.as_str() == name)
            }

            /// Returns the code as written in the XML.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$code => stringify!($code),)* }
            }

            /// Returns the status of a response with this code.
            #[must_use]
            pub const fn status(self) -> StatusCode {
                match self { $(Code::$code => StatusCode::$status,)* }
            }

            /// Returns the default message of the code.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self { $(Code::$code => $message,)* }
            }
        }
    };
}

#[rustfmt::skip]
codes! {
    AccessDenied: FORBIDDEN "Access Denied",
    AccessForbidden: FORBIDDEN "CORSResponse: CORS is not enabled for this bucket.",
    AuthorizationHeaderMalformed: BAD_REQUEST "The authorization header that you provided is not valid.",
    AuthorizationQueryParametersError: BAD_REQUEST "The authorization query parameters that you provided are \
        not valid.",
    BadDigest: BAD_REQUEST "The Content-MD5 or checksum value that you specified did not match what the \
        server received.",
    BadRequest: BAD_REQUEST "The request is not valid.",
    BucketAlreadyExists: CONFLICT "The requested bucket name is not available. Select a different name and \
        try again.",
    BucketAlreadyOwnedByYou: CONFLICT "Your previous request to create the named bucket succeeded and you \
        already own it.",
    BucketNotEmpty: CONFLICT "The bucket you tried to delete is not empty.",
    ConditionalRequestConflict: CONFLICT "The conditional request cannot succeed due to a conflicting \
        operation against this resource.",
    EntityTooLarge: BAD_REQUEST "Your proposed upload exceeds the maximum allowed size.",
    EntityTooSmall: BAD_REQUEST "Your proposed upload is smaller than the minimum allowed size.",
    ExpiredToken: BAD_REQUEST "The provided token has expired.",
    IllegalLocationConstraintException: BAD_REQUEST "The specified location constraint is incompatible with \
        the region this request was sent to.",
    IncompleteBody: BAD_REQUEST "You did not provide the number of bytes specified by the Content-Length \
        HTTP header.",
    IncorrectNumberOfFilesInPostRequest: BAD_REQUEST "POST requires exactly one file upload per request.",
    InsufficientStorage: INSUFFICIENT_STORAGE "The server does not have enough free space to store the \
        object.",
    InternalError: INTERNAL_SERVER_ERROR "We encountered an internal error. Please try again.",
    InvalidAccessKeyId: FORBIDDEN "The access key ID that you provided does not exist in our records.",
    InvalidArgument: BAD_REQUEST "Invalid Argument",
    InvalidBucketName: BAD_REQUEST "The specified bucket is not valid.",
    InvalidBucketState: CONFLICT "The request is not valid for the current state of the bucket.",
    InvalidDigest: BAD_REQUEST "The Content-MD5 or checksum value that you specified is not valid.",
    InvalidEncryptionAlgorithmError: BAD_REQUEST "The encryption request that you specified is not valid.",
    InvalidLocationConstraint: BAD_REQUEST "The specified location constraint is not valid.",
    InvalidObjectState: FORBIDDEN "The operation is not valid for the current state of the object.",
    InvalidPart: BAD_REQUEST "One or more of the specified parts could not be found. \
        The part might not have been uploaded, or the specified entity tag might not have matched the part's \
        entity tag.",
    InvalidPartNumber: RANGE_NOT_SATISFIABLE "The requested partnumber is not satisfiable.",
    InvalidPartOrder: BAD_REQUEST "The list of parts was not in ascending order. \
        The parts list must be specified in order by part number.",
    InvalidPolicyDocument: BAD_REQUEST "The content of the form does not meet the conditions specified in \
        the policy document.",
    InvalidRange: RANGE_NOT_SATISFIABLE "The requested range is not satisfiable",
    InvalidRequest: BAD_REQUEST "The request is not valid.",
    InvalidStorageClass: BAD_REQUEST "The storage class that you specified is not valid.",
    InvalidTag: BAD_REQUEST "Your request contains tag input that is not valid.",
    InvalidToken: BAD_REQUEST "The provided token is malformed or otherwise not valid.",
    InvalidURI: BAD_REQUEST "Couldn't parse the specified URI.",
    KeyTooLongError: BAD_REQUEST "Your key is too long.",
    MalformedACLError: BAD_REQUEST "The ACL that you provided was not well formed or did not validate \
        against our published schema.",
    MalformedPOSTRequest: BAD_REQUEST "The body of your POST request is not well-formed multipart/form-data.",
    MalformedTrailerError: BAD_REQUEST "The request contained trailing data that was not well-formed or did \
        not conform to our published schema.",
    MalformedXML: BAD_REQUEST "The XML that you provided was not well formed or did not validate against our \
        published schema.",
    MaxMessageLengthExceeded: BAD_REQUEST "Your request was too large.",
    MaxPostPreDataLengthExceeded: BAD_REQUEST "Your POST request fields preceding the upload file were too \
        large.",
    MetadataTooLarge: BAD_REQUEST "Your metadata headers exceed the maximum allowed metadata size.",
    MethodNotAllowed: METHOD_NOT_ALLOWED "The specified method is not allowed against this resource.",
    MissingContentLength: LENGTH_REQUIRED "You must provide the Content-Length HTTP header.",
    MissingFields: BAD_REQUEST "You have not specified all the fields that the request needs.",
    MissingRequestBodyError: BAD_REQUEST "Request body is empty.",
    NoSuchBucket: NOT_FOUND "The specified bucket does not exist",
    NoSuchBucketPolicy: NOT_FOUND "The bucket policy does not exist",
    NoSuchCORSConfiguration: NOT_FOUND "The CORS configuration does not exist",
    NoSuchConfiguration: NOT_FOUND "The specified configuration does not exist.",
    NoSuchKey: NOT_FOUND "The specified key does not exist.",
    NoSuchLifecycleConfiguration: NOT_FOUND "The lifecycle configuration does not exist",
    NoSuchObjectLockConfiguration: NOT_FOUND "The specified object does not have a ObjectLock configuration",
    NoSuchPublicAccessBlockConfiguration: NOT_FOUND "The public access block configuration was not found",
    NoSuchTagSet: NOT_FOUND "The TagSet does not exist",
    NoSuchUpload: NOT_FOUND "The specified upload does not exist. The upload ID may be invalid, \
        or the upload may have been aborted or completed.",
    NoSuchVersion: NOT_FOUND "The specified version does not exist.",
    NoSuchWebsiteConfiguration: NOT_FOUND "The specified bucket does not have a website configuration",
    NotImplemented: NOT_IMPLEMENTED "A header or operation that you provided implies functionality that is \
        not implemented.",
    NotModified: NOT_MODIFIED "The resource was not modified.",
    ObjectLockConfigurationNotFoundError: NOT_FOUND "Object Lock configuration does not exist for this \
        bucket",
    OperationAborted: CONFLICT "A conflicting conditional operation is currently in progress against this \
        resource. Try again.",
    OwnershipControlsNotFoundError: NOT_FOUND "The bucket ownership controls were not found",
    PermanentRedirect: MOVED_PERMANENTLY "The bucket you are attempting to access must be addressed using \
        the specified endpoint.",
    PreconditionFailed: PRECONDITION_FAILED "At least one of the pre-conditions you specified did not hold",
    QuotaExceeded: FORBIDDEN "The request would exceed a quota.",
    ReplicationConfigurationNotFoundError: NOT_FOUND "The replication configuration was not found",
    RequestHeaderSectionTooLarge: BAD_REQUEST "The request header and query parameters used to make the \
        request exceed the maximum allowed size.",
    RequestTimeTooSkewed: FORBIDDEN "The difference between the request time and the current time is too \
        large.",
    RequestTimeout: BAD_REQUEST "Your socket connection to the server was not read from or written to within \
        the timeout period.",
    ServerSideEncryptionConfigurationNotFoundError: NOT_FOUND "The server side encryption configuration was \
        not found",
    ServiceUnavailable: SERVICE_UNAVAILABLE "Service is unable to handle request.",
    SignatureDoesNotMatch: FORBIDDEN "The request signature we calculated does not match the signature you \
        provided. Check your key and signing method.",
    SlowDown: SERVICE_UNAVAILABLE "Please reduce your request rate.",
    TooManyBuckets: BAD_REQUEST "You have attempted to create more buckets than are allowed.",
    UnexpectedContent: BAD_REQUEST "This request contains unsupported content.",
    UserKeyMustBeSpecified: BAD_REQUEST "The bucket POST must contain the specified field name. \
        If it is specified, check the order of the fields.",
    XAmzContentSHA256Mismatch: BAD_REQUEST "The provided 'x-amz-content-sha256' header does not match what \
        was computed.",
}

#[cfg(test)]
mod tests {
    use super::Code;
    use http::StatusCode;

    #[test]
    fn every_code_has_a_message_and_an_error_status() {
        for code in Code::ALL {
            assert!(!code.message().is_empty(), "{}", code.as_str());
            let status = code.status();
            let redirection = matches!(code, Code::NotModified | Code::PermanentRedirect);
            assert_eq!(status.is_redirection(), redirection, "{}", code.as_str());
            assert!(redirection || status.is_client_error() || status.is_server_error());
        }
    }

    #[test]
    fn the_statuses_that_clients_act_upon() {
        for (code, status) in [
            (Code::PreconditionFailed, StatusCode::PRECONDITION_FAILED),
            (Code::ConditionalRequestConflict, StatusCode::CONFLICT),
            (Code::InvalidRange, StatusCode::RANGE_NOT_SATISFIABLE),
            (Code::MissingContentLength, StatusCode::LENGTH_REQUIRED),
            (Code::SlowDown, StatusCode::SERVICE_UNAVAILABLE),
            (Code::InsufficientStorage, StatusCode::INSUFFICIENT_STORAGE),
            (Code::NotImplemented, StatusCode::NOT_IMPLEMENTED),
            (Code::QuotaExceeded, StatusCode::FORBIDDEN),
            (Code::RequestTimeTooSkewed, StatusCode::FORBIDDEN),
        ] {
            assert_eq!(code.status(), status, "{}", code.as_str());
        }
    }
}
