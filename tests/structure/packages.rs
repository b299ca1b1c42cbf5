//! Checks what users of the packages look for before they trust them, and that the scripts and the CI workflow agree with
//! the packages. `scripts/release` checks the rest on the built packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

const MANIFEST: &str = include_str!("../../Cargo.toml");
const RELEASE: &str = include_str!("../../scripts/release");
const WORKFLOW: &str = include_str!("../../.github/workflows/ci.yml");

/// The categories of the registry that fit.
const CATEGORIES: [&str; 5] =
    ["asynchronous", "command-line-utilities", "concurrency", "database", "web-programming"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The texts in quotes of a list in TOML, such as `members = ["a", "b"]`.
fn list(manifest: &str, name: &str) -> Vec<String> {
    let start = format!("\n{name} = [");
    let list = manifest.split(&start).nth(1).unwrap_or_else(|| panic!("no list {name}"));
    let list = list.split(']').next().expect("the list");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The manifests of all packages of the workspace, by their folders.
fn manifests() -> BTreeMap<String, String> {
    let folders = list(MANIFEST, "members").into_iter();
    folders.map(|folder| (folder.clone(), read(format!("{folder}/Cargo.toml")))).collect()
}

/// The folders and manifests of the packages that are published.
fn published() -> BTreeMap<String, String> {
    let mut published = manifests();
    published.retain(|_, manifest| !manifest.contains("\npublish = false\n"));
    assert!(published.contains_key("lock-runtime"), "packages are found");
    published
}

/// The names in a list of `scripts/release`.
fn released(name: &str) -> Vec<&'static str> {
    let list = RELEASE.split(&format!("\n{name}=(")).nth(1).expect("a list");
    list.split(')').next().expect("the list").split_whitespace().collect()
}

/// All files in a folder of a package with these extensions, and their texts.
fn files(folder: &str, extension: &str) -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, extension: &str, files: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, extension, files);
            } else if path.extension().is_some_and(|own| own == extension) {
                let text = read_to_string(&path).expect("a text");
                files.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    collect(&root().join(folder), extension, &mut found);
    found
}

/// The roots of the crates of a package: its library and its programs.
fn crate_roots(folder: &str) -> Vec<(PathBuf, String)> {
    let is_root = |path: &Path| {
        let source = root().join(folder).join("src");
        let inner = path.strip_prefix(source).expect("a file of the package");
        let parts: Vec<&str> = inner.iter().filter_map(|part| part.to_str()).collect();
        matches!(parts[..], ["lib.rs" | "main.rs"] | ["bin", _] | ["bin", _, "main.rs"])
    };
    let sources = files(&format!("{folder}/src"), "rs").into_iter();
    sources.filter(|(path, _)| is_root(path)).collect()
}

/// The blocks of a page with this first line, such as "```rust".
fn blocks<'a>(page: &'a str, fence: &str) -> Vec<&'a str> {
    let start = format!("\n{fence}");
    let rest = page.split(&start).skip(1);
    rest.map(|rest| rest.split("\n```").next().expect("a block")).collect()
}

#[test]
fn the_release_script_names_every_published_package() {
    let names: BTreeSet<&str> = released("packages").into_iter().collect();
    let folders = published();
    let published: BTreeSet<&str> = folders.keys().map(String::as_str).collect();
    assert_eq!(names, published, "scripts/release and the manifests without `publish = false`");
    for library in released("libraries") {
        assert!(root().join(library).join("src/lib.rs").exists(), "{library} is no library");
    }
}

#[test]
fn published_packages_say_what_they_are() {
    for (folder, manifest) in published() {
        let name = format!("\nname = \"{folder}\"\n");
        assert!(manifest.contains(&name), "the folder of {folder} has its name");
        assert!(manifest.contains("\ndescription = \""), "{folder} has no description");
        assert!(manifest.contains("\nreadme = \"README.md\"\n"), "{folder} has no README");
        assert!(manifest.contains("[package.metadata.docs.rs]"), "{folder} has no docs.rs section");
        for field in ["version", "edition", "rust-version", "license"] {
            let inherited = format!("\n{field}.workspace = true\n");
            assert!(manifest.contains(&inherited), "{folder} has a {field} of its own");
        }
        for (field, most) in [("keywords", 5), ("categories", 5)] {
            let is_inherited = manifest.contains(&format!("\n{field}.workspace = true\n"));
            let of = if is_inherited { MANIFEST } else { &manifest };
            let values = list(of, field);
            assert!((1..=most).contains(&values.len()), "{folder}: {field}");
            for value in values {
                let fits = match field {
                    "keywords" => value.len() <= 20,
                    _ => CATEGORIES.contains(&value.as_str()),
                };
                assert!(fits, "{folder}: {field} {value}");
            }
        }
    }
}

#[test]
fn published_packages_have_the_licence_texts() {
    for folder in published().keys() {
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            assert_eq!(read(format!("{folder}/{licence}")), read(licence), "{licence} of {folder}");
        }
    }
}

/// A relative link leads nowhere on the page of a package.
#[test]
fn the_readmes_of_published_packages_have_no_relative_links() {
    for folder in published().keys() {
        let page = read(format!("{folder}/README.md"));
        for link in page.split("](").skip(1) {
            let is_absolute = ["https://", "#"].iter().any(|start| link.starts_with(start));
            assert!(is_absolute, "{folder}/README.md: {}", link.split(')').next().expect("a link"));
        }
    }
}

/// A file from outside the package is not there when users build it.
#[test]
fn published_packages_include_only_their_own_files() {
    for folder in published().keys() {
        let own = root().join(folder).canonicalize().expect("a folder");
        for (path, text) in files(folder, "rs") {
            for included in text.split("include_str!(\"").skip(1) {
                let included = included.split('"').next().expect("a path");
                let file = path.parent().expect("a folder").join(included);
                let file =
                    file.canonicalize().unwrap_or_else(|error| panic!("{included}: {error}"));
                assert!(file.starts_with(&own), "{} includes {included}", path.display());
            }
            let reads_elsewhere = text.contains("CARGO_MANIFEST_DIR") && text.contains("/..");
            assert!(!reads_elsewhere, "{} reads files of other packages", path.display());
        }
    }
}

#[test]
fn every_crate_forbids_unsafe_code() {
    for folder in manifests().keys() {
        let roots = crate_roots(folder);
        assert!(!roots.is_empty(), "{folder} has no crate");
        for (path, text) in roots {
            assert!(text.contains("\n#![forbid(unsafe_code)]\n"), "{}", path.display());
        }
    }
}

/// docs.rs sets `docsrs`; the feature shows which features an item needs.
#[test]
fn published_libraries_show_their_features_in_the_documentation() {
    for folder in published().keys() {
        for (path, text) in crate_roots(folder) {
            let is_library = path.ends_with("lib.rs");
            let shows = text.contains("\n#![cfg_attr(docsrs, feature(doc_cfg))]\n");
            assert!(shows || !is_library, "{}", path.display());
            assert!(!text.contains("doc_auto_cfg"), "{}: was removed in 1.92", path.display());
        }
    }
}

#[test]
fn the_macros_are_released_with_the_runtime() {
    let version = MANIFEST.split("\nversion = \"").nth(1).and_then(|rest| rest.split('"').next());
    let version = version.expect("the version of the workspace");
    let macros =
        format!("\nlock-macros = {{ path = \"lock-macros\", version = \"={version}\" }}\n");
    assert!(MANIFEST.contains(&macros), "{macros}");
}

/// `scripts/release` builds the examples of the package's README.
#[test]
fn both_readmes_have_the_same_first_example() {
    let (repository, package) = (read("README.md"), read("lock-runtime/README.md"));
    let first = |page| blocks(page, "```rust")[0].to_owned();
    assert_eq!(first(&repository), first(&package));
    let second = blocks(&package, "```rust")[1];
    assert!(second.contains("#[tokio::test]"), "the second example of the package is a test");
}

#[test]
fn the_minimum_rust_version_is_the_same_everywhere() {
    let version =
        MANIFEST.split("\nrust-version = \"").nth(1).and_then(|rest| rest.split('"').next());
    let version = version.expect("the Rust version of the workspace");
    for (page, sentence) in [
        ("README.md", "requires Rust {} and tokio"),
        ("lock-runtime/README.md", "Rust version is {}."),
        ("CHANGELOG.md", "It is {}."),
    ] {
        let sentence = sentence.replace("{}", version);
        assert!(read(page).contains(&sentence), "{page} does not contain {sentence:?}");
    }
}

#[test]
fn the_workflow_runs_every_check_and_nothing_else() {
    let lines = || WORKFLOW.lines().map(str::trim);
    let scripts: BTreeSet<&str> =
        lines().filter_map(|line| line.strip_prefix("- scripts/")).collect();
    for script in &scripts {
        let name = script.split(' ').next().expect("a name");
        assert!(root().join("scripts").join(name).exists(), "there is no script {name}");
    }
    let job = include_str!("../../.ci/run");
    let checks = job.split("scripts/").skip(1);
    let checks = checks.map(|rest| rest.split([' ', ';']).next().expect("a name"));
    let checks: BTreeSet<&str> = checks.chain(["release --dry-run"]).collect();
    assert_eq!(scripts, checks, "the scripts of the workflow and those of .ci/run");
    // Steps are an action, the toolchain, or one of these scripts.
    for run in lines().filter_map(|line| line.strip_prefix("- run: ")) {
        let is_known = run.starts_with("rustup ") || run == "${{ matrix.script }}";
        assert!(is_known, "the workflow runs {run}");
    }
}

#[test]
fn the_workflow_trusts_only_what_is_pinned() {
    assert!(WORKFLOW.contains("\npermissions:\n  contents: read\n\n"), "permissions");
    assert!(WORKFLOW.contains("\n  cancel-in-progress: true\n"), "concurrency");
    let actions: Vec<&str> = WORKFLOW.split("uses: ").skip(1).collect();
    assert!(!actions.is_empty(), "actions are found");
    for action in actions {
        let action = action.split_whitespace().next().expect("a name");
        let hash = action.split_once('@').map_or("", |(_, hash)| hash);
        let is_hash = hash.len() == 40 && hash.chars().all(|c| c.is_ascii_hexdigit());
        assert!(is_hash, "{action} is not pinned by its hash");
    }
}
