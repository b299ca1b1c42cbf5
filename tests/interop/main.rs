//! The interop suite: our client and lock clients of other languages share locks on one real server.
//!
//! `scripts/interop` builds the others and runs it. Each row is what `docs/interop.md` promises of all of
//! them, and is one test for each.

mod clients;
mod counting;
mod exclusion;
mod loss;
mod peer;
mod reentry;
mod renewal;
mod scene;
mod takeover;
mod wake_ups;

/// Makes one test of each client from `async fn name(scene: Scene)`.
macro_rules! with_every_client {
    ($($(#[$attribute:meta])* async fn $name:ident($scene:ident: Scene) $body:block)*) => {
        $(
            mod $name {
                #[allow(unused_imports)]
                use super::*;

                $(#[$attribute])*
                async fn check($scene: crate::scene::Scene) $body

                crate::with_every_client! { @tests
                    with_redisson REDISSON, with_redis_py REDIS_PY, with_redlock REDLOCK,
                    with_semaphore SEMAPHORE, with_redsync REDSYNC, with_bsm BSM, with_rslock RSLOCK, with_timestamps TIMESTAMP
                }
            }
        )*
    };
    (@tests $($name:ident $client:ident),*) => {
        $(
            #[tokio::test]
            async fn $name() {
                check(crate::scene::Scene::with(&crate::clients::$client).await).await;
            }
        )*
    };
}
use with_every_client;

/// Its tables have the clients and the tests of this suite, and no others.
#[test]
fn the_documentation_is_right_about_this_suite() {
    let page = include_str!("../../docs/interop.md");
    let rows = |heading: &str| -> Vec<&str> {
        let (_, section) = page.split_once(heading).expect("the heading");
        let section = section.split("\n## ").next().unwrap_or(section);
        section.lines().filter(|line| line.starts_with("| ") && line.contains('`')).collect()
    };
    let table = rows("## The clients");
    for (row, client) in table.iter().zip(clients::ALL) {
        let version = format!(" | {}", client.version);
        assert!(row.starts_with(&format!("| `{}`", client.name)), "{row}");
        assert!(row.contains(&version), "{row} is not of {}", client.version);
        let [format, key] = [format!("`{:?}`", client.format), format!("`{}`", client.key)];
        assert!(row.contains(&format!(" | {format} | {key} | ")), "{row}: {format}, {key}");
    }
    assert_eq!(table.len(), clients::ALL.len());

    let us = std::env::current_exe().expect("it runs");
    let list = std::process::Command::new(us).arg("--list").output().expect("this program");
    let list = String::from_utf8(list.stdout).expect("names");
    let tests: Vec<&str> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let table = rows("## What is shared");
    let named: Vec<&str> =
        table.iter().flat_map(|row| row.split('`').filter(|word| word.contains("::"))).collect();
    // Itself.
    let mut documented = 1;
    for row in &named {
        let of_each = format!("{row}::");
        let of_row = tests.iter().filter(|test| *test == row || test.starts_with(&of_each)).count();
        let expected = if tests.contains(row) { 1 } else { clients::ALL.len() };
        assert_eq!(of_row, expected, "{row}");
        documented += of_row;
    }
    assert_eq!(documented, tests.len(), "one is not documented");
}
