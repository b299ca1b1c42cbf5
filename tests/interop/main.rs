//! The interop suite: this library and lock clients of other languages share locks on a real
//! server.
//!
//! `scripts/interop` builds the other clients and runs the suite. Each row of the table in
//! `docs/interop.md` is a promise for all clients, and one test per client.

mod clients;
mod counting;
mod exclusion;
mod fixture;
mod kinds;
mod loss;
mod peer;
mod reentry;
mod renewal;
mod sets;
mod takeover;
mod wake_ups;

/// Generates one test per client from `async fn name(fixture: InteropFixture)`.
macro_rules! with_every_client {
    ($($(#[$attribute:meta])* async fn $name:ident($fixture:ident: InteropFixture) $body:block)*) => {
        $(
            mod $name {
                #[allow(unused_imports)]
                use super::*;

                $(#[$attribute])*
                async fn check($fixture: crate::fixture::InteropFixture) $body

                crate::with_every_client! { @tests
                    with_redisson REDISSON, with_redis_py REDIS_PY, with_redlock REDLOCK,
                    with_semaphore SEMAPHORE, with_redsync REDSYNC, with_bsm BSM,
                    with_rslock RSLOCK, with_timestamps TIMESTAMP
                }
            }
        )*
    };
    (@tests $($name:ident $client:ident),*) => {
        $(
            #[tokio::test]
            async fn $name() {
                check(crate::fixture::InteropFixture::with(&crate::clients::$client).await).await;
            }
        )*
    };
}
use with_every_client;

/// Checks that the tables of the documentation list the clients and tests of this suite, and no
/// others.
#[test]
fn the_documentation_matches_this_suite() {
    let page = include_str!("../../docs/interop.md");
    let rows = |heading: &str| -> Vec<&str> {
        let (_, section) = page.split_once(heading).expect("the heading");
        let section = section.split("\n## ").next().unwrap_or(section);
        let lines: Vec<&str> = section.lines().collect();
        // The line below a header is `|---|`.
        let is_header = |at: usize| lines.get(at + 1).is_some_and(|next| next.starts_with("|---"));
        let rows = lines.iter().enumerate().filter(|(at, _)| !is_header(*at));
        let rows = rows.map(|(_, line)| *line);
        rows.filter(|line| line.starts_with("| ") && line.contains('`')).collect()
    };
    let table = rows("## The clients");
    for (row, client) in table.iter().zip(clients::ALL) {
        let version = format!(" | {}", client.version);
        assert!(row.starts_with(&format!("| `{}`", client.name)), "{row}");
        assert!(row.contains(&version), "{row} does not name version {}", client.version);
        let [wire_format, key] =
            [format!("`{:?}`", client.wire_format), format!("`{}`", client.key)];
        assert!(
            row.contains(&format!(" | {wire_format} | {key} | ")),
            "{row}: {wire_format}, {key}"
        );
    }
    assert_eq!(table.len(), clients::ALL.len());

    let this = std::env::current_exe().expect("the path of this program");
    let list = std::process::Command::new(this).arg("--list").output().expect("this program");
    let list = String::from_utf8(list.stdout).expect("names");
    let tests: Vec<&str> = list.lines().filter_map(|line| line.strip_suffix(": test")).collect();
    let table = rows("## What is shared");
    let named: Vec<&str> =
        table.iter().flat_map(|row| row.split('`').filter(|word| word.contains("::"))).collect();
    // This test is not in the table.
    let mut documented = 1;
    for row in &named {
        let prefix = format!("{row}::");
        let of_row = tests.iter().filter(|test| *test == row || test.starts_with(&prefix)).count();
        let expected = if tests.contains(row) { 1 } else { clients::ALL.len() };
        assert_eq!(of_row, expected, "{row}");
        documented += of_row;
    }
    assert_eq!(documented, tests.len(), "a test is not documented");
}
