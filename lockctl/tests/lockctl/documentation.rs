//! The pages of the documentation say what the program does.

use std::collections::BTreeSet;

use lock_tests::RedisServer;

use crate::support::{RunningProcess, lockctl, outcome};

const PAGE: &str = include_str!("../../../docs/lockctl.md");
const RIGHTS: &str = include_str!("../../../docs/redis.md");

/// The names of the commands in the help.
fn commands() -> BTreeSet<String> {
    let help = outcome("", &["--help"]).output;
    let commands = help.split("Commands:").nth(1).and_then(|rest| rest.split("\n\n").next());
    let names = commands.expect("a list").lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(ToOwned::to_owned).collect()
}

#[test]
fn the_page_lists_all_exit_codes() {
    let table = PAGE.split("| code | meaning |").nth(1).expect("there is a table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|')).skip(1);
    let documented: Vec<_> = rows.map(|row| row.replace('`', "")).collect();
    let help = outcome("", &["--help"]).output;
    let codes = help.split("Exit codes:\n").nth(1).expect("a list").lines().skip(1);
    let row = |line: &str| {
        let (code, meaning) = line.trim().split_once(' ').expect("two columns");
        format!("| {code} | {} |", meaning.trim())
    };
    assert_eq!(documented, codes.map(row).collect::<Vec<_>>());
}

/// The words of a command line, as a shell would split them up to a redirection.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for (at, part) in line.split('\'').enumerate() {
        if at % 2 == 1 {
            words.push(part);
        } else {
            words.extend(part.split_whitespace());
        }
    }
    words.into_iter().take_while(|word| *word != ">").collect()
}

#[test]
fn the_page_shows_every_command_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let (commands, mut shown) = (commands(), BTreeSet::new());
    let refused = |words: &[&str]| {
        // Whatever is valid fails later, because of the URL.
        let mut command = lockctl("http://host", words);
        command.current_dir(&directory);
        RunningProcess::start(command).end().errors.contains("try '--help'")
    };
    for example in PAGE.lines().filter_map(|line| line.strip_prefix("$ lockctl ")) {
        let words = words(example);
        // Only builds with the feature have it.
        if ["migrate", "serve", "top"].contains(&words[0]) && !commands.contains(words[0]) {
            continue;
        }
        assert!(!refused(&words), "{example}");
        shown.insert(words[0].to_owned());
    }
    assert_eq!(shown, commands);
    assert!(refused(&["ls", "--bogus"]), "it would be seen");
}

#[test]
fn doctor_tries_all_commands_of_the_documented_lists() {
    let server = RedisServer::start();
    let line = RIGHTS.split("ACL SETUSER locker").nth(1).and_then(|rest| rest.split("```").next());
    let of_redisson = RIGHTS.lines().find(|line| line.starts_with("| `Redisson` |"));
    for (format, text) in [("token", ""), ("redisson", of_redisson.expect("a row"))] {
        let text = format!("{} {}", line.expect("the line"), text.replace('`', ""));
        let words = text.split_whitespace();
        let documented: BTreeSet<_> = words.filter_map(|word| word.strip_prefix('+')).collect();
        let words = ["-v", "doctor", "--namespace", "shop", "--format", format];
        let errors = outcome(&server.plain_url(), &words).errors;
        let tried = errors.lines().find_map(|line| line.strip_prefix("lockctl: tried: "));
        let tried = tried.unwrap_or_else(|| panic!("{errors}")).split(' ');
        let tried: BTreeSet<_> = tried.filter(|name| !name.starts_with(['~', '&'])).collect();
        assert_eq!(tried, documented, "{format}");
    }
}
