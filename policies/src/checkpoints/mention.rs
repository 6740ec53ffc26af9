//! Small files that name checkpoints: `best`, `deployed.json`, `PRODUCTION` and the like.
//!
//! A checkpoint that such a file names may be in use, so it is not deleted. The file may have any format: the
//! name of the checkpoint's folder counts if it occurs as a whole word in the file's content or in its own
//! name. Invariant: the result is deterministic, and more text names no fewer checkpoints. Case is ignored,
//! and UTF-16 is accepted as well as UTF-8, because shells write both.

use super::pointer::{LIST_OF_ALL, POINTER_NAME};
use crate::key_parts::name_of;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Maximum size of files that are read. Lists, notes and configurations are smaller.
pub const MENTION_BYTES_MAX: u64 = 64 << 10;

/// A checkpoint that may be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MentionTarget<'k> {
    /// Common prefix of the keys of all its files.
    pub prefix: &'k str,
    /// Step of the checkpoint.
    pub step: Option<u64>,
}

impl MentionTarget<'_> {
    /// Returns the word that names it: the name of its folder, or of its file without the extension.
    fn word(&self) -> Vec<u8> {
        let name = name_of(self.prefix.trim_end_matches(['/', '.']));
        name.strip_suffix(".ckpt").unwrap_or(name).to_ascii_lowercase().into_bytes()
    }

    /// True if a key is in its folder, or is one of its files.
    fn owns(&self, key: &str) -> bool {
        key.starts_with(self.prefix)
            && (self.is_folder() || super::CheckpointIndex::prefix_of(key) == Some(self.prefix))
    }

    fn is_folder(&self) -> bool {
        self.prefix.ends_with('/')
    }
}

/// Checkpoints to search for, by their words. They are numbered in the order given.
#[derive(Debug, Default)]
pub struct MentionTargets<'k> {
    all: Vec<MentionTarget<'k>>,
    by_word: HashMap<Vec<u8>, Vec<usize>>,
    by_step: BTreeMap<u64, Vec<usize>>,
    lengths: BTreeSet<usize>,
}

impl<'k> FromIterator<MentionTarget<'k>> for MentionTargets<'k> {
    fn from_iter<I: IntoIterator<Item = MentionTarget<'k>>>(all: I) -> Self {
        let mut words = Self { all: all.into_iter().collect(), ..Self::default() };
        for (number, one) in words.all.iter().enumerate() {
            let word = one.word();
            // A name that consists of an extension only has no word, and would match everywhere.
            if !word.is_empty() {
                words.lengths.insert(word.len());
                words.by_word.entry(word).or_default().push(number);
            }
            if let Some(step) = one.step {
                words.by_step.entry(step).or_default().push(number);
            }
        }
        words
    }
}

impl MentionTargets<'_> {
    /// Returns the numbers of the checkpoints that a file names by its content or by its own name. A
    /// checkpoint's own files do not name it.
    #[must_use]
    pub fn named_by(&self, key: &str, content: &[u8]) -> BTreeSet<usize> {
        let name = name_of(key);
        let text = normalized_text(name, content);
        let mut named = self.mentions_from(&text, 0);
        named.extend(self.mentions_of_step(&text));
        // A file beside a single-file checkpoint with the same name is part of it: `epoch-1.pt` and
        // `epoch-1.json`.
        let is_other = |number: &usize, at: usize| self.all[*number].is_folder() || at > 0;
        let own_name = name.to_ascii_lowercase();
        for at in 0..own_name.len() {
            named.extend(self.mentions_at(own_name.as_bytes(), at).filter(|number| is_other(number, at)));
        }
        named.retain(|number| !self.all[*number].owns(key));
        named
    }

    /// Returns the checkpoints whose words occur in a text, from a position on.
    fn mentions_from(&self, text: &[u8], from: usize) -> BTreeSet<usize> {
        (from..text.len()).flat_map(|at| self.mentions_at(text, at)).collect()
    }

    /// Returns the checkpoints whose words begin at this position of a text.
    fn mentions_at<'t>(&'t self, text: &'t [u8], at: usize) -> impl Iterator<Item = usize> + 't {
        let lengths = self.lengths.iter().filter(move |_| is_boundary(text, at));
        let ends = lengths.map(move |length| at + length).take_while(move |end| *end <= text.len());
        let words = ends.filter(move |end| is_boundary(text, *end)).map(move |end| &text[at..end]);
        words.filter_map(|word| self.by_word.get(word)).flatten().copied()
    }

    /// Returns the checkpoints with this step, if the text is a plain number.
    fn mentions_of_step(&self, text: &[u8]) -> impl Iterator<Item = usize> + '_ {
        let number = std::str::from_utf8(text).ok().and_then(|text| text.trim().parse::<u64>().ok());
        number.and_then(|number| self.by_step.get(&number)).into_iter().flatten().copied()
    }
}

/// True if a word may begin or end at a position: there are no letters or digits on both sides of it.
fn is_boundary(text: &[u8], at: usize) -> bool {
    let is_letter = |at: usize| text.get(at).is_some_and(u8::is_ascii_alphanumeric);
    at == 0 || !is_letter(at - 1) || !is_letter(at)
}

/// Returns a file's content in lower case, without the zero bytes of UTF-16. TensorFlow's `checkpoint` lists
/// all existing checkpoints besides the one to resume from; the list does not count as naming them.
fn normalized_text(name: &str, content: &[u8]) -> Vec<u8> {
    let text: Vec<u8> = content.iter().filter(|byte| **byte != 0).map(u8::to_ascii_lowercase).collect();
    let marks: [&[u8]; 3] = [b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf"];
    let text = marks.iter().find_map(|mark| text.strip_prefix(*mark)).unwrap_or(&text);
    if name != POINTER_NAME {
        return text.to_vec();
    }
    let is_list = |line: &&[u8]| line.trim_ascii_start().starts_with(LIST_OF_ALL.as_bytes());
    text.split(|byte| *byte == b'\n').filter(|line| !is_list(line)).collect::<Vec<_>>().join(&b'\n')
}

/// Returns the folders in which a file may name a checkpoint of a run, given the run's folder: that folder
/// and all above it.
pub fn folders_above(parent: &str) -> impl Iterator<Item = &str> {
    let ends = parent.match_indices('/').map(|(at, _)| at + 1);
    std::iter::once(0).chain(ends).map(|end| &parent[..end])
}

#[cfg(test)]
mod tests {
    use super::{MentionTarget, MentionTargets, folders_above};
    use proptest::collection::vec;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    const FOLDERS: [&str; 4] = ["run/step-100/", "run/step-1000/", "run/100/", "run/Epoch_3/"];

    fn of<'k>(prefixes: &[&'k str]) -> MentionTargets<'k> {
        let one = |prefix: &&'k str| {
            let step = prefix.split(|c: char| !c.is_ascii_digit()).rfind(|part| !part.is_empty());
            MentionTarget { prefix, step: step.and_then(|step| step.parse().ok()) }
        };
        prefixes.iter().map(one).collect()
    }

    fn named<'k>(prefixes: &[&'k str], key: &str, content: &[u8]) -> Vec<&'k str> {
        of(prefixes).named_by(key, content).into_iter().map(|number| prefixes[number]).collect()
    }

    #[test]
    fn whole_words_in_content_and_name_name_a_folder() {
        let (hundred, number, epoch) = (FOLDERS[0], FOLDERS[2], FOLDERS[3]);
        for (key, content, expected) in [
            ("run/best", "step-100", &[hundred, number][..]),
            ("run/best", "step-100\n", &[hundred, number]),
            ("run/best_checkpoint.txt", "runs/a/step-100/model.safetensors", &[hundred, number]),
            ("run/PRODUCTION", "STEP-100", &[hundred, number]),
            ("deployed.json", "{\"path\":\"s3:\\/\\/lake\\/run\\/step-100\"}", &[hundred, number]),
            ("run/a", "best=step-100;", &[hundred, number]),
            ("run/a", "step-100_final", &[hundred, number]),
            ("run/keep-step-100.txt", "", &[hundred, number]),
            ("run/step-100.txt", "", &[hundred, number]),
            ("run/step-1000.json", "", &[FOLDERS[1]]),
            ("run/a", "epoch_3", &[epoch]),
            // A folder name that is a plain number may match anything, and protects the checkpoint
            // nevertheless.
            ("run/config.json", "{\"warmup\": 100}", &[number]),
            // A plain number is a step.
            ("run/best", "1000\n", &[FOLDERS[1]]),
            ("run/best", " 3 ", &[epoch]),
            // Other words.
            ("run/a", "step-10", &[]),
            ("run/a", "step-1001", &[]),
            ("run/a", "laststep-1000", &[]),
            ("run/a", "epoch_30 epoch_3x", &[]),
            ("run/a", "", &[]),
            // A checkpoint's own files.
            ("run/step-100/trainer_state.json", "step-100", &[number]),
            ("run/step-1000/args.json", "resumed from run/step-100", &[hundred, number]),
        ] {
            assert_eq!(named(&FOLDERS, key, content.as_bytes()), expected, "{key}: {content:?}");
        }
    }

    #[test]
    fn shells_write_utf_16_and_marks() {
        let utf_16: Vec<u8> = "\u{feff}step-100\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(named(&FOLDERS[..2], "run/best.txt", &utf_16), [FOLDERS[0]]);
        let utf_16: Vec<u8> = "\u{feff}1000\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(named(&FOLDERS[..2], "run/best.txt", &utf_16), [FOLDERS[1]]);
        assert_eq!(named(&FOLDERS[..2], "run/best.txt", "\u{feff}100".as_bytes()), [FOLDERS[0]]);
    }

    #[test]
    fn a_single_file_is_named_by_others_but_not_by_what_belongs_to_it() {
        let files = ["run/epoch-1", "run/epoch=3-step=500.ckpt", "run/ckpt-500."];
        for (key, content, expected) in [
            ("run/epoch-1.pt.notes", "", &[][..]),
            ("run/epoch-1-plot.png", "", &[]),
            ("run/epoch-1.pt", "epoch-1", &[]),
            ("run/best-epoch-1.txt", "", &[files[0]]),
            ("run/best", "epoch-1.pt", &[files[0]]),
            ("run/best", "epoch=3-step=500.ckpt", &[files[1]]),
            ("run/best", "epoch=3-step=500", &[files[1]]),
            ("run/best", "500", &[files[1], files[2]]),
            ("run/checkpoint", "model_checkpoint_path: \"ckpt-500\"", &[files[2]]),
            ("run/checkpoint", "a\n all_model_checkpoint_paths: \"ckpt-500\"\n", &[]),
            ("run/all", "all_model_checkpoint_paths: \"ckpt-500\"", &[files[2]]),
        ] {
            assert_eq!(named(&files, key, content.as_bytes()), expected, "{key}: {content:?}");
        }
    }

    #[test]
    fn folders_are_that_of_the_run_and_all_above() {
        assert_eq!(folders_above("a/b/").collect::<Vec<_>>(), ["", "a/", "a/b/"]);
        assert_eq!(folders_above("").collect::<Vec<_>>(), [""]);
    }

    proptest! {
        #[test]
        fn a_word_between_any_two_texts_is_found_and_a_longer_one_is_not(
            before in vec(any::<u8>(), 0..40), after in vec(any::<u8>(), 0..40), which in 0..4_usize
        ) {
            let word = FOLDERS[which].strip_prefix("run/").unwrap().trim_end_matches('/').as_bytes();
            let text = [&before[..], b" ", word, b"\n", &after].concat();
            prop_assert!(of(&FOLDERS).named_by("run/note", &text).contains(&which));
            let letters: Vec<u8> = before.iter().map(|byte| b'a' + byte % 26).collect();
            let longer = [&letters[..], b"x", word, b"0", &letters].concat();
            prop_assert_eq!(of(&FOLDERS).named_by("run/note", &longer), Default::default());
        }
    }
}
