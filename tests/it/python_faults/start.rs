//! Starts that fail: the load fails and says why, and nothing is left of it.

use std::time::Duration;

use crate::python_faults::{Deed, PythonServer, until};

/// Ways to end a start, and the texts that its client reads.
const ENDS: [(&str, &str, &str); 5] = [
    ("exits", "os._exit(3)", "is not healthy."),
    ("crashes", "crash()", "is not healthy."),
    ("aborts", "os.abort()", "is not healthy."),
    ("leaves", "sys.exit(3)", "SystemExit: 3"),
    ("raises", "raise ValueError('no luck')", "ValueError: no luck"),
];

#[test]
fn a_start_that_fails_fails_the_load_and_leaves_nothing_behind() {
    let names: Vec<_> = ENDS.iter().flat_map(|(name, ..)| [format!("{name}_import"), format!("{name}_init")]).collect();
    let mut deeds = vec![Deed { config: "instance_group { count: 2 kind: KIND_CPU }", ..Deed::named("well") }];
    for ((_, code, _), names) in ENDS.iter().zip(names.chunks(2)) {
        let config = "instance_group { count: 2 kind: KIND_CPU }";
        deeds.push(Deed { import: code, config, ..Deed::named(&names[0]) });
        deeds.push(Deed { initialize: code, config, ..Deed::named(&names[1]) });
    }
    let flags = ["--model-control-mode=explicit", "--load-model=well"];
    let Some(served) = PythonServer::start(&deeds, &flags) else { return };
    let _ = served.load(&names[0]);
    until("the processes are reaped", Duration::from_secs(20), || served.children().len() == 2);
    let before = served.resources();
    for ((_, code, want), names) in ENDS.iter().zip(names.chunks(2)) {
        for name in names {
            let (status, text) = served.load(name);
            assert!(status == 400 && text.contains(want), "{name}: {status} {text}");
            assert!(!served.is_ready(name), "{code}");
        }
    }
    until("the processes are reaped", Duration::from_secs(20), || served.children().len() == 2);
    until("nothing is left", Duration::from_secs(20), || served.resources() <= before);
    for (reason, count) in [("exit status 3", 5), ("signal 11 (SIGSEGV)", 4), ("signal 6 (SIGABRT)", 4)] {
        let have = served.log_count(&[reason]);
        assert!(have >= count / 2, "{reason}: {have}\n{}", served.server.log());
    }
    assert_eq!(served.well("well", "result = 1"), "1");
}
