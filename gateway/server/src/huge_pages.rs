//! Transparent huge pages are off in the server: with them a few bytes in each of many regions of 2 MiB cost
//! the memory of the whole regions (docs/decisions/2026-11-30-huge-pages.md).

/// Turns huge pages off for the memory that this process uses from now on. A kernel without this call keeps
/// its own setting.
pub(crate) fn turn_off() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::warn!(%error, "cannot disable transparent huge pages; the server may run out of memory");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn huge_pages_are_off_afterwards() {
        super::turn_off();
        assert_eq!(rustix::thread::transparent_huge_pages_are_disabled(), Ok(true));
    }
}
