//! Key layouts of a dataset.

use mlgw_policies::stable_hash::mix;
use std::fmt;

#[derive(Clone, Copy)]
pub(super) enum KeyLayout {
    /// All keys in one directory.
    Flat,
    /// A directory for each class.
    Classes,
    /// Directories named after the first digits of a hash, which is the name of the object.
    Hashed,
    /// A directory for each day.
    Dated,
}

impl KeyLayout {
    pub(super) const ALL: [Self; 4] = [Self::Flat, Self::Classes, Self::Hashed, Self::Dated];
}

/// Name of an object. In every layout names are in the order of object numbers.
pub(super) struct GeneratedKeyName<'a> {
    pub(super) set: &'a str,
    pub(super) layout: KeyLayout,
    pub(super) object: u32,
    pub(super) count: u32,
}

impl fmt::Display for GeneratedKeyName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { set, layout, object, count } = *self;
        match layout {
            KeyLayout::Flat => write!(f, "{set}/images/img_{object:07}.jpg"),
            KeyLayout::Classes => {
                write!(f, "{set}/train/class_{:03}/{object:07}.png", object / count.div_ceil(20).max(1))
            }
            KeyLayout::Hashed => {
                let step = u64::MAX / u64::from(count);
                let hash = u64::from(object) * step + mix(u64::from(object)) % step;
                write!(f, "{set}/{:02x}/{hash:016x}", hash >> 56)
            }
            KeyLayout::Dated => {
                let day = object / count.div_ceil(56).max(1);
                let (month, day) = (day / 28 + 1, day % 28 + 1);
                write!(f, "{set}/year=2026/month={month:02}/day={day:02}/part-{object:05}.parquet")
            }
        }
    }
}
