//! The layers of the code: a crate depends only on crates below it, a module imports only modules of its layer and of layers below it, and
//! the modules of a crate do not import each other in a circle.

use crate::shell::root;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use syn::{Attribute, Item, Meta, UseTree};

/// Each crate, and the crates of this workspace that it may depend on, both without the prefix `millpond-`.
const CRATES: &[(&str, &str)] = &[
    ("engine", ""),
    ("codec", ""),
    ("trace", ""),
    ("derive", ""),
    ("cuda-emu", ""),
    ("card", ""),
    ("replay", "engine trace"),
    ("intercept", "trace"),
    ("os", "engine"),
    ("account", "engine os"),
    ("record", "account engine os trace"),
    ("monitor", "account engine os"),
    ("pool", "account engine monitor os record"),
    ("cuda", "account codec engine os pool record"),
    ("set", "account codec cuda engine os pool"),
    ("tensor", "account codec cuda engine os pool set"),
    ("data", "account codec cuda engine os pool set tensor"),
    (
        "millpond",
        "account codec cuda data derive engine monitor os pool record set tensor",
    ),
    ("bench", "millpond engine replay trace"),
    ("cli", "millpond bench engine intercept replay trace"),
    ("c", "millpond"),
    ("python", "c cli millpond replay"),
    ("malloc", "os pool record"),
    ("xtask", ""),
];

/// A group of modules: its name, and the modules.
type Group = (&'static str, &'static [&'static str]);

/// The groups of modules of a crate, from the bottom up. A module may import modules of its own group and of the groups before it.
const LAYERS: &[(&str, &[Group])] = &[(
    "millpond-pool",
    &[
        ("values", &["dtype", "memory"]),
        ("sources", &["host", "pinned"]),
        ("pools", &["pool", "block", "global", "tenant", "unpooled"]),
        ("elements", &["buffer", "storage", "rental"]),
    ],
)];

/// The imports between the top-level modules of a crate: importing module, imported module, and a file with the import.
type Imports = BTreeMap<String, BTreeMap<String, PathBuf>>;

pub(crate) fn run() -> Result<(), String> {
    let metadata = metadata()?;
    let packages = metadata["packages"]
        .as_array()
        .ok_or("cargo metadata lists no packages")?;
    let mut faults = Vec::new();
    for package in packages {
        let name = package["name"]
            .as_str()
            .ok_or("cargo metadata names no package")?;
        faults.extend(forbidden_dependencies(name, package));
        for target in package["targets"].as_array().into_iter().flatten() {
            let kinds = target["kind"].as_array().into_iter().flatten();
            let linked = kinds
                .filter_map(Value::as_str)
                .any(|kind| !["test", "bench", "example", "custom-build"].contains(&kind));
            if let Some(file) = target["src_path"].as_str().filter(|_| linked) {
                let (modules, imports) = imports(Path::new(file))?;
                if let Some((_, groups)) = LAYERS.iter().find(|(of, _)| *of == name) {
                    faults.extend(imports_that_go_up(name, groups, &modules, &imports));
                }
                faults.extend(circles_of(name, &imports));
            }
        }
    }
    if faults.is_empty() {
        println!("layers: no import goes up in {} crates", packages.len());
        return Ok(());
    }
    Err(faults.join("\n"))
}

/// Returns cargo's metadata about the packages of the workspace.
pub(crate) fn metadata() -> Result<Value, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .map_err(|error| format!("cargo metadata could not start: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        let text = String::from_utf8_lossy(&output.stderr);
        format!("cargo metadata failed: {error}\n{text}")
    })
}

/// Returns a fault for each dependency that [`CRATES`] does not allow. Dependencies of tests are allowed.
fn forbidden_dependencies(name: &str, package: &Value) -> Vec<String> {
    let short = |name: &str| name.trim_start_matches("millpond-").to_owned();
    let Some((_, allowed)) = CRATES.iter().find(|(of, _)| *of == short(name)) else {
        return vec![format!(
            "the crate {name} has no layer: add it to CRATES in xtask/src/layers.rs"
        )];
    };
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies
        .filter(|dependency| dependency["kind"].as_str() != Some("dev") && dependency["path"].is_string())
        .filter_map(|dependency| dependency["name"].as_str())
        .filter(|dependency| !allowed.split(' ').any(|name| name == short(dependency)))
        .map(|dependency| format!("{name} must not depend on {dependency}, which is not below it"))
        .collect()
}

/// Returns a fault for each module that is in no group, and for each import from a later group.
fn imports_that_go_up(
    name: &str,
    groups: &[Group],
    modules: &BTreeSet<String>,
    imports: &Imports,
) -> Vec<String> {
    let group_of = |module: &str| groups.iter().position(|(_, group)| group.contains(&module));
    let mut faults = Vec::new();
    for module in modules {
        if group_of(module).is_none() {
            faults.push(format!(
                "{name}: the module {module} has no layer: add it to LAYERS in xtask/src/layers.rs"
            ));
        }
    }
    for (from, to, file) in imports
        .iter()
        .flat_map(|(from, to)| to.iter().map(move |(to, file)| (from, to, file)))
    {
        if let (Some(below), Some(above)) = (group_of(from), group_of(to))
            && above > below
        {
            faults.push(format!(
                "{name}: {from} ({}) imports {to} ({}), which is above it, in {}",
                groups[below].0,
                groups[above].0,
                file.display()
            ));
        }
    }
    faults
}

/// Returns a fault for each circle among the modules of a crate.
fn circles_of(name: &str, imports: &Imports) -> Vec<String> {
    let fault = |circle: &BTreeSet<String>| {
        let mut fault = format!(
            "{name}: these modules import each other in a circle: {}",
            circle.iter().map(String::as_str).collect::<Vec<_>>().join(" ")
        );
        for (from, to) in imports.iter().filter(|(from, _)| circle.contains(*from)) {
            for (to, file) in to.iter().filter(|(to, _)| circle.contains(*to)) {
                fault += &format!("\n  {from} -> {to} in {}", file.display());
            }
        }
        fault
    };
    circles(imports).iter().map(fault).collect()
}

/// The modules and re-exports that a crate's root declares.
struct Root {
    modules: BTreeSet<String>,
    /// The names that the root re-exports, and the modules that have them.
    exports: BTreeMap<String, String>,
}

/// Returns the top-level modules of the crate whose root is `file`, and the imports between them. Code for tests is left out.
fn imports(file: &Path) -> Result<(BTreeSet<String>, Imports), String> {
    let items = parse(file)?;
    let folder = file.parent().unwrap_or(Path::new(""));
    let mut root = Root {
        modules: BTreeSet::new(),
        exports: BTreeMap::new(),
    };
    for item in &items {
        if let Item::Mod(module) = item
            && !is_for_tests(&module.attrs)
        {
            root.modules.insert(module.ident.to_string());
        }
    }
    for item in &items {
        if let Item::Use(import) = item {
            exports(&import.tree, None, &mut root);
        }
    }
    let mut imports = Imports::new();
    for item in items {
        if let Item::Mod(module) = item
            && !is_for_tests(&module.attrs)
        {
            let name = module.ident.to_string();
            let mut visit = |names: BTreeSet<String>, file: &Path| {
                for imported in names {
                    let imported = root.exports.get(&imported).cloned().unwrap_or(imported);
                    if imported != name && root.modules.contains(&imported) {
                        let file = file.strip_prefix(crate::shell::root()).unwrap_or(file);
                        let of = imports.entry(name.clone()).or_default();
                        of.entry(imported).or_insert_with(|| file.to_owned());
                    }
                }
            };
            walk(&Item::Mod(module), file, folder, 0, &mut visit)?;
        }
    }
    Ok((root.modules, imports))
}

fn parse(file: &Path) -> Result<Vec<Item>, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let parsed = syn::parse_file(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(parsed.items)
}

/// Records the names that a `use` in the root imports, and their modules.
fn exports(tree: &UseTree, module: Option<&str>, root: &mut Root) {
    let mut note = |name: &syn::Ident| {
        if let Some(module) = module {
            root.exports.insert(name.to_string(), module.to_owned());
        }
    };
    match tree {
        UseTree::Path(path) => {
            let first = path.ident.to_string();
            let module = match module {
                Some(module) => Some(module.to_owned()),
                None if first == "crate" || first == "self" => None,
                None => root.modules.contains(&first).then_some(first),
            };
            exports(&path.tree, module.as_deref(), root);
        }
        UseTree::Name(name) => note(&name.ident),
        UseTree::Rename(rename) => note(&rename.rename),
        UseTree::Group(group) => group.items.iter().for_each(|tree| exports(tree, module, root)),
        UseTree::Glob(_) => {}
    }
}

/// Passes to `visit` the names of the crate's root that an item uses, including the modules inside it. `folder` contains the files of the
/// modules that the item's own module declares, and `depth` is the number of modules around the item.
fn walk(
    item: &Item,
    file: &Path,
    folder: &Path,
    depth: usize,
    visit: &mut impl FnMut(BTreeSet<String>, &Path),
) -> Result<(), String> {
    let Item::Mod(module) = item else {
        let mut names = BTreeSet::new();
        if !is_for_tests(attributes(item)) {
            root_names(item.to_token_stream(), depth, &mut names);
        }
        visit(names, file);
        return Ok(());
    };
    if is_for_tests(&module.attrs) {
        return Ok(());
    }
    let name = module.ident.to_string();
    let below = folder.join(&name);
    let (file, items) = match &module.content {
        Some((_, items)) => (file.to_owned(), items.clone()),
        None => {
            let beside = folder.join(format!("{name}.rs"));
            let file = if beside.exists() {
                beside
            } else {
                below.join("mod.rs")
            };
            let items = parse(&file)?;
            (file, items)
        }
    };
    items
        .iter()
        .try_for_each(|item| walk(item, &file, &below, depth + 1, visit))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether an item is compiled only for tests.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let condition = |attribute: &Attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => list.parse_args::<Meta>().ok(),
        _ => None,
    };
    attributes
        .iter()
        .filter_map(condition)
        .any(|meta| needs_test(&meta))
}

fn needs_test(condition: &Meta) -> bool {
    let conditions = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
    match condition {
        Meta::Path(path) => path.is_ident("test") || path.is_ident("doctest"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(conditions)
            .is_ok_and(|all| all.iter().any(needs_test)),
        _ => false,
    }
}

/// Collects the names that follow `crate::`, or as many `super::` as lead to the root. Bodies of macros are searched too.
fn root_names(tokens: TokenStream, depth: usize, names: &mut BTreeSet<String>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is_colon =
        |at: usize| matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == ':');
    let is_path = |at: usize| is_colon(at) && is_colon(at + 1);
    let is_word =
        |at: usize, word: &str| matches!(tokens.get(at), Some(TokenTree::Ident(ident)) if ident == word);
    let mut at = 0;
    while at < tokens.len() {
        let mut end = at;
        let mut supers = 0;
        while is_word(end, "super") && is_path(end + 1) {
            supers += 1;
            end += 3;
        }
        let of_root = if is_word(at, "crate") && is_path(at + 1) {
            end = at + 3;
            true
        } else {
            supers > 0 && supers >= depth
        };
        if of_root {
            first_names(tokens.get(end), names);
        }
        if let (true, Some(TokenTree::Group(group))) = (end == at, tokens.get(at)) {
            root_names(group.stream(), depth, names);
        }
        at = end.max(at + 1);
    }
}

/// Collects a name, or the first names of the paths in braces.
fn first_names(token: Option<&TokenTree>, names: &mut BTreeSet<String>) {
    match token {
        Some(TokenTree::Ident(ident)) => {
            names.insert(ident.to_string());
        }
        Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
            let mut begins = true;
            for token in group.stream() {
                if let (true, TokenTree::Ident(ident)) = (begins, &token) {
                    names.insert(ident.to_string());
                }
                begins = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == ',');
            }
        }
        _ => {}
    }
}

/// Returns the circles: the largest sets of modules in which each module leads to every other by imports.
fn circles(imports: &Imports) -> Vec<BTreeSet<String>> {
    let reach = |from: &String| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from.clone()];
        while let Some(module) = open.pop() {
            for next in imports.get(&module).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|from| (from, reach(from))).collect();
    let leads = |from: &String, to: &String| reached.get(from).is_some_and(|reached| reached.contains(to));
    let of = |module: &String| -> BTreeSet<String> {
        let others = imports
            .keys()
            .filter(|other| leads(module, other) && leads(other, module));
        others.cloned().collect()
    };
    let all: BTreeSet<BTreeSet<String>> = imports.keys().map(of).filter(|circle| circle.len() > 1).collect();
    all.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &str, depth: usize) -> Vec<String> {
        let mut names = BTreeSet::new();
        root_names(code.parse().expect("tokens"), depth, &mut names);
        names.into_iter().collect()
    }

    fn graph(arrows: &[(&str, &str)]) -> Imports {
        let mut imports = Imports::new();
        for (from, to) in arrows {
            let of = imports.entry((*from).to_owned()).or_default();
            of.insert((*to).to_owned(), PathBuf::new());
        }
        imports
    }

    #[test]
    fn names_of_the_root_are_found_in_imports_paths_and_macros() {
        assert_eq!(names("use crate::{a::B, c, d::{e, f}};", 1), ["a", "c", "d"]);
        assert_eq!(names("fn f() { m!(crate::a::g(), [$crate::b]) }", 1), ["a", "b"]);
        assert_eq!(names("pub(crate) struct S;", 1), [""; 0]);
    }

    #[test]
    fn super_names_the_root_only_from_a_module_that_is_not_deeper() {
        assert_eq!(names("use super::a;", 1), ["a"]);
        assert_eq!(names("use super::a;", 2), [""; 0]);
        assert_eq!(names("use super::super::a;", 2), ["a"]);
    }

    #[test]
    fn circles_are_found_and_chains_are_not_circles() {
        assert!(circles(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
        let found = circles(&graph(&[
            ("a", "b"),
            ("b", "c"),
            ("c", "b"),
            ("d", "e"),
            ("e", "d"),
        ]));
        let found: Vec<Vec<&str>> = found
            .iter()
            .map(|circle| circle.iter().map(String::as_str).collect())
            .collect();
        assert_eq!(found, [["b", "c"], ["d", "e"]]);
    }

    #[test]
    fn an_import_from_a_later_group_and_a_module_without_a_group_are_faults() {
        let groups: &[Group] = &[("low", &["a", "b"]), ("high", &["c"])];
        let modules = ["a", "b", "c", "d"].map(str::to_owned).into();
        let faults = imports_that_go_up(
            "x",
            groups,
            &modules,
            &graph(&[("a", "b"), ("c", "a"), ("b", "c")]),
        );
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults[0].contains("the module d has no layer"));
        assert!(faults[1].contains("b (low) imports c (high), which is above it"));
    }

    #[test]
    fn code_for_tests_is_left_out() {
        let is = |code: &str| {
            let module: syn::ItemMod = syn::parse_str(code).expect("a module");
            is_for_tests(&module.attrs)
        };
        assert!(is("#[cfg(test)] mod tests {}") && is("#[cfg(all(test, not(miri)))] mod tests {}"));
        assert!(is("#[cfg(doctest)] mod book {}"));
        assert!(!is("#[cfg(not(test))] mod a {}") && !is("#[cfg(any(test, loom))] mod a {}"));
    }

    #[test]
    fn a_dependency_that_goes_up_is_a_fault() {
        let package = serde_json::json!({ "dependencies": [
            { "name": "millpond-trace", "kind": null, "path": "/trace" },
            { "name": "millpond-cli", "kind": null, "path": "/cli" },
            { "name": "millpond-bench", "kind": "dev", "path": "/bench" },
        ]});
        let faults = forbidden_dependencies("millpond-replay", &package);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].contains("millpond-cli"), "{faults:?}");
    }
}
