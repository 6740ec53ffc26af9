//! Cases of each rule.
