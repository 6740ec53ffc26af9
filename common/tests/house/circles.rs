//! Circles of imports between files. An arrow goes from a file to each file whose items it names, by `use` or
//! by a path in place, through any re-exports. Code for tests has no arrows; nor has a module that declares
//! or re-exports a child without using it.
//!
//! An arrow from a module to its own parts does not count: a part that uses the types of its module
//! (`use super::State`) is the usual layout of Rust, and module and parts are read and changed together.

use std::collections::{BTreeMap, BTreeSet};

use crate::measures::{Kind, Measure, Offender};
use crate::source::{Import, Source};
use crate::tree::{Tree, submodule_file};

/// Maximum depth of nested re-exports that is followed.
const REEXPORTS_MAX: usize = 16;

/// Arrows from file to file, with the names behind each and the line of the first.
type Arrows<'a> = BTreeMap<&'a str, BTreeMap<&'a str, Vec<(usize, String)>>>;

/// A strongly connected component of more than one file.
type Circle<'a> = Vec<&'a str>;

/// Two measures: files on a circle, and files on circles that span folders.
pub(crate) fn measures(tree: &Tree) -> [Measure; 2] {
    let all = circles(&without_own_parts(&arrows(tree)));
    let across: Vec<Circle<'_>> =
        all.iter().filter(|circle| common_folder(circle).is_none()).cloned().collect();
    [files_on("files_on_import_circles", &all), files_on("files_on_import_circles_across_folders", &across)]
}

fn files_on(name: &str, circles: &[Circle<'_>]) -> Measure {
    let listed = circles.iter().map(|circle| {
        Offender::new(circle.len(), circle[0], 1, format!("{} files: {}", circle.len(), circle.join(", ")))
    });
    let files = circles.iter().map(Vec::len).sum::<usize>();
    Measure::new(name, Kind::Count, files as f64, listed.collect())
}

/// All arrows except those from `foo.rs` to files in `foo/`, and from `lib.rs` to files beside it and below.
fn without_own_parts<'a>(arrows: &Arrows<'a>) -> Arrows<'a> {
    let mut arrows = arrows.clone();
    for (from, targets) in &mut arrows {
        let folder = from.strip_suffix("lib.rs").map_or_else(|| from.replace(".rs", "/"), str::to_owned);
        targets.retain(|target, _| !target.starts_with(&folder));
    }
    arrows
}

/// Prints every circle with a small set of arrows whose removal or reversal would break it.
pub(crate) fn print(tree: &Tree) {
    let arrows = &without_own_parts(&arrows(tree));
    let mut circles = circles(arrows);
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    for circle in circles {
        let place =
            common_folder(&circle).map_or("across folders".to_owned(), |folder| format!("in {folder}"));
        println!("\ncircle of {} files {place}:", circle.len());
        for path in &circle {
            let within: Vec<&str> =
                arrows[path].keys().copied().filter(|target| circle.contains(target)).collect();
            println!("    {path} -> {}", within.join(", "));
        }
        println!("  it breaks without:");
        for (from, to) in arrows_to_remove(&circle, arrows) {
            let names: Vec<String> =
                arrows[from][to].iter().map(|(line, name)| format!("{line} {name}")).collect();
            println!("    {from} -> {to}: {}", names.join(", "));
        }
    }
}

/// The folder that contains all files of a circle. `foo.rs` belongs both to `foo/` and to the folder that it
/// is in.
fn common_folder(circle: &[&str]) -> Option<String> {
    let parent = |path: &str| path.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
    let own = circle.iter().map(|path| path.trim_end_matches(".rs").to_owned());
    let folders: BTreeSet<String> = circle.iter().map(|path| parent(path)).chain(own).collect();
    let holds = |folder: &&String| {
        circle.iter().all(|path| parent(path) == **folder || path.trim_end_matches(".rs") == **folder)
    };
    folders.iter().find(holds).cloned()
}

/// Arrows against an order with few such arrows: sources first, sinks last, else the file whose outgoing
/// arrows exceed its incoming ones most (Eades, Lin and Smyth).
fn arrows_to_remove<'a>(circle: &[&'a str], arrows: &Arrows<'a>) -> Vec<(&'a str, &'a str)> {
    let mut open: BTreeSet<&str> = circle.iter().copied().collect();
    let weight = |from: &str, to: &str| {
        arrows.get(from).and_then(|targets| targets.get(to)).map_or(0, |names| names.len() as i64)
    };
    let (mut first, mut last) = (Vec::new(), Vec::new());
    while !open.is_empty() {
        let balance = |path: &&&str| {
            let out: i64 = open.iter().filter(|other| *other != *path).map(|other| weight(path, other)).sum();
            let into: i64 =
                open.iter().filter(|other| *other != *path).map(|other| weight(other, path)).sum();
            (out, into)
        };
        let sink = open.iter().find(|path| balance(path).0 == 0);
        let source = open.iter().find(|path| balance(path).1 == 0);
        let next =
            sink.or(source).or_else(|| open.iter().max_by_key(|path| balance(path).0 - balance(path).1));
        let Some(path) = next.copied() else { break };
        if sink.is_some() {
            last.push(path)
        } else {
            first.push(path)
        }
        open.remove(path);
    }
    let order: Vec<&str> = first.into_iter().chain(last.into_iter().rev()).collect();
    let rank = |path: &str| order.iter().position(|one| *one == path);
    let mut against = Vec::new();
    for from in circle {
        let targets = arrows[from].keys().filter(|to| circle.contains(to) && rank(to) < rank(from));
        against.extend(targets.map(|to| (*from, *to)));
    }
    against
}

/// All arrows between files that are not for tests.
fn arrows(tree: &Tree) -> Arrows<'_> {
    let modules = Modules::new(tree);
    let mut found: Arrows<'_> = tree.shipped().map(|(path, _)| (path, BTreeMap::new())).collect();
    for (at, module) in modules.all.iter().enumerate() {
        let used = module.imports.iter().filter(|import| {
            let is_mentioned =
                import.name.as_ref().is_some_and(|name| module.source.mentioned.contains(name));
            !import.is_public || is_mentioned
        });
        let imports = used.map(|import| (&import.path, import.line));
        let here = module
            .source
            .paths
            .iter()
            .filter(|(mention, _)| mention.inside == module.inside && !mention.for_tests);
        for (path, line) in imports.chain(here.map(|(mention, line)| (&mention.path, *line))) {
            let target = modules.resolve(at, path, REEXPORTS_MAX).map(|target| modules.all[target].file);
            if let Some(target) = target.filter(|target| *target != module.file) {
                let names = found.entry(module.file).or_default().entry(target).or_default();
                names.push((line, path.join("::")));
            }
        }
    }
    found
}

/// A module: a file or a part of one.
struct Module<'a> {
    file: &'a str,
    source: &'a Source,
    /// Module inside the file.
    inside: String,
    parent: Option<usize>,
    children: BTreeMap<&'a str, usize>,
    items: BTreeSet<&'a str>,
    imports: Vec<&'a Import>,
}

/// The trees of modules of all crates.
struct Modules<'a> {
    all: Vec<Module<'a>>,
}

/// The meaning of a name in a module.
enum Meaning {
    Module(usize),
    /// An item that this module defines.
    ItemOf(usize),
}

impl<'a> Modules<'a> {
    fn new(tree: &'a Tree) -> Self {
        let mut children: BTreeMap<&str, Vec<(&'a str, &'a str, String)>> = BTreeMap::new();
        let mut declared = BTreeSet::new();
        for (path, source) in tree.shipped() {
            for submodule in source.submodules.iter().filter(|submodule| !submodule.for_tests) {
                if let Some(file) = submodule_file(&tree.sources, path, submodule) {
                    declared.insert(file.clone());
                    children.entry(path).or_default().push((&submodule.inside, &submodule.name, file));
                }
            }
        }
        let mut modules = Modules { all: Vec::new() };
        for (path, source) in tree.shipped().filter(|(path, _)| !declared.contains(*path)) {
            let mut open = vec![(path, source, None, "crate")];
            while let Some((path, source, parent, name)) = open.pop() {
                modules.add_file(path, source, parent, name);
                for (inside, name, file) in children.get(path).into_iter().flatten() {
                    let (file, source) = match tree.sources.get_key_value(file) {
                        Some((file, source)) => (&**file, source),
                        None => continue,
                    };
                    open.push((file, source, modules.part(path, inside), name));
                }
            }
        }
        modules
    }

    /// Adds the modules of one file: itself, and those that are written in place.
    fn add_file(&mut self, file: &'a str, source: &'a Source, parent: Option<usize>, name: &'a str) {
        let insides = source.items.iter().map(|(inside, _)| inside);
        let insides = insides.chain(source.imports.iter().map(|import| &import.inside));
        let mentions = source.paths.keys().map(|mention| &mention.inside);
        let submodules = source.submodules.iter().map(|submodule| &submodule.inside);
        let mut all: BTreeSet<&'a str> =
            insides.chain(mentions).chain(submodules).map(|inside| &**inside).collect();
        for inside in all.clone() {
            all.extend(inside.match_indices("::").map(|(end, _)| &inside[..end]));
        }
        all.insert("");
        for inside in all {
            let (around, own_name) = inside.rsplit_once("::").unwrap_or(("", inside));
            let parent = if inside.is_empty() { parent } else { self.part(file, around) };
            let own_name = if inside.is_empty() { name } else { own_name };
            let items = source.items.iter().filter(|(module, _)| module == inside);
            let imports = source.imports.iter().filter(|import| import.inside == inside && !import.for_tests);
            let module = Module {
                file,
                source,
                inside: inside.to_owned(),
                parent,
                children: BTreeMap::new(),
                items: items.map(|(_, name)| &**name).collect(),
                imports: imports.collect(),
            };
            let at = self.all.len();
            self.all.push(module);
            if let Some(parent) = parent {
                self.all[parent].children.insert(own_name, at);
            }
        }
    }

    /// The module of a file, or a part of it.
    fn part(&self, file: &str, inside: &str) -> Option<usize> {
        self.all.iter().rposition(|module| module.file == file && module.inside == inside)
    }

    /// The module that defines what a path names; none for other crates.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        let mut at = from;
        let mut names = path.iter().map(|name| &**name).peekable();
        let mut is_ours = false;
        while let Some(name) = names.next_if(|name| ["crate", "self", "super"].contains(name)) {
            is_ours = true;
            at = match name {
                "crate" => std::iter::successors(Some(from), |at| self.all[*at].parent).last()?,
                "super" => self.all[at].parent?,
                _ => at,
            };
        }
        for name in names {
            match self.look_up(at, name, depth) {
                Some(Meaning::Module(module)) => at = module,
                Some(Meaning::ItemOf(module)) => return Some(module),
                // A macro may have defined it.
                None if is_ours => return Some(at),
                None => return None,
            }
            is_ours = true;
        }
        is_ours.then_some(at)
    }

    fn look_up(&self, at: usize, name: &str, depth: usize) -> Option<Meaning> {
        let module = &self.all[at];
        if let Some(child) = module.children.get(name) {
            return Some(Meaning::Module(*child));
        }
        if module.items.contains(name) {
            return Some(Meaning::ItemOf(at));
        }
        let depth = depth.checked_sub(1)?;
        if let Some(import) = module.imports.iter().find(|import| import.name.as_deref() == Some(name)) {
            let target = self.resolve(at, &import.path, depth)?;
            return Some(self.meaning(target, import.path.last()?));
        }
        let globs = module.imports.iter().filter(|import| import.name.is_none());
        globs.into_iter().find_map(|import| {
            let target = self.resolve(at, &import.path, depth).filter(|target| *target != at)?;
            self.look_up(target, name, depth)
        })
    }

    /// The module, if the last name of the path is the module itself; else an item in it.
    fn meaning(&self, module: usize, last: &str) -> Meaning {
        let parent = self.all[module].parent;
        let is_module = parent.is_some_and(|parent| self.all[parent].children.get(last) == Some(&module));
        if is_module && !self.all[module].items.contains(last) {
            Meaning::Module(module)
        } else {
            Meaning::ItemOf(module)
        }
    }
}

/// Tarjan's algorithm: the strongly connected components of more than one file.
fn circles<'a>(arrows: &Arrows<'a>) -> Vec<Circle<'a>> {
    let mut search = Search { arrows, indices: BTreeMap::new(), stack: Vec::new(), circles: Vec::new() };
    for path in arrows.keys() {
        if !search.indices.contains_key(path) {
            search.visit(path);
        }
    }
    search.circles
}

struct Search<'a, 'b> {
    arrows: &'b Arrows<'a>,
    /// Order of discovery, and the lowest index that is reachable.
    indices: BTreeMap<&'a str, (usize, usize)>,
    stack: Vec<&'a str>,
    circles: Vec<Circle<'a>>,
}

impl<'a> Search<'a, '_> {
    /// Returns the lowest index reached.
    fn visit(&mut self, path: &'a str) -> usize {
        let index = self.indices.len();
        self.indices.insert(path, (index, index));
        self.stack.push(path);
        let mut lowest = index;
        for target in self.arrows[path].keys() {
            if !self.indices.contains_key(target) {
                lowest = lowest.min(self.visit(target));
            } else if self.stack.contains(target) {
                lowest = lowest.min(self.indices[target].0);
            }
        }
        if lowest == index {
            let start = self.stack.iter().position(|one| *one == path).unwrap_or(0);
            let mut circle = self.stack.split_off(start);
            circle.sort_unstable();
            if circle.len() > 1 {
                self.circles.push(circle);
            }
        }
        lowest
    }
}

#[test]
fn a_module_and_a_part_that_use_each_other_do_not_count() {
    let tree = Tree::of(&[
        ("s/lib.rs", "mod a;"),
        ("s/a.rs", "mod b; mod c; pub struct S; fn f() { b::g(); }"),
        ("s/a/b.rs", "use super::S; pub fn g() {}"),
        ("s/a/c.rs", "use super::S;"),
    ]);
    assert_eq!(circles(&arrows(&tree)), [vec!["s/a.rs", "s/a/b.rs"]]);
    assert_eq!(measures(&tree).map(|measure| measure.value), [0.0, 0.0]);
}

/// The arrows of literal files, as text.
fn drawn(tree: &Tree) -> Vec<String> {
    let arrows = arrows(tree);
    let all = arrows.iter().flat_map(|(from, targets)| targets.keys().map(move |to| format!("{from} {to}")));
    all.map(|arrow| arrow.replace("s/", "").replace(".rs", "")).collect()
}

#[test]
fn arrows_go_to_the_file_that_defines_what_is_named() {
    let tree = Tree::of(&[
        (
            "s/lib.rs",
            "mod a; mod b; mod c; pub mod d; pub use a::Thing; pub use d::*; mod util { pub use \
             crate::c::C; }",
        ),
        ("s/a.rs", "pub struct Thing; fn f() { super::b::g(); }"),
        ("s/b.rs", "use crate::{Thing, util::C}; pub fn g() { Thing; log!(crate::d::DEEP); }"),
        (
            "s/c.rs",
            "pub struct C; use std::fs; use hyper::b; #[cfg(test)] mod tests { use crate::a::Thing; }",
        ),
        ("s/d.rs", "mod e; pub use e::E; pub const DEEP: u8 = 1; use super::*; fn f() -> C { c::C }"),
        (
            "s/d/e.rs",
            "pub struct E; pub fn f() { super::super::E; self::f(); super::super::made_by_macro(); }",
        ),
    ]);
    // `lib` re-exports without using; `c` names `a` in tests alone.
    assert_eq!(drawn(&tree), ["a b", "b a", "b c", "b d", "d c", "d lib", "d/e lib"]);
}

#[test]
fn circles_are_found_with_the_arrows_that_break_them() {
    let tree = Tree::of(&[
        ("s/lib.rs", "mod a; mod b; mod d;"),
        ("s/a.rs", "pub fn f() { crate::b::g(); crate::b::h(); }"),
        ("s/b.rs", "use crate::d::e; pub fn g() {} pub fn h() { e::f(); }"),
        ("s/d.rs", "pub mod e; pub mod g; pub fn f() { e::f(); }"),
        ("s/d/e.rs", "pub fn f() { crate::a::f(); crate::a::f2(); }"),
        ("s/d/g.rs", "use super::g::h; fn h() { super::f(); }"),
    ]);
    let arrows = arrows(&tree);
    let circles = circles(&arrows);
    assert_eq!(circles, [vec!["s/a.rs", "s/b.rs", "s/d/e.rs"]]);
    assert_eq!(arrows_to_remove(&circles[0], &arrows).len(), 1);
    let values = measures(&tree).map(|measure| measure.value);
    assert_eq!(values, [3.0, 3.0]);
    assert_eq!(common_folder(&["s/d.rs", "s/d/e.rs", "s/d/g.rs"]), Some("s/d".to_owned()));
    assert_eq!(common_folder(&["s/a.rs", "s/d.rs"]), Some("s".to_owned()));
    assert_eq!(common_folder(&["s/a.rs", "s/d/e.rs"]), None);
}
