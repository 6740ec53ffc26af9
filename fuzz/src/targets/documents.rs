//! XML: documents of requests, and text in responses. Property: escaped text decodes to the original.

use mlgw_wire::elements::{CompleteDocument, CreateDocument, DeleteDocument, TaggingDocument};
use mlgw_wire::xml::{Unprintable, Xml, element_into};
use mlgw_wire::xml_input::parse;

/// Decodes the bytes as every kind of document, then encodes them as text and decodes that.
pub fn run(data: &[u8]) {
    let _ = parse::<CreateDocument>(data);
    let _ = parse::<DeleteDocument>(data);
    let _ = parse::<CompleteDocument>(data);
    let _ = parse::<TaggingDocument>(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut out = String::new();
    element_into(&mut out, "Message", text, Unprintable::Replaced);
    assert!(quick_xml::de::from_str::<String>(&out).is_ok(), "every parser reads an error: {out}");
    let holds = |c: char| matches!(c, '\t' | '\n' | '\r' | '\u{20}'..='\u{fffd}' | '\u{10000}'..);
    if text.chars().all(holds) && !text.is_empty() {
        let mut xml = Xml::new("Tagging");
        xml.open("TagSet").open("Tag").text("Key", text).text("Value", text).close("Tag").close("TagSet");
        let read = parse::<TaggingDocument>(xml.finish("Tagging").as_bytes()).expect("our own document");
        assert_eq!((&*read.set.tags[0].key, &*read.set.tags[0].value), (text, text));
    }
}
