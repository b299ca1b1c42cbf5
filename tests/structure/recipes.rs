//! Checks `docs/recipes.md`: each recipe is complete. Its code is checked in `code_blocks`.

const PAGE: &str = include_str!("../../docs/recipes.md");

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
