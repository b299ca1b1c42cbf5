//! Checks that the CI workflow runs the scripts of the repository, and trusts nothing that is not pinned.

use std::collections::BTreeSet;

use crate::packages::root;

const WORKFLOW: &str = include_str!("../../.github/workflows/ci.yml");

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
    // Every word that begins so.
    let checks = job.split(" scripts/").skip(1);
    let checks =
        checks.map(|rest| rest.split(|c: char| !c.is_ascii_lowercase()).next().expect("a name"));
    let checks: BTreeSet<&str> = checks.chain(["book", "release --dry-run"]).collect();
    assert_eq!(scripts, checks, "the scripts of the workflow and those of .ci/run");
    // Steps are an action, the toolchain, or one of these scripts.
    for run in lines().filter_map(|line| line.strip_prefix("- run: ")) {
        let is_known = run.starts_with("rustup ")
            || ["${{ matrix.script }}", "scripts/release --advisories"].contains(&run);
        assert!(is_known, "the workflow runs {run}");
    }
}

/// A new version of Rust is a change of its own, because lints and messages differ.
#[test]
fn the_workflow_uses_the_version_of_rust_that_the_messages_are_from() {
    let version =
        WORKFLOW.split("\n  RUST_VERSION: \"").nth(1).and_then(|rest| rest.split('"').next());
    let version = version.expect("the version of the workflow");
    let ui = include_str!("../ui/main.rs");
    let expected = ui.split("EXPECTED_FROM: &str = \"rustc ").nth(1);
    let expected = expected.and_then(|rest| rest.split('"').next()).expect("the version of ui");
    assert!(version.starts_with(expected), "{version} in the workflow, and {expected} in tests/ui");
    for line in WORKFLOW.lines().filter(|line| line.contains("rustup toolchain")) {
        assert!(line.contains("install \"$RUST_VERSION\""), "{line}");
    }
}

#[test]
fn the_workflow_trusts_only_what_is_pinned() {
    assert!(WORKFLOW.contains("\npermissions:\n  contents: read\n\n"), "permissions");
    let actions: Vec<&str> = WORKFLOW.split("uses: ").skip(1).collect();
    assert!(!actions.is_empty(), "actions are found");
    for action in actions {
        let action = action.split_whitespace().next().expect("a name");
        let hash = action.split_once('@').map_or("", |(_, hash)| hash);
        let is_hash = hash.len() == 40 && hash.chars().all(|c| c.is_ascii_hexdigit());
        assert!(is_hash, "{action} is not pinned by its hash");
    }
}

/// A run has a group of its own, in which nothing cancels it, unless it is that of a pull request.
#[test]
fn only_checks_of_pull_requests_are_cancelled() {
    assert!(WORKFLOW.contains("\n  cancel-in-progress: true\n"), "concurrency");
    let group = "github.event_name == 'pull_request' && github.ref || github.run_id";
    assert!(WORKFLOW.contains(group), "concurrency");
}
