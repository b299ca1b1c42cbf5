//! Checks `tests/FAULTS.md`: the table of the tests of faults, and of the safeguards without which each of them was seen to fail.
//! With the environment variable `UPDATE=1`, the test writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::pages::{read, root};

const TABLE: &str = "tests/FAULTS.md";

/// What the table begins with.
const HEAD: &str = "\
# Tests of faults and their controls

The test suite `structure` writes this page from the sources: all tests of `tests/faults`, and those of the other suites that have
a negative control. The last column names the safeguards without which the test was seen to fail: the control runs it in a
process without the safeguard. `+` joins safeguards that are switched off together, because each of them is sufficient. A test
without an entry is not about a promise alone: it was seen to fail when it was written. `lock-core/src/safeguard.rs` says what each safeguard does.

`scripts/controls` runs the controls of `faults` and `suites`, `scripts/etcd` those of `etcd`, and `scripts/databases` those of
`postgres`.
";

/// The test programs: the name, the file of the controls, and the folders of the tests.
const PROGRAMS: [(&str, &str, &[&str]); 4] = [
    (FAULTS, "tests/faults/controls.rs", &["tests/faults"]),
    ("suites", "tests/suites/formats/controls.rs", &["tests/suites"]),
    ("etcd", "tests/stores/etcd/controls.rs", &["tests/stores/etcd", CONFORMANCE]),
    ("postgres", "tests/suites/postgres/controls.rs", &["tests/suites/postgres", CONFORMANCE]),
];
const FAULTS: &str = "faults";
const CONFORMANCE: &str = "lock-runtime/src/conformance";

/// The endings of the names that macros give to one test for several stores or layouts.
const VARIANTS: [&str; 5] = ["on_redis", "on_memory", "in_token", "in_redisson", "in_timestamp"];

/// The safeguards by the module and the name of the test.
type Rows = BTreeMap<(String, String), BTreeSet<String>>;

/// The modules below a folder, such as `topologies::quorum::servers`, and their texts.
fn modules(folder: &Path, prefix: &str, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name");
        let inner = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}::{name}") };
        if path.is_dir() {
            modules(&path, &inner, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let module = if ["main", "mod"].contains(&name) { prefix.to_owned() } else { inner };
            found.insert(module, read(&path));
        }
    }
}

/// The names of the test functions in a file.
fn tests(text: &str) -> Vec<String> {
    let (mut names, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let function = line.trim_start_matches("async ").strip_prefix("fn ");
        if let Some(function) = function.filter(|_| is_test) {
            names.push(function.split('(').next().expect("a name").to_owned());
            is_test = false;
        }
    }
    names
}

/// The tests and safeguards of the controls in a file.
fn controls(text: &str) -> Vec<(String, String)> {
    let (_, entries) = text.split_once("lock_tests::controls! {").expect("controls");
    // Each control has three literals: the test, the safeguards, and what its failure says.
    let literals: Vec<&str> = entries.split('"').skip(1).step_by(2).collect();
    let pairs = literals.chunks_exact(3).map(|control| (control[0], control[1]));
    pairs.map(|(test, safeguards)| (test.to_owned(), safeguards.to_owned())).collect()
}

/// The module and the name of a test, without the ending for a store or a layout.
fn split(test: &str) -> (String, String) {
    let plain = VARIANTS.iter().find_map(|variant| test.strip_suffix(&format!("::{variant}")));
    let (module, name) = plain.unwrap_or(test).rsplit_once("::").expect("a module");
    (module.to_owned(), name.to_owned())
}

fn rows(program: &str, controls_file: &str, folders: &[&str]) -> Rows {
    let (mut rows, mut files) = (Rows::new(), BTreeMap::new());
    for folder in folders {
        modules(&root().join(folder), "", &mut files);
    }
    files.remove("controls");
    if program == FAULTS {
        for (module, text) in &files {
            rows.extend(
                tests(text).into_iter().map(|test| ((module.clone(), test), BTreeSet::new())),
            );
        }
    }
    let known = read(&root().join("lock-core/src/safeguard.rs"));
    for (test, safeguards) in controls(&read(&root().join(controls_file))) {
        let (module, name) = split(&test);
        let is_here =
            |text: &String| ['(', '<'].iter().any(|end| text.contains(&format!("fn {name}{end}")));
        assert!(files.values().any(is_here), "{controls_file}: there is no test {test}");
        for safeguard in safeguards.split('+') {
            let is_known = known.contains(&format!("= \"{safeguard}\","));
            assert!(is_known, "{controls_file}: there is no safeguard {safeguard}");
        }
        rows.entry((module, name)).or_default().insert(safeguards);
    }
    rows
}

/// The page, from the sources.
fn page() -> String {
    let mut page = HEAD.to_owned();
    for (program, controls_file, folders) in PROGRAMS {
        page.extend(["\n## `", program, "`\n\n| module | test | fails without |\n|---|---|---|\n"]);
        for ((module, test), safeguards) in rows(program, controls_file, folders) {
            let names = safeguards.iter().map(|name| format!("`{}`", name.replace('+', "` + `")));
            let names = names.collect::<Vec<_>>().join(", ");
            page.extend(["| `", &module, "` | ", &test.replace('_', " "), " | ", &names, " |\n"]);
        }
    }
    page
}

#[test]
fn the_table_of_faults_is_that_of_the_sources() {
    let (page, path) = (page(), root().join(TABLE));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).expect("a file that can be written");
    }
    assert_eq!(read(&path), page, "UPDATE=1 writes {TABLE}");
}

#[test]
fn tests_and_safeguards_are_found_in_a_text() {
    let text = "/// Doc.\n#[tokio::test(flavor = \"multi_thread\")]\nasync fn a_b() {\n}\nfn c() {}\n#[test]\nfn d() {}\n";
    assert_eq!(tests(text), ["a_b", "d"]);
    let text = "lock_tests::controls! {\n    x: \"m::a_b\"\n        without \"u+v\" seeing \"it; fails\";\n}\n";
    assert_eq!(controls(text), [("m::a_b".to_owned(), "u+v".to_owned())]);
    assert_eq!(split("sets::a_b::on_redis"), ("sets".to_owned(), "a_b".to_owned()));
}
