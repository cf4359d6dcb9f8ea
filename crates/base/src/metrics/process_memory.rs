//! The memory of the processes of models: Python models, isolated engines and isolated backends.

use std::fmt::Write;

use crate::metrics::{ModelFigures, head};

/// The name of the family.
pub const NAME: &str = "deuteron_model_process_memory_bytes";
const HELP: &str = "Memory of the processes of the model: their own and shared pages, without those of files";

/// Appends the series of all models whose processes were measured.
pub fn encode_models(out: &mut String, models: &[ModelFigures<'_>]) {
    let known = || models.iter().filter_map(|model| Some((model, model.process_memory?)));
    if known().next().is_some() {
        head(out, NAME, "gauge", HELP);
    }
    for (ModelFigures { labels, name: model, version, .. }, size) in known() {
        let _ = writeln!(out, "{NAME}{{{labels}model=\"{model}\",version=\"{version}\"}} {size}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_without_measured_processes_have_no_series() {
        let model = |name, process_memory| ModelFigures { name, version: 2, process_memory, ..ModelFigures::default() };
        let mut out = String::new();
        encode_models(&mut out, &[model("a", None)]);
        assert_eq!(out, "");
        encode_models(&mut out, &[model("a", None), model("b", Some(7))]);
        let want = format!("# HELP {NAME} {HELP}\n# TYPE {NAME} gauge\n{NAME}{{model=\"b\",version=\"2\"}} 7\n");
        assert_eq!(out, want);
    }
}
