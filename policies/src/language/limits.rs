//! Limits of a policy. A file a hundred times the size of the longest recipe stays below each of them.

/// Bytes of the text of a file.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Bytes of the text of an access plan: a million keys of sixty bytes.
pub const PLAN_TEXT_BYTES_MAX: usize = 64 << 20;
/// Nesting depth of lists and maps; a policy needs ten.
pub const DEPTH_MAX: usize = 32;
/// Lists, maps and scalars in a file.
pub const NODES_MAX: usize = 100_000;
/// Diagnostics reported for one file; further errors are reported once the first ones are fixed.
pub const DIAGNOSTICS_MAX: usize = 100;
/// Effective rules, including those of templates.
pub const RULES_MAX: usize = 1_000;
/// Rules in a file, in all its sections together: enough for the maximum number of effective rules for each
/// of four environments or hardware profiles.
pub const FILE_RULES_MAX: usize = 4 * RULES_MAX;
/// Conditions of a rule.
pub const CONDITIONS_MAX: usize = 64;
/// Actions of a rule.
pub const ACTIONS_MAX: usize = 32;
/// Parameters of a template.
pub const PARAMETERS_MAX: usize = 64;
/// Items of a list that is a value of a condition or parameter, or that is made of patterns or evidence.
pub const ITEMS_MAX: usize = 1_000;
/// Bytes of a glob or regular expression.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Memory of a compiled regular expression: twice the need of 64 alternatives of words.
pub const REGEX_BYTES_MAX: usize = 1 << 18;
/// Globs and regular expressions in a file. Together with [`REGEX_BYTES_MAX`] the patterns of one file are
/// bounded by 256 MiB, even if the file is malicious.
pub const PATTERNS_MAX: usize = 1_000;
/// Bytes of all instances of templates together: four files of the maximum size.
pub const INSTANCES_BYTES_MAX: usize = 4 << 20;
/// Bytes of an id or of another name in a file.
pub const NAME_BYTES_MAX: usize = mlgw_common::limits::POLICY_NAME_BYTES_MAX;
/// First bytes of an object that a framework plugin can inspect; the magic of a tar ends at byte 262.
pub const FIRST_BYTES: usize = 512;
/// Largest magnitude up to which every whole number is exact in a double (2^53).
pub const NUMBER_MAX: f64 = 9_007_199_254_740_992.0;

const _: () = assert!(CONDITIONS_MAX * RULES_MAX <= NODES_MAX);
const _: () = assert!(PATTERN_BYTES_MAX < REGEX_BYTES_MAX);
const _: () = assert!(FILE_RULES_MAX >= RULES_MAX && INSTANCES_BYTES_MAX >= TEXT_BYTES_MAX);
