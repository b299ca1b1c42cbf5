//! Checks `docs/recipes.md`: its code is that of programs and tests.

use std::path::{Path, PathBuf};

const PAGE: &str = include_str!("../../docs/recipes.md");

/// The folders with the code that the page shows.
const CODE_FOLDERS: [&str; 3] = ["examples", "recipes", "lock-runtime/tests"];

/// The line that replaces others in the code of the page.
const LEFT_OUT: &str = "// …";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The lines without their indentation.
fn flat(text: &str) -> String {
    text.lines().flat_map(|line| [line.trim(), "\n"]).collect()
}

fn sources() -> Vec<String> {
    fn collect(folder: &Path, sources: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, sources);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                sources.push(flat(&std::fs::read_to_string(path).expect("a text")));
            }
        }
    }
    let mut sources = Vec::new();
    for folder in CODE_FOLDERS {
        collect(&root().join(folder), &mut sources);
    }
    sources
}

#[test]
fn the_code_of_the_recipes_is_compiled() {
    let sources = sources();
    let blocks = PAGE.split("\n```rust\n").skip(1);
    let blocks: Vec<&str> =
        blocks.map(|rest| rest.split("\n```").next().expect("a block")).collect();
    assert!(blocks.len() > 10, "blocks are found");
    assert_eq!(PAGE.matches("```rust").count(), blocks.len(), "no block has attributes");
    for block in blocks {
        let block = flat(block);
        let separator = format!("{LEFT_OUT}\n");
        let parts = || block.split(&separator);
        let has_all = |source: &String| parts().all(|part| source.contains(part));
        assert!(sources.iter().any(has_all), "no file contains\n{block}");
    }
}

/// Each section is in the table at the top, and has the code and the limits of its recipe.
#[test]
fn each_recipe_is_complete() {
    let (table, recipes) = PAGE.split_once("\n## ").expect("sections");
    for recipe in recipes.split("\n## ") {
        let title = recipe.lines().next().expect("a title");
        let anchor = title.to_lowercase().replace('`', "").replace(' ', "-");
        let entry = format!("| [{title}](#{anchor}) |");
        assert!(table.contains(&entry), "the table does not contain {entry}");
        for part in ["```rust", "**What can go wrong.**", "\nCode: "] {
            assert!(recipe.contains(part), "{title} has no {part}");
        }
    }
}
