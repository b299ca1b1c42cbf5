//! Checks the README and the chapters: their links lead somewhere, the figures are those of the results, and the book has
//! all chapters.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The README and the chapters, by path.
fn pages() -> BTreeMap<PathBuf, String> {
    let chapters = std::fs::read_dir(root().join("docs")).expect("a folder");
    let chapters = chapters.map(|entry| entry.expect("an entry").path());
    let chapters = chapters.filter(|path| path.extension().is_some_and(|it| it == "md"));
    let paths = chapters.chain([root().join("README.md"), root().join("CHANGELOG.md")]);
    paths.map(|path| (path.clone(), read(&path))).collect()
}

/// The lines of a page outside of code blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    page.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The anchor of a heading.
fn anchor(heading: &str) -> String {
    let heading = heading.to_lowercase();
    let kept = heading.chars().filter_map(|character| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        _ => character.is_alphanumeric().then_some(character),
    });
    kept.collect()
}

fn anchors(page: &str) -> Vec<String> {
    let headings = prose(page).filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

/// The targets of the links of a page.
fn links(page: &str) -> Vec<String> {
    let text = prose(page).collect::<Vec<_>>().join("\n");
    let links = text.split("](").skip(1);
    links.map(|rest| rest.split(')').next().expect("an end").to_owned()).collect()
}

/// The links of a page that lead nowhere.
fn dead_links(path: &Path, page: &str, pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let folder = path.parent().expect("a folder");
    let is_dead = |link: &String| {
        if link.starts_with("https://") {
            return false;
        }
        let (file, section) = link.split_once('#').unwrap_or((link, ""));
        let target = if file.is_empty() { path.to_owned() } else { folder.join(file) };
        let Ok(target) = target.canonicalize() else { return true };
        let of_target = |other: &&PathBuf| other.canonicalize().is_ok_and(|other| other == target);
        match pages.keys().find(of_target) {
            Some(other) if !section.is_empty() => {
                !anchors(&pages[other]).iter().any(|known| known == section)
            }
            _ => false,
        }
    };
    links(page).into_iter().filter(is_dead).collect()
}

#[test]
fn the_links_of_the_pages_lead_somewhere() {
    let pages = pages();
    for (path, page) in &pages {
        let dead = dead_links(path, page, &pages);
        assert!(dead.is_empty(), "{}: {}", path.display(), dead.join(", "));
    }
    let readme = root().join("README.md");
    assert!(links(&pages[&readme]).len() > 10, "links are found");
    let dead = "[a](docs/none.md), [b](docs/guide.md#none), [c](docs/guide.md#options)";
    assert_eq!(dead_links(&readme, dead, &pages), ["docs/none.md", "docs/guide.md#none"]);
}

/// The second and later cells of the row of a table that begins with this cell.
fn row<'p>(page: &'p str, first: &str) -> Option<Vec<&'p str>> {
    let cells = |line: &'p str| line.trim_matches('|').split('|').map(str::trim);
    page.lines().filter(|line| line.starts_with('|')).find_map(|line| {
        let mut cells = cells(line);
        (cells.next() == Some(first)).then(|| cells.collect())
    })
}

#[test]
fn the_figures_of_the_readme_are_those_of_the_results() {
    let (readme, results) =
        (read(&root().join("README.md")), read(&root().join("bench/RESULTS.md")));
    let section = readme.split("\n## Figures\n").nth(1).expect("a section");
    let section = section.split("\n## ").next().expect("the section");
    let figures: Vec<_> = section.lines().filter(|line| line.starts_with('|')).skip(2).collect();
    assert!(figures.len() > 5, "figures are found");
    for figure in figures {
        let mut cells = figure.trim_matches('|').split('|').map(str::trim);
        let (name, shown) = (cells.next().expect("a name"), cells.next().expect("a figure"));
        let measured = row(&results, name).unwrap_or_else(|| panic!("no figure {name}"));
        assert_eq!(measured.get(1), Some(&shown), "{name}");
    }
}

#[test]
fn the_book_has_every_chapter() {
    let summary = read(&root().join("docs/SUMMARY.md"));
    for path in pages().keys().filter(|path| path.parent() == Some(&root().join("docs"))) {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        if name != "SUMMARY.md" {
            assert!(summary.contains(&format!("]({name})")), "{name} is in no chapter");
        }
    }
}

/// The sources of what the comparison says about other products.
#[test]
fn every_product_of_the_comparison_has_a_source() {
    let page = read(&root().join("docs/comparison.md"));
    let (tables, sources) = page.split_once("\n## Sources\n").expect("sources");
    let headings = tables.lines().filter(|line| line.starts_with("| | "));
    let products = headings.flat_map(|line| line.trim_matches('|').split('|').skip(1));
    let products: Vec<_> = products.map(|product| product.trim().trim_matches('`')).collect();
    assert!(products.len() > 7, "products are found");
    for product in products {
        let name = product.split(' ').next().expect("a word");
        let name = if name == "this" { "this library" } else { name };
        assert!(sources.contains(&format!("\n| {name} |")), "{name} has no source");
    }
}
