//! Tests of workload tracking on short sequences of accesses, and of its bounds. Those on labeled lifecycles
//! are in `policies/lab`.

mod bounds;
mod epochs;
mod numbers;
mod without_passes;
mod written;

use crate::language::Program;

fn program() -> Program {
    Program::compile_built_in().unwrap()
}
