//! `deuteron sbom`: the packages of the program, as a CycloneDX document.

/// The packages linked into the program, a line each: name, version, licence, between tabs (`build/dependencies.rs`).
const PACKAGES: &str = include_str!(concat!(env!("OUT_DIR"), "/dependencies.tsv"));

/// The bill of materials of this program (CycloneDX 1.5, JSON). The same build prints the same
/// text, since it has no time and no serial number.
pub(super) fn document() -> String {
    let components: Vec<_> = PACKAGES.lines().filter_map(component).collect();
    let name = env!("CARGO_PKG_NAME");
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{{\n\"bomFormat\":\"CycloneDX\",\"specVersion\":\"1.5\",\"version\":1,\n\"metadata\":{{\"component\":{{\
         \"type\":\"application\",\"name\":\"{name}\",\"version\":\"{version}\",\"licenses\":[{{\"expression\":\
         \"{}\"}}]}}}},\n\"components\":[\n{}\n]\n}}\n",
        env!("CARGO_PKG_LICENSE"),
        components.join(",\n")
    )
}

/// One package. Neither names nor SPDX expressions need escapes.
fn component(line: &str) -> Option<String> {
    let [name, version, licence] = line.split('\t').collect::<Vec<_>>().try_into().ok()?;
    // The syntax of crates before SPDX.
    let licence = licence.replace('/', " OR ");
    Some(format!(
        "{{\"type\":\"library\",\"bom-ref\":\"{name}@{version}\",\"name\":\"{name}\",\"version\":\"{version}\",\
         \"purl\":\"pkg:cargo/{name}@{version}\",\"licenses\":[{{\"expression\":\"{licence}\"}}]}}"
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use expect_test::expect_file;
    use serde_json::Value;

    use super::*;

    #[test]
    fn what_is_linked_is_in_it_once_with_its_licence_and_what_only_builds_or_tests_is_not() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let components = document["components"].as_array().unwrap();
        let names: BTreeSet<_> = components.iter().map(|component| component["name"].as_str().unwrap()).collect();
        assert!(
            ["rustls", "glommio", "prost", "httparse", "zstd-sys"].iter().all(|name| names.contains(name)),
            "{names:?}"
        );
        assert!(["deuteron", "protox", "tonic", "criterion", "prost-derive"].iter().all(|name| !names.contains(name)));
        let of = |field: &str| components.iter().map(|component| component[field].to_string()).collect::<Vec<_>>();
        assert_eq!(of("purl").iter().collect::<BTreeSet<_>>().len(), components.len());
        assert!(of("licenses").iter().all(|licences| !licences.contains("\"\"")), "each has a licence");
        let mut locked = BTreeSet::new();
        let mut name = "";
        for line in include_str!("../../Cargo.lock").lines() {
            let value = |key| line.strip_prefix(key).map(|value: &str| value.trim_matches('"'));
            name = value("name = ").unwrap_or(name);
            locked.extend(value("version = ").map(|version| format!("\"pkg:cargo/{name}@{version}\"")));
        }
        assert!(of("purl").iter().all(|package| locked.contains(package)));
    }

    /// The notice in every package of a release: a release has stores, a plain build has fewer
    /// packages. `UPDATE_EXPECT=1` with `--features stores` writes it anew.
    #[test]
    fn the_notice_names_what_is_linked() {
        let notice = include_str!("../../NOTICE");
        let head = notice.split_inclusive("\n\n").take(4).collect::<String>();
        let rows = PACKAGES.lines().map(|line| format!("  {}\n", line.replace('\t', " ").replace('/', " OR ")));
        if cfg!(feature = "stores") {
            expect_file!["../../NOTICE"].assert_eq(&format!("{head}{}", rows.collect::<String>()));
        } else {
            let missing: Vec<_> = rows.filter(|row| !notice.contains(row.as_str())).collect();
            assert!(missing.is_empty(), "NOTICE lacks {missing:?}");
        }
    }
}
