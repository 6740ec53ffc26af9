//! Controls: with a class of syncs left out, the same tests must turn red.
