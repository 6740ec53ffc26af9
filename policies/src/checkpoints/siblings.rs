//! Sibling runs: runs that may be parts of one, judged by their names.
//!
//! Invariants: runs whose names differ only in numbers are siblings, so ranks are siblings under any name.
//! The relation is symmetric.

/// True if two runs may be parts of one: their names differ in numbers, and between slashes in nothing else
/// or in one word or name, which may occur several times (`actor/actor_epoch_5.pth` and
/// `critic/critic_epoch_5.pth`).
pub(super) fn are_siblings(one: &str, other: &str) -> bool {
    if one.matches('/').count() != other.matches('/').count() {
        return false;
    }
    let parts = one.split('/').zip(other.split('/'));
    let mut differ = parts.filter(|(one, other)| !without_numbers(one).eq(without_numbers(other)));
    let Some((one, other)) = differ.next() else { return true };
    // `G` and `D` of `netG` and `netD`, or the word `ema` in one of the two.
    let (by_letter, by_word) = (differing(one, other, letters), differing(one, other, words));
    differ.all(|(one, other)| {
        differing(one, other, letters) == by_letter || differing(one, other, words) == by_word
    })
}

/// Returns the differing parts of two names: everything between their common beginning and end.
fn differing<T: PartialEq>(one: &str, other: &str, split: fn(&str) -> Vec<T>) -> [Vec<T>; 2] {
    let (mut one, mut other) = (split(one), split(other));
    let begin = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
    (one, other) = (one.split_off(begin), other.split_off(begin));
    let end = one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count();
    one.truncate(one.len() - end);
    other.truncate(other.len() - end);
    [one, other]
}

/// Returns the letters of a name without numbers, in lower case.
fn letters(name: &str) -> Vec<char> {
    without_numbers(name).flat_map(char::to_lowercase).collect()
}

/// Returns the words of a name and the separators between them.
fn words(name: &str) -> Vec<String> {
    let letters: String = letters(name).into_iter().collect();
    letters.split(|letter: char| !letter.is_alphabetic()).map(str::to_owned).collect()
}

/// Returns the characters of a name, with one `#` for each run of digits.
fn without_numbers(name: &str) -> impl Iterator<Item = char> + '_ {
    let mut was_digit = false;
    name.chars().filter_map(move |letter| {
        let is_digit = letter.is_ascii_digit() || letter == '#';
        let is_more = is_digit && was_digit;
        was_digit = is_digit;
        (!is_more).then_some(if is_digit { '#' } else { letter })
    })
}
