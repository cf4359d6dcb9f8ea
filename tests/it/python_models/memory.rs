//! The memory of the processes of models in `/metrics`.

use super::zoo::{CASES, Models, wait_for};

/// Holds 64 MiB in each of its instances.
const HOLDER: &str = r#"
class TritonPythonModel:
    def initialize(self, args):
        self.held = b"x" * (64 << 20)

    def execute(self, requests):
        return []
"#;

const MIB: u64 = 1 << 20;

/// The metric of a model version.
fn measured(page: &str, model: &str) -> Option<u64> {
    let series = format!("deuteron_model_process_memory_bytes{{model=\"{model}\",version=\"1\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

#[test]
fn the_memory_of_a_models_processes_is_a_metric_until_it_is_unloaded() {
    let Some(models) = Models::new() else { return };
    let pair = CASES.replace("instance_group { kind: KIND_CPU }", "instance_group { kind: KIND_CPU count: 2 }");
    let models = models.add("one", CASES, HOLDER).add("two", &pair, HOLDER);
    let zoo = models.serve(&["--model-control-mode=explicit", "--load-model=*"]);
    wait_for("both are measured", || {
        let page = zoo.metrics();
        measured(&page, "one").is_some() && measured(&page, "two").is_some()
    });
    let page = zoo.metrics();
    let [one, two] = ["one", "two"].map(|model| measured(&page, model).unwrap());
    assert!((64 * MIB..300 * MIB).contains(&one), "{one}");
    assert!(two > one + 64 * MIB && two < 600 * MIB, "the sum of two processes: {two}, beside {one}");
    assert_eq!(zoo.order("one", "unload").0, 200);
    wait_for("its series is gone", || measured(&zoo.metrics(), "one").is_none());
    assert!(measured(&zoo.metrics(), "two").is_some());
}
