//! The words that decisions are told in: closed, so that every reader knows all of them.

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[doc = $doc:literal])+ $Name:ident { $($(#[doc = $word_doc:literal])+ $Word:ident = $word:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $Name {
            $($(#[doc = $word_doc])+ #[serde(rename = $word)] $Word,)+
        }

        impl $Name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$Word),+];

            /// Its word.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Word => $word,)+
                }
            }

            /// The one of that word.
            #[must_use]
            pub fn of(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == word)
            }
        }
    };
}

words! {
    /// What was decided to do.
    Kind {
        /// Move the truth down, a segment at a time.
        Spill = "spill",
        /// Bring it up.
        Promote = "promote",
        /// Append what lives in a segment elsewhere in its tier.
        Relocate = "relocate",
        /// Store objects compressed that were stored as they came.
        Compress = "compress",
        /// Remove a segment that nothing refers to.
        Release = "release",
        /// Keep a clean copy of what was fetched.
        Keep = "keep",
        /// Let go of clean copies, to make room or by a job.
        Evict = "evict",
        /// Let go of every clean copy of a dataset.
        Clear = "clear",
        /// Delete the objects of a checkpoint that no rule keeps.
        Delete = "delete",
        /// Import an object of an upstream.
        Import = "import",
        /// Send what was written back to its origin.
        Persist = "persist",
        /// Move an object of a bound bucket to another origin.
        Migrate = "migrate",
    }
}

words! {
    /// Where bytes are.
    Place {
        /// Segments on the local disk.
        Hot = "hot",
        /// Segments on slower disks.
        Cold = "cold",
        /// Segments in object stores.
        Upstream = "upstream",
        /// Clean copies of what bound buckets front.
        Copies = "copies",
        /// Buckets of others.
        Origin = "origin",
        /// Nowhere: what is let go of.
        Nowhere = "-",
    }
}

words! {
    /// Why it was decided.
    Reason {
        /// A tier is fuller than it should be.
        Watermark = "watermark",
        /// Somebody drains a tier.
        Drain = "drain",
        /// Enough of a segment is dead.
        Compaction = "compaction",
        /// Somebody asked for it now.
        Asked = "asked",
        /// Writes are refused for want of space, or soon would be.
        Pressure = "pressure",
        /// Nothing refers to it.
        Dead = "dead",
        /// It is read so much that it stays where reads are fast.
        Heat = "heat",
        /// It is pinned.
        Pin = "pin",
        /// Somebody read it.
        Read = "read",
        /// A job of a dataset.
        Job = "job",
        /// The bucket is written back.
        WriteBack = "write_back",
        /// The policy engine weighed it against the others.
        Policy = "policy",
        /// A rule of the policy says so.
        Rule = "rule",
    }
}

words! {
    /// What came of it.
    Outcome {
        /// It was done.
        Done = "done",
        /// Not now: there is no room where it should go.
        NoRoom = "no_room",
        /// Not now: the budget is used up.
        OverBudget = "over_budget",
        /// Not at all: it does not verify and is left for repair.
        Damaged = "damaged",
        /// Not at all: somebody else has changed it, and has to decide.
        Foreign = "foreign",
        /// It failed; it is tried again, unless a person is needed.
        Failed = "failed",
    }
}
