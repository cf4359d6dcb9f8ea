//! The plots of `docs/figures` show the tables of their pages: each names a page and the rows that it was drawn from, and
//! the rows are on the page. `python3 docs/figures/plots.py` draws them again.

use std::fs;
use std::path::Path;

/// The page of a plot and its rows; empty if the text has none.
fn source(plot: &str) -> Vec<String> {
    let text = plot.split_once("<desc>\n").and_then(|(_, rest)| rest.split_once("\n</desc>"));
    let plain = |line: &str| line.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    text.map_or_else(Vec::new, |(lines, _)| lines.lines().map(plain).collect())
}

#[test]
fn plots_show_the_tables_of_their_pages() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let files = fs::read_dir(docs.join("figures")).unwrap().map(|entry| entry.unwrap().path());
    let mut count = 0;
    for file in files.filter(|file| file.file_name().unwrap().to_string_lossy().starts_with("plot-")) {
        let source = source(&fs::read_to_string(&file).unwrap());
        let (page, rows) = source.split_first().unwrap();
        let text = fs::read_to_string(docs.join(page)).unwrap();
        let stale: Vec<_> = rows.iter().filter(|row| !text.lines().any(|line| line == *row)).collect();
        let file = file.display();
        assert!(
            stale.is_empty(),
            "{file}: not in docs/{page}: {stale:#?}; python3 docs/figures/plots.py draws it again"
        );
        count += rows.len();
    }
    assert!(count >= 10, "the rows were found: {count}");
}

#[test]
fn the_rows_of_a_plot_are_read_as_the_page_has_them() {
    assert_eq!(source("<title>a</title>\n<desc>\npage.md\n| a &lt; b |\n</desc>\n"), ["page.md", "| a < b |"]);
    assert_eq!(source("<svg></svg>"), [""; 0]);
}
