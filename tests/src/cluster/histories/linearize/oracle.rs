//! The checker against histories of a real register, and against the search through all orders.

use std::time::Duration;

use super::{NotLinearizable, check, shortest_violation};
use crate::cluster::histories::register::{
    KeyAction, KeyCondition, KeyMoment, KeyOperation, KeyOutcome, KeyState, ValueId,
};
use crate::seed::{Rng, seeded_rng};

/// Histories of a real register, and operations of each.
const LEGAL_HISTORIES: usize = 400;
const LEGAL_OPERATIONS: usize = 120;
/// Clients of such a history.
const CLIENTS: usize = 6;
/// Histories that are compared with the search through all orders, and operations of each at most.
const SMALL_HISTORIES: usize = 4_000;
const SMALL_OPERATIONS: u64 = 6;

fn moment(order: u64) -> KeyMoment {
    KeyMoment { order, at: Duration::from_micros(order) }
}

/// A register whose clients take steps in a random order: they begin an operation, it takes effect, and it
/// ends.
struct SimulatedRegister {
    rng: Rng,
    state: KeyState,
    /// Values that were written once.
    values: Vec<ValueId>,
    order: u64,
    clients: Vec<ClientStage>,
    /// Changes of unknown outcome that have not taken effect.
    lost: Vec<KeyAction>,
    history: Vec<KeyOperation>,
}

/// Progress of a client.
#[derive(Clone, Copy)]
enum ClientStage {
    Idle,
    Begun { action: KeyAction, begun: KeyMoment },
    Effective { action: KeyAction, begun: KeyMoment, outcome: KeyOutcome },
}

impl SimulatedRegister {
    fn run(rng: Rng) -> Vec<KeyOperation> {
        let mut register = Self {
            rng,
            state: None,
            values: Vec::new(),
            order: 0,
            clients: vec![ClientStage::Idle; CLIENTS],
            lost: Vec::new(),
            history: Vec::new(),
        };
        while register.history.len() < LEGAL_OPERATIONS {
            register.advance();
        }
        (0..CLIENTS).for_each(|client| register.end(client));
        register.history
    }

    fn now(&mut self) -> KeyMoment {
        self.order += 1;
        moment(self.order)
    }

    fn advance(&mut self) {
        if !self.lost.is_empty() && self.rng.chance(1, 12) {
            let at = self.rng.index(self.lost.len());
            let action = self.lost.swap_remove(at);
            self.apply(action);
            return;
        }
        let client = self.rng.index(CLIENTS);
        match self.clients[client] {
            ClientStage::Idle => {
                self.clients[client] = ClientStage::Begun { action: self.action(), begun: self.now() };
            }
            ClientStage::Begun { action, begun } => {
                self.clients[client] = self.take_effect(client, action, begun);
            }
            ClientStage::Effective { .. } => self.end(client),
        }
    }

    /// Ends the operation of a client if it has taken effect.
    fn end(&mut self, client: usize) {
        let ClientStage::Effective { action, begun, outcome } = self.clients[client] else { return };
        let ended = Some(self.now());
        self.record(client, KeyOperation { outcome, ended, ..begun_operation(action, begun) });
        self.clients[client] = ClientStage::Idle;
    }

    fn action(&mut self) -> KeyAction {
        let condition = match self.rng.below(3) {
            0 => KeyCondition::IsAbsent,
            1 if !self.values.is_empty() => KeyCondition::Is(*self.rng.pick(&self.values)),
            _ => KeyCondition::Always,
        };
        match self.rng.below(10) {
            0..4 => KeyAction::Read(KeyCondition::Always),
            4 if condition != KeyCondition::IsAbsent => KeyAction::Read(condition),
            4 | 5 => KeyAction::Delete,
            _ => {
                let value = ValueId(self.values.len() as u64);
                self.values.push(value);
                KeyAction::Write(value, condition)
            }
        }
    }

    /// Applies an operation, or makes its outcome unknown.
    fn take_effect(&mut self, client: usize, action: KeyAction, begun: KeyMoment) -> ClientStage {
        if !matches!(action, KeyAction::Read(_)) && self.rng.chance(1, 5) {
            if self.rng.chance(2, 3) {
                self.lost.push(action);
            }
            self.record(client, begun_operation(action, begun));
            return ClientStage::Idle;
        }
        ClientStage::Effective { action, begun, outcome: self.apply(action) }
    }

    /// Applies an action to the register; written apart from the model that the checker uses.
    fn apply(&mut self, action: KeyAction) -> KeyOutcome {
        let condition = match action {
            KeyAction::Read(condition) | KeyAction::Write(_, condition) => condition,
            KeyAction::Delete => KeyCondition::Always,
        };
        match (condition, self.state) {
            (KeyCondition::Is(_), None) => return KeyOutcome::Absent,
            (KeyCondition::Is(wanted), Some(value)) if wanted != value => return KeyOutcome::Refused,
            (KeyCondition::IsAbsent, Some(_)) => return KeyOutcome::Refused,
            (KeyCondition::Always | KeyCondition::IsAbsent | KeyCondition::Is(_), _) => {}
        }
        match action {
            KeyAction::Read(_) => self.state.map_or(KeyOutcome::Absent, KeyOutcome::Present),
            KeyAction::Write(value, _) => {
                self.state = Some(value);
                KeyOutcome::Done
            }
            KeyAction::Delete => {
                self.state = None;
                KeyOutcome::Done
            }
        }
    }

    fn record(&mut self, client: usize, operation: KeyOperation) {
        self.history.push(KeyOperation { client, ..operation });
    }
}

/// An operation that has begun, of unknown outcome.
fn begun_operation(action: KeyAction, begun: KeyMoment) -> KeyOperation {
    let (outcome, ended) = (KeyOutcome::Unknown, None);
    KeyOperation { request: "any", client: 0, node: 1, action, outcome, begun, ended }
}

#[test]
fn random_histories_of_a_real_register_are_accepted() {
    let mut rng = seeded_rng("histories of a register", 1);
    let mut unknown = 0;
    for number in 0..LEGAL_HISTORIES {
        let history = SimulatedRegister::run(Rng::new(rng.next()));
        unknown += history.iter().filter(|one| one.is_unknown()).count();
        assert_eq!(check(&history), Ok(()), "history {number}: {history:#?}");
    }
    assert!(unknown > LEGAL_HISTORIES, "{unknown} operations of unknown outcome");
}

/// A short history with random outcomes, which may be impossible.
fn small_history(rng: &mut Rng) -> Vec<KeyOperation> {
    let count = 2 + rng.below(SMALL_OPERATIONS - 1);
    let mut moments: Vec<u64> = (0..2 * count).collect();
    for at in (1..moments.len()).rev() {
        moments.swap(at, rng.index(at + 1));
    }
    moments.chunks(2).map(|pair| small_operation(rng, pair[0].min(pair[1]), pair[0].max(pair[1]))).collect()
}

fn small_operation(rng: &mut Rng, begun: u64, ended: u64) -> KeyOperation {
    let (value, other) = (ValueId(rng.below(3)), ValueId(rng.below(3)));
    let condition = *rng.pick(&[KeyCondition::Always, KeyCondition::IsAbsent, KeyCondition::Is(other)]);
    let changed = [KeyOutcome::Done, KeyOutcome::Done, KeyOutcome::Unknown];
    let (action, outcome) = match rng.below(8) {
        0..2 => (KeyAction::Read(KeyCondition::Always), KeyOutcome::Present(value)),
        2 => (KeyAction::Read(KeyCondition::Always), KeyOutcome::Absent),
        3 => (KeyAction::Delete, *rng.pick(&changed)),
        4 => (KeyAction::Write(value, condition), KeyOutcome::Refused),
        _ => (KeyAction::Write(value, condition), *rng.pick(&changed)),
    };
    let ended = (outcome != KeyOutcome::Unknown).then(|| moment(ended));
    KeyOperation { outcome, ended, ..begun_operation(action, moment(begun)) }
}

/// The definition of linearizability: tries all orders of the operations that are left.
fn is_linearizable(operations: &[KeyOperation], left: &[usize], state: KeyState) -> bool {
    if left.iter().all(|at| operations[*at].ended.is_none()) {
        return true;
    }
    left.iter().any(|at| {
        let begun = operations[*at].begun;
        let may_be_first = left.iter().all(|other| operations[*other].ended.is_none_or(|end| begun < end));
        let rest: Vec<usize> = left.iter().copied().filter(|other| other != at).collect();
        let next = operations[*at].applied_to(state).filter(|_| may_be_first);
        next.is_some_and(|next| is_linearizable(operations, &rest, next))
    })
}

#[test]
fn verdicts_are_those_of_the_search_through_all_orders() {
    let mut rng = seeded_rng("small histories", 2);
    let mut violations = 0;
    for number in 0..SMALL_HISTORIES {
        let history = small_history(&mut rng);
        let all: Vec<usize> = (0..history.len()).collect();
        let expected = is_linearizable(&history, &all, None);
        let verdict = check(&history);
        assert_eq!(verdict.is_ok(), expected, "history {number}: {verdict:?} {history:#?}");
        if let Err(error) = verdict {
            violations += 1;
            assert!(matches!(error, NotLinearizable::Violation(_)), "history {number}: {error}");
            let shortest = shortest_violation(&history);
            let all: Vec<usize> = (0..shortest.len()).collect();
            assert!(!is_linearizable(&shortest, &all, None), "history {number}: {shortest:#?}");
        }
    }
    let legal = SMALL_HISTORIES - violations;
    assert!(violations > SMALL_HISTORIES / 10 && legal > SMALL_HISTORIES / 10, "{violations} violations");
}
