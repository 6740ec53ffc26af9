//! The cluster of a schedule: the row, the leader, changes of an origin under way, faults, and a driver that
//! carries steps out as that of a node does.

use super::AlteredStep;
use super::node::{SimHeld, SimNode};
use crate::duty::{DutyFacts, DutyStep, DutyWaits, LEFT_WAIT_MS, NodeLeader, decide_duty, phase_at_end};
use crate::facts::Contact;
use fastrand::Rng;
use mlgw_common::NodeId;
use mlgw_common::limits::{DUTY_LEASE_MS, DUTY_RENEW_MS, ORIGIN_CHANGE_MS_MAX};
use mlgw_formats::schema::{Duty, DutyPhase};

/// Time between two decisions of a node.
const TICK_MS: u64 = 200;

/// Ticks of a healthy cluster, after which some node acts.
const CALM_TICKS: u64 = 120_000 / TICK_MS;

/// A change of an origin that may still have an effect.
#[derive(Clone, Copy, Debug)]
struct SimRequest {
    /// The node, and the number of its process.
    sender: (u64, u64),
    term: u64,
    effect_ms: u64,
}

pub(super) struct World {
    pub(super) trace: Vec<String>,
    now_ms: u64,
    row: Duty,
    /// Time from which terms are known.
    terms_from_ms: u64,
    leader: usize,
    leads_since_ms: u64,
    nodes: Vec<SimNode>,
    requests: Vec<SimRequest>,
    /// Changes of the row that are made later, although their nodes got no answer.
    late: Vec<(u64, Duty)>,
    violation: Option<String>,
    alter: AlteredStep,
    is_calm: bool,
    rng: Rng,
}

impl World {
    pub(super) fn new(seed: u64, alter: AlteredStep) -> Self {
        let mut rng = Rng::with_seed(seed);
        let nodes: Vec<SimNode> = (1..=rng.u64(2..=5)).map(SimNode::new).collect();
        let terms_from_ms = if rng.u8(0..4) == 0 { rng.u64(0..60_000) } else { 0 };
        Self {
            trace: Vec::new(),
            now_ms: 1_000_000,
            row: Duty::FIRST,
            terms_from_ms: 1_000_000 + terms_from_ms,
            leader: rng.usize(0..nodes.len()),
            leads_since_ms: 1_000_000,
            nodes,
            requests: Vec::new(),
            late: Vec::new(),
            violation: None,
            alter,
            is_calm: false,
            rng,
        }
    }

    pub(super) fn fail_at_random(&mut self) {
        for _ in 0..self.rng.u64(500..4_000) {
            self.tick();
        }
    }

    /// Every node returns, and nothing happens for long: then one of them acts.
    pub(super) fn calm_down(&mut self) -> Result<(), String> {
        self.is_calm = true;
        for node in &mut self.nodes {
            (node.starts_ms, node.paused_until_ms, node.cut_until_ms) = (self.now_ms, 0, 0);
        }
        for _ in 0..CALM_TICKS {
            self.tick();
        }
        if let Some(violation) = self.violation.take() {
            return Err(violation);
        }
        let acting = self.nodes.iter().filter_map(|node| node.process.as_ref());
        match acting.filter(|process| process.may_act(self.now_ms)).count() {
            1 => Ok(()),
            count => Err(format!("{count} nodes act in a healthy cluster: {:?}", self.nodes)),
        }
    }

    fn tick(&mut self) {
        if self.violation.is_some() {
            return;
        }
        self.now_ms += TICK_MS;
        self.requests.retain(|request| request.effect_ms > self.now_ms);
        self.make_late_changes();
        if !self.is_calm {
            self.fault();
        }
        for index in 0..self.nodes.len() {
            self.nodes[index].tick(self.now_ms, self.row);
            if self.nodes[index].is_running(self.now_ms) {
                self.drive(index);
            }
        }
    }

    fn make_late_changes(&mut self) {
        let due: Vec<Duty> =
            self.late.iter().filter(|(at_ms, _)| *at_ms <= self.now_ms).map(|(_, duty)| *duty).collect();
        self.late.retain(|(at_ms, _)| *at_ms > self.now_ms);
        for duty in due {
            self.apply(duty);
        }
    }

    fn apply(&mut self, next: Duty) -> bool {
        let may_follow = self.row.may_be_followed_by(&next);
        if may_follow {
            self.trace.push(format!("{} {next:?}", self.now_ms));
            self.row = next;
        }
        may_follow || self.row == next
    }

    fn fault(&mut self) {
        let (now_ms, index) = (self.now_ms, self.rng.usize(0..self.nodes.len()));
        let longest_ms = [2_000, 8_000, 50_000][self.rng.usize(0..3)];
        let until_ms = now_ms + self.rng.u64(TICK_MS..longest_ms);
        let node = &mut self.nodes[index];
        match self.rng.u16(0..600) {
            0 => (node.process, node.starts_ms) = (None, until_ms),
            1 => node.paused_until_ms = until_ms,
            2 => node.cut_until_ms = until_ms,
            3 => {
                if let Some(process) = &mut node.process {
                    process.stops = true;
                }
            }
            4 | 5 => (self.leader, self.leads_since_ms) = (index, now_ms),
            _ => {}
        }
        // A leader that is lost is replaced.
        if !self.nodes[self.leader].answers && self.rng.u8(0..8) == 0 {
            let answering = (0..self.nodes.len()).filter(|of| self.nodes[*of].answers);
            if let Some(next) = self.rng.choice(answering.collect::<Vec<_>>()) {
                (self.leader, self.leads_since_ms) = (next, now_ms);
            }
        }
    }

    /// Changes the row. Returns false if the node got no answer, or a refusal.
    fn record(&mut self, index: usize, next: Duty) -> bool {
        if self.nodes[index].is_cut(self.now_ms) {
            return false;
        }
        match self.rng.u8(0..8) {
            0 if !self.is_calm => {
                self.late.push((self.now_ms + self.rng.u64(0..20_000), next));
                false
            }
            1 if !self.is_calm => {
                self.apply(next);
                false
            }
            _ => {
                let is_made = self.apply(next);
                if let Some(process) = &mut self.nodes[index].process {
                    process.row = self.row;
                }
                is_made
            }
        }
    }

    /// What a running node does in a tick.
    fn drive(&mut self, index: usize) {
        let (now_ms, row, is_cut) = (self.now_ms, self.row, self.nodes[index].is_cut(self.now_ms));
        let sees_rows = !is_cut && (self.is_calm || self.rng.u8(0..4) != 0);
        let node = self.nodes[index].id;
        let Some(process) = &mut self.nodes[index].process else { return };
        if sees_rows {
            process.row = row;
        }
        if let Some(held) = process.held.as_mut().filter(|held| now_ms >= held.attempted_ms + DUTY_RENEW_MS) {
            held.attempted_ms = now_ms;
            if !is_cut && row.node == node && row.term == held.term {
                held.lease_ms = now_ms + DUTY_LEASE_MS;
            }
        }
        self.act(index);
        let Some(process) = &mut self.nodes[index].process else { return };
        if process.ends_ms.is_some() {
            self.end(index);
        } else if process.stops {
            process.ends_ms = Some(now_ms);
            process.beginning = None;
        } else if process.beginning.is_some() {
            self.begin(index);
        } else if let Some(facts) = self.facts(index) {
            let step = (self.alter)(decide_duty(&facts));
            self.carry_out(index, step);
        }
    }

    /// Sends a change to the origin now and then.
    fn act(&mut self, index: usize) {
        let node = &self.nodes[index];
        let process = node.process.as_ref().filter(|process| process.may_act(self.now_ms));
        let Some(process) = process else { return };
        let Some(held) = process.held else { return };
        if let Some(other) = self.requests.iter().find(|request| request.term != held.term) {
            self.violation = Some(format!("node {} acts in term {}, during {other:?}", node.id, held.term));
        }
        let delay_ms = match self.rng.u8(0..9) {
            0 => ORIGIN_CHANGE_MS_MAX,
            1 => self.rng.u64(0..ORIGIN_CHANGE_MS_MAX),
            2..4 => TICK_MS,
            _ => return,
        };
        let (sender, effect_ms) = ((node.id, process.number), self.now_ms + delay_ms);
        self.requests.push(SimRequest { sender, term: held.term, effect_ms });
    }

    /// The facts of a node; `None` while it has no process.
    fn facts(&self, index: usize) -> Option<DutyFacts> {
        let (now_ms, node) = (self.now_ms, &self.nodes[index]);
        let process = node.process.as_ref()?;
        let for_ms = now_ms - self.leads_since_ms.max(self.terms_from_ms.min(now_ms));
        let leader = NodeLeader { node: NodeId(self.nodes[self.leader].id), is_able: true, for_ms };
        let holder = self.nodes.iter().find(|of| of.id == process.row.node);
        Some(DutyFacts {
            own: NodeId(node.id),
            is_able: !process.stops,
            knows_terms: now_ms >= self.terms_from_ms,
            leader: Some(leader),
            duty: process.row,
            holder: holder.map_or(Contact::Unreachable { for_ms: u64::MAX }, |of| of.contact(now_ms)),
            held: process.held_duty(now_ms),
            own_waits: process.own_waits(node.id, now_ms),
            has_origins: true,
        })
    }

    fn carry_out(&mut self, index: usize, step: DutyStep) {
        let (now_ms, row) = (self.now_ms, self.row);
        let drain_ms = self.rng.u64(0..5_000);
        let Some(process) = &mut self.nodes[index].process else { return };
        match step {
            DutyStep::Wait => {}
            DutyStep::Begin => {
                process.take_over(row.term, DutyWaits::LEFT, now_ms);
                process.held = Some(held(row.term, false, now_ms));
            }
            DutyStep::TakeOver(duty, waits) => {
                if process.row == row {
                    self.take_over(index, duty, waits);
                }
            }
            DutyStep::Act(duty) => {
                self.record(index, duty);
            }
            DutyStep::AllowActs => {
                if let Some(held) = &mut process.held {
                    held.acts = true;
                }
            }
            DutyStep::HandOver => process.ends_ms = Some(now_ms + drain_ms),
            DutyStep::Stop => process.held = None,
        }
    }

    fn take_over(&mut self, index: usize, duty: Duty, waits: DutyWaits) {
        let now_ms = self.now_ms;
        // Nothing was sent in this term, whatever becomes of the change.
        if let Some(process) = &mut self.nodes[index].process
            && duty.phase() == DutyPhase::Active
        {
            process.take_over(duty.term, waits, now_ms);
        }
        if self.record(index, duty)
            && let Some(process) = &mut self.nodes[index].process
        {
            process.take_over(duty.term, waits, now_ms);
            process.beginning = Some(duty.term);
        }
    }

    /// Begins a term when its wait is over, unless the begin fails.
    fn begin(&mut self, index: usize) {
        let (now_ms, row, is_cut) = (self.now_ms, self.row, self.nodes[index].is_cut(self.now_ms));
        let fails = !self.is_calm && self.rng.u8(0..10) == 0;
        let node = &mut self.nodes[index];
        let Some(process) = &mut node.process else { return };
        let Some(own) = process.own.filter(|own| now_ms >= own.serve_at_ms) else { return };
        let is_confirmed = !is_cut && row.node == node.id && row.term == own.term;
        process.beginning = None;
        if is_confirmed && !fails {
            process.held = Some(held(own.term, true, now_ms));
        } else if is_confirmed {
            self.record_end(index, true);
        }
    }

    /// Ends a term when its requests are answered, or cut.
    fn end(&mut self, index: usize) {
        let now_ms = self.now_ms;
        let node = &mut self.nodes[index];
        let Some(process) = &mut node.process else { return };
        let term = process.held.map(|held| held.term);
        let is_own = |of: &&SimRequest| of.sender == (node.id, process.number) && Some(of.term) == term;
        let is_complete = !self.requests.iter().any(|of| is_own(&of));
        if !is_complete && process.ends_ms.is_some_and(|ends_ms| now_ms < ends_ms) {
            return;
        }
        (process.held, process.ends_ms) = (None, None);
        if let Some(own) = process.own.as_mut().filter(|_| !is_complete) {
            own.act_at_ms = own.act_at_ms.max(now_ms + LEFT_WAIT_MS);
        }
        let stops = process.stops;
        self.record_end(index, is_complete);
        if stops {
            let starts_ms = now_ms + self.rng.u64(0..20_000);
            let node = &mut self.nodes[index];
            (node.process, node.starts_ms) = (None, starts_ms);
        }
    }

    /// Records that the term of a process is over, if the row still has it.
    fn record_end(&mut self, index: usize, is_complete: bool) {
        let (now_ms, node) = (self.now_ms, &self.nodes[index]);
        let Some(process) = &node.process else { return };
        let row = process.row;
        let waits = process.own_waits(node.id, now_ms).filter(|waits| waits.serve_ms == 0);
        if let Some(waits) = waits.filter(|_| now_ms >= self.terms_from_ms && !row.is_over()) {
            let phase = phase_at_end(&row, is_complete, waits.act_ms);
            self.record(index, Duty { phase: phase as i32, ..row });
        }
    }
}

/// A term that has just begun.
const fn held(term: u64, has_number: bool, now_ms: u64) -> SimHeld {
    SimHeld { term, has_number, acts: false, attempted_ms: now_ms, lease_ms: now_ms + DUTY_LEASE_MS }
}
