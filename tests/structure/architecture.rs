//! Checks `docs/architecture.md`: the functions of its walks exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::{is_test, without_tests};

const PAGE: &str = include_str!("../../docs/architecture.md");

/// The folders of the code in the walks.
const ROOTS: [&str; 7] = [
    "lock-core/src/",
    "lock-macros/src/",
    "lock-runtime/src/",
    "stores/etcd/src/",
    "stores/postgres/src/",
    "stores/quorum/src/",
    "stores/redis/src/",
];

/// The headings of the walks.
const WALKS: [&str; 3] =
    ["A key from the attribute to Lua", "A lease from grant to loss", WAKE_UP_WALK];
const WAKE_UP_WALK: &str = "A wake-up from release to grant";

/// The largest number of hops of a wake-up inside a process.
const MOST_HOPS: usize = 8;

/// All files of Rust below [`ROOTS`], by full path, and their texts.
fn files() -> BTreeMap<String, String> {
    fn collect(folder: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
            let full = format!("{prefix}{name}");
            if path.is_dir() {
                collect(&path, &format!("{full}/"), files);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.insert(full, std::fs::read_to_string(&path).expect("a text"));
            }
        }
    }
    let mut files = BTreeMap::new();
    for root in ROOTS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(root);
        collect(&folder, root, &mut files);
    }
    files
}

/// The module of a file, without its crate.
fn module(path: &str) -> String {
    let inner = ROOTS.iter().find_map(|root| path.strip_prefix(root)).expect("a root");
    let stem = inner.rsplit_once('.').map_or(inner, |(stem, _)| stem);
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    stem.replace('/', "::")
}

/// The text of a section, from its heading to the next one.
fn section(heading: &str) -> &'static str {
    let text = PAGE.split(&format!("\n## {heading}\n")).nth(1);
    let text = text.unwrap_or_else(|| panic!("the page has no section {heading:?}"));
    text.split("\n## ").next().expect("the section")
}

/// The numbered items of a walk.
fn items(walk: &str) -> Vec<String> {
    let mut items = Vec::<String>::new();
    let mut is_open = false;
    for line in section(walk).lines() {
        let number = line.split_once(". ").map(|(number, _)| number.parse::<usize>());
        if let Some(Ok(number)) = number {
            items.push(line.to_owned());
            assert_eq!(number, items.len(), "the numbers of {walk:?}");
            is_open = true;
        } else if is_open && line.starts_with("   ") {
            items.last_mut().expect("an item").push_str(line);
        } else {
            is_open = false;
        }
    }
    items
}

/// The functions in backticks, such as `Type::function` or `module::function`, by their two parts.
fn functions(text: &str) -> BTreeSet<(&str, &str)> {
    let names = text.split('`').skip(1).step_by(2).filter_map(|code| code.split_once("::"));
    names.inspect(|(_, function)| assert!(is_name(function), "`{function}` is no name")).collect()
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// The type of an `impl` block, from its first line.
fn implemented(header: &str) -> String {
    let (mut depth, mut plain) = (0_usize, String::new());
    for c in header.replace("->", "").chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            c if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let target = plain.split(" where").next().expect("the first part").trim_end_matches(" {");
    let target = target.rsplit(" for ").next().expect("the last part");
    let target = target.trim_start_matches("impl").trim();
    target.rsplit("::").next().expect("a name").to_owned()
}

/// Whether this line begins the definition of `function`.
fn defines(line: &str, function: &str) -> bool {
    let after = line.split_once("fn ").and_then(|(_, rest)| rest.strip_prefix(function));
    let is_definition = after.is_some_and(|rest| rest.starts_with(['(', '<']));
    is_definition && !line.trim_start().starts_with("//")
}

/// Whether this file defines a free function, or a function of a type.
fn has_function(text: &str, of_type: Option<&str>, function: &str) -> bool {
    let mut current: Option<String> = None;
    for line in without_tests(text).lines() {
        let is_nested = line.starts_with(' ');
        if line.starts_with("impl") {
            current = Some(implemented(line));
        } else if line == "}" {
            current = None;
        }
        let is_here = match of_type {
            Some(of_type) => is_nested && current.as_deref() == Some(of_type),
            None => !is_nested,
        };
        if is_here && defines(line, function) {
            return true;
        }
    }
    false
}

/// Whether the code has this function, of a type or of a module.
fn exists(of: &str, function: &str, files: &BTreeMap<String, String>) -> bool {
    let is_type = of.starts_with(|c: char| c.is_ascii_uppercase());
    files.iter().any(|(path, text)| {
        let module = module(path);
        let is_this = is_type || module.rsplit("::").next() == Some(of);
        !is_test(&module) && is_this && has_function(text, is_type.then_some(of), function)
    })
}

#[test]
fn every_function_of_a_walk_exists() {
    let files = files();
    for walk in WALKS {
        for (of, function) in functions(section(walk)) {
            assert!(exists(of, function, &files), "{walk}: there is no `{of}::{function}`");
        }
    }
}

#[test]
fn every_hop_of_a_walk_names_a_function() {
    for walk in WALKS {
        let items = items(walk);
        assert!(items.len() > 5, "{walk} has {} hops", items.len());
        for item in items {
            assert!(!functions(&item).is_empty(), "{walk}: {item}");
        }
    }
}

#[test]
fn a_wake_up_inside_a_process_takes_few_hops() {
    let hops = items(WAKE_UP_WALK).len();
    assert!(hops <= MOST_HOPS, "a wake-up takes {hops} hops");
}

#[test]
fn functions_are_found_in_the_blocks_of_their_types() {
    let text =
        "impl<P: Into<u8>> Future for Waiter<P> {\n    fn poll(self) {}\n}\n\nfn free() {}\n";
    assert!(has_function(text, Some("Waiter"), "poll"));
    assert!(!has_function(text, Some("Future"), "poll"));
    assert!(!has_function(text, Some("Waiter"), "pol"));
    assert!(!has_function(text, Some("Waiter"), "free"));
    assert!(has_function(text, None, "free"));
    assert!(!has_function(text, None, "poll"));
}
