//! docs/S3.md: every operation and every request header, printed from the tables that decide.

use super::headers;
use super::operation::{Operation, Support};
use crate::config::printed::assert_file_is;

fn operations(support: Support) -> String {
    let named = Operation::ALL.iter().filter(|op| op.support() == support && **op != Operation::Unknown);
    named.map(|op| op.name()).collect::<Vec<_>>().join(", ")
}

fn page() -> String {
    format!(
        "# The S3 API, operation by operation and header by header\n\n\
         Printed from the tables of the program; a test keeps it true. What it means in detail is in \
         [SEMANTICS.md](SEMANTICS.md).\n\n\
         ## Operations\n\nOffered: {}.\n\n\
         Answered as AWS does where no such configuration was set: {}.\n\n\
         Answered `NotImplemented`, by name: {}.\n\n\
         ## Request headers\n\n{}",
        operations(Support::Full),
        operations(Support::Absent),
        operations(Support::None),
        headers::markdown()
    )
}

#[test]
fn the_page_says_what_the_tables_say() {
    assert_file_is("docs/S3.md", &page());
}
