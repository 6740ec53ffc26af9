//! Boxed futures that are not moved.

use std::pin::Pin;

/// Returns the future of `make` in a box. Like `Box::pin`, but the box is allocated first. `Box::pin` makes
/// the future on the stack, because it has to drop it if the allocation fails, and copies all of its bytes:
/// for the largest futures that is a thirtieth of the instructions of a small PUT.
#[inline]
pub(crate) fn boxed_in_place<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}
