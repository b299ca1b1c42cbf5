//! The fault suite: the promises of the lock under the faults of a real deployment.
//!
//! Each file covers one source of faults. Most tests have a control in `controls.rs`: the same test
//! in a process without the safeguard in question, where the test must fail.

mod background_releases;
mod bodies;
mod callers;
mod cancellation;
#[cfg(lock_controls)]
mod controls;
mod credentials;
mod fair;
mod fairness;
mod foreign;
mod holders;
mod joined_releases;
mod kinds;
mod leadership;
mod linger;
mod outages;
mod periodic;
mod processes;
mod quarantine;
mod questions;
mod queue;
mod read_write;
mod readiness;
mod renewals;
mod replies;
mod requests;
mod secrets;
mod semaphore;
mod server;
mod sets;
mod support;
mod tls;
mod topologies;
mod tracking;
mod unpolled;
mod waits;
mod wake_ups;

/// Whether a name such as `suites::tls::locks_work_over_tls` is a test in `tests/suites`.
fn is_in_suites(test: &str) -> bool {
    let name = test.strip_prefix("suites::").and_then(|name| name.rsplit_once("::"));
    let Some((module, name)) = name else { return false };
    let path = format!("{}/suites/{module}.rs", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).is_ok_and(|text| text.contains(&format!("fn {name}() ")))
}

/// Checks that the tests and safeguards that the documentation names exist.
#[test]
fn the_documentation_matches_this_suite() {
    let page = include_str!("../../docs/reliability.md");
    let safeguards = include_str!("../../lock-runtime/src/safeguard.rs");
    let this = std::env::current_exe().expect("the path of this program");
    let list = std::process::Command::new(this).arg("--list").output().expect("this program");
    let list = String::from_utf8(list.stdout).expect("names");
    let table = page.split("## The other stores").next().expect("the fault table");
    let rows = table.lines().filter(|line| line.starts_with("| ") && line.contains("::"));
    let mut tests = 0;
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [.., named, without] = cells[..] else { panic!("{row}") };
        for test in named.split('`').filter(|word| word.contains("::")) {
            let here = list.contains(&format!("{test}: test"));
            assert!(here || test.starts_with("body::") || is_in_suites(test), "there is no {test}");
            tests += 1;
        }
        for safeguard in without.split('`').skip(1).step_by(2) {
            assert!(safeguards.contains(&format!("\"{safeguard}\"")), "there is no {safeguard}");
        }
    }
    assert!(tests > 30, "{tests}");
    for name in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let documented =
            page.contains(name) || !name.contains("::") || name.starts_with("controls");
        // A slow network is not a fault.
        assert!(documented || name.contains("slow_network"), "{name} is not documented");
    }
}

/// Checks the same for the other stores, whose tests are in other programs.
#[test]
fn the_documentation_matches_the_tests_of_the_other_stores() {
    let page = include_str!("../../docs/reliability.md");
    let safeguards = include_str!("../../lock-runtime/src/safeguard.rs");
    let (_, rest) = page.split_once("## The other stores").expect("the section");
    let section = rest.split("## The history checker").next().expect("the section");
    let files = ["stores", "stores/etcd", "suites/postgres"];
    let is_test = |name: &str| {
        let (module, test) = name.split_once("::").unwrap_or(("faults", name));
        files.iter().any(|folder| {
            let path = format!("{}/{folder}/{module}.rs", env!("CARGO_MANIFEST_DIR"));
            std::fs::read_to_string(path).is_ok_and(|text| text.contains(&format!("fn {test}()")))
        })
    };
    let mut tests = 0;
    for row in section.lines().filter(|line| line.starts_with("| ") && line.contains('_')) {
        let names = row.split('`').skip(1).step_by(2);
        for name in names.filter(|name| !name.contains([' ', '/', '('])) {
            let is_safeguard = || safeguards.contains(&format!("\"{name}\""));
            if name.contains('_') {
                assert!(is_test(name), "there is no {name}");
                tests += 1;
            } else if name.contains('-') {
                assert!(is_safeguard(), "there is no {name}");
            }
        }
    }
    assert!(tests > 40, "{tests}");
}
