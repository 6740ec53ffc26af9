//! Steps in names: finds the number of the step in a name, and the name without it.
//!
//! Invariants: a number that may be a setting, a size, or that of a run or a rank is not taken for a step,
//! and two runs whose names differ in such numbers have different names. [`has_only_step_numbers`] returns
//! whether the other numbers are those of steps.

use std::ops::Range;

/// A step in a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepNumber {
    pub(super) value: u64,
    /// Byte offset after the last number that follows a word for steps.
    pub(super) end: usize,
    /// True if a word marks a checkpoint, whatever the names of the files.
    pub(super) is_strong: bool,
    /// True if the number follows `ep`, which also numbers expert-parallel ranks.
    pub(super) is_ep: bool,
    /// True if the number follows a word that counts only training time: not `checkpoint` or `model`, whose
    /// numbers may be those of parts.
    pub(super) is_of_time: bool,
}

/// Other meanings of the number after a word for steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberMeaning {
    /// None.
    Steps,
    /// None, but epochs or smaller units: a step in the same name takes precedence.
    Epochs,
    /// Saves, which may be parts.
    Saves,
    /// The same, and a step takes precedence.
    Parts,
}

/// Words followed by a step's number.
const STEP_WORDS: [(&str, NumberMeaning); 13] = [
    ("checkpoint", NumberMeaning::Saves),
    ("ckpt", NumberMeaning::Saves),
    ("chkpt", NumberMeaning::Saves),
    ("step", NumberMeaning::Steps),
    ("steps", NumberMeaning::Steps),
    ("globalstep", NumberMeaning::Steps),
    ("iter", NumberMeaning::Steps),
    ("iteration", NumberMeaning::Steps),
    ("ba", NumberMeaning::Steps),
    ("model", NumberMeaning::Parts),
    ("weights", NumberMeaning::Parts),
    ("epoch", NumberMeaning::Epochs),
    ("ep", NumberMeaning::Parts),
];
/// Words whose numbers distinguish runs and ranks.
const RUN_WORDS: [&str; 12] =
    ["rank", "seed", "fold", "trial", "run", "exp", "lr", "wd", "bs", "gpu", "node", "worker"];
/// Words before a word for steps that turn it into a setting: `warmup-steps-100`, `num_epochs_3`.
const SETTINGS: [&str; 13] = [
    "warmup",
    "max",
    "min",
    "num",
    "n",
    "total",
    "per",
    "every",
    "accum",
    "accumulation",
    "decay",
    "save",
    "logging",
];
/// Plural words for steps: `steps-1000` may mean a training of 1,000 steps, not the state after the
/// thousandth.
const SETTINGS_IN_PLURAL: [&str; 1] = ["steps"];
/// Words whose numbers state the quality of a checkpoint, or its progress in another unit.
const MEASURES: [&str; 26] = [
    "val",
    "valid",
    "train",
    "test",
    "loss",
    "acc",
    "accuracy",
    "score",
    "metric",
    "error",
    "err",
    "auc",
    "f1",
    "map",
    "iou",
    "dice",
    "wer",
    "cer",
    "bleu",
    "ppl",
    "perplexity",
    "rmse",
    "psnr",
    "samples",
    "tokens",
    "consumed",
];
/// Words of these whose integers may number parts and tries as well: `test_1`, `samples_100`; not
/// `train_loss=1`, nor `consumed_samples=800`.
pub(super) const COUNTING_MEASURES: [&str; 7] = ["val", "valid", "train", "test", "map", "samples", "tokens"];
/// Minimum digits of a step after `model`: `model_0004999` is a step, as Detectron writes it. With fewer
/// digits it may be one of several models, or a shard: torchtune's `hf_model_0001_0.pt`, Keras'
/// `model_00001.weights.h5`.
const MODEL_DIGITS_MIN: usize = 7;
/// Words that number other things in folder names.
pub(super) const NOT_IN_FOLDERS: [&str; 2] = ["model", "weights"];
/// Maximum digits of a step; longer numbers are dates or hashes.
pub(super) const STEP_DIGITS_MAX: usize = 12;

/// Returns the step in a name; a step takes precedence over an epoch.
pub(super) fn step_of(name: &str, excluded: &[&str]) -> Option<StepNumber> {
    let bytes = name.as_bytes();
    // Most folders have no number, and every access calls this.
    if !bytes.iter().any(u8::is_ascii_digit) {
        return None;
    }
    let run = |at: usize, is: fn(&u8) -> bool| at + bytes[at..].iter().take_while(|byte| is(byte)).count();
    let (mut at, mut end, mut is_strong) = (0, 0, false);
    let mut best: Option<(NumberMeaning, u64, &str)> = None;
    let is_less = |numbers: NumberMeaning| matches!(numbers, NumberMeaning::Epochs | NumberMeaning::Parts);
    while at < bytes.len() {
        let word_end = run(at, u8::is_ascii_alphabetic);
        if word_end == at {
            at += 1;
            continue;
        }
        let word = &name[at..word_end];
        let is_global = at > 0 && name[..at].ends_with("global_");
        is_strong |= is_global
            || ["checkpoint", "ckpt", "chkpt", "globalstep"].iter().any(|it| word.eq_ignore_ascii_case(it));
        let number_at = word_end + usize::from(bytes.get(word_end).is_some_and(|byte| b"-_=".contains(byte)));
        let number_end = run(number_at, u8::is_ascii_digit);
        let known = STEP_WORDS.iter().find(|(it, _)| word.eq_ignore_ascii_case(it) && !excluded.contains(it));
        if let Some((_, numbers)) = known
            // A number with a unit is a size.
            && !bytes.get(number_end).is_some_and(u8::is_ascii_alphabetic)
            && (1..=STEP_DIGITS_MAX).contains(&(number_end - number_at))
            && !is_setting(name, at)
            && let Ok(value) = name[number_at..number_end].parse()
        {
            end = number_end;
            if best.is_none_or(|(before, ..)| is_less(before) || !is_less(*numbers)) {
                best = Some((*numbers, value, word));
            }
        }
        at = word_end;
    }
    best.map(|(numbers, value, word)| {
        let is_of_time = matches!(numbers, NumberMeaning::Steps | NumberMeaning::Epochs);
        StepNumber { value, end, is_strong, is_ep: word.eq_ignore_ascii_case("ep"), is_of_time }
    })
}

/// Returns the offset of the last word of a text.
pub(super) fn last_word(text: &str) -> usize {
    text.len() - text.bytes().rev().take_while(u8::is_ascii_alphabetic).count()
}

/// True if the word for steps at `at` numbers a setting and not a step.
fn is_setting(name: &str, at: usize) -> bool {
    let before = name[..at].strip_suffix(['=', '-', '_']).unwrap_or_default();
    SETTINGS.iter().any(|it| before[last_word(before)..].eq_ignore_ascii_case(it))
}

/// Removes the `-v1` that Lightning appends when a name is taken.
pub(super) fn without_version(name: &str) -> String {
    let stem = name.strip_suffix(".ckpt").unwrap_or(name);
    match stem.rsplit_once("-v") {
        Some((before, version)) if !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()) => {
            format!("{before}.ckpt")
        }
        _ => name.to_owned(),
    }
}

/// Returns a name with `#` for each number, including decimals, except for numbers that distinguish runs and
/// ranks, as in `resnet50`, `7b`, `seed1` or `lr=1e-4`.
pub(super) fn shape(name: &str) -> String {
    replace_numbers(name, |number| !is_run_number(name, number.start, number.end))
}

/// Returns the part after the prefix of a checkpoint with this step, with `#` for numbers of steps and
/// measures. All other numbers may distinguish files, and so do those of settings and runs.
pub(super) fn shape_of_rest(rest: &str, step: Option<u64>) -> String {
    replace_numbers(rest, |number| {
        let is_its_step = step.is_some() && rest[number.clone()].parse().ok() == step;
        (is_its_step || is_step_or_measure(rest, number)) && !is_run_number(rest, number.start, number.end)
    })
}

/// Returns a name with `#` for the numbers that `is_such` selects.
fn replace_numbers(name: &str, selects: impl Fn(&Range<usize>) -> bool) -> String {
    let mut shape = String::with_capacity(name.len());
    let mut at = 0;
    while let Some(number) = next_number(name, at) {
        shape.push_str(&name[at..number.start]);
        shape.push_str(if selects(&number) { "#" } else { &name[number.clone()] });
        at = number.end;
    }
    shape + &name[at..]
}

/// Returns the next number from `from` on, with its decimals and exponent.
pub(super) fn next_number(name: &str, from: usize) -> Option<Range<usize>> {
    let bytes = name.as_bytes();
    let digits = |at: usize| bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let begin = from + bytes[from..].iter().position(u8::is_ascii_digit)?;
    let mut at = begin + digits(begin);
    if bytes.get(at) == Some(&b'.') && digits(at + 1) > 0 {
        at += 1 + digits(at + 1);
    }
    let exponent = usize::from(bytes.get(at) == Some(&b'e'))
        + usize::from(matches!(bytes.get(at..at + 2), Some(b"e-" | b"e+")));
    if exponent > 0 && at + exponent < bytes.len() && digits(at + exponent) > 0 {
        at += exponent + digits(at + exponent);
    }
    Some(begin..at)
}

/// True if all numbers that [`shape`] replaces are steps, epochs, measures and counts: other numbers may
/// distinguish runs.
pub(super) fn has_only_step_numbers(name: &str) -> bool {
    let mut at = 0;
    while let Some(number) = next_number(name, at) {
        at = number.end;
        if !is_step_or_measure(name, &number) && !is_run_number(name, number.start, number.end) {
            return false;
        }
    }
    true
}

/// Returns the word before a number and its offset. A digit may be part of a measure's name, as in `f1_0.91`
/// and `acc1=76.5`.
pub(super) fn word_of_number(before: &str) -> (usize, &str) {
    let at = before.len() - before.bytes().rev().take_while(u8::is_ascii_alphanumeric).count();
    let word = &before[at..];
    let letters = word.trim_end_matches(|letter: char| letter.is_ascii_digit());
    if let Some(measure) = [word, letters].into_iter().find(|it| is_measure(it)) {
        return (at, measure);
    }
    let at = last_word(before);
    (at, &before[at..])
}

/// True if the word before a number marks it as a step, an epoch, a measure or a count.
fn is_step_or_measure(name: &str, number: &Range<usize>) -> bool {
    let before = name[..number.start].strip_suffix(['=', '-', '_']).unwrap_or(&name[..number.start]);
    let (word_at, word) = word_of_number(before);
    let is = |words: &[&str]| words.iter().any(|it| word.eq_ignore_ascii_case(it));
    if is(&NOT_IN_FOLDERS) {
        return number.len() >= MODEL_DIGITS_MIN;
    }
    let is_whole = name[number.clone()].bytes().all(|byte| byte.is_ascii_digit());
    if is_whole && is(&COUNTING_MEASURES) {
        return before[..word_at].ends_with("consumed_");
    }
    is_step_word(word)
}

/// True if all words of a text are for steps, measures and ranks.
pub(super) fn has_no_other_words(text: &str) -> bool {
    let words = text.split(|letter: char| !letter.is_alphabetic()).filter(|word| !word.is_empty());
    words
        .into_iter()
        .all(|word| is_step_word(word) || RUN_WORDS.iter().any(|it| word.eq_ignore_ascii_case(it)))
}

fn is_step_word(word: &str) -> bool {
    let is_of_one = |it: &str| word.eq_ignore_ascii_case(it) && !SETTINGS_IN_PLURAL.contains(&it);
    STEP_WORDS.iter().any(|(it, _)| is_of_one(it)) || is_measure(word)
}

pub(super) fn is_measure(word: &str) -> bool {
    MEASURES.iter().any(|it| word.eq_ignore_ascii_case(it))
}

/// True if a name is a number, or contains one of three or more digits, that may be a step other than `step`.
pub(super) fn has_other_step_number(name: &str, step: u64) -> bool {
    let stem = name.split('.').next().unwrap_or_default();
    let mut at = 0;
    name.split(|letter: char| !letter.is_ascii_digit()).any(|number| {
        let begin = at;
        at += number.len() + name[at + number.len()..].chars().next().map_or(0, char::len_utf8);
        (number.len() >= 3 || (number == stem && !stem.is_empty()))
            && !is_run_number(name, begin, begin + number.len())
            && number.parse() != Ok(step)
    })
}

/// True if a number in a name identifies a run or rank: it is part of a word that is not for steps, or it
/// follows a setting.
fn is_run_number(name: &str, begin: usize, end: usize) -> bool {
    let bytes = name.as_bytes();
    if bytes.get(end).is_some_and(u8::is_ascii_alphabetic) {
        return true;
    }
    let is_known = |word: &str, words: &[&str]| words.iter().any(|it| word.eq_ignore_ascii_case(it));
    let word_at = last_word(&name[..begin]);
    let joined = &name[word_at..begin];
    if !joined.is_empty() {
        return is_setting(name, word_at)
            || !STEP_WORDS.iter().any(|(it, _)| joined.eq_ignore_ascii_case(it));
    }
    let before = name[..begin].strip_suffix(['=', '-', '_']).unwrap_or_default();
    let word_at = last_word(before);
    is_known(&before[word_at..], &RUN_WORDS) || (word_at < before.len() && is_setting(name, word_at))
}

#[cfg(test)]
mod tests {
    use super::{NOT_IN_FOLDERS, shape, shape_of_rest, step_of};

    #[test]
    fn shapes_distinguish_runs_and_ranks_but_not_steps() {
        for (name, series) in [
            ("resnet50-epoch=3.ckpt", "resnet50-epoch=#.ckpt"),
            ("llama-7b-step-500", "llama-7b-step-#"),
            ("seed1-step-5", "seed1-step-#"),
            ("lr=1e-4-step=9", "lr=1e-4-step=#"),
            ("step=9-rank=3.ckpt", "step=#-rank=3.ckpt"),
            ("rank3_step100", "rank3_step#"),
            ("global_step100", "global_step#"),
            ("epoch3_val_loss=0.5", "epoch#_val_loss=#"),
            ("ckpt_2026-11-23", "ckpt_#-#-#"),
            ("warmup-steps-100-step-5", "warmup-steps-100-step-#"),
            ("max_epochs3-ba5", "max_epochs3-ba#"),
        ] {
            assert_eq!(shape(name), series);
        }
    }

    #[test]
    fn settings_are_no_steps() {
        for (name, value) in [
            ("warmup-steps-100", None),
            ("steps_per_epoch_500", None),
            ("num_iter_3", None),
            ("warmup-steps-100-step-5", Some(5)),
            ("train_step_7", Some(7)),
            ("epoch=3-step=500.ckpt", Some(500)),
            ("ep1-ba500", Some(500)),
        ] {
            assert_eq!(step_of(name, &NOT_IN_FOLDERS).map(|step| step.value), value, "{name}");
        }
        assert!(step_of("ep_3", &[]).unwrap().is_ep && !step_of("ep1-ba500", &[]).unwrap().is_ep);
    }

    #[test]
    fn the_rest_of_a_name_is_equal_but_for_steps_and_measures() {
        for (rest, step, shape) in [
            (".pt", Some(5), ".pt"),
            ("_acc_0.91.pt", Some(5), "_acc_#.pt"),
            ("-val_loss=0.25.keras", Some(5), "-val_loss=#.keras"),
            ("model_100.pt", Some(100), "model_#.pt"),
            ("model_00100.pt", Some(100), "model_#.pt"),
            ("model_1.pt", Some(100), "model_1.pt"),
            ("_dropout_0.1.pt", Some(5), "_dropout_0.1.pt"),
            ("_cv_2.pth", Some(5), "_cv_2.pth"),
            ("_f1_0.91.pt", Some(5), "_f1_#.pt"),
            ("_acc1_76.5.pt", Some(5), "_acc1_#.pt"),
            ("_test1_2.pt", Some(5), "_test1_2.pt"),
            ("_seed1_2.pt", Some(5), "_seed1_2.pt"),
            ("_warmup_steps_100.pt", Some(5), "_warmup_steps_100.pt"),
            ("_seed5.pt", Some(5), "_seed5.pt"),
            ("_rank_5.pt", Some(5), "_rank_5.pt"),
            ("_test_2.pth", None, "_test_2.pth"),
            ("rng_state_0.pth", None, "rng_state_0.pth"),
        ] {
            assert_eq!(shape_of_rest(rest, step), shape, "{rest}");
        }
    }
}
