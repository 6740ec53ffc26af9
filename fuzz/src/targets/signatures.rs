//! Signatures, in every form: the `Authorization` header, presigned URLs, SigV2. Nobody who does not
//! have the secret is let in, whatever the head says.

use crate::input::Input;
use crate::signing::verify;

/// A request's head.
pub fn run(data: &[u8]) {
    let Some(head) = Input(data).head() else { return };
    if let Ok(who) = verify(&head) {
        assert!(who.principal.is_none(), "nobody knows the secret: {head:?}");
    }
}
