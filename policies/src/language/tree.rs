//! Tree of a document: nodes with their positions in the text.

use super::diagnostic::{TextPosition, quoted};

/// A node and the position of its beginning.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DocumentNode {
    pub(super) spot: TextPosition,
    pub(super) data: NodeData,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum NodeData {
    Scalar(Scalar),
    List(Vec<DocumentNode>),
    Map(Vec<DocumentEntry>),
    /// An unknown value: it was already reported as an error, or only an instance of a template provides it.
    Unknown,
}

/// The text of a scalar, and true if it was not quoted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scalar {
    pub(super) text: Box<str>,
    pub(super) is_plain: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct DocumentEntry {
    pub(super) key: Box<str>,
    pub(super) spot: TextPosition,
    pub(super) value: DocumentNode,
}

impl Scalar {
    /// True if the scalar is a null.
    pub(super) fn is_null(&self) -> bool {
        self.is_plain && matches!(&*self.text, "" | "~" | "null" | "Null" | "NULL")
    }
}

impl DocumentNode {
    /// Returns a description of the node, for messages.
    pub(super) fn description(&self) -> String {
        match &self.data {
            NodeData::Scalar(scalar) if scalar.is_null() => "null".to_owned(),
            NodeData::Scalar(scalar) => quoted(&scalar.text),
            NodeData::List(_) => "a list".to_owned(),
            NodeData::Map(_) => "a map".to_owned(),
            NodeData::Unknown => "an unknown value".to_owned(),
        }
    }
}
