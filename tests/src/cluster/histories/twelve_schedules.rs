//! Orders of events that break a promise in a cluster without one of its rules: those of the twelve schedules
//! of the design that need no sets of nodes. Each is arranged, not met by chance: a test waits until the
//! condition of the schedule holds, and then goes on.
//!
//! - `held_answer`, schedule 1: the answer to a proposal is held back while a newer write goes through;
//! - `power_loss`, schedule 2: a leader loses the end of its log with its power, and starts again at once;
//! - `old_rows`, schedule 5: a node starts on rows from before its newest segments.

mod held_answer;
mod old_rows;
mod power_loss;
