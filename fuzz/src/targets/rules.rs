//! Placement policies and framework plugins, as users write them. Properties: any text compiles to a
//! policy, or to errors with positions in the text; a compiled policy is printed as a policy that compiles
//! to the same.

use mlgw_policies::language::{BuiltInLayers, Framework, Layers, NoFacts, ParsedPolicy, Program};
use std::sync::LazyLock;

static BUILT_IN: LazyLock<BuiltInLayers> =
    LazyLock::new(|| BuiltInLayers::load().expect("what is built in is right"));

/// The input: the text of a file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = text.lines().count() + 1;
    if let Err(wrong) = Framework::parse("plugin", text) {
        assert!(!wrong.to_string().is_empty());
    }
    let Some(program) = compiled(text, lines) else { return };
    let printed = program.to_yaml();
    let again = compiled(&printed, usize::MAX).expect("what was printed is right");
    // Only `policy` is compared: the positions refer to another file now.
    assert!(program.to_json()["policy"] == again.to_json()["policy"], "{printed}");
    assert_eq!(program.due(&NoFacts).count(), again.due(&NoFacts).count());
}

fn compiled(text: &str, lines: usize) -> Option<Program> {
    let file = match ParsedPolicy::parse("policy", text) {
        Ok(file) => file,
        Err(wrong) => {
            assert!(!wrong.to_string().is_empty() && lines > 0);
            return None;
        }
    };
    let layers = Layers {
        custom: &[file],
        frameworks: &[],
        environment: None,
        machine: &NoFacts,
        built_in: &BUILT_IN,
    };
    Program::compile(&layers).ok()
}
