//! The end of the server: of its own accord, and by SIGKILL.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::python_faults::{Deed, PythonServer, interpreter, is_alive, until};
use crate::support::folder::Folder;
use crate::support::server::{Ports, Server};

/// Time for which the processes may outlive a killed server, on a busy machine.
const OUTLIVED_MAX: Duration = Duration::from_secs(15);

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_server_that_ends_finalizes_each_instance_once() {
    let folder = Folder::new("finalized");
    let file = folder.path().join("lines");
    let finalize = format!("print(self.args['model_instance_name'], file=open('{}', 'a'))", file.display());
    let config = "instance_group { count: 2 kind: KIND_CPU }";
    let deeds = ["m", "n", "o"].map(|name| Deed { finalize: &finalize, config, ..Deed::named(name) });
    let Some(mut served) = PythonServer::start(&deeds, &[]) else { return };
    let processes = served.children();
    assert_eq!(processes.len(), 6);
    assert!(served.server.stop().success());
    assert!(!processes.iter().any(|id| is_alive(*id)));
    let text = fs::read_to_string(&file).unwrap();
    let mut have: Vec<&str> = text.lines().collect();
    have.sort_unstable();
    assert_eq!(have, ["m_0_0", "m_0_1", "n_0_0", "n_0_1", "o_0_0", "o_0_1"]);
}

#[test]
fn a_finalize_that_takes_its_time_is_waited_for_but_not_for_ever() {
    let folder = Folder::new("slow");
    let file = folder.path().join("lines");
    let finalize = format!("time.sleep(2)\nprint('saved', file=open('{}', 'w'))", file.display());
    let hangs = Deed { finalize: "time.sleep(600)", ..Deed::named("hangs") };
    let deeds = [Deed { finalize: &finalize, ..Deed::named("slow") }, hangs];
    let Some(mut served) = PythonServer::start(&deeds, &["--exit-timeout-secs=5"]) else { return };
    let start = Instant::now();
    assert!(served.server.stop().success());
    assert_eq!(fs::read_to_string(&file).unwrap(), "saved\n");
    println!("the server ended after {:?}", start.elapsed());
    assert_eq!(served.log_count(&["hangs_0_0: finalize takes too long"]), 1, "{}", served.server.log());
}

/// A packed environment whose interpreter is that of the tests.
fn pack(path: &Path) {
    let python = interpreter().unwrap();
    let script = format!("#!/bin/sh\nexec '{}' \"$@\"\n", python.split_once("interpreter=").unwrap().1);
    let gzip = flate2::write::GzEncoder::new(fs::File::create(path).unwrap(), flate2::Compression::fast());
    let mut archive = tar::Builder::new(gzip);
    for (name, text) in [("bin/python", script.as_str()), ("bin/activate", "")] {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o755);
        archive.append_data(&mut header, name, text.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap();
}

#[test]
fn a_server_that_is_killed_leaves_no_process_and_no_memory_and_its_files_go_with_the_next_start() {
    let Some(flag) = interpreter() else { return };
    let (folder, temporary) = (Folder::new("killed"), Folder::new("temporary"));
    let archive = folder.path().join("packed/env.tar.gz");
    let config =
        "parameters { key: 'EXECUTION_ENV_PATH' value { string_value: '$$TRITON_MODEL_DIRECTORY/env.tar.gz' } }";
    Deed { config, ..Deed::named("packed") }.write(folder.path());
    pack(&archive);
    // Ignoring signals, busy, and one with a child.
    for (name, initialize) in [
        ("deaf", "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))"),
        ("busy", "import threading; threading.Thread(target=lambda: [x for x in iter(int, 1)], daemon=True).start()"),
        ("child", "import subprocess; self.child = subprocess.Popen(['cat'], stdin=subprocess.PIPE)"),
    ] {
        Deed { initialize, ..Deed::named(name) }.write(folder.path());
    }
    let start = || {
        let ports = Ports::free();
        let mut command = Server::command(folder.path(), &[&flag], ports);
        command.env("TMPDIR", temporary.path());
        PythonServer { server: Server::start(command, ports), folder: Folder::new("none") }
    };
    let shared = names(Path::new("/dev/shm"));
    let mut served = start();
    assert_eq!(served.well("packed", "result = 1"), "1");
    let unpacked = names(temporary.path());
    assert_eq!(unpacked.len(), 1, "{unpacked:?}");
    let mut processes = served.children();
    processes.extend(served.well("child", "result = model.child.pid").parse::<u32>());
    assert_eq!(processes.len(), 5);
    served.server.signal("KILL");
    let gone = until("the processes are gone", OUTLIVED_MAX, || !processes.iter().any(|id| is_alive(*id)));
    println!("the last process was gone after {gone:?}");
    until("the server is gone", OUTLIVED_MAX, || !served.server.is_running());
    let left: Vec<_> =
        names(Path::new("/dev/shm")).difference(&shared).filter(|name| name.contains("deuteron")).cloned().collect();
    assert_eq!(left, [""; 0]);
    let mut served = start();
    let again = names(temporary.path());
    assert!(again.len() == 1 && again != unpacked, "{unpacked:?} {again:?}");
    assert_eq!(served.log_count(&["removed 1 Python environments"]), 1, "{}", served.server.log());
    assert!(served.server.stop().success());
    assert_eq!(names(temporary.path()).len(), 0);
}
