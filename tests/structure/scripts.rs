//! Checks that the scripts run every test.

use crate::packages::{files, root};

/// The folders with tests.
const FOLDERS: [&str; 10] = [
    "bench",
    "examples",
    "lock-core",
    "lock-dashboard",
    "lock-macros",
    "lock-runtime",
    "lockctl",
    "recipes",
    "stores",
    "tests",
];

/// The scripts run the tests in groups, so they have to name each of them.
#[test]
fn the_test_scripts_name_every_test_target() {
    let scripts = [
        include_str!("../../scripts/test"),
        include_str!("../../scripts/models"),
        include_str!("../../scripts/packages"),
        include_str!("../../scripts/monitoring"),
        include_str!("../../scripts/browser"),
        include_str!("../../scripts/databases"),
    ];
    let script = scripts.concat();
    let manifests = [
        include_str!("../Cargo.toml"),
        include_str!("../models/Cargo.toml"),
        include_str!("../ui/Cargo.toml"),
    ];
    let manifests = manifests.join("\n\n");
    let sections = manifests.split("\n\n");
    let is_run = |section: &&str| section.contains("[[test]]") && !section.contains("test = false");
    let name = |section: &str| section.split('"').nth(1).expect("a name").to_owned();
    let mut names: Vec<String> = sections.filter(is_run).map(name).collect();
    assert!(names.len() > 5, "{names:?}");
    let root = root();
    let packages = [
        "bench",
        "examples",
        "examples/orders",
        "examples/sqlite",
        "lock-core",
        "lock-dashboard",
        "lock-macros",
        "lock-runtime",
        "lockctl",
        "recipes",
    ];
    for package in packages {
        for entry in std::fs::read_dir(root.join(package).join("tests")).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.join("main.rs").exists() {
                continue;
            }
            names.push(path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned());
        }
    }
    for name in names {
        assert!(script.contains(&format!("--test {name}")), "{name}");
    }
}

/// `run_tests` leaves out what has this word in its name, because `scripts/controls` runs it.
#[test]
fn no_other_test_is_left_out_by_its_name() {
    for folder in FOLDERS {
        for (path, text) in files(folder, "rs") {
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            for (at, line) in lines.iter().enumerate() {
                let is_called_so = line
                    .strip_prefix("fn ")
                    .or_else(|| line.strip_prefix("async fn "))
                    .and_then(|rest| rest.split(['(', '<']).next())
                    .is_some_and(|name| name.contains("controls"));
                let before = &lines[at.saturating_sub(4)..at];
                let is_test = before.iter().any(|line| line.contains("test]"));
                assert!(
                    !(is_called_so && is_test)
                        || before.iter().any(|line| line.contains("lock_controls")),
                    "{}: {line} would be left out",
                    path.display()
                );
            }
        }
    }
}
