//! What the readme says about the package.

const README: &str = include_str!("../../README.md");

/// The manifest of the workspace.
const WORKSPACE: &str = include_str!("../../../Cargo.toml");

/// The lines of all blocks in a language.
fn code(language: &str) -> Vec<&str> {
    let start = format!("```{language}");
    let mut lines = README.lines();
    let mut code = Vec::new();
    while lines.any(|line| line == start) {
        code.extend(lines.by_ref().take_while(|line| *line != "```"));
    }
    code
}

/// Only rustdoc hides lines that start with `#`. Other viewers show them.
#[test]
fn the_example_has_no_hidden_lines() {
    let code = code("rust");
    assert!(code.len() > 20, "{code:#?}");
    assert!(!code.iter().any(|line| line.trim() == "#" || line.trim().starts_with("# ")));
}

#[test]
fn the_dependencies_are_those_of_the_workspace() {
    let code = code("toml");
    for package in ["axum", "lock-dashboard", "lock-runtime", "tokio"] {
        let version = |lines: &[&str]| {
            let line = lines.iter().find(|line| line.starts_with(&format!("{package} = ")))?;
            let (_, version) =
                line.split_once("version = \"").or_else(|| line.split_once("= \""))?;
            Some(version.split_once('"')?.0.to_owned())
        };
        let named = version(&code).unwrap_or_else(|| panic!("{package}: {code:#?}"));
        let used = version(&WORKSPACE.lines().collect::<Vec<_>>()).expect("a dependency");
        assert!(format!("{used}.").starts_with(&format!("{named}.")), "{package}: {named}, {used}");
    }
    let runtime = code.iter().find(|line| line.starts_with("lock-runtime = "));
    assert!(runtime.is_some_and(|line| line.contains("\"admin\"")), "{code:#?}");
}
