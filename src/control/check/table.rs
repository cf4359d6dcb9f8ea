//! The report as a table and the reasons beneath it, for a person.

use std::fmt::Write as _;

use crate::control::check::cure::MissingPart;
use crate::control::check::{CheckedModel, ModelVerdict, RepositoryCheck};

/// Characters of a name in the table.
const COLUMN_MAX: usize = 48;

/// Returns the text.
pub fn text(check: &RepositoryCheck) -> String {
    let mut out = String::new();
    if let Some(fault) = &check.fault {
        line(&mut out, fault);
    }
    if !check.models.is_empty() {
        table(&mut out, &check.models);
    }
    for model in &check.models {
        details(&mut out, model);
    }
    if !check.ignored.is_empty() {
        line(&mut out, "\nNot models:");
        check.ignored.iter().for_each(|(name, why)| line(&mut out, &format!("  {}: {why}", name.escape_debug())));
    }
    if let Some(deployment) = &check.deployment {
        deployment.write(&mut out);
    }
    let (served, all) = (check.served(), check.models.len());
    if all > 0 {
        let refused = if served == all { String::new() } else { format!("; {} refused", all - served) };
        let models = if all == 1 { "model" } else { "models" };
        line(&mut out, &format!("\n{served} of {all} {models} would be served{refused}"));
    }
    out
}

fn table(out: &mut String, models: &[CheckedModel]) {
    let head = ["MODEL", "BACKEND", "ENGINE", "VERSIONS", "VERDICT"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(models.iter().map(cells)).collect();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    for row in &rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or_default();
            format!("{cell:width$}")
        });
        line(out, cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

fn cells(model: &CheckedModel) -> [String; 5] {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { short(text) };
    let versions: Vec<_> = model.versions.iter().map(u64::to_string).collect();
    let name = short(&model.name.escape_debug().to_string());
    let verdict = model.verdict.name().to_owned();
    [name, or_dash(&model.backend), or_dash(&model.engine), or_dash(&versions.join(", ")), verdict]
}

/// The beginning of a text that is too long for a table.
fn short(text: &str) -> String {
    match text.chars().count() > COLUMN_MAX {
        true => text.chars().take(COLUMN_MAX - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// The reasons, the cure and the missing parts of a model, if there are any.
fn details(out: &mut String, model: &CheckedModel) {
    let CheckedModel { reason, change, missing, warnings, notes, .. } = model;
    if model.verdict == ModelVerdict::Ok && notes.is_empty() {
        return;
    }
    line(out, &format!("\n{}:", model.name.escape_debug()));
    let part = |part: &MissingPart| format!("{} {}", part.kind.name(), part.name);
    let missing: Vec<_> = missing.iter().map(part).collect();
    let missing = (!missing.is_empty()).then(|| missing.join(", "));
    for (title, text) in [("refused", reason), ("change", change), ("missing", &missing)] {
        text.iter().for_each(|text| line(out, &format!("  {title}: {text}")));
    }
    warnings.iter().for_each(|text| line(out, &format!("  warning: {text}")));
    notes.iter().for_each(|text| line(out, &format!("  note: {text}")));
}

fn line(out: &mut String, text: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::check::cure::MissingKind;

    fn model(name: &str, verdict: ModelVerdict) -> CheckedModel {
        CheckedModel {
            name: name.to_owned(),
            backend: "onnxruntime".to_owned(),
            engine: String::new(),
            versions: vec![3, 1],
            verdict,
            reason: None,
            change: None,
            missing: Vec::new(),
            warnings: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_cells_and_reasons_stand_beneath() {
        let part = MissingPart { kind: MissingKind::Package, name: "torch".to_owned() };
        let refused = CheckedModel {
            reason: Some("why".to_owned()),
            change: Some("what".to_owned()),
            missing: vec![part],
            ..model("b", ModelVerdict::Refused)
        };
        let warned = CheckedModel {
            engine: "x".repeat(60),
            warnings: vec!["this".to_owned()],
            notes: vec!["that".to_owned()],
            ..model("long_name", ModelVerdict::Warning)
        };
        let check = RepositoryCheck {
            models: vec![model("a", ModelVerdict::Ok), refused, warned],
            ignored: vec![("README.md".to_owned(), "not a directory")],
            ..RepositoryCheck::default()
        };
        let engine = "x".repeat(47) + "…";
        let (pad, head) = (" ".repeat(47), " ".repeat(42));
        let want = format!(
            "MODEL      BACKEND      ENGINE{head}  VERSIONS  VERDICT\n\
             a          onnxruntime  -{pad}  3, 1      ok\n\
             b          onnxruntime  -{pad}  3, 1      refused\n\
             long_name  onnxruntime  {engine}  3, 1      warning\n\n\
             b:\n  refused: why\n  change: what\n  missing: package torch\n\n\
             long_name:\n  warning: this\n  note: that\n\n\
             Not models:\n  README.md: not a directory\n\n2 of 3 models would be served; 1 refused\n"
        );
        assert_eq!(text(&check), want);
        assert!(!check.is_clean());
    }
}
