//! Comparisons with other servers and libraries: each figure of one, in README and on the pages of `docs`, is in a row of a
//! table that says how it was measured. `cargo test --test tidy comparisons -- --nocapture` lists the sentences with their
//! rows, and then the comparisons without a figure.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Products that figures are compared with.
const OTHERS: [&str; 14] = [
    "Triton",
    "tritonserver",
    "FastAPI",
    "MLServer",
    "OVMS",
    "TEI",
    "nginx",
    "Treelite",
    "Infinity",
    "TorchServe",
    "Ray's proxy",
    "libjpeg-turbo",
    "Pillow",
    "OpenCV",
];
/// Words by which a sentence compares.
const COMPARING: [&str; 9] =
    ["faster", "slower", "cheaper", "times", "as long", "less CPU", "less memory", "as fast", "costs less"];
/// Pages that are about comparisons: each of their passages that names another product is one.
const COMPARISONS: [&str; 5] =
    ["README.md", "docs/guide/from-triton.md", "docs/guide/index.md", "docs/guide/install.md", "docs/trees.md"];
/// The pages with the tables.
const TABLES: [&str; 5] = [
    "docs/performance.md",
    "docs/performance-clients.md",
    "docs/performance-inside.md",
    "docs/guide/balancers.md",
    "docs/trees.md",
];
/// Pages of figures that are not looked up: decisions are of their time, and these say themselves how each was measured.
const OWN: [&str; 2] = ["docs/reliability.md", "docs/guide/ray.md"];

/// Pages whose sentences are looked up.
fn pages() -> BTreeSet<String> {
    let mut pages = BTreeSet::from(["README.md".to_owned()]);
    for folder in ["docs", "docs/guide"] {
        let entries = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        pages.extend(names.filter(|name| name.ends_with(".md")).map(|name| format!("{folder}/{name}")));
    }
    pages.retain(|page| !OWN.contains(&&**page) && (page == "docs/trees.md" || !TABLES.contains(&&**page)));
    pages
}

fn read(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// The numbers of a text that have a decimal point or a unit of time, in the order of the text: `9.5`, `26.0`.
fn figures(text: &str) -> Vec<&str> {
    let is_part = |letter: char| letter.is_ascii_digit() || letter == '.' || letter == ',';
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(begin) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let is_number = !rest[..begin].ends_with(|letter: char| letter.is_alphanumeric() || "-/.#".contains(letter));
        let number = &rest[begin..];
        let end = number.find(|letter| !is_part(letter)).unwrap_or(number.len());
        let (number, after) = (number[..end].trim_end_matches(['.', ',']), &number[end..]);
        let has_unit = [" µs", " ms", "µs"].iter().any(|unit| after.starts_with(unit));
        // A share is of something else than a time or a rate.
        let is_share = after.starts_with(" %");
        if is_number && !is_share && (number.contains('.') || has_unit) {
            found.push(number);
        }
        rest = after;
    }
    found
}

/// A version is no figure of a comparison.
fn without_versions(text: &str) -> String {
    let mut before = "";
    let words = text.split_whitespace().filter(|word| {
        let names = |name: &str| name == "Linux" || OTHERS.contains(&name);
        // The tag of an image is a version, too.
        let is_version = word.contains("tritonserver:")
            || names(before) && word.trim_start_matches('(').starts_with(|letter: char| letter.is_ascii_digit());
        // A version may be said twice: `2.51 (24.10)`.
        before = if is_version { before } else { word };
        !is_version
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Paragraphs, and rows of tables, that name another product. The head of a table counts for each of its rows.
fn passages_on_others(page: &str) -> Vec<String> {
    let names_other = |text: &str| OTHERS.iter().any(|other| text.contains(other));
    let of_block = |block: &str| match block.lines().next().filter(|head| head.starts_with('|')) {
        Some(head) => {
            let of_head = names_other(head);
            block
                .lines()
                .skip(2)
                .filter(|row| (of_head || names_other(row)) && !row.ends_with("| – |"))
                .map(without_versions)
                .collect()
        }
        None => Some(block).filter(|block| names_other(block)).map(without_versions).into_iter().collect::<Vec<_>>(),
    };
    page.split("\n\n").flat_map(of_block).collect()
}

/// Returns true for a sentence that compares something with another product.
fn compares(sentence: &str) -> bool {
    OTHERS.iter().any(|other| sentence.contains(other)) && COMPARING.iter().any(|word| sentence.contains(word))
}

#[test]
fn each_figure_of_another_server_is_in_a_row_that_says_how_it_was_measured() {
    let rows: Vec<(&str, String)> = TABLES
        .into_iter()
        .flat_map(|name| {
            read(name)
                .lines()
                .filter(|line| line.starts_with('|'))
                .map(|row| (name, row.to_owned()))
                .collect::<Vec<_>>()
        })
        .collect();
    let mut count = 0;
    let mut without_figures = Vec::new();
    for page in pages() {
        let passages = passages_on_others(&read(&page));
        let is_whole = COMPARISONS.contains(&&*page);
        let split = |passage: String| match is_whole {
            true => vec![passage],
            false => passage.split_inclusive(". ").filter(|sentence| compares(sentence)).map(str::to_owned).collect(),
        };
        for passage in passages.into_iter().flat_map(split) {
            let wanted = figures(&passage);
            if wanted.is_empty() && compares(&passage) {
                without_figures.push(format!("{page}: “{passage}”"));
            }
            for figure in &wanted {
                count += 1;
                let alike = |row: &str| figures(row).iter().filter(|figure| wanted.contains(figure)).count();
                let of_figure = rows.iter().filter(|(_, row)| figures(row).contains(figure));
                let best = of_figure.max_by_key(|(_, row)| alike(row));
                let Some((table, row)) = best else { panic!("{page}: no row of {TABLES:?} has {figure}: {passage}") };
                println!("{page}: {figure} in “{passage}”\n    {table}: {row}");
            }
        }
    }
    println!("\nWithout a figure:\n{}", without_figures.join("\n"));
    assert!(count >= 10, "the figures were found: {count}");
}

#[test]
fn a_figure_is_told_from_a_version_and_a_name() {
    assert_eq!(
        figures("9.5 µs and 26.0 µs in 64 clients, 36.6 and\u{a0}40.8, p99 of 12 ms"),
        ["9.5", "26.0", "36.6", "40.8", "12"]
    );
    assert_eq!(without_versions("in tritonserver 2.51 with 64"), "in tritonserver with 64");
    assert_eq!(figures("HTTP/1.1 on fp32-1.5"), [""; 0]);
}
