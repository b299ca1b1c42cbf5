//! Checks what users of the packages look for before they trust them. `scripts/release` checks the rest on the built
//! packages.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

const MANIFEST: &str = include_str!("../../Cargo.toml");

/// The categories of the registry that fit.
const CATEGORIES: [&str; 5] =
    ["asynchronous", "command-line-utilities", "concurrency", "database", "web-programming"];

/// Sites that host repositories. The address of the repository is known when it is public, and `Cargo.toml` names it once.
const HOSTS: [&str; 5] = ["bitbucket", "codeberg", "github", "gitlab", "sourcehut"];

/// What a published package needs if its tests use the harness, which is not published.
const EXCLUDED_TESTS: &str = "\nexclude = [\"/tests\"]\n";

pub(crate) fn root() -> PathBuf {
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

/// All files in a folder that are texts, and their contents.
fn texts(folder: &str) -> Vec<(PathBuf, String)> {
    fn collect(folder: &Path, files: &mut Vec<(PathBuf, String)>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, files);
            } else if let Ok(text) = read_to_string(&path) {
                files.push((path, text));
            }
        }
    }
    let mut found = Vec::new();
    collect(&root().join(folder), &mut found);
    found
}

/// The texts that are part of a package.
fn packaged(folder: &str, manifest: &str) -> Vec<(PathBuf, String)> {
    let (mut packaged, tests) = (texts(folder), root().join(folder).join("tests"));
    if manifest.contains(EXCLUDED_TESTS) {
        packaged.retain(|(path, _)| !path.starts_with(&tests));
    }
    packaged
}

/// The texts in a folder with this extension.
pub(crate) fn files(folder: &str, extension: &str) -> Vec<(PathBuf, String)> {
    let mut files = texts(folder);
    files.retain(|(path, _)| path.extension().is_some_and(|own| own == extension));
    files
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

/// What a published package in this folder, with this manifest, does not have.
fn missing(folder: &str, manifest: &str) -> Vec<String> {
    let has_file = |name: &str| root().join(folder).join(name).exists();
    let has_line = |line: &str| manifest.lines().any(|own| own == line);
    let mut missing = Vec::new();
    let mut need = |has: bool, what: &str| {
        if !has {
            missing.push(what.to_owned());
        }
    };
    let name = folder.replace("stores/", "lock-");
    need(has_line(&format!("name = \"{name}\"")), "the name of its folder");
    need(manifest.contains("\ndescription = \""), "a description");
    need(has_file("README.md") && has_line("readme = \"README.md\""), "a README.md, as `readme`");
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let has = has_file(licence) && read(format!("{folder}/{licence}")) == read(licence);
        need(has, &format!("a copy of {licence}"));
    }
    for field in ["version", "edition", "rust-version", "license"] {
        let line = format!("{field}.workspace = true");
        need(has_line(&line), &format!("`{line}`"));
    }
    for field in ["keywords", "categories"] {
        let is_inherited = has_line(&format!("{field}.workspace = true"));
        let has = is_inherited || manifest.contains(&format!("\n{field} = ["));
        need(has, &format!("`{field}`"));
    }
    let uses_harness = manifest.lines().any(|line| line.starts_with("lock-tests"));
    let excludes_tests = manifest.contains(EXCLUDED_TESTS);
    need(excludes_tests || !uses_harness, "`exclude = [\"/tests\"]`, because of lock-tests");
    let is_library = has_file("src/lib.rs");
    need(is_library || has_file("src/main.rs"), "src/lib.rs or src/main.rs");
    if is_library {
        need(has_line("[package.metadata.docs.rs]"), "`[package.metadata.docs.rs]`");
        let has_types = has_line("proc-macro = true") || has_file("external-types.toml");
        need(has_types, "an external-types.toml with the reason for each type");
    }
    missing
}

#[test]
fn published_packages_have_what_users_expect() {
    for (folder, manifest) in published() {
        let missing = missing(&folder, &manifest);
        assert!(missing.is_empty(), "{folder} is published without {}", missing.join("; "));
    }
}

#[test]
fn what_a_new_package_does_not_have_is_named() {
    let manifest = "[package]\nname = \"new\"\n\n[dev-dependencies]\nlock-tests.workspace = true\n";
    let missing = missing("new", manifest).join("; ");
    for what in ["description", "README.md", "LICENSE-MIT", "rust-version", "keywords", "exclude"] {
        assert!(missing.contains(what), "{what} is not among {missing}");
    }
    assert!(!missing.contains("name of its folder"), "{missing}");
}

#[test]
fn the_registry_accepts_the_keywords_and_the_categories() {
    for (folder, manifest) in published() {
        for field in ["keywords", "categories"] {
            let is_inherited = manifest.contains(&format!("\n{field}.workspace = true\n"));
            let values = list(if is_inherited { MANIFEST } else { &manifest }, field);
            assert!((1..=5).contains(&values.len()), "{folder}: {field}");
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

/// `scripts/release` finds the packages, libraries and programs by these lines.
#[test]
fn the_release_script_can_read_the_manifests() {
    assert!(MANIFEST.lines().any(|line| line.starts_with("members = [") && line.ends_with(']')));
    for (folder, manifest) in manifests() {
        for field in ["publish", "proc-macro"] {
            let mut lines =
                manifest.lines().filter(|line| line.split([' ', '=', '.']).next() == Some(field));
            let is_plain =
                lines.all(|line| ["publish = false", "proc-macro = true"].contains(&line));
            assert!(is_plain, "{folder}/Cargo.toml: {field} in a form that is not expected");
        }
    }
}

/// The targets of the links and images of a page: `[text](target)`, `<img src="target">` and `[name]: target`.
fn targets(page: &str) -> Vec<&str> {
    let (links, images) = (page.split("](").skip(1), page.split("src=\"").skip(1));
    let named = page.lines().filter(|line| line.starts_with('['));
    let named = named.filter_map(|line| line.split("]: ").nth(1));
    let all = links.chain(images).chain(named);
    all.filter_map(|rest| rest.split([')', '"', ' ', '\n']).next()).collect()
}

/// The text in the quotes with which this begins.
fn quoted(text: &str) -> Option<&str> {
    text.strip_prefix('"')?.split('"').next()
}

/// A relative link leads nowhere on the page of a package.
#[test]
fn the_readmes_of_published_packages_have_no_relative_links() {
    let page = "[a](b)\n[c]: d\n<img src=\"e\">\n";
    assert_eq!(targets(page), ["b", "e", "d"]);
    for folder in published().keys() {
        for target in targets(&read(format!("{folder}/README.md"))) {
            let is_absolute = ["https://", "#"].iter().any(|start| target.starts_with(start));
            assert!(is_absolute, "{folder}/README.md: {target}");
        }
    }
}

/// A file from outside the package is not there when users build it.
#[test]
fn published_packages_include_only_their_own_files() {
    for (folder, manifest) in published() {
        let own = root().join(&folder).canonicalize().expect("a folder");
        let mut sources = packaged(&folder, &manifest);
        sources.retain(|(path, _)| path.extension().is_some_and(|own| own == "rs"));
        for (path, text) in sources {
            for start in ["include_str!(", "include_bytes!(", "include!(", "#[path = "] {
                for rest in text.split(start).skip(1).map(str::trim_start) {
                    if rest.starts_with('$') {
                        // The parameter of a macro. `scripts/release` builds what it includes.
                        continue;
                    }
                    let included = quoted(rest)
                        .unwrap_or_else(|| panic!("{}: {start} without a path", path.display()));
                    let file = path.parent().expect("a folder").join(included);
                    let file =
                        file.canonicalize().unwrap_or_else(|error| panic!("{included}: {error}"));
                    assert!(file.starts_with(&own), "{} includes {included}", path.display());
                }
            }
            let reads_elsewhere = text.contains("CARGO_MANIFEST_DIR") && text.contains("/..");
            assert!(!reads_elsewhere, "{} reads files of other packages", path.display());
        }
    }
}

/// The pages in `docs` are no part of a package.
#[test]
fn the_documentation_of_published_packages_names_no_page_of_the_repository() {
    for (folder, manifest) in published() {
        for (path, text) in packaged(&folder, &manifest) {
            let is_page = path.extension().is_some_and(|own| own == "md");
            let is_documentation = |line: &&str| {
                let line = line.trim_start();
                is_page || ["///", "//!"].iter().any(|start| line.starts_with(start))
            };
            for line in text.lines().filter(is_documentation) {
                let is_named = line.match_indices("docs/").any(|(at, _)| {
                    // Not in an address, such as `https://redis.io/docs/`.
                    !line[..at].ends_with(|c: char| c == '/' || c.is_alphanumeric())
                });
                assert!(!is_named, "{}: {line}", path.display());
            }
        }
    }
}

#[test]
fn published_packages_name_no_site_that_hosts_repositories() {
    for (folder, manifest) in published() {
        for (path, text) in packaged(&folder, &manifest) {
            let text = text.to_lowercase();
            for host in HOSTS {
                assert!(!text.contains(host), "{} names {host}", path.display());
            }
        }
    }
}

#[test]
fn every_crate_forbids_unsafe_code() {
    for (folder, manifest) in manifests() {
        if !root().join(&folder).join("src").exists() {
            // The lints of the workspace forbid it in a package that has only tests.
            assert!(manifest.contains("\n[lints]\nworkspace = true\n"), "{folder}");
            continue;
        }
        let roots = crate_roots(&folder);
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
        ("docs/guide.md", "requires Rust {} and tokio"),
        ("lock-runtime/README.md", "Rust version is {}."),
        ("CHANGELOG.md", "It is {}."),
    ] {
        let sentence = sentence.replace("{}", version);
        assert!(read(page).contains(&sentence), "{page} does not contain {sentence:?}");
    }
}

/// The first command of the README shows the library at once, so it builds nothing else.
#[test]
fn the_first_examples_need_only_the_library_and_tokio() {
    assert!(read("README.md").contains("\n```sh\ncargo run -p lock-examples --bin quickstart\n"));
    let manifest = read("examples/Cargo.toml");
    let section = manifest.split("\n[dependencies]\n").nth(1).expect("dependencies");
    let section = section.split("\n[").next().expect("the section");
    let lines: Vec<&str> = section.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), 2, "{section}");
    assert_eq!(lines[0], "lock-runtime.workspace = true");
    assert!(lines[1].starts_with("tokio = "), "{section}");
}
