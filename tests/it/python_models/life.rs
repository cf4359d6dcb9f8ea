//! Processes over time: after SIGKILL of one and of the server, through many reloads, under many clients.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use super::zoo::{HELD, HELD_CONFIG, Models, ints, is_running, kill, open_files, resident_kib, wait_for};
use crate::support::over::Over;
use crate::support::skipped::is_asked_for;

/// Names of shared memory in the system. Those of a tritonserver beside it do not count.
fn shared_memory() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").expect("Linux").flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("python") && !name.starts_with("triton_python_backend")).collect()
}

#[test]
fn after_sigkill_of_its_process_a_model_is_served_by_another() {
    let Some(models) = Models::new() else { return };
    let before = shared_memory();
    let zoo = models.add("held", HELD_CONFIG, HELD).serve(&[]);
    let ask = || zoo.ask("held", &[ints("x", &[1])]);
    let [began, end] = ["began", "end"].map(|file| zoo.models.path().join("held").join(file));
    fs::write(&end, "").unwrap();
    assert_eq!(ask(), Ok(json!([1])));
    for _ in 0..2 {
        let [process] = zoo.processes()[..] else { panic!("{:?}", zoo.processes()) };
        [&began, &end].iter().for_each(|file| fs::remove_file(file).unwrap());
        let failed = thread::scope(|scope| {
            let busy = scope.spawn(ask);
            wait_for("it runs", || began.exists());
            kill(process, "KILL");
            busy.join().unwrap()
        });
        assert_eq!(failed, Err((500, "Stub process 'held_0_0' is not healthy.".to_owned())));
        fs::write(&end, "").unwrap();
        assert_eq!(ask(), Ok(json!([1])), "what comes after waits for the next one");
    }
    assert_eq!(shared_memory(), before);
}

#[test]
fn after_sigkill_of_the_server_nothing_of_it_is_left() {
    let Some(models) = Models::new() else { return };
    let before = shared_memory();
    let zoo = models.with("slow double token_stream").serve(&[]);
    let processes = zoo.processes();
    assert!(processes.len() > 3, "{processes:?}");
    let address = zoo.server.http();
    // One of the processes is busy.
    let busy = thread::spawn(move || {
        let body = json!({ "inputs": [ints("x", &[1]), ints("delay_ms", &[30_000])] }).to_string();
        crate::support::http::post(address, "/v2/models/slow/infer", body.as_bytes()).is_err()
    });
    thread::sleep(Duration::from_millis(300));
    zoo.server.signal("KILL");
    wait_for("their processes are gone", || !processes.iter().any(|process| is_running(*process)));
    assert!(busy.join().unwrap());
    assert_eq!(shared_memory(), before);
}

#[test]
fn an_interrupt_of_the_terminal_reaches_the_server_alone() {
    let Some(models) = Models::new() else { return };
    let mut zoo = models.with("slow").serve(&[]);
    for process in zoo.processes() {
        for signal in ["INT", "TERM"] {
            kill(process, signal);
        }
    }
    thread::sleep(Duration::from_millis(200));
    thread::scope(|scope| {
        let busy = scope.spawn(|| zoo.ask("slow", &[ints("x", &[7]), ints("delay_ms", &[500])]));
        let in_flight = || crate::support::metrics::metric(zoo.server.metrics(), "deuteron_requests_in_flight");
        wait_for("it is there", || in_flight() == 1);
        zoo.server.signal("INT");
        assert_eq!(busy.join().unwrap(), Ok(json!([7])), "what was received is answered");
    });
    assert!(zoo.server.wait().success());
}

#[test]
fn models_that_come_and_go_leave_nothing_behind() {
    let Some(models) = Models::new() else { return };
    // A thousand rounds take minutes.
    let (warm, rounds) = if is_asked_for("life") { (50, 1_000) } else { (4, 16) };
    let flags = ["--model-control-mode=explicit", "--load-model=slow"];
    let zoo = models.with("double slow custom_metrics").serve(&flags);
    let server = zoo.server.id();
    let round = || {
        for model in ["double", "custom_metrics"] {
            assert_eq!(zoo.order(model, "load").0, 200, "{}", zoo.server.log());
        }
        assert_eq!(zoo.infer("double", &json!({ "inputs": [ints("x", &[1])] })).0, 200);
        for model in ["double", "custom_metrics"] {
            assert_eq!(zoo.order(model, "unload").0, 200);
        }
        wait_for("they are gone", || zoo.processes().len() == 2);
    };
    (0..warm).for_each(|_| round());
    let threads = || fs::read_dir(format!("/proc/{server}/task")).unwrap().count();
    let count = || (open_files(server), threads());
    // Connections and threads of the last round end a little later.
    let mut before = count();
    wait_for("files and threads stay as many", || {
        thread::sleep(Duration::from_millis(300));
        std::mem::replace(&mut before, count()) == before
    });
    let memory = resident_kib(server);
    (0..rounds).for_each(|_| round());
    wait_for(&format!("files and threads are {before:?} again"), || {
        let now = count();
        now.0 <= before.0 && now.1 <= before.1
    });
    let after = resident_kib(server);
    assert!(after < memory + 8 * 1024, "from {memory} to {after} KiB");
}

#[test]
fn many_requests_leave_the_memory_as_it_was() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("string_forms double").serve(&["--shards=1"]);
    let body = json!({ "inputs": [super::zoo::texts("text", &["a text that is not so short"; 200])] });
    let large = json!({ "inputs": [ints("x", &[1; 50_000])] });
    let all = || -> u64 {
        let processes = zoo.processes();
        resident_kib(zoo.server.id()) + processes.into_iter().map(resident_kib).sum::<u64>()
    };
    let ask = |count: usize| {
        for _ in 0..count {
            assert_eq!(zoo.infer("string_forms", &body).0, 200);
            assert_eq!(zoo.infer("double", &large).0, 200);
        }
    };
    ask(40);
    let before = all();
    ask(if is_asked_for("life") { 5_000 } else { 120 });
    let after = all();
    assert!(after < before + 24 * 1024, "from {before} to {after} KiB");
}

#[test]
fn every_request_is_answered_while_processes_are_killed() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("slow").serve(&[]);
    let (served, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for client in 0..6 {
            let (zoo, served, failed, is_over) = (&zoo, &served, &failed, &is_over);
            scope.spawn(move || {
                let mut number = client;
                while !is_over.load(Ordering::Relaxed) {
                    number += 6;
                    match zoo.ask("slow", &[ints("x", &[number]), ints("delay_ms", &[number % 20])]) {
                        Ok(answer) => {
                            assert_eq!(answer, json!([number]), "nobody gets the answer of another");
                            served.fetch_add(1, Ordering::Relaxed);
                        }
                        Err((status, text)) => {
                            assert!([500, 503].contains(&status), "{status} {text}");
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        for round in 1..=6 {
            thread::sleep(Duration::from_millis(400));
            wait_for("some are served", || served.load(Ordering::Relaxed) >= 4 * round);
            // It may have ended just now.
            if let Some(process) = zoo.processes().first() {
                let _ = std::process::Command::new("kill").arg("-9").arg(process.to_string()).status();
            }
        }
    });
    let (served, failed) = (served.into_inner(), failed.into_inner());
    assert!(served > 20 && failed > 0, "{served} served, {failed} failed");
    wait_for("both instances are back", || zoo.processes().len() == 2);
    let statistics = zoo.statistics("slow");
    assert_eq!(statistics["inference_stats"]["success"]["count"], served);
    assert_eq!(statistics["inference_stats"]["fail"]["count"], failed);
}

#[test]
fn a_new_version_takes_over_while_requests_run() {
    let Some(models) = Models::new() else { return };
    let zoo = models.with("slow").serve(&["--model-control-mode=explicit", "--load-model=slow"]);
    let folder = zoo.models.path().join("slow");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        for client in 0..3 {
            let (zoo, is_over) = (&zoo, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let answer = zoo.ask("slow", &[ints("x", &[client]), ints("delay_ms", &[5])]);
                    assert_eq!(answer, Ok(json!([client])), "none fails");
                }
            });
        }
        for version in 2..5 {
            crate::support::repository::copy(&folder.join("1"), &folder.join(version.to_string())).unwrap();
            assert_eq!(zoo.order("slow", "load").0, 200);
            wait_for("the old one is gone", || zoo.processes().len() == 2);
        }
    });
    let (_, answer) = zoo.infer("slow", &json!({ "inputs": [ints("x", &[1]), ints("delay_ms", &[0])] }));
    assert_eq!(answer["model_version"], "4");
}
