//! Parts of an object key: folder, name and file extension.
//!
//! Every access computes them, so they are found byte by byte from the end: for names, which are short, this
//! is several times faster than a text search.

/// Splits a key into its folder (with the trailing slash, or empty) and its name.
#[must_use]
pub(crate) fn split(key: &str) -> (&str, &str) {
    key.split_at(name_at(key))
}

/// Returns the byte offset at which the name begins.
#[must_use]
pub(crate) fn name_at(key: &str) -> usize {
    last_position(key, b'/').map_or(0, |slash| slash + 1)
}

/// Returns the part after the last slash.
#[must_use]
pub(crate) fn name_of(key: &str) -> &str {
    split(key).1
}

/// Splits a name at its last dot; `None` without a dot.
#[must_use]
pub(crate) fn split_at_last_dot(name: &str) -> Option<(&str, &str)> {
    let dot = last_position(name, b'.')?;
    Some((&name[..dot], &name[dot + 1..]))
}

/// Returns the part after the last dot, or an empty string.
#[must_use]
pub(crate) fn extension(name: &str) -> &str {
    split_at_last_dot(name).map_or("", |(_, ending)| ending)
}

/// Returns the position of the last occurrence of an ASCII byte. No part of a multi-byte UTF-8 character
/// equals an ASCII byte.
fn last_position(text: &str, letter: u8) -> Option<usize> {
    text.bytes().rposition(|byte| byte == letter)
}

#[cfg(test)]
mod tests {
    use super::{extension, name_at, name_of, split, split_at_last_dot};
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn parts_equal_those_of_a_text_search(key in "[a/.é]{0,8}") {
            let folder = key.rfind('/').map_or(0, |slash| slash + 1);
            prop_assert_eq!((name_at(&key), split(&key)), (folder, key.split_at(folder)));
            prop_assert_eq!(name_of(&key), key.rsplit('/').next().unwrap());
            prop_assert_eq!(split_at_last_dot(&key), key.rsplit_once('.'));
            prop_assert_eq!(extension(&key), key.rsplit_once('.').map_or("", |(_, ending)| ending));
        }
    }
}
