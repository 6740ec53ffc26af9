//! Definition of enumerations: closed lists of values, each with its word and its meaning. Pure: no I/O.

/// Defines an enumeration whose values have words. The first token selects the rest of its interface:
///
/// - `[serde]`: the words are the serialized form;
/// - `[schema]`: also a JSON schema;
/// - `[TRAIT]`: no serialized form, and `TRAIT` in place of inherent items: `ALL`, `WORDS`, `name` and `doc`.
#[macro_export]
macro_rules! words {
    (
        [serde] $(#[$doc:meta])+
        $Name:ident { $($(#[doc = $word_doc:literal])+ $Word:ident = $word:literal,)+ }
    ) => {
        $(#[$doc])+
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
        )]
        pub enum $Name {
            $($(#[doc = $word_doc])+ #[serde(rename = $word)] $Word,)+
        }

        $crate::words! { @methods $Name { $($Word = $word,)+ } }
    };
    (
        [schema] $(#[$doc:meta])+
        $Name:ident { $($(#[doc = $word_doc:literal])+ $Word:ident = $word:literal,)+ }
    ) => {
        $(#[$doc])+
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        pub enum $Name {
            $($(#[doc = $word_doc])+ #[serde(rename = $word)] $Word,)+
        }

        $crate::words! { @methods $Name { $($Word = $word,)+ } }
    };
    (
        [$Words:path] $(#[$doc:meta])+
        $Name:ident { $($(#[doc = $word_doc:literal])+ $Word:ident = $word:literal,)+ }
    ) => {
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $Name {
            $($(#[doc = $word_doc])+ $Word,)+
        }

        impl $Words for $Name {
            const ALL: &'static [Self] = &[$(Self::$Word),+];
            const WORDS: &'static [&'static str] = &[$($word),+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$Word => $word,)+
                }
            }

            fn doc(self) -> &'static str {
                match self {
                    $(Self::$Word => concat!($($word_doc),+).trim_ascii(),)+
                }
            }
        }

        $crate::words! { @display $Name { $($Word = $word,)+ } }
    };
    (@methods $Name:ident { $($Word:ident = $word:literal,)+ }) => {
        impl $Name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$Word),+];

            /// Returns the word of the value.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Word => $word,)+
                }
            }

            /// Returns the value with this word.
            #[must_use]
            pub fn of(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == word)
            }
        }

        $crate::words! { @display $Name { $($Word = $word,)+ } }
    };
    (@display $Name:ident { $($Word:ident = $word:literal,)+ }) => {
        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self {
                    $(Self::$Word => $word,)+
                })
            }
        }
    };
}

#[cfg(test)]
#[expect(unreachable_pub, reason = "the macro defines public items")]
mod tests {
    /// Interface of a list of words with meanings.
    trait SampleList: Sized + 'static {
        const ALL: &'static [Self];
        const WORDS: &'static [&'static str];
        fn name(self) -> &'static str;
        fn doc(self) -> &'static str;
    }

    words! {
        [SampleList]
        /// A list with meanings.
        SampleMeanings {
            /// The first,
            /// on two lines.
            One = "one",
        }
    }

    words! {
        [schema]
        /// A list of two words.
        SampleWords {
            /// The first.
            One = "one",
            /// The second.
            Other = "the-other",
        }
    }

    #[test]
    fn a_word_is_the_text_the_name_and_the_json_of_its_value() {
        assert_eq!(SampleWords::ALL, [SampleWords::One, SampleWords::Other]);
        for one in SampleWords::ALL.iter().copied() {
            assert_eq!(SampleWords::of(one.name()), Some(one));
            assert_eq!(serde_json::to_value(one).unwrap(), one.name());
            assert_eq!(format!("{one:>10}"), format!("{:>10}", one.name()));
        }
        assert_eq!(SampleWords::of("two"), None);
        assert_eq!((SampleMeanings::ALL, SampleMeanings::WORDS), (&[SampleMeanings::One][..], &["one"][..]));
        assert_eq!(SampleMeanings::One.name(), SampleMeanings::One.to_string());
        assert_eq!(SampleMeanings::One.doc(), "The first, on two lines.");
    }
}
