//! Measures in names: the quality of a checkpoint by its name or by that of one of its files.
//!
//! A rule may state the relevant measure. Where it states none, the best checkpoint by each measure in the
//! names stays, because users choose by the values that they put into names. Invariant: a number that may be
//! a step, a count or a part is not a measure; if it is not known whether low or high values are good, the
//! checkpoints at both ends stay.

use super::step::{COUNTING_MEASURES, is_measure, last_word, next_number, word_of_number};

/// Good end of a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GoodEnd {
    Low,
    High,
    /// Either end may be good.
    Either,
}

/// Measures whose lowest value is the best, and those whose highest value is.
const LOW: [&str; 8] = ["loss", "error", "err", "wer", "cer", "ppl", "perplexity", "rmse"];
const HIGH: [&str; 9] = ["acc", "accuracy", "auc", "f1", "map", "iou", "dice", "bleu", "psnr"];
/// Words that count the progress of a training.
const PROGRESS: [&str; 3] = ["samples", "tokens", "consumed"];
/// Names of the data set of a measure; they are parts of its name.
const SETS: [&str; 7] = ["val", "valid", "validation", "train", "test", "eval", "dev"];

/// A measure in a name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckpointMeasure {
    /// Name in lower case, including the data set: `val_loss`.
    pub(super) name: String,
    pub(super) value: f64,
    pub(super) good: GoodEnd,
}

/// Returns all measures in a name: `epoch=3-val_loss=0.25`, `m_epoch_5_acc_0.91`.
pub(super) fn measures(name: &str) -> Vec<CheckpointMeasure> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(number) = next_number(name, at) {
        at = number.end;
        let (before, is_negative) = before_number(&name[..number.start]);
        let (word_at, word) = word_of_number(before);
        let is = |words: &[&str]| words.iter().any(|it| word.eq_ignore_ascii_case(it));
        let is_whole = name[number.clone()].bytes().all(|byte| byte.is_ascii_digit());
        // A digit joined to a word is a part of the word: `acc1_76.5`.
        let is_part_of_word = is_whole && before.len() == number.start;
        let is_not_measure = is_part_of_word || is(&PROGRESS) || (is_whole && is(&COUNTING_MEASURES));
        let value = name[number].parse::<f64>().ok().filter(|_| is_measure(word) && !is_not_measure);
        let Some(value) = value else { continue };
        let good = if is(&LOW) {
            GoodEnd::Low
        } else if is(&HIGH) {
            GoodEnd::High
        } else {
            GoodEnd::Either
        };
        let name = full_name(before, word_at);
        found.push(CheckpointMeasure { name, value: if is_negative { -value } else { value }, good });
    }
    found
}

/// Returns the text before a number and its separator, and whether the number is negative: `loss=-1.5`, but
/// not `loss-1.5`.
fn before_number(before: &str) -> (&str, bool) {
    let minus = ["=-", "_-", "--"].iter().find_map(|end| before.strip_suffix(end));
    let plus = || before.strip_suffix(['=', '-', '_']).unwrap_or(before);
    minus.map_or_else(|| (plus(), false), |before| (before, true))
}

/// Returns the name of the measure that ends here, including its data set.
fn full_name(before: &str, word_at: usize) -> String {
    let outer = before[..word_at].strip_suffix(['_', '-', '.']).unwrap_or_default();
    let set_at = last_word(outer);
    let is_set = SETS.iter().any(|it| outer[set_at..].eq_ignore_ascii_case(it));
    let name = &before[if is_set { set_at } else { word_at }..];
    name.to_ascii_lowercase().replace(['-', '.'], "_")
}

/// Returns the number after `measure` and an equals sign in a name, in Lightning's format: `val_loss=0.25`.
pub(super) fn value_of_measure(name: &str, measure: &str) -> Option<f64> {
    let at = name.match_indices(measure).find(|(at, _)| name[at + measure.len()..].starts_with('='))?.0;
    let text = &name[at + measure.len() + 1..];
    let sign = usize::from(text.starts_with('-'));
    let number = |c: char| c.is_ascii_digit() || c == '.';
    let digits = text[sign..].find(|c| !number(c)).unwrap_or(text.len() - sign);
    let (mantissa, rest) = text.split_at(sign + digits);
    let exponent = rest.strip_prefix('e').map_or(0, |exponent| {
        let sign = usize::from(exponent.starts_with(['-', '+']));
        let digits = exponent[sign..].bytes().take_while(u8::is_ascii_digit).count();
        if digits > 0 { 1 + sign + digits } else { 0 }
    });
    match exponent {
        0 => mantissa.trim_end_matches('.').parse().ok(),
        length => text[..mantissa.len() + length].parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::{GoodEnd, measures};

    #[test]
    fn measures_are_found_and_other_numbers_ignored() {
        use GoodEnd::{Either, High, Low};
        for (name, expected) in [
            ("epoch=3-val_loss=0.25.ckpt", &[("val_loss", 0.25, Low)][..]),
            ("epoch=1-val_loss=0.10.ckpt", &[("val_loss", 0.1, Low)]),
            ("epoch=03-val_loss=0.25.keras", &[("val_loss", 0.25, Low)]),
            ("m_epoch_5_acc_0.91.pth", &[("acc", 0.91, High)]),
            ("m_epoch_5_Val-Acc_0.91.pth", &[("val_acc", 0.91, High)]),
            ("step=9-train_loss=1-val_loss=2e-05.ckpt", &[("train_loss", 1.0, Low), ("val_loss", 2e-5, Low)]),
            ("epoch_2_acc1_76.5_acc5_93.0.pt", &[("acc1", 76.5, High), ("acc5", 93.0, High)]),
            ("f1_0.91_step_5", &[("f1", 0.91, High)]),
            ("elbo_loss=-1.5-step=5", &[("loss", -1.5, Low)]),
            ("loss-0.5-step-5", &[("loss", 0.5, Low)]),
            ("score=3-step=5", &[("score", 3.0, Either)]),
            ("val=0.5-step=5", &[("val", 0.5, Either)]),
            ("step-500", &[]),
            ("test_1_epoch_10.pth", &[]),
            ("consumed_samples=800.0-step=100", &[]),
            ("samples_100_epoch_40.pt", &[]),
            ("resnet50-lr=0.1-epoch=3", &[]),
            ("model-00001-of-00002.safetensors", &[]),
            ("rng_state_0.pth", &[]),
            ("val_loss=nan-step=5", &[]),
            ("", &[]),
        ] {
            let found: Vec<_> = measures(name).into_iter().map(|it| (it.name, it.value, it.good)).collect();
            let found: Vec<_> =
                found.iter().map(|(name, value, good)| (name.as_str(), *value, *good)).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
}
