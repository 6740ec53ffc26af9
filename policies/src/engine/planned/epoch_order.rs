//! Order of one epoch, with the next position of each key in it.

/// No position.
pub(super) const NO_POSITION: u32 = u32::MAX;

/// Order of one epoch; see the module.
#[derive(Debug, Default)]
pub(super) struct EpochOrder {
    /// Keys in order.
    order: Vec<u32>,
    /// By position: the next position of the same key. Empty if no key occurs twice.
    next_same: Vec<u32>,
    /// By key: its first position that has not been read.
    upcoming: Vec<u32>,
}

impl EpochOrder {
    /// Returns the epoch with this order of `keys` keys.
    pub(super) fn new(mut order: Vec<u32>, keys: u32) -> Self {
        // Successive samples in one object are one read of it.
        order.dedup();
        assert!(order.len() < NO_POSITION as usize, "positions are numbers of 32 bits");
        let mut upcoming = vec![NO_POSITION; keys as usize];
        let mut again = Vec::new();
        for (place, key) in order.iter().enumerate().rev() {
            let next = std::mem::replace(&mut upcoming[*key as usize], place as u32);
            if next != NO_POSITION {
                again.resize(order.len(), NO_POSITION);
                again[place] = next;
            }
        }
        order.shrink_to_fit();
        Self { order, next_same: again, upcoming }
    }

    pub(super) fn len(&self) -> u32 {
        self.order.len() as u32
    }

    /// Returns the key at a position.
    pub(super) fn key(&self, place: u32) -> Option<u32> {
        self.order.get(place as usize).copied()
    }

    /// Returns the next position of a key that is not before `from`; earlier positions are skipped
    /// permanently.
    pub(super) fn next_position(&mut self, key: u32, from: u32) -> Option<u32> {
        let mut place = self.upcoming[key as usize];
        while place < from {
            place = self.next_same.get(place as usize).copied().unwrap_or(NO_POSITION);
        }
        self.upcoming[key as usize] = place;
        (place != NO_POSITION).then_some(place)
    }

    /// Records that a key was read at its next position.
    pub(super) fn read(&mut self, key: u32) {
        let place = self.upcoming[key as usize];
        self.upcoming[key as usize] = self.next_same.get(place as usize).copied().unwrap_or(NO_POSITION);
    }
}

#[cfg(test)]
mod tests {
    use super::EpochOrder;

    #[test]
    fn positions_of_a_key_come_in_order() {
        let mut lap = EpochOrder::new(vec![1, 1, 0, 1, 2, 0, 1], 4);
        assert_eq!((lap.len(), lap.key(0), lap.key(1), lap.key(6)), (6, Some(1), Some(0), None));
        assert_eq!((lap.next_position(1, 0), lap.next_position(3, 0)), (Some(0), None));
        lap.read(1);
        assert_eq!(lap.next_position(1, 0), Some(2));
        assert_eq!(lap.next_position(1, 3), Some(5), "skipped positions do not come back");
        lap.read(1);
        assert_eq!((lap.next_position(1, 0), lap.next_position(2, 0)), (None, Some(3)));
    }
}
