//! Checks that the table of log events in `docs/operations.md` and the events of `lock-runtime`
//! agree.

use std::collections::BTreeSet;

use crate::packages::files;
use crate::{is_test, modules, without_tests};

/// The text of a string literal that begins after `text`'s first quote, and what follows it.
fn literal(text: &str) -> Option<(String, &str)> {
    let start = text.find('"')? + 1;
    let (mut value, mut chars) = (String::new(), text[start..].char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[start + at + 1..])),
            '\\' => {
                // A line break in a literal, with the indentation of the next line.
                let (_, next) = chars.next()?;
                if next == '\n' {
                    let rest = chars.as_str().trim_start();
                    let skipped = chars.as_str().len() - rest.len();
                    let _ = skipped.checked_sub(1).and_then(|last| chars.nth(last));
                } else {
                    value.push(next);
                }
            }
            other => value.push(other),
        }
    }
    None
}

/// The messages of all events of this level in the code of `lock-runtime`.
fn messages(level: &str) -> BTreeSet<String> {
    let mut messages = BTreeSet::new();
    for (module, text) in modules() {
        if is_test(&module) {
            continue;
        }
        let text = without_tests(&text);
        for event in text.split(&format!("tracing::{level}!(")).skip(1) {
            // The message is the last literal of the event.
            let event = event.split(");").next().expect("the first part");
            let (mut rest, mut last) = (event, None);
            while let Some((value, after)) = literal(rest) {
                (last, rest) = (Some(value), after);
            }
            messages.insert(last.unwrap_or_else(|| panic!("an event of {module} has no message")));
        }
    }
    messages
}

/// Operators filter by the target `lock_runtime`, wherever the code is.
#[test]
fn the_events_of_other_crates_have_the_target_of_the_runtime() {
    let mut events = 0;
    for (path, text) in [files("lock-core/src", "rs"), files("stores", "rs")].concat() {
        for event in text.split("tracing::").skip(1).filter_map(|rest| rest.split_once("!(")) {
            if ["error", "warn", "info", "debug", "trace"].contains(&event.0) {
                events += 1;
                let has_target = event.1.trim_start().starts_with("target: \"lock_runtime");
                assert!(has_target, "{} has an event with another target", path.display());
            }
        }
    }
    assert!(events > 0, "events are found");
}

#[test]
fn the_page_for_operators_lists_every_event_and_no_other() {
    let page = include_str!("../../docs/operations.md");
    let table = page.split("| event | meaning | what to do |").nth(1).expect("a table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with("| "));
    let first_cells = rows.filter_map(|row| row.split(" | ").next());
    let mut listed: BTreeSet<(String, String)> = BTreeSet::new();
    for cell in first_cells {
        let mut parts = cell.split('`');
        let level = parts.next().expect("a level").trim_start_matches("| ").trim().to_lowercase();
        let message = parts.next().expect("a message");
        listed.insert((level, message.to_owned()));
    }
    for level in ["error", "warn", "info"] {
        // The warning about a server is made from its description.
        for message in messages(level).into_iter().filter(|message| message != "{warning}") {
            let is_listed =
                |(of, known): &(String, String)| of == level && message.starts_with(known);
            assert!(listed.iter().any(is_listed), "the page does not list {level}: {message}");
        }
    }
    for (level, known) in &listed {
        let known = known.trim_end_matches(" …");
        let is_event = messages(level).iter().any(|message| message.starts_with(known));
        let is_server = known.starts_with("the server ");
        assert!(is_event || is_server, "there is no event {level}: {known}");
    }
    assert!(listed.len() > 15, "{listed:?}");
}

/// Operators write alerts from the table of reasons.
#[test]
fn the_page_for_operators_lists_the_words_of_all_reasons() {
    let page = include_str!("../../docs/operations.md");
    let table = page.split("| `reason` |").nth(1).expect("a table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let listed: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let modules = modules();
    let reasons = modules["error"].split("impl LostReason {").nth(1).expect("the reasons");
    let words = reasons.split("fn as_str(self)").nth(1).expect("their words");
    let arms = words.lines().skip(2).take_while(|line| line.contains("=>"));
    let words: Vec<&str> = arms.map(|arm| arm.split('"').nth(1).expect("a word")).collect();
    assert!(words.len() > 5, "{words:?}");
    assert_eq!(listed, words);
}
