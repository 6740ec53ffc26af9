//! The order of one epoch, and which of a key's places in it is the next.

/// No place.
pub(super) const NOWHERE: u32 = u32::MAX;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lap {
    /// The keys, in order.
    order: Vec<u32>,
    /// By place: where the same key is again. Empty when no key is twice.
    again: Vec<u32>,
    /// By key: its first place that has not been read.
    upcoming: Vec<u32>,
}

impl Lap {
    /// An order of keys, of which there are so many.
    pub(super) fn new(mut order: Vec<u32>, keys: u32) -> Self {
        // Samples of one object that are read one behind the other are one read of it.
        order.dedup();
        let mut upcoming = vec![NOWHERE; keys as usize];
        let mut again = Vec::new();
        for (place, key) in order.iter().enumerate().rev() {
            let next = std::mem::replace(&mut upcoming[*key as usize], place as u32);
            if next != NOWHERE {
                again.resize(order.len(), NOWHERE);
                again[place] = next;
            }
        }
        order.shrink_to_fit();
        Self { order, again, upcoming }
    }

    pub(super) fn len(&self) -> u32 {
        self.order.len() as u32
    }

    /// The key at a place.
    pub(super) fn key(&self, place: u32) -> Option<u32> {
        self.order.get(place as usize).copied()
    }

    /// The next place of a key that is not before `from`; those before are not read any more.
    pub(super) fn upcoming(&mut self, key: u32, from: u32) -> Option<u32> {
        let mut place = self.upcoming[key as usize];
        while place < from {
            place = self.again.get(place as usize).copied().unwrap_or(NOWHERE);
        }
        self.upcoming[key as usize] = place;
        (place != NOWHERE).then_some(place)
    }

    /// A key has been read at its next place.
    pub(super) fn read(&mut self, key: u32) {
        let place = self.upcoming[key as usize];
        self.upcoming[key as usize] = self.again.get(place as usize).copied().unwrap_or(NOWHERE);
    }
}

#[cfg(test)]
mod tests {
    use super::Lap;

    #[test]
    fn places_of_a_key_come_one_after_the_other() {
        let mut lap = Lap::new(vec![1, 1, 0, 1, 2, 0, 1], 4);
        assert_eq!((lap.len(), lap.key(0), lap.key(1), lap.key(6)), (6, Some(1), Some(0), None));
        assert_eq!((lap.upcoming(1, 0), lap.upcoming(3, 0)), (Some(0), None));
        lap.read(1);
        assert_eq!(lap.upcoming(1, 0), Some(2));
        assert_eq!(lap.upcoming(1, 3), Some(5), "what was passed over does not come");
        lap.read(1);
        assert_eq!((lap.upcoming(1, 0), lap.upcoming(2, 0)), (None, Some(3)));
    }
}
