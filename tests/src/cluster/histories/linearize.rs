//! Decides if the history of one key is linearizable: if every operation took effect at one moment between
//! its begin and its end, so that all outcomes are those of one register.
//!
//! The algorithm is the just-in-time linearization of Lowe (Testing for linearizability, 2017), which
//! improves on that of Wing and Gong (Testing and verifying concurrent objects, 1993). It reads the begins
//! and ends of operations in their order, and keeps the set of configurations: the states that the register
//! may have, each with the operations in progress that have taken effect in it. At the end of an operation
//! the configurations without it are extended by operations in progress until it has taken effect. Without a
//! configuration that is left, the history is not linearizable.
//!
//! Three rules keep the set small, and none changes the result. An operation that changes nothing takes
//! effect as soon as it can. A configuration is dropped if another one with the same state and the same
//! certain changes has used fewer changes of unknown outcome, and no fewer reads are behind it. Deletes of
//! unknown outcome are interchangeable, so the oldest one is used first. The number of configurations is
//! limited; beyond the limit the result is an error, not a verdict.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use super::register::{KeyAction, KeyOperation, KeyOutcome, KeyState, ValueId};

mod oracle;
mod planted;

/// Maximum number of operations of one history.
pub(super) const OPERATIONS_MAX: usize = 256;
/// Maximum number of configurations that are examined at the end of one operation.
const CONFIGURATIONS_MAX: usize = 100_000;

/// The reason why a history was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotLinearizable {
    /// The operation at this index cannot have taken effect by its end.
    Violation(usize),
    /// The history has so many operations.
    TooLong(usize),
    /// At the end of the operation at this index there are too many configurations: no verdict.
    Undecided(usize),
}

impl fmt::Display for NotLinearizable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(at) => write!(f, "operation {at} cannot have taken effect by its end"),
            Self::TooLong(length) => {
                write!(f, "no verdict: {length} operations, more than {OPERATIONS_MAX}")
            }
            Self::Undecided(at) => write!(
                f,
                "no verdict: more than {CONFIGURATIONS_MAX} configurations at the end of operation {at}"
            ),
        }
    }
}

/// Checks that the history of a key is linearizable. The key has no object at first.
///
/// # Errors
/// See [`NotLinearizable`].
pub(super) fn check(operations: &[KeyOperation]) -> Result<(), NotLinearizable> {
    if operations.len() > OPERATIONS_MAX {
        return Err(NotLinearizable::TooLong(operations.len()));
    }
    let mut search = LinearizationSearch::new(operations);
    for event in events(operations) {
        match event {
            HistoryEvent::Begin(at) => search.begin(at),
            HistoryEvent::End(at) => search.end(at)?,
        }
    }
    Ok(())
}

/// A begin or an end of the operation at an index.
#[derive(Clone, Copy, Debug)]
enum HistoryEvent {
    Begin(usize),
    End(usize),
}

/// All begins and ends in their order.
fn events(operations: &[KeyOperation]) -> Vec<HistoryEvent> {
    let begins = operations.iter().enumerate().map(|(at, one)| (one.begun.order, HistoryEvent::Begin(at)));
    let ends = operations.iter().enumerate().filter(|(_, one)| !one.is_unknown());
    let ends = ends.filter_map(|(at, one)| Some((one.ended?.order, HistoryEvent::End(at))));
    let mut events: Vec<(u64, HistoryEvent)> = begins.chain(ends).collect();
    events.sort_by_key(|(order, _)| *order);
    events.into_iter().map(|(_, event)| event).collect()
}

/// A set of operations, by their indexes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct OperationSet([u128; 2]);

impl OperationSet {
    fn of(operations: &[KeyOperation], is_in: impl Fn(&KeyOperation) -> bool) -> Self {
        let mut set = Self::default();
        (0..operations.len()).filter(|at| is_in(&operations[*at])).for_each(|at| set.insert(at));
        set
    }

    fn insert(&mut self, at: usize) {
        self.0[at / 128] |= 1 << (at % 128);
    }

    fn remove(&mut self, at: usize) {
        self.0[at / 128] &= !(1 << (at % 128));
    }

    const fn has(self, at: usize) -> bool {
        self.0[at / 128] & (1 << (at % 128)) != 0
    }

    const fn and(self, other: Self) -> Self {
        Self([self.0[0] & other.0[0], self.0[1] & other.0[1]])
    }

    const fn without(self, other: Self) -> Self {
        Self([self.0[0] & !other.0[0], self.0[1] & !other.0[1]])
    }

    fn is_part_of(self, other: Self) -> bool {
        self.without(other) == Self::default()
    }

    const fn first(self) -> Option<usize> {
        match self.0 {
            [0, 0] => None,
            [0, high] => Some(128 + high.trailing_zeros() as usize),
            [low, _] => Some(low.trailing_zeros() as usize),
        }
    }

    fn iter(mut self) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let at = self.first()?;
            self.remove(at);
            Some(at)
        })
    }
}

/// A state that the register may have, and the operations in progress that have taken effect in it.
#[derive(Clone, Copy, Debug)]
struct RegisterConfiguration {
    state: KeyState,
    applied: OperationSet,
}

/// Configurations; none of them replaces another one.
struct ConfigurationSet {
    /// By state and certain changes.
    entries: HashMap<(KeyState, OperationSet), Vec<OperationSet>>,
    count: usize,
}

/// The search, after some events.
struct LinearizationSearch<'a> {
    operations: &'a [KeyOperation],
    /// Changes with a known outcome.
    certain: OperationSet,
    /// Changes of unknown outcome.
    unknown: OperationSet,
    /// Operations that change nothing.
    reads: OperationSet,
    /// Operations that have begun and not ended.
    open: OperationSet,
    configurations: Vec<RegisterConfiguration>,
}

impl<'a> LinearizationSearch<'a> {
    fn new(operations: &'a [KeyOperation]) -> Self {
        Self {
            operations,
            certain: OperationSet::of(operations, |one| one.is_change() && !one.is_unknown()),
            unknown: OperationSet::of(operations, |one| one.is_change() && one.is_unknown()),
            reads: OperationSet::of(operations, |one| !one.is_change()),
            open: OperationSet::default(),
            configurations: vec![RegisterConfiguration { state: None, applied: OperationSet::default() }],
        }
    }

    fn begin(&mut self, at: usize) {
        self.open.insert(at);
        if self.reads.has(at) {
            for configuration in &mut self.configurations {
                if self.operations[at].applied_to(configuration.state).is_some() {
                    configuration.applied.insert(at);
                }
            }
        }
    }

    /// Keeps the configurations in which the operation has taken effect.
    ///
    /// # Errors
    /// There is none, or there are too many to decide that.
    fn end(&mut self, at: usize) -> Result<(), NotLinearizable> {
        let (mut kept, mut examined) = (ConfigurationSet::new(), ConfigurationSet::new());
        // Those with fewer changes are first, and replace many of the others.
        let mut left = VecDeque::from(std::mem::take(&mut self.configurations));
        while let Some(configuration) = left.pop_front() {
            if configuration.applied.has(at) {
                kept.insert(self, configuration);
            } else if examined.insert(self, configuration) {
                left.extend(self.successors(configuration));
            }
            if kept.count + examined.count > CONFIGURATIONS_MAX {
                return Err(NotLinearizable::Undecided(at));
            }
        }
        self.open.remove(at);
        self.configurations = kept.into_configurations();
        for configuration in &mut self.configurations {
            configuration.applied.remove(at);
        }
        if self.configurations.is_empty() { Err(NotLinearizable::Violation(at)) } else { Ok(()) }
    }

    /// The configurations after one more change, with the reads that are possible then.
    fn successors(&self, configuration: RegisterConfiguration) -> Vec<RegisterConfiguration> {
        let (mut after, mut has_delete) = (Vec::new(), false);
        for at in self.open.without(self.reads).without(configuration.applied).iter() {
            let operation = &self.operations[at];
            if operation.is_unknown() && operation.action == KeyAction::Delete {
                if has_delete {
                    continue;
                }
                has_delete = true;
            }
            let Some(state) = operation.applied_to(configuration.state) else { continue };
            let mut applied = configuration.applied;
            applied.insert(at);
            after.push(self.with_reads(RegisterConfiguration { state, applied }));
        }
        after
    }

    /// The same configuration after all reads in progress that are possible in its state.
    fn with_reads(&self, mut configuration: RegisterConfiguration) -> RegisterConfiguration {
        for at in self.open.and(self.reads).without(configuration.applied).iter() {
            if self.operations[at].applied_to(configuration.state).is_some() {
                configuration.applied.insert(at);
            }
        }
        configuration
    }

    /// True if everything that may follow after `other` may follow after `one` too. Their states and certain
    /// changes are equal.
    fn replaces(&self, one: OperationSet, other: OperationSet) -> bool {
        other.and(self.reads).is_part_of(one) && one.and(self.unknown).is_part_of(other)
    }
}

impl ConfigurationSet {
    fn new() -> Self {
        Self { entries: HashMap::new(), count: 0 }
    }

    /// Adds a configuration; returns false if one is there that replaces it.
    fn insert(&mut self, search: &LinearizationSearch<'_>, added: RegisterConfiguration) -> bool {
        let applied = added.applied;
        let entry = self.entries.entry((added.state, applied.and(search.certain))).or_default();
        if entry.iter().any(|present| search.replaces(*present, applied)) {
            return false;
        }
        let before = entry.len();
        entry.retain(|present| !search.replaces(applied, *present));
        entry.push(applied);
        self.count = self.count + entry.len() - before;
        true
    }

    fn into_configurations(self) -> Vec<RegisterConfiguration> {
        let of_entry = |((state, _), sets): ((KeyState, OperationSet), Vec<OperationSet>)| {
            sets.into_iter().map(move |applied| RegisterConfiguration { state, applied })
        };
        self.entries.into_iter().flat_map(of_entry).collect()
    }
}

/// Removes operations from a history that is not linearizable, until each that is left is needed for that.
/// Nothing is removed that could make a linearizable history one that is not.
pub(super) fn shortest_violation(operations: &[KeyOperation]) -> Vec<KeyOperation> {
    let Err(NotLinearizable::Violation(at)) = check(operations) else { return operations.to_vec() };
    let mut kept = until_end_of(operations, at);
    loop {
        let (before, mut first) = (kept.len(), 0);
        while first < kept.len() {
            let fewer = without_part(&kept, first);
            match fewer.filter(|fewer| matches!(check(fewer), Err(NotLinearizable::Violation(_)))) {
                Some(fewer) => kept = fewer,
                None => first += 1,
            }
        }
        // Without the operations removed since, another one may not be needed any more.
        if kept.len() == before {
            return kept;
        }
    }
}

/// The history until the end of an operation. Others that were in progress then may have taken effect.
fn until_end_of(operations: &[KeyOperation], at: usize) -> Vec<KeyOperation> {
    let Some(end) = operations[at].ended else { return operations.to_vec() };
    let begun = operations.iter().filter(|one| one.begun < end);
    let cut = |one: &KeyOperation| KeyOperation { ended: one.ended.filter(|ended| *ended <= end), ..*one };
    begun.map(cut).collect()
}

/// The history without the operation at this index and those that depend on it: a value is removed with
/// everything that writes, reads or requires it. `None` if the rest may depend on the operation in another
/// way.
fn without_part(operations: &[KeyOperation], at: usize) -> Option<Vec<KeyOperation>> {
    let removed = &operations[at];
    let mut values: Vec<ValueId> = Vec::new();
    if let (KeyAction::Write(value, _), true) = (removed.action, removed.is_change()) {
        values.push(value);
    }
    let mut kept: Vec<KeyOperation> =
        operations.iter().enumerate().filter(|(index, _)| *index != at).map(|(_, one)| *one).collect();
    let mut next = 0;
    while let Some(value) = values.get(next).copied() {
        let (with, without): (Vec<KeyOperation>, Vec<KeyOperation>) =
            kept.into_iter().partition(|one| one.has_value(value));
        for one in with {
            match one.action {
                KeyAction::Write(other, _) if !values.contains(&other) => values.push(other),
                KeyAction::Read(_) | KeyAction::Write(..) | KeyAction::Delete => {}
            }
        }
        kept = without;
        next += 1;
    }
    // Any object explains a refusal, and any delete an absence.
    let is_refused = |one: &KeyOperation| one.outcome == KeyOutcome::Refused;
    let is_needed = match removed.action {
        KeyAction::Delete => kept.iter().any(KeyOperation::is_of_absence),
        KeyAction::Write(..) if removed.is_change() => kept.iter().any(is_refused),
        KeyAction::Read(_) | KeyAction::Write(..) => false,
    };
    (!is_needed).then_some(kept)
}
