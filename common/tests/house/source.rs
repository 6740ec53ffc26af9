//! Parsed facts of one Rust file for the rules and measures. The syntax tree itself cannot be sent to another
//! thread.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ImplItem, Item, Meta, Stmt, TraitItem, Type, UseTree, Visibility};

use crate::comments::{Comment, comments};

/// Facts of one file. Except where a field states otherwise, items that are compiled only for tests are
/// omitted.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) text: String,
    /// Lines outside items for tests.
    pub(crate) lines: usize,
    pub(crate) submodules: Vec<Submodule>,
    pub(crate) functions: Vec<Function>,
    /// Structs, enums, unions, traits and type aliases, with their lines.
    pub(crate) types: Vec<(String, usize)>,
    /// Names that a module defines: the module inside the file, and the name.
    pub(crate) items: Vec<(String, String)>,
    /// Types and their functions, constants, types, variants and fields, in tests too.
    pub(crate) members: BTreeSet<[String; 2]>,
    pub(crate) imports: Vec<Import>,
    /// Paths of more than one segment, in tests too, with the first line of each.
    pub(crate) paths: BTreeMap<Mention, usize>,
    /// First segments of all paths, those of one segment included.
    pub(crate) mentioned: BTreeSet<String>,
    pub(crate) asserts: usize,
    /// Lines with `.unwrap()`.
    pub(crate) unwraps: Vec<usize>,
    /// Lines with the keyword `unsafe`, in tests too.
    pub(crate) unsafe_lines: Vec<usize>,
    /// Identifiers, in tests too: number of occurrences, and the first line.
    pub(crate) identifiers: BTreeMap<String, (usize, usize)>,
    /// Comments, in tests too.
    pub(crate) comments: Vec<Comment>,
}

/// `mod name;`
#[derive(Debug)]
pub(crate) struct Submodule {
    pub(crate) name: String,
    /// Inline modules around it, `a::b`.
    pub(crate) inside: String,
    /// Value of `#[path = "…"]`.
    pub(crate) path: Option<String>,
    pub(crate) for_tests: bool,
}

#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// Lines from `fn` to the closing brace; 0 without a body.
    pub(crate) lines: usize,
    /// Parameters that are tuples of two or more types. 0 where a trait gives the signature.
    pub(crate) tuples: usize,
    /// Parameters of type `bool`. 0 where a trait gives the signature.
    pub(crate) bools: usize,
}

/// A name that a `use` brings into a module, in tests too.
#[derive(Debug)]
pub(crate) struct Import {
    /// Module inside the file.
    pub(crate) inside: String,
    pub(crate) path: Vec<String>,
    /// Name under which it is imported; `None` for `*`.
    pub(crate) name: Option<String>,
    /// True for a re-export, which has a visibility of its own.
    pub(crate) is_public: bool,
    pub(crate) for_tests: bool,
    pub(crate) line: usize,
}

/// A path as it is written, and its module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mention {
    /// Module inside the file.
    pub(crate) inside: String,
    pub(crate) path: Vec<String>,
    pub(crate) for_tests: bool,
}

impl Source {
    /// Parses a file.
    pub(crate) fn parse(text: String) -> Result<Self, syn::Error> {
        let tokens: TokenStream = text.parse()?;
        let file: syn::File = syn::parse2(tokens.clone())?;
        let mut reader = Reader {
            source: Source { comments: comments(&text), ..Source::default() },
            inside: String::new(),
            owner: None,
            for_tests: 0,
            trait_gives_signature: false,
            test_lines: vec![false; text.lines().count() + 1],
        };
        reader.count_identifiers(tokens);
        reader.visit_file(&file);
        let mut source = reader.source;
        source.lines = text.lines().count() - reader.test_lines.iter().filter(|in_test| **in_test).count();
        source.text = text;
        Ok(source)
    }

    /// The number of comment words.
    pub(crate) fn comment_words(&self) -> usize {
        self.comments.iter().map(|comment| comment.text.split_whitespace().count()).sum()
    }
}

/// Fills a [`Source`] while it visits the syntax tree.
struct Reader {
    source: Source,
    inside: String,
    /// Type whose members are visited.
    owner: Option<String>,
    /// Nesting depth of items that are compiled only for tests.
    for_tests: usize,
    trait_gives_signature: bool,
    test_lines: Vec<bool>,
}

impl Reader {
    /// Visits a part of the tree, which its attributes may restrict to tests.
    fn guarded(
        &mut self,
        attributes: &[Attribute],
        span: impl FnOnce() -> Span,
        visit: impl FnOnce(&mut Self),
    ) {
        let for_tests = attributes.iter().any(is_for_tests);
        if for_tests && self.for_tests == 0 {
            let span = span();
            let first = attributes.iter().map(|a| line_of(a.pound_token.span)).min();
            let first = first.unwrap_or(usize::MAX).min(line_of(span));
            self.test_lines[first..=span.end().line].fill(true);
        }
        self.for_tests += usize::from(for_tests);
        visit(self);
        self.for_tests -= usize::from(for_tests);
    }

    fn count_identifiers(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.count_identifiers(group.stream()),
                TokenTree::Ident(ident) => {
                    let (name, line) = (ident.to_string(), line_of(ident.span()));
                    if name == "unsafe" {
                        self.source.unsafe_lines.push(line);
                    }
                    self.source.identifiers.entry(name).or_insert((0, line)).0 += 1;
                }
                _ => {}
            }
        }
    }

    fn mention(&mut self, path: Vec<String>, line: usize) {
        self.source.mentioned.insert(path[0].clone());
        if path.len() > 1 {
            let mention = Mention { inside: self.inside.clone(), path, for_tests: self.for_tests > 0 };
            self.source.paths.entry(mention).or_insert(line);
        }
    }

    /// Reads the tokens of a macro call, which has no syntax tree, for paths, asserts and `.unwrap()`.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is = |at: usize, c: char| matches!(tokens.get(at), Some(TokenTree::Punct(p)) if p.as_char() == c);
        let mut at = 0;
        while at < tokens.len() {
            let start = at;
            at += 1;
            match &tokens[start] {
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(ident) => {
                    let mut path = vec![name_of(ident)];
                    while is(at, ':') && is(at + 1, ':') {
                        let Some(TokenTree::Ident(next)) = tokens.get(at + 2) else { break };
                        path.push(name_of(next));
                        at += 3;
                    }
                    let after_dot = start > 0 && is(start - 1, '.');
                    let empty_call = matches!(tokens.get(at), Some(TokenTree::Group(group))
                        if group.delimiter() == Delimiter::Parenthesis && group.stream().is_empty());
                    if after_dot && path[0] == "unwrap" && empty_call {
                        self.unwrap(ident.span());
                    }
                    if is(at, '!') && !is(at + 1, '=') {
                        self.count_assert(path.last().map_or("", |name| name));
                    }
                    if !after_dot {
                        self.mention(path, line_of(ident.span()));
                    }
                }
                _ => {}
            }
        }
    }

    fn unwrap(&mut self, span: Span) {
        if self.for_tests == 0 {
            self.source.unwraps.push(line_of(span));
        }
    }

    fn count_assert(&mut self, macro_name: &str) {
        let name = macro_name.strip_prefix("debug_").unwrap_or(macro_name);
        if self.for_tests == 0 && ["assert", "assert_eq", "assert_ne"].contains(&name) {
            self.source.asserts += 1;
        }
    }

    fn function(&mut self, signature: &syn::Signature, body: Option<&syn::Block>) {
        if self.for_tests > 0 {
            return;
        }
        let line = line_of(signature.fn_token.span);
        let end = body.map(|block| block.brace_token.span.close().end().line);
        let types: Vec<&Type> = signature.inputs.iter().filter_map(parameter_type).collect();
        let types = if self.trait_gives_signature { Vec::new() } else { types };
        self.source.functions.push(Function {
            name: name_of(&signature.ident),
            line,
            lines: end.map_or(0, |end| end - line + 1),
            tuples: types.iter().filter(|ty| is_tuple(ty)).count(),
            bools: types.iter().filter(|ty| is_bool(ty)).count(),
        });
    }

    fn define(&mut self, ident: &syn::Ident, is_type: bool) {
        if self.for_tests == 0 {
            self.source.items.push((self.inside.clone(), name_of(ident)));
            if is_type {
                self.source.types.push((name_of(ident), line_of(ident.span())));
            }
        }
        if is_type {
            self.owner = Some(name_of(ident));
        }
    }

    fn member(&mut self, ident: &syn::Ident) {
        if let Some(owner) = &self.owner {
            self.source.members.insert([owner.clone(), name_of(ident)]);
        }
    }

    fn import(&mut self, tree: &UseTree, prefix: &mut Vec<String>, is_public: bool) {
        let (ident, name) = match tree {
            UseTree::Path(path) => {
                prefix.push(name_of(&path.ident));
                self.import(&path.tree, prefix, is_public);
                prefix.pop();
                return;
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(tree, prefix, is_public));
            }
            UseTree::Name(name) => (Some(&name.ident), Some(&name.ident)),
            UseTree::Rename(rename) => (Some(&rename.ident), Some(&rename.rename)),
            UseTree::Glob(_) => (None, None),
        };
        let mut path = prefix.clone();
        path.extend(ident.map(name_of).filter(|name| name != "self"));
        let name =
            name.map(name_of).map(|name| if name == "self" { path.last().cloned() } else { Some(name) });
        let line = line_of(ident.map_or_else(|| tree.span(), proc_macro2::Ident::span));
        let inside = self.inside.clone();
        let for_tests = self.for_tests > 0;
        self.source.imports.push(Import { inside, path, name: name.flatten(), is_public, for_tests, line });
    }

    fn module(&mut self, module: &syn::ItemMod) {
        let name = name_of(&module.ident);
        let Some((_, items)) = &module.content else {
            let path = module.attrs.iter().find_map(path_attribute);
            let (inside, for_tests) = (self.inside.clone(), self.for_tests > 0);
            self.source.submodules.push(Submodule { name, inside, path, for_tests });
            return;
        };
        let around = self.inside.clone();
        self.inside = if around.is_empty() { name } else { format!("{around}::{name}") };
        items.iter().for_each(|item| self.visit_item(item));
        self.inside = around;
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let around = self.owner.take();
        self.guarded(
            item_attributes(item),
            || item.span(),
            |reader| {
                match item {
                    Item::Const(item) => reader.define(&item.ident, false),
                    Item::Static(item) => reader.define(&item.ident, false),
                    Item::Fn(item) => {
                        reader.define(&item.sig.ident, false);
                        reader.function(&item.sig, Some(&item.block));
                    }
                    Item::Enum(item) => reader.define(&item.ident, true),
                    Item::Struct(item) => reader.define(&item.ident, true),
                    Item::Trait(item) => reader.define(&item.ident, true),
                    Item::Type(item) => reader.define(&item.ident, true),
                    Item::Union(item) => reader.define(&item.ident, true),
                    _ => {}
                }
                match item {
                    Item::Mod(module) => {
                        module.attrs.iter().for_each(|attribute| reader.visit_attribute(attribute));
                        reader.module(module);
                    }
                    Item::Use(item) => {
                        let is_public = !matches!(item.vis, Visibility::Inherited);
                        reader.import(&item.tree, &mut Vec::new(), is_public);
                    }
                    item => visit::visit_item(reader, item),
                }
            },
        );
        self.owner = around;
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let before = std::mem::replace(&mut self.trait_gives_signature, item.trait_.is_some());
        self.owner = match &*item.self_ty {
            Type::Path(of) => of.path.segments.last().map(|segment| name_of(&segment.ident)),
            _ => None,
        };
        visit::visit_item_impl(self, item);
        self.trait_gives_signature = before;
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => return,
        };
        self.guarded(
            attributes,
            || item.span(),
            |reader| {
                match item {
                    ImplItem::Const(item) => reader.member(&item.ident),
                    ImplItem::Type(item) => reader.member(&item.ident),
                    ImplItem::Fn(item) => {
                        reader.member(&item.sig.ident);
                        reader.function(&item.sig, Some(&item.block));
                    }
                    _ => {}
                }
                visit::visit_impl_item(reader, item);
            },
        );
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = match item {
            TraitItem::Const(item) => &item.attrs,
            TraitItem::Fn(item) => &item.attrs,
            TraitItem::Type(item) => &item.attrs,
            TraitItem::Macro(item) => &item.attrs,
            _ => return,
        };
        self.guarded(
            attributes,
            || item.span(),
            |reader| {
                match item {
                    TraitItem::Const(item) => reader.member(&item.ident),
                    TraitItem::Type(item) => reader.member(&item.ident),
                    TraitItem::Fn(item) => {
                        reader.member(&item.sig.ident);
                        reader.function(&item.sig, item.default.as_ref());
                    }
                    _ => {}
                }
                visit::visit_trait_item(reader, item);
            },
        );
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let attributes: &[Attribute] = match statement {
            Stmt::Local(local) => &local.attrs,
            Stmt::Macro(call) => &call.attrs,
            Stmt::Expr(Expr::Block(block), _) => &block.attrs,
            Stmt::Expr(Expr::Call(call), _) => &call.attrs,
            Stmt::Expr(Expr::MethodCall(call), _) => &call.attrs,
            Stmt::Expr(Expr::If(branch), _) => &branch.attrs,
            _ => &[],
        };
        self.guarded(attributes, || statement.span(), |reader| visit::visit_stmt(reader, statement));
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.member(name);
        }
        self.guarded(&field.attrs, || field.span(), |reader| visit::visit_field(reader, field));
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        self.guarded(&field.attrs, || field.span(), |reader| visit::visit_field_value(reader, field));
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.member(&variant.ident);
        self.guarded(&variant.attrs, || variant.span(), |reader| visit::visit_variant(reader, variant));
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        self.guarded(&arm.attrs, || arm.span(), |reader| visit::visit_arm(reader, arm));
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if call.method == "unwrap" && call.args.is_empty() {
            self.unwrap(call.method.span());
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        if let Some(name) = call.path.segments.last() {
            self.count_assert(&name_of(&name.ident));
        }
        self.visit_path(&call.path);
        self.scan(call.tokens.clone());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| name_of(&segment.ident)).collect();
        if let Some(first) = path.segments.first() {
            self.mention(segments, line_of(first.ident.span()));
        }
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            self.scan(list.tokens.clone());
        }
        self.visit_path(attribute.path());
    }

    /// Skips `pub(in path)`, which names no dependency.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

fn line_of(span: Span) -> usize {
    span.start().line
}

/// An identifier without the `r#` of a raw one.
fn name_of(ident: &proc_macro2::Ident) -> String {
    let name = ident.to_string();
    name.strip_prefix("r#").map(str::to_owned).unwrap_or(name)
}

/// True for `#[cfg(test)]`, `#[cfg(all(test, …))]`, `#[test]` and `#[tokio::test]`.
fn is_for_tests(attribute: &Attribute) -> bool {
    let path = attribute.path();
    if path.is_ident("cfg") {
        let Meta::List(list) = &attribute.meta else { return false };
        let condition = list.tokens.to_string().replace(' ', "");
        let all = condition.strip_prefix("all(").and_then(|all| all.strip_suffix(')'));
        return condition == "test" || all.is_some_and(|all| all.split(',').any(|one| one == "test"));
    }
    path.segments.last().is_some_and(|segment| segment.ident == "test")
}

fn path_attribute(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    let Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) = &pair.value else { return None };
    pair.path.is_ident("path").then(|| path.value())
}

fn parameter_type(input: &syn::FnArg) -> Option<&Type> {
    match input {
        syn::FnArg::Typed(parameter) => Some(&parameter.ty),
        _ => None,
    }
}

/// A type without surrounding references and parentheses.
fn bare(ty: &Type) -> &Type {
    match ty {
        Type::Reference(reference) => bare(&reference.elem),
        Type::Paren(paren) => bare(&paren.elem),
        Type::Group(group) => bare(&group.elem),
        ty => ty,
    }
}

fn is_tuple(ty: &Type) -> bool {
    let is_unit = |ty: &&Type| matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty());
    matches!(bare(ty), Type::Tuple(tuple) if tuple.elems.iter().filter(|ty| !is_unit(ty)).count() >= 2)
}

fn is_bool(ty: &Type) -> bool {
    matches!(bare(ty), Type::Path(path) if path.path.is_ident("bool"))
}

fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

mod tests {
    //! Literal files and the facts read from them.

    use super::Source;

    fn source(text: &str) -> Source {
        Source::parse(text.to_owned()).unwrap()
    }

    #[test]
    fn functions_are_found_in_every_position() {
        let text = "//! S.\nfn a() {\n    async fn b() {}\n}\n\
            impl A {\n    pub(in crate::x) const fn c(\n        x: u8,\n    ) {\n    }\n}\n\
            trait T {\n    fn d();\n    fn e() {}\n}\n#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n\
            #[cfg(all(test, unix))]\nfn g() {}\nm! { fn h() {} }\n";
        let found = source(text);
        let found: Vec<(&str, usize, usize)> =
            found.functions.iter().map(|f| (&*f.name, f.line, f.lines)).collect();
        assert_eq!(found, [("a", 2, 3), ("b", 3, 1), ("c", 6, 4), ("d", 12, 0), ("e", 13, 1)]);
    }

    #[test]
    fn members_belong_to_the_type_around_them() {
        let text = "struct A {\n    a: u8,\n}\nstruct T(u8);\nenum B<X> {\n    C,\n    D { d: X },\n}\n\
            impl<X> m::B<X> {\n    const E: u8 = 1;\n    fn f() {\n        struct G {\n            g: u8,\n\
            }\n    }\n    fn h() {}\n}\ntrait I {\n    type J;\n    fn k();\n}\n\
            impl I for A {\n    type J = u8;\n    fn k() {}\n}\nfn l() {}\n";
        let members = source(text).members;
        let found: Vec<String> = members.iter().map(|path| path.join("::")).collect();
        let expected = "A::J A::a A::k B::C B::D B::E B::d B::f B::h G::g I::J I::k";
        assert_eq!(found.join(" "), expected);
    }

    #[test]
    fn lines_of_tests_are_not_counted() {
        let text =
            "fn a() {}\n\n/// T.\n#[cfg(test)]\nmod tests {\n    #[test]\n    fn t() {}\n}\nfn b() {}\n";
        assert_eq!(source(text).lines, 3);
        let text = "#[cfg(test)]\nmod tests;\nmod other;\n";
        let found = source(text);
        assert_eq!(found.lines, 1);
        let found: Vec<(&str, bool)> = found.submodules.iter().map(|m| (&*m.name, m.for_tests)).collect();
        assert_eq!(found, [("tests", true), ("other", false)]);
    }

    #[test]
    fn unwraps_asserts_and_unsafe_code_are_found_inside_macros_too() {
        let text = r#"fn a(x: Option<u8>) {
            x.unwrap();
            m!(y.unwrap(), ".unwrap()");
            x.unwrap_or(1); // .unwrap()
            assert!(true);
            m! { debug_assert_eq!(1, 1); assert != 2; }
            unsafe {}
        }
        #[test]
        fn t() { assert!(x.unwrap()); }
        const _: () = assert!(1 < 2);"#;
        let found = source(text);
        assert_eq!((found.unwraps, found.asserts, found.unsafe_lines), (vec![2, 3], 3, vec![7]));
    }

    #[test]
    fn imports_and_paths_are_flat() {
        let text = "use a::{self, b::{C as D, E}, f::*};\npub(crate) use g::H;\n\
            mod m {\n    fn i() { x::y::<z::W>(); log!(\"{}\", k::l); }\n}\npub(in crate::v) struct S;\n";
        let found = source(text);
        let imports: Vec<(String, Option<&str>, bool)> =
            found.imports.iter().map(|i| (i.path.join("::"), i.name.as_deref(), i.is_public)).collect();
        let expected = [
            ("a", Some("a"), false),
            ("a::b::C", Some("D"), false),
            ("a::b::E", Some("E"), false),
            ("a::f", None, false),
            ("g::H", Some("H"), true),
        ];
        assert_eq!(imports, expected.map(|(path, name, is_public)| (path.to_owned(), name, is_public)));
        let paths: Vec<(&str, String)> =
            found.paths.keys().map(|mention| (&*mention.inside, mention.path.join("::"))).collect();
        assert_eq!(paths, [("m", "k::l".to_owned()), ("m", "x::y".to_owned()), ("m", "z::W".to_owned())]);
    }
}
