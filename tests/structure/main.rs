//! Checks the structure of the library: no import cycles, no upward imports. Checks that the pages for
//! developers and operators, the table of the tests of faults and the recipes agree with the code, and that
//! the packages are complete.

mod architecture;
mod code_blocks;
mod events;
mod faults;
mod packages;
mod pages;
mod recipes;
mod scripts;
mod workflow;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The layers from the top down, by module. A module may import from its own layer and from those
/// below.
const LAYERS: [&[&str]; 9] = [
    &["attribute"],
    &["admin", "builder", "conformance", "global", "testing"],
    &["client"],
    &["leadership", "lock_set", "periodic", "read_write_lock", "semaphore"],
    &["lock"],
    &[
        "acquiring",
        "answers",
        "body",
        "connected",
        "fated_call",
        "guard",
        "holder_lookups",
        "lock_order",
        "options",
        "read_write_hold",
        "reentrancy",
        "verification",
    ],
    &["engine"],
    &["store"],
    &[
        "backoff",
        "branches",
        "capacity",
        "client_info",
        "client_name",
        "clock",
        "credentials",
        "error",
        "events",
        "fence",
        "holder",
        "identity",
        "join",
        "key",
        "lock_mode",
        "lock_state",
        "maybe_ready",
        "permits",
        "questions",
        "address_map",
        "release_mode",
        "replicas",
        "runtime",
        "safeguard",
        "seconds",
        "stats",
        "sync",
        "telemetry",
        "timeout",
        "tls",
        "user_code",
        "wire_format",
    ],
];

/// The crates, and the path of each among the modules. `lock-runtime` imports the modules of `lock-core` as if they were its own.
const CRATES: [(&str, &str); 6] = [
    ("lock-core", ""),
    ("lock-runtime", ""),
    ("stores/etcd", "store::etcd"),
    ("stores/postgres", "store::postgres"),
    ("stores/quorum", "store::quorum"),
    ("stores/redis", "store::redis"),
];

/// All files by module path, such as `engine::lease::state`, and their texts.
fn modules() -> BTreeMap<String, String> {
    fn collect(folder: &Path, prefix: &str, modules: &mut BTreeMap<String, String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
            let full = if prefix.is_empty() { name.clone() } else { format!("{prefix}::{name}") };
            if path.is_dir() {
                collect(&path, &full, modules);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("a text");
                let is_root = name == "mod" || name == "lib" && !prefix.is_empty();
                let full = if is_root { prefix.to_owned() } else { full };
                modules.insert(full, text);
            }
        }
    }
    let mut modules = BTreeMap::new();
    for (folder, prefix) in CRATES {
        collect(&packages::root().join(folder).join("src"), prefix, &mut modules);
    }
    modules
}

/// Whether a module is only part of test builds.
fn is_test(module: &str) -> bool {
    let parts = ["tests", "testing", "models", "faulty", "scripted_store"];
    module.split("::").any(|part| parts.contains(&part)) || module == "sync::model"
}

/// The text before the tests in a file.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]\nmod tests {").next().expect("at least one part")
}

/// Whether the text after this one is in a module inside the file.
fn is_in_inline_module(before: &str) -> bool {
    let is_outer = |line: &&str| !line.is_empty() && !line.starts_with(' ');
    let last = before.lines().rfind(is_outer).unwrap_or_default();
    last.ends_with('{') && last.split(' ').any(|word| word == "mod")
}

/// The paths of all `use` declarations, as they are outside of the modules inside the file, with groups expanded.
fn uses(text: &str) -> Vec<String> {
    fn expand(prefix: &str, tree: &str, paths: &mut Vec<String>) {
        let tree = tree.trim();
        let Some(open) = tree.find('{') else {
            let path = tree.split(" as ").next().expect("a path").trim();
            paths.push(format!("{prefix}{path}"));
            return;
        };
        let (head, group) = (&tree[..open], &tree[open + 1..tree.rfind('}').expect("closed")]);
        let (mut depth, mut start) = (0, 0);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    expand(&format!("{prefix}{head}"), &group[start..at], paths);
                    start = at + 1;
                }
                _ => {}
            }
        }
        if !group[start..].trim().is_empty() {
            expand(&format!("{prefix}{head}"), &group[start..], paths);
        }
    }
    let mut paths = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("use ") {
        let line = rest[..at].rsplit('\n').next().expect("a line").trim();
        let end = rest[at..].find(';').map_or(rest.len(), |end| at + end);
        if line.is_empty() || line == "pub" || line.starts_with("pub(") {
            let mut flat = rest[at + 4..end].split_whitespace().collect::<Vec<_>>().join(" ");
            let position = text.len() - rest.len() + at;
            if is_in_inline_module(&text[..position])
                && let Some(outer) = flat.strip_prefix("super::")
            {
                let is_outside = outer.starts_with("super::");
                flat = if is_outside { outer.to_owned() } else { format!("self::{outer}") };
            }
            expand("", &flat, &mut paths);
            rest = &rest[end..];
        } else {
            rest = &rest[at + 4..];
        }
    }
    paths
}

/// The module that a path in `module` leads to, if it is one of this crate.
fn target(module: &str, path: &str, modules: &BTreeMap<String, String>) -> Option<String> {
    let mut parts: Vec<&str> = path.split("::").collect();
    let mut base: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    match parts[0] {
        "crate" => {
            let roots = CRATES.iter().map(|(_, root)| *root);
            let root = roots.filter(|root| module.starts_with(root)).max_by_key(|root| root.len());
            base = root.unwrap_or_default().split("::").filter(|part| !part.is_empty()).collect();
        }
        "lock_core" => base.clear(),
        "self" => {}
        "super" => {
            while parts.first() == Some(&"super") {
                base.pop();
                parts.remove(0);
            }
            parts.insert(0, "");
        }
        _ => return None,
    }
    parts.remove(0);
    base.extend(parts);
    // The longest prefix that is a file.
    (1..=base.len())
        .rev()
        .map(|length| base[..length].join("::"))
        .find(|path| modules.contains_key(path))
}

/// The imports between the files, without tests.
fn imports(modules: &BTreeMap<String, String>) -> BTreeMap<String, BTreeSet<String>> {
    let files = modules.iter().filter(|(module, _)| !is_test(module) && *module != "lib");
    let of = |(module, text): (&String, &String)| {
        let paths = uses(without_tests(text));
        let targets = paths.iter().filter_map(|path| target(module, path, modules));
        let targets = targets.filter(|target| target != module && !is_test(target));
        (module.clone(), targets.collect())
    };
    files.map(of).collect()
}

/// What is left of the imports without the files that import nothing, or that nothing imports: the cycles.
fn cycles(mut open: BTreeMap<String, BTreeSet<String>>) -> BTreeMap<String, BTreeSet<String>> {
    loop {
        let imported: BTreeSet<String> = open.values().flatten().cloned().collect();
        let before = open.len();
        let left: BTreeSet<String> = open.keys().cloned().collect();
        open.retain(|module, targets| {
            targets.iter().any(|target| left.contains(target)) && imported.contains(module)
        });
        for targets in open.values_mut() {
            targets.retain(|target| left.contains(target));
        }
        if open.len() == before {
            return open;
        }
    }
}

#[test]
fn files_do_not_import_each_other_in_cycles() {
    let imports = imports(&modules());
    assert!(imports.values().map(BTreeSet::len).sum::<usize>() > 200, "imports are found");
    let cycles = cycles(imports);
    assert!(cycles.is_empty(), "import cycles among {cycles:#?}");
}

#[test]
fn the_folders_of_the_store_in_redis_do_not_import_each_other_in_cycles() {
    const STORE: &str = "store::redis::";
    let folder = |module: &str| {
        let inside = module.strip_prefix(STORE)?;
        inside.split("::").next().map(str::to_owned)
    };
    let mut folders = BTreeMap::<String, BTreeSet<String>>::new();
    for (module, targets) in imports(&modules()) {
        let Some(own) = folder(&module) else { continue };
        let others = targets.iter().filter_map(|target| folder(target));
        let others: Vec<String> = others.filter(|other| *other != own).collect();
        folders.entry(own).or_default().extend(others);
    }
    assert!(folders["locks"].contains("connections"), "imports are found: {folders:#?}");
    let cycles = cycles(folders);
    assert!(cycles.is_empty(), "import cycles among {cycles:#?}");
}

#[test]
fn no_module_imports_from_a_layer_above() {
    let layer = |module: &str| {
        let top = module.split("::").next().expect("a name");
        LAYERS.iter().position(|layer| layer.contains(&top))
    };
    for (module, targets) in imports(&modules()) {
        let own = layer(&module).unwrap_or_else(|| panic!("{module} has no layer"));
        for target in targets {
            let below = layer(&target).unwrap_or_else(|| panic!("{target} has no layer"));
            assert!(below >= own, "{module} imports {target}, which is above it");
        }
    }
}

#[test]
fn the_engine_does_not_depend_on_redis_or_a_layout() {
    for (module, text) in modules() {
        if module.starts_with("engine") && !is_test(&module) {
            for word in ["WireFormat", "redis::", "Redisson"] {
                assert!(!without_tests(&text).contains(word), "{module} contains {word}");
            }
        }
    }
}
