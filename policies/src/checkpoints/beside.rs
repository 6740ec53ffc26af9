//! Runs beside each other: which of them may be parts of one, by what they are called.
//!
//! Always: two that differ in numbers only are, so that ranks are, whatever they are called; what is said of
//! one and the other is the same.

/// Whether two runs may be parts of one: their names differ in numbers, and of what is between slashes in
/// nothing else, or in one word or name, be it there several times (`actor/actor_epoch_5.pth` and
/// `critic/critic_epoch_5.pth`).
pub(super) fn are_beside(one: &str, other: &str) -> bool {
    if one.matches('/').count() != other.matches('/').count() {
        return false;
    }
    let parts = one.split('/').zip(other.split('/'));
    let mut differ = parts.filter(|(one, other)| !without_numbers(one).eq(without_numbers(other)));
    let Some(first) = differ.next() else { return true };
    // `G` and `D` of `netG` and `netD`, or the word `ema` that one has more.
    let (by_letter, by_word) = (differing(first, letters), differing(first, words));
    differ.all(|part| differing(part, letters) == by_letter || differing(part, words) == by_word)
}

/// Where two names differ: all between what they begin and end with alike.
fn differing<T: PartialEq>((one, other): (&str, &str), taken_apart: fn(&str) -> Vec<T>) -> [Vec<T>; 2] {
    let (mut one, mut other) = (taken_apart(one), taken_apart(other));
    let begin = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
    (one, other) = (one.split_off(begin), other.split_off(begin));
    let end = one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count();
    one.truncate(one.len() - end);
    other.truncate(other.len() - end);
    [one, other]
}

/// Those of a name without numbers, all small.
fn letters(name: &str) -> Vec<char> {
    without_numbers(name).flat_map(char::to_lowercase).collect()
}

/// Its words, and whatever stands between them.
fn words(name: &str) -> Vec<String> {
    let letters: String = letters(name).into_iter().collect();
    letters.split(|letter: char| !letter.is_alphabetic()).map(str::to_owned).collect()
}

/// The letters of a name, and one `#` for all digits that follow one another.
fn without_numbers(name: &str) -> impl Iterator<Item = char> + '_ {
    let mut was_digit = false;
    name.chars().filter_map(move |letter| {
        let is_digit = letter.is_ascii_digit() || letter == '#';
        let is_more = is_digit && was_digit;
        was_digit = is_digit;
        (!is_more).then_some(if is_digit { '#' } else { letter })
    })
}
