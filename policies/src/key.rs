//! The parts of a key: its folder, its name, and how that ends.
//!
//! Each access asks for them, so they are found byte by byte from behind: for names, which are short, that is
//! several times faster than a search of text.

/// The folder with its slash, or nothing, and the name.
#[must_use]
pub(crate) fn split(key: &str) -> (&str, &str) {
    key.split_at(name_at(key))
}

/// Where the name begins.
#[must_use]
pub(crate) fn name_at(key: &str) -> usize {
    last(key, b'/').map_or(0, |slash| slash + 1)
}

/// What follows the last slash.
#[must_use]
pub(crate) fn name_of(key: &str) -> &str {
    split(key).1
}

/// What is before the last dot, and what follows it, if there is one.
#[must_use]
pub(crate) fn at_dot(name: &str) -> Option<(&str, &str)> {
    let dot = last(name, b'.')?;
    Some((&name[..dot], &name[dot + 1..]))
}

/// What follows the last dot, or nothing.
#[must_use]
pub(crate) fn ending(name: &str) -> &str {
    at_dot(name).map_or("", |(_, ending)| ending)
}

/// Where the last of a letter is, which is of ASCII: no part of another one is like it.
fn last(text: &str, letter: u8) -> Option<usize> {
    text.bytes().rposition(|byte| byte == letter)
}

#[cfg(test)]
mod tests {
    use super::{at_dot, ending, name_at, name_of, split};
    use proptest::{prop_assert_eq, proptest};

    proptest! {
        #[test]
        fn parts_are_those_that_a_search_finds(key in "[a/.é]{0,8}") {
            let folder = key.rfind('/').map_or(0, |slash| slash + 1);
            prop_assert_eq!((name_at(&key), split(&key)), (folder, key.split_at(folder)));
            prop_assert_eq!(name_of(&key), key.rsplit('/').next().unwrap());
            prop_assert_eq!(at_dot(&key), key.rsplit_once('.'));
            prop_assert_eq!(ending(&key), key.rsplit_once('.').map_or("", |(_, ending)| ending));
        }
    }
}
