//! Signatures in every form: the `Authorization` header, presigned URLs, SigV2. Property: no request
//! without the secret is authenticated as a principal, whatever its head contains.

use crate::input::Input;
use crate::signing::verify;

/// The input: the head of a request.
pub fn run(data: &[u8]) {
    let Some(head) = Input(data).head() else { return };
    if let Ok(who) = verify(&head) {
        assert!(who.principal.is_none(), "nobody knows the secret: {head:?}");
    }
}
