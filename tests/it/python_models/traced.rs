//! Traces of models that call models: the called model is a part of the trace.

use std::collections::BTreeMap;

use serde_json::Value;

use super::zoo::{Models, ints};
use crate::support::folder::Folder;

#[test]
fn a_called_model_is_a_child_in_the_trace_of_its_caller() {
    let Some(models) = Models::new() else { return };
    let out = Folder::new("traced-calls");
    let file = out.path().join("t.json");
    let named = format!("--trace-config=triton,file={}", file.display());
    let flags = [named.as_str(), "--trace-config=rate=1", "--trace-config=level=TIMESTAMPS"];
    let mut zoo = models.with("chain_first chain_second double").serve(&flags);
    zoo.ask("chain_first", &[ints("x", &[1])]).unwrap();
    assert!(zoo.server.stop().success(), "{}", zoo.server.log());
    let entries: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let heads = entries.iter().filter(|entry| entry["model_name"].is_string());
    let heads: BTreeMap<_, _> = heads.map(|entry| (entry["model_name"].as_str().unwrap(), entry)).collect();
    let [first, second, last] = ["chain_first", "chain_second", "double"].map(|name| heads[name]);
    assert!(first.get("parent_id").is_none());
    assert_eq!((&second["parent_id"], &last["parent_id"]), (&first["id"], &second["id"]));
}
