//! What a policy may have at most. A hundred times the longest recipe stays below each of them.

/// Bytes of a file's text.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// Bytes of the text of an access plan: a million keys of sixty bytes.
pub const PLAN_TEXT_BYTES_MAX: usize = 64 << 20;
/// How deep lists and maps may stand within each other; a policy needs ten.
pub const DEPTH_MAX: usize = 32;
/// Lists, maps and scalars of a file.
pub const NODES_MAX: usize = 100_000;
/// What is told of one file; whoever has more to mend begins with these.
pub const DIAGNOSTICS_MAX: usize = 100;
/// Effective rules, those of templates included.
pub const RULES_MAX: usize = 1_000;
/// Rules of a file wherever they stand: as many as there may be in effect for each of four environments or
/// kinds of machines.
pub const FILE_RULES_MAX: usize = 4 * RULES_MAX;
/// Conditions of a rule.
pub const CONDITIONS_MAX: usize = 64;
/// Actions of a rule.
pub const ACTIONS_MAX: usize = 32;
/// Parameters of a template.
pub const PARAMETERS_MAX: usize = 64;
/// Items of a list that is a value.
pub const ITEMS_MAX: usize = 1_000;
/// Bytes of a glob or regular expression.
pub const PATTERN_BYTES_MAX: usize = 1_024;
/// Memory that a compiled regular expression may take: what 64 alternatives of words need, twice.
pub const REGEX_BYTES_MAX: usize = 1 << 18;
/// Globs and regular expressions of a file. With the bound above, those of one file take 256 MiB if somebody
/// tries hard.
pub const PATTERNS_MAX: usize = 1_000;
/// Bytes that all instances of templates may come to: four files of the largest size.
pub const INSTANCES_BYTES_MAX: usize = 4 << 20;
/// Bytes of an id or of another name that a file gives.
pub const NAME_BYTES_MAX: usize = mlgw_common::limits::POLICY_NAME_BYTES_MAX;
/// First bytes of an object that a framework may look at; a tar's magic ends at byte 262.
pub const FIRST_BYTES: usize = 512;
/// Beyond it whole numbers are no longer exact in a double.
pub const NUMBER_MAX: f64 = 9_007_199_254_740_992.0;

const _: () = assert!(CONDITIONS_MAX * RULES_MAX <= NODES_MAX);
const _: () = assert!(PATTERN_BYTES_MAX < REGEX_BYTES_MAX);
