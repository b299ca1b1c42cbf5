//! Checks the Rust code in the README and the chapters: it is part of a program or a test, or the page is a doc test.

use std::path::Path;

use super::pages::{pages, read, root};

/// The folders with the code that the pages show.
const CODE_FOLDERS: [&str; 5] =
    ["examples", "recipes", "tests", "lock-runtime/tests", "lock-dashboard"];

/// The line that replaces others in the code of a page.
const LEFT_OUT: &str = "// …";

/// The lines without their indentation.
fn flat(text: &str) -> String {
    text.lines().flat_map(|line| [line.trim(), "\n"]).collect()
}

/// The programs and tests, and the pages that are doc tests.
fn sources() -> Vec<String> {
    fn collect(folder: &Path, sources: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, sources);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = read(&path);
                for page in text.split("#[doc = include_str!(\"").skip(1) {
                    let page = page.split('"').next().expect("a path");
                    sources.push(flat(&read(&folder.join(page))));
                }
                sources.push(flat(&text));
            }
        }
    }
    let mut sources = Vec::new();
    for folder in CODE_FOLDERS {
        collect(&root().join(folder), &mut sources);
    }
    sources
}

/// The blocks of Rust code in a page: the attributes, and the lines.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if let Some(attributes) = line.strip_prefix("```rust") {
            let code = lines.by_ref().take_while(|line| *line != "```");
            blocks.push((attributes.to_owned(), code.flat_map(|line| [line, "\n"]).collect()));
        }
    }
    blocks
}

/// Whether a program, a test or a doc test has all parts of a block.
fn is_compiled((attributes, code): &(String, String), sources: &[String]) -> bool {
    let separator = format!("{LEFT_OUT}\n");
    let has_all = |source: &String| code.split(&separator).all(|part| source.contains(part));
    ["", ",no_run"].contains(&attributes.as_str()) && sources.iter().any(has_all)
}

#[test]
fn the_code_of_the_pages_is_compiled() {
    let sources = sources();
    let mut count = 0;
    for (path, page) in pages() {
        for block in blocks(&page) {
            count += 1;
            let (attributes, code) = &block;
            assert!(is_compiled(&block, &sources), "{}: {attributes}\n{code}", path.display());
        }
    }
    assert!(count > 20, "blocks are found");
    let others = "- ```rust,ignore\n  let a = 1;\n```\n```rust\nlet nobody_has_this = \n```\n";
    assert!(blocks(&others[2..]).iter().all(|block| !is_compiled(block, &sources)));
}
