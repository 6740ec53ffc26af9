//! Definition of enumerations: closed lists of values, each with its word in JSON. Pure: no I/O.

/// Defines an enumeration whose values are words in JSON. The first value is the default.
macro_rules! words {
    (
        $(#[doc = $doc:literal])+
        $Name:ident { $($(#[doc = $word_doc:literal])+ $Word:ident = $word:literal,)+ }
    ) => {
        $(#[doc = $doc])+
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        pub enum $Name {
            $($(#[doc = $word_doc])+ #[serde(rename = $word)] $Word,)+
        }

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

        impl std::str::FromStr for $Name {
            type Err = $crate::UnknownWord;

            fn from_str(word: &str) -> Result<Self, $crate::UnknownWord> {
                let unknown = || $crate::UnknownWord::new(Self::ALL.iter().map(|one| one.name()));
                Self::of(word).ok_or_else(unknown)
            }
        }

        impl Default for $Name {
            fn default() -> Self {
                Self::ALL[0]
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
pub(crate) use words;

/// Error: the word is not that of a value. Names the expected words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord(String);

impl UnknownWord {
    pub(crate) fn new(expected: impl Iterator<Item = &'static str>) -> Self {
        Self(expected.collect::<Vec<_>>().join(", "))
    }
}

impl std::fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "expected one of {}", self.0)
    }
}

impl std::error::Error for UnknownWord {}
