//! Arguments that are words of an enumeration of the admin API or of the policy language. Help, errors and
//! shell completion list the words. Pure.

use clap::builder::{PossibleValuesParser, TypedValueParser};

/// Returns a parser of the values of `all` by their words.
pub(super) fn word_of<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    word: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(|value| word(*value))).try_map(move |given| {
        let value = all.iter().copied().find(|value| word(*value) == given);
        value.ok_or("not one of the words")
    })
}

#[cfg(test)]
mod tests {
    use super::word_of;
    use clap::{Arg, Command};
    use mlgw_api::BindingMode;

    #[test]
    fn an_argument_is_one_of_the_words() {
        let command = || {
            let mode = Arg::new("mode").value_parser(word_of(BindingMode::ALL, BindingMode::name));
            Command::new("test").arg(mode)
        };
        for value in BindingMode::ALL {
            let parsed = command().try_get_matches_from(["test", value.name()]).unwrap();
            assert_eq!(parsed.get_one("mode"), Some(value));
        }
        let refused = command().try_get_matches_from(["test", "sideways"]).unwrap_err().to_string();
        assert!(refused.contains("[possible values: read-through, write-through, write-back]"), "{refused}");
    }
}
