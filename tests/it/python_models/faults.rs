//! Faults at every step of a model's life: its process is killed, hangs, or writes garbage to all of its open files.
//! The server goes on, other models are served, and the model comes back where it can.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use super::zoo::{CASES, HELD, HELD_CONFIG, Models, Zoo, ints, wait_for};
use serde_json::json;

/// Explicit control, and a short grace at the end.
const FLAGS: &[&str] = &["--model-control-mode=explicit", "--load-model=slow", "--exit-timeout-secs=2"];
/// Causes of an immediate failure of a step.
const DEATHS: &[&str] = &["kill", "exit", "abort", "segfault"];
/// Bytes written in place of messages.
const GARBAGE: &[&str] = &["zeros", "ones", "noise", "frames"];

/// A model for each fault at this step, `STEP_FAULT`, beside the model `slow`.
fn models(step: &str, faults: &[&str], more: &str) -> Option<Models> {
    let mut models = Models::new()?.with("slow");
    for fault in faults {
        let name = format!("{step}_{fault}");
        models = models.add(&name, &format!("{CASES}\n{more}"), include_str!("faulty.py"));
        fs::write(models.path().join(&name).join("1/fault.txt"), format!("{step} {fault}\n")).unwrap();
    }
    Some(models)
}

/// A server of them, on which those that fail are not loaded yet.
fn server(step: &str, faults: &[&str], more: &str) -> Option<Zoo> {
    models(step, faults, more).map(|models| models.serve(FLAGS))
}

fn slow_is_served(zoo: &Zoo) {
    let answer = zoo.ask("slow", &[ints("x", &[1]), ints("delay_ms", &[0])]);
    assert_eq!(answer, Ok(json!([1])), "another model is served\n{}", zoo.server.log());
}

/// Asks until the model answers; every answer before that is the error of a process that has gone.
fn comes_back(zoo: &Zoo, model: &str) {
    wait_for(&format!("{model} comes back"), || match zoo.case(model, "fine") {
        Ok(answer) => {
            assert_eq!(answer[0], "fine", "{model}");
            true
        }
        Err((status, text)) => {
            assert!(status >= 500, "{model}: {status} {text}");
            false
        }
    });
}

#[test]
fn a_process_that_ends_while_it_starts_keeps_its_model_from_loading() {
    for step in ["import", "initialize"] {
        let Some(mut zoo) = server(step, DEATHS, "") else { return };
        for fault in DEATHS {
            let name = format!("{step}_{fault}");
            let start = Instant::now();
            let (status, text) = zoo.order(&name, "load");
            assert!(status == 400 && text.contains(&format!("Stub process '{name}_0_0' is not healthy.")), "{text}");
            assert!(start.elapsed() < Duration::from_secs(10), "{name}");
            assert_ne!(zoo.ready(&name), 200);
        }
        slow_is_served(&zoo);
        assert_eq!(zoo.processes().len(), 2, "those of the other model");
        assert!(zoo.server.stop().success());
    }
}

#[test]
fn a_process_that_writes_garbage_while_it_starts_keeps_its_model_from_loading_at_most() {
    for step in ["import", "initialize"] {
        let Some(zoo) = server(step, GARBAGE, "") else { return };
        for fault in GARBAGE {
            let name = format!("{step}_{fault}");
            let (status, text) = zoo.order(&name, "load");
            assert_eq!(status, 400, "{name}: {text}");
            slow_is_served(&zoo);
        }
        assert_eq!(zoo.processes().len(), 2);
    }
}

#[test]
fn a_model_that_hangs_while_it_starts_does_not_keep_the_server_from_ending() {
    for step in ["import", "initialize"] {
        let Some(mut zoo) = server(step, &["hang"], "") else { return };
        let address = zoo.server.http();
        let path = format!("/v2/repository/models/{step}_hang/load");
        let load = thread::spawn(move || drop(crate::support::http::post(address, &path, b"")));
        wait_for("it hangs", || zoo.processes().len() == 3);
        slow_is_served(&zoo);
        let processes = zoo.processes();
        let start = Instant::now();
        zoo.server.stop();
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        wait_for("its process is gone", || !processes.iter().any(|process| super::zoo::is_running(*process)));
        load.join().unwrap();
    }
}

#[test]
fn a_process_that_ends_or_writes_garbage_while_idle_is_started_again() {
    let faults = ["kill", "exit", "segfault", "terminate", "zeros", "ones", "noise", "frames", "close", "threads"];
    let Some(mut zoo) = server("idle", &faults, "") else { return };
    for fault in faults {
        let name = format!("idle_{fault}");
        let (status, text) = zoo.order(&name, "load");
        assert_eq!(status, 200, "{name}: {text}");
        // Each process has its fault 0.3 s after its start: requests in between are answered.
        thread::sleep(Duration::from_millis(350));
        comes_back(&zoo, &name);
        slow_is_served(&zoo);
        assert_eq!(zoo.order(&name, "unload").0, 200);
    }
    wait_for("all are gone", || zoo.processes().len() == 2);
    assert!(zoo.server.stop().success());
}

#[test]
fn a_process_that_ends_while_it_executes_fails_its_requests_at_once_and_comes_back() {
    let Some(zoo) = server("execute", DEATHS, "") else { return };
    let mut took = Vec::new();
    for fault in DEATHS {
        let name = format!("execute_{fault}");
        assert_eq!(zoo.order(&name, "load").0, 200);
        let before = zoo.case(&name, "fine").unwrap();
        // A new process takes a while to start, and the model says so.
        let hold = zoo.models.path().join(&name).join("1/hold.txt");
        fs::write(&hold, "").unwrap();
        let start = Instant::now();
        let refused = zoo.case(&name, "fault").unwrap_err();
        assert_eq!(refused, (500, format!("Stub process '{name}_0_0' is not healthy.")));
        took.push(start.elapsed());
        wait_for(&format!("{name} is not ready"), || zoo.ready(&name) != 200);
        fs::remove_file(hold).unwrap();
        wait_for(&format!("{name} is ready"), || zoo.ready(&name) == 200);
        assert_eq!(zoo.case(&name, "fine").unwrap()[0], "fine", "{name}: who is ready answers");
        let after = zoo.case(&name, "fine").unwrap();
        assert_ne!(before[1], after[1], "another process");
    }
    // Other work on the machine makes some later.
    assert!(took.iter().min() < Some(&Duration::from_millis(900)), "Triton takes a second: {took:?}");
}

#[test]
fn a_process_that_writes_garbage_while_it_executes_costs_its_own_batch() {
    let faults = ["zeros", "ones", "noise", "frames", "close"];
    let Some(zoo) = server("execute", &faults, "") else { return };
    for fault in faults {
        let name = format!("execute_{fault}");
        assert_eq!(zoo.order(&name, "load").0, 200);
        for _ in 0..2 {
            let (status, text) = zoo.case(&name, "fault").unwrap_err();
            assert!(status == 500 && !text.contains("memfd"), "{name}: {status} {text}");
            comes_back(&zoo, &name);
        }
        slow_is_served(&zoo);
    }
}

#[test]
fn a_batch_that_takes_too_long_ends_its_process_where_the_model_says_so() {
    let more = "parameters { key: 'execute_timeout_ms' value { string_value: '700' } }";
    let Some(zoo) = server("execute", &["hang", "half"], more) else { return };
    for name in ["execute_hang", "execute_half"] {
        assert_eq!(zoo.order(name, "load").0, 200);
        let start = Instant::now();
        let (status, text) = zoo.case(name, "fault").unwrap_err();
        let took = start.elapsed();
        assert_eq!(status, 500, "{text}");
        assert!(took < Duration::from_secs(15), "{name}: {took:?} {text}");
        assert!(name == "execute_half" || took > Duration::from_millis(600), "{name}: {took:?} {text}");
        comes_back(&zoo, name);
    }
}

#[test]
fn a_process_that_ends_while_it_waits_for_another_model_fails_its_requests() {
    let faults = ["kill", "exit", "zeros", "ones", "noise", "frames"];
    let Some(models) = models("call", &faults, "") else { return };
    let zoo = models.add("held", HELD_CONFIG, HELD).serve(&[FLAGS, &["--load-model=held"]].concat());
    let [began, end] = ["began", "end"].map(|file| zoo.models.path().join("held").join(file));
    for fault in faults {
        let name = format!("call_{fault}");
        assert_eq!(zoo.order(&name, "load").0, 200);
        // It fails while the other model is held, so it does not wait for that.
        let (status, text) = zoo.case(&name, "fault").unwrap_err();
        assert_eq!(status, 500, "{name}: {text}");
        assert!(began.exists(), "{name}: {text}");
        fs::write(&end, "").unwrap();
        assert_eq!(zoo.ask("held", &[ints("x", &[1])]), Ok(json!([1])), "another model is served");
        comes_back(&zoo, &name);
        slow_is_served(&zoo);
        [&began, &end].iter().for_each(|file| fs::remove_file(file).unwrap());
    }
}

#[test]
fn a_model_that_fails_at_its_end_is_gone_all_the_same() {
    let faults = ["kill", "exit", "segfault", "raise", "hang", "zeros", "noise", "frames", "close"];
    let Some(mut zoo) = server("finalize", &faults, "") else { return };
    for fault in faults {
        let name = format!("finalize_{fault}");
        assert_eq!(zoo.order(&name, "load").0, 200);
        assert_eq!(zoo.case(&name, "fine").unwrap()[0], "fine");
        assert_eq!(zoo.order(&name, "unload").0, 200);
        if fault != "hang" {
            wait_for(&format!("{name} is gone"), || zoo.processes().len() <= 3);
        }
        slow_is_served(&zoo);
    }
    let processes = zoo.processes();
    let start = Instant::now();
    zoo.server.stop();
    // One hangs in finalize; it is killed at the latest with the server.
    assert!(start.elapsed() < Duration::from_secs(45), "{:?}", start.elapsed());
    wait_for("no process is left", || !processes.iter().any(|process| super::zoo::is_running(*process)));
}

#[test]
fn a_model_that_cannot_come_back_is_not_ready_until_it_can() {
    let Some(models) = Models::new() else { return };
    let models = models.add("m", CASES, include_str!("faulty.py"));
    let fault = models.path().join("m/1/fault.txt");
    fs::write(&fault, "execute kill\n").unwrap();
    let zoo = models.serve(&["--model-control-mode=explicit", "--load-model=m"]);
    assert!(zoo.case("m", "fine").is_ok());
    fs::write(&fault, "initialize raise\n").unwrap();
    assert_eq!(zoo.case("m", "fault").unwrap_err().0, 500);
    wait_for("it says that it is not ready", || zoo.ready("m") != 200);
    let asked_meanwhile = thread::scope(|scope| {
        let asked = scope.spawn(|| zoo.case("m", "fine"));
        thread::sleep(Duration::from_millis(500));
        fs::write(&fault, "execute kill\n").unwrap();
        asked.join().unwrap()
    });
    // The request may be refused, or wait for the model.
    assert!(asked_meanwhile.as_ref().map_or_else(|(status, _)| *status >= 500, |answer| answer[0] == "fine"));
    comes_back(&zoo, "m");
    wait_for("it is ready", || zoo.ready("m") == 200);
}
