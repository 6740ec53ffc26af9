//! One failing call each.
