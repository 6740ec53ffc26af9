//! Tests: keys find their datasets, however many there are.

use super::super::table::DATASETS_MAX;
use super::{BuildPassThroughHasher, DatasetId, DatasetNames, OTHERS, mix_hash, pattern_of};
use proptest::collection::vec;
use proptest::{prop_assert_eq, proptest};
use std::collections::HashMap;

#[test]
fn names_that_differ_in_numbers_only_have_one_pattern() {
    assert_eq!(pattern_of("n01440764_10026.JPEG"), "n#_#.JPEG");
    assert_eq!(pattern_of("train-00001-of-01024.tfrecord"), "train-#-of-#.tfrecord");
    assert_eq!(pattern_of("validation-00001-of-00128.tfrecord"), "validation-#-of-#.tfrecord");
    assert_eq!(pattern_of("9f86d081884c7d65.bin"), "#.bin");
    assert_eq!(pattern_of("deadbeef"), "deadbeef");
    assert_eq!(pattern_of("model.safetensors"), "model.safetensors");
}

#[test]
fn a_folder_and_a_pattern_are_a_dataset() {
    let mut names = DatasetNames::new(1, DATASETS_MAX);
    let mut of = |key: &str| names.dataset(1, key);
    let train = of("d/train-1.tar");
    assert_eq!(of("d/train-22.tar"), train);
    assert_ne!(of("d/val-1.tar"), train);
    assert_ne!(of("e/train-1.tar"), train);
}

#[test]
fn a_united_dataset_keeps_its_number_when_its_folder_gets_many_children() {
    let mut names = DatasetNames::new(1, DATASETS_MAX);
    let mut of = |child: u32, join: bool| {
        let dataset = names.dataset(1, &format!("i/train/{child:03x}/1.jpg"));
        if join {
            let first = names.dataset(1, "i/train/000/1.jpg");
            names.join(first, dataset);
        }
        dataset
    };
    let first = of(0, false);
    assert_ne!(of(1, true), first);
    assert!((2..200).all(|child| of(child, false) == first));
    assert_eq!(names.name(first).folder, "i/train/");
    assert_eq!(names.dataset(1, "i/train/007/b/c/x.jpg"), first);
}

#[test]
fn a_folder_of_many_children_is_one_dataset_with_everything_below_it() {
    let mut names = DatasetNames::new(1, DATASETS_MAX);
    let train: Vec<u16> =
        (0..200).map(|class| names.dataset(1, &format!("i/train/c{class}x/a/1.jpg"))).collect();
    let val = names.dataset(1, "i/val/c1x/a/1.jpg");
    let whole = names.root(train[0]);
    assert!(train.iter().all(|part| names.root(*part) == whole), "{train:?}");
    assert_ne!(whole, train[0], "a merged dataset has a new number");
    assert_ne!(names.root(val), whole);
    assert_eq!(names.dataset(1, "i/train/c7x/b/c/1.jpg"), whole);
    assert_eq!(names.find(1, "i/train/never/seen/1.jpg"), Some(whole));
    assert_eq!(names.find(1, "i/val/c1x/a/2.jpg"), Some(names.root(val)));
    assert_eq!((names.find(1, "i/val/c1x/a/x"), names.find(2, "i/train/c7x/a/1.jpg")), (None, None));
    assert_eq!(names.name(whole).folder, "i/train/");
    assert_ne!(names.dataset(2, "i/train/c7x/a/1.jpg"), whole);
}

/// Returns a name that resembles no other in anything but numbers.
fn word(number: u32) -> String {
    (0..4).map(|place| (b'g' + (number / 16_u32.pow(place) % 16) as u8) as char).collect()
}

/// Names with a limit on numbers; the datasets to dissolve are chosen at random.
struct BoundedNames {
    names: DatasetNames,
    chance: u64,
}

impl BoundedNames {
    fn new(numbers_max: usize) -> Self {
        Self { names: DatasetNames::new(1, numbers_max), chance: 0 }
    }

    fn dataset(&mut self, bucket: u64, key: &str) -> DatasetId {
        if self.names.is_short() {
            let mut roots: Vec<u16> = self.names.roots().collect();
            self.chance += 1;
            roots.sort_by_key(|number| mix_hash(u64::from(*number) ^ self.chance << 32));
            roots.truncate(self.names.shortfall());
            roots.into_iter().for_each(|number| self.names.dissolve(number));
            self.names.reclaim_numbers();
        }
        let number = self.names.dataset(bucket, key);
        while self.names.pop_united().is_some() {}
        self.names.id(number)
    }

    /// Unites two datasets that are read one after the other.
    fn join(&mut self, one: DatasetId, other: DatasetId) {
        let (Some(one), Some(other)) = (self.names.current_number(one), self.names.current_number(other))
        else {
            return;
        };
        if one != other && self.names.are_alike(one, other) {
            self.names.join(one, other);
            while self.names.pop_united().is_some() {}
        }
    }

    /// Checks that the remembered dataset of a key is its current one or none, unless a whole folder became
    /// one dataset meanwhile.
    fn check(&self, bucket: u64, key: &str, id: DatasetId) {
        let Some(number) = self.names.current_number(id).filter(|number| *number != OTHERS) else { return };
        let found = self.names.find(bucket, key);
        let name = found.map(|found| self.names.name(found)).unwrap();
        assert!(found == Some(number) || name.pattern.is_empty(), "{key} {found:?} {number}");
        assert!(name.bucket == bucket && key.starts_with(&name.folder), "{key} {name:?}");
        let file = key.rsplit('/').next().unwrap();
        assert!(name.pattern.is_empty() || name.pattern == pattern_of(file), "{key} {name:?}");
    }
}

/// Returns keys in folders with many and few children, with many and few patterns, and with similar names.
fn key(kind: u32, number: u32) -> String {
    match kind {
        0 => format!("many/{}/x.bin", word(number)),
        1 => format!("flat/{}.bin", word(number)),
        2 => format!("runs/run-{}/day-{}/part.bin", number % 3, number),
        3 => format!("{}/part-{number}.bin", word(number)),
        4 => format!("day{number}/{}.bin", ["a", "b"][number as usize % 2]),
        _ => format!("deep/{}/{}/{number}.bin", word(number % 5), word(number)),
    }
}

proptest! {
    #[test]
    fn an_old_id_never_refers_to_another_dataset(
        steps in vec((0..6_u32, 0..100_u32, 0..3_u8), 1..800), numbers in 4..60_usize
    ) {
        let mut bounded = BoundedNames::new(numbers);
        let mut ids_by_key: HashMap<(u64, String), DatasetId> = HashMap::new();
        let mut last = DatasetId::default();
        for (kind, number, what) in steps {
            let (bucket, key) = (u64::from(number % 2), key(kind, number));
            let id = bounded.dataset(bucket, &key);
            if what == 0 {
                bounded.join(last, id);
            }
            last = id;
            ids_by_key.insert((bucket, key), id);
            bounded.names.check();
            ids_by_key.iter().for_each(|((bucket, key), id)| bounded.check(*bucket, key, *id));
        }
        // Every key that was found is found again after a new access.
        for (bucket, key) in ids_by_key.keys() {
            let id = bounded.dataset(*bucket, key);
            prop_assert_eq!(bounded.names.find(*bucket, key), bounded.names.current_number(id));
            prop_assert_eq!(bounded.names.name(id.number()).bucket, *bucket);
        }
    }
}

#[test]
fn memory_is_bounded_for_any_number_of_names() {
    let mut bounded = BoundedNames::new(DATASETS_MAX);
    let mut ids_by_key: HashMap<u64, (String, DatasetId), BuildPassThroughHasher> = HashMap::default();
    let mut last = [DatasetId::default(); 6];
    for number in 0..60_000 {
        for kind in 0..6 {
            let key = key(kind, number);
            let id = bounded.dataset(1, &key);
            // Days are read one after the other: those of a run, and those in the root.
            if matches!(kind, 2 | 4) {
                bounded.join(last[kind as usize], id);
            }
            last[kind as usize] = id;
            // Patterns without a common folder are not all remembered.
            if kind != 4 && number % 7 == 0 {
                ids_by_key.insert(u64::from(number % 700 * 6 + kind), (key, id));
            }
        }
        if number % 500 == 0 {
            bounded.names.check();
            ids_by_key.values().for_each(|(key, id)| bounded.check(1, key, *id));
        }
    }
    assert!(
        ids_by_key
            .values()
            .filter(|(_, id)| bounded.names.current_number(*id).is_some_and(|it| it != OTHERS))
            .count()
            > 100
    );
}

#[test]
fn a_dataset_of_more_folders_than_are_remembered_stays_one() {
    let mut bounded = BoundedNames::new(DATASETS_MAX);
    let mut whole = DatasetId::default();
    for number in 0..50_000 {
        let id = bounded.dataset(1, &format!("many/{}/1.jpg", word(number)));
        if number == 100 {
            whole = id;
        }
        assert!(number < 100 || id == whole, "{number}");
    }
}
