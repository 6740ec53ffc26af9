//! Definition of enumerations whose values are words in JSON. Pure: no I/O.

/// Defines an enumeration whose values are words in JSON. The first value is the default.
macro_rules! words {
    ($(#[$doc:meta])+ $Name:ident $words:tt) => {
        mlgw_common::words! { [schema] $(#[$doc])+ $Name $words }

        impl Default for $Name {
            fn default() -> Self {
                Self::ALL[0]
            }
        }
    };
}
pub(crate) use words;
