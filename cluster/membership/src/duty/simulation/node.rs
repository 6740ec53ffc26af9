//! A node of the simulation, and what its process remembers.

use crate::duty::{DutyWaits, HeldDuty};
use crate::facts::Contact;
use mlgw_formats::schema::Duty;

/// A node.
#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) id: u64,
    /// Number of processes that were started.
    starts: u64,
    /// The process; `None` while none runs.
    pub(super) process: Option<SimProcess>,
    /// Time at which a process is started.
    pub(super) starts_ms: u64,
    /// Time until which the process is paused.
    pub(super) paused_until_ms: u64,
    /// Time until which the node reaches no other one.
    pub(super) cut_until_ms: u64,
    /// Time of the last change between answers and silence.
    pub(super) changed_ms: u64,
    pub(super) answers: bool,
}

/// A process.
#[derive(Debug)]
pub(super) struct SimProcess {
    /// Its number on its node.
    pub(super) number: u64,
    /// The row as this node has it.
    pub(super) row: Duty,
    /// The last term that this process took over.
    pub(super) own: Option<OwnTerm>,
    /// A term whose row this process wrote, and which has not begun.
    pub(super) beginning: Option<u64>,
    pub(super) held: Option<SimHeld>,
    /// Time at which requests in progress are cut, while the term ends.
    pub(super) ends_ms: Option<u64>,
    /// It stops, and the node is started again later.
    pub(super) stops: bool,
}

/// Waits of a term that a process took over, as times.
#[derive(Clone, Copy, Debug)]
pub(super) struct OwnTerm {
    pub(super) term: u64,
    pub(super) serve_at_ms: u64,
    pub(super) act_at_ms: u64,
}

/// A term that runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimHeld {
    pub(super) term: u64,
    pub(super) has_number: bool,
    pub(super) acts: bool,
    pub(super) attempted_ms: u64,
    pub(super) lease_ms: u64,
}

impl SimNode {
    pub(super) fn new(id: u64) -> Self {
        Self {
            id,
            starts: 0,
            process: None,
            starts_ms: 0,
            paused_until_ms: 0,
            cut_until_ms: 0,
            changed_ms: 0,
            answers: true,
        }
    }

    pub(super) fn is_cut(&self, now_ms: u64) -> bool {
        now_ms < self.cut_until_ms
    }

    pub(super) fn is_running(&self, now_ms: u64) -> bool {
        self.process.is_some() && now_ms >= self.paused_until_ms
    }

    /// Starts a process if it is time, and notes whether the node answers.
    pub(super) fn tick(&mut self, now_ms: u64, row: Duty) {
        if self.process.is_none() && now_ms >= self.starts_ms {
            self.starts += 1;
            self.process = Some(SimProcess::new(self.starts, row));
        }
        let answers = self.is_running(now_ms) && !self.is_cut(now_ms);
        if answers != self.answers {
            (self.answers, self.changed_ms) = (answers, now_ms);
        }
    }

    pub(super) fn contact(&self, now_ms: u64) -> Contact {
        let for_ms = now_ms - self.changed_ms;
        if self.answers { Contact::Reachable { for_ms } } else { Contact::Unreachable { for_ms } }
    }
}

impl SimProcess {
    const fn new(number: u64, row: Duty) -> Self {
        Self { number, row, own: None, beginning: None, held: None, ends_ms: None, stops: false }
    }

    /// What is left of the waits of the term in the row.
    pub(super) fn own_waits(&self, node: u64, now_ms: u64) -> Option<DutyWaits> {
        let own = self.own.filter(|own| self.row.node == node && own.term == self.row.term)?;
        Some(DutyWaits {
            serve_ms: own.serve_at_ms.saturating_sub(now_ms),
            act_ms: own.act_at_ms.saturating_sub(now_ms),
        })
    }

    pub(super) fn held_duty(&self, now_ms: u64) -> Option<HeldDuty> {
        let SimHeld { term, has_number, acts, .. } = self.held?;
        let act_at_ms = self.own.filter(|own| own.term == term).map_or(0, |own| own.act_at_ms);
        Some(HeldDuty { term, has_number, acts, act_ms: act_at_ms.saturating_sub(now_ms) })
    }

    pub(super) fn take_over(&mut self, term: u64, waits: DutyWaits, now_ms: u64) {
        let (serve_at_ms, act_at_ms) = (now_ms + waits.serve_ms, now_ms + waits.act_ms);
        self.own = Some(OwnTerm { term, serve_at_ms, act_at_ms });
    }

    /// True while changes of origins may begin.
    pub(super) fn may_act(&self, now_ms: u64) -> bool {
        self.ends_ms.is_none() && self.held.is_some_and(|held| held.acts && now_ms < held.lease_ms)
    }
}
