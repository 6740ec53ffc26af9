//! Random bytes from the operating system.

/// The operating system returned no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system returned no random bytes: {0}")]
pub struct RandomError(getrandom::Error);

/// Returns fresh random bytes.
///
/// # Errors
/// If the operating system returns none.
pub fn random<const N: usize>() -> Result<[u8; N], RandomError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(RandomError)?;
    Ok(bytes)
}
