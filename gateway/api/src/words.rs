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
