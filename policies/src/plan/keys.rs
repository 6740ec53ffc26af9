//! Keys of a plan, with their texts in one buffer, so that a million keys take two allocations.

use super::{InvalidAccessPlan, KEYS_MAX, TEXT_BYTES_MAX};
use std::collections::HashMap;

/// Keys by number, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanKeys {
    text: String,
    /// End of each key in `text`.
    ends: Vec<u32>,
}

impl PlanKeys {
    /// Returns the distinct keys of a list, and the list as their numbers, which is empty if no key is in the
    /// list twice.
    pub(super) fn from_list<'a>(
        listed: impl IntoIterator<Item = &'a str>,
    ) -> Result<(Self, Vec<u32>), InvalidAccessPlan> {
        let mut keys = Self::default();
        let mut list = Vec::new();
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        for key in listed {
            if list.len() == KEYS_MAX {
                return Err(InvalidAccessPlan::TooManyKeys);
            }
            let next = keys.len();
            let number = *numbers.entry(key).or_insert(next);
            if number == next {
                keys.push(key)?;
            }
            list.push(number);
        }
        if list.len() == keys.ends.len() {
            list = Vec::new();
        }
        keys.text.shrink_to_fit();
        keys.ends.shrink_to_fit();
        Ok((keys, list))
    }

    pub(super) fn push(&mut self, key: &str) -> Result<(), InvalidAccessPlan> {
        if self.text.len() + key.len() > TEXT_BYTES_MAX {
            return Err(InvalidAccessPlan::TooLong);
        }
        self.text.push_str(key);
        self.ends.push(self.text.len() as u32);
        Ok(())
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.ends.len() as u32
    }

    /// True if there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the key with this number; none if there is no such key.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&str> {
        let at = number as usize;
        let begin = if at == 0 { 0 } else { *self.ends.get(at - 1)? };
        self.text.get(begin as usize..*self.ends.get(at)? as usize)
    }

    /// Returns all keys in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|number| self.get(number))
    }

    /// Returns the bytes of memory of the keys.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<u32>()
    }
}
