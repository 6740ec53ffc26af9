//! Generates docs/S3.md, which lists every operation and request header, from the tables that the program
//! uses.

use mlgw_testing::printed::assert_file_is;
use mlgw_wire::headers;
use mlgw_wire::operation::{Operation, Support};

fn operations(is_included: fn(Support) -> bool) -> String {
    let named = Operation::ALL.iter().filter(|op| is_included(op.support()) && **op != Operation::Unknown);
    named.map(|op| op.name()).collect::<Vec<_>>().join(", ")
}

/// Width of a line of prose.
const COLUMNS: usize = 110;

/// Wraps `text` to lines of at most [`COLUMNS`]; a longer word gets a line of its own.
fn wrap(text: &str) -> String {
    let (mut page, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        if column > 0 && column + 1 + word.len() > COLUMNS {
            page.push('\n');
            column = 0;
        } else if column > 0 {
            page.push(' ');
            column += 1;
        }
        page.push_str(word);
        column += word.len();
    }
    page
}

fn page() -> String {
    let paragraphs = [
        "Generated from the tables of the program; a test compares this page with them. \
         [SEMANTICS.md](SEMANTICS.md) describes the behavior in detail."
            .to_owned(),
        "## Operations".to_owned(),
        format!("Supported: {}.", operations(|support| matches!(support, Support::Full(_)))),
        format!(
            "Supported for reads only, answered as AWS does when no such configuration is set: {}.",
            operations(|support| matches!(support, Support::Absent(_)))
        ),
        format!(
            "Refused with `NotImplemented` and the name of the operation: {}.",
            operations(|support| support == Support::None)
        ),
        "## Request headers".to_owned(),
    ];
    let prose: String = paragraphs.iter().map(|paragraph| wrap(paragraph) + "\n\n").collect();
    format!("# S3 operations and request headers\n\n{prose}{}", headers::markdown())
}

#[test]
fn the_page_matches_the_tables() {
    assert_file_is("docs/S3.md", &page());
}
