//! The fault suite: what a real deployment meets, and what the promises are worth then.
//!
//! Each file is one place where things go wrong. Each test has a control in `controls.rs`: the same
//! test in a process that runs without the protection in question, where it has to fail.

mod bodies;
mod callers;
mod cancellation;
#[cfg(lock_controls)]
mod controls;
mod foreign;
mod processes;
mod renewals;
mod replies;
mod requests;
mod secrets;
mod server;
mod support;
mod turns;
mod wake_ups;

/// The tests and protections that the documentation names are there.
#[test]
fn the_documentation_is_right_about_this_suite() {
    let page = include_str!("../../docs/reliability.md");
    let protections = include_str!("../../lock-runtime/src/protection.rs");
    let us = std::env::current_exe().expect("it runs");
    let list = std::process::Command::new(us).arg("--list").output().expect("this program");
    let list = String::from_utf8(list.stdout).expect("names");
    let table = page.split("## The history checker").next().expect("the fault table");
    let rows = table.lines().filter(|line| line.starts_with("| ") && line.contains("::"));
    let mut tests = 0;
    for row in rows {
        let cells: Vec<&str> = row.split(" | ").collect();
        let [.., named, without] = cells[..] else { panic!("{row}") };
        for test in named.split('`').filter(|word| word.contains("::")) {
            let here = list.contains(&format!("{test}: test"));
            assert!(here || test.starts_with("scope::"), "there is no {test}");
            tests += 1;
        }
        for protection in without.split('`').skip(1).step_by(2) {
            assert!(protections.contains(&format!("\"{protection}\"")), "no {protection}");
        }
    }
    assert!(tests > 30, "{tests}");
    for name in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let documented =
            page.contains(name) || !name.contains("::") || name.starts_with("controls");
        // Not a fault.
        assert!(documented || name.contains("slow_network"), "{name} is not documented");
    }
}
