use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use flags::{Fallback, Flag, Takes, flags};

fn serve(line: &str) -> Result<Settings, String> {
    serve_with(line, &[])
}

/// Returns the settings of a line, with these variables in the environment.
fn serve_with(line: &str, variables: &[(&str, &str)]) -> Result<Settings, String> {
    serve_with_file(line, variables, "")
}

/// The same if every file has this text.
fn serve_with_file(line: &str, variables: &[(&str, &str)], text: &str) -> Result<Settings, String> {
    let mut command = clap::Command::new("deuteron").no_binary_name(true).args_override_self(true).args(arguments());
    command = command.infer_long_args(true);
    let matches = command.try_get_matches_from_mut(line.split_whitespace());
    let matches = matches.map_err(|error| flags::explain(&error, &command))?;
    let variable = |name: &str| variables.iter().find(|(have, _)| *have == name).map(|(_, value)| value.into());
    read(&matches, &variable, &|_| Ok(text.to_owned()))
}

/// Returns the flags that have an effect here.
fn own_flags() -> impl Iterator<Item = &'static Flag<Settings>> {
    let (_, own) = SECTIONS.split_last().unwrap();
    flags(own)
}

/// Returns a value of a flag that changes something.
fn value_of(flag: &Flag<Settings>) -> &'static str {
    let names = [("PORT", "81"), ("ADDRESS", "127.0.0.1"), ("DIRECTORY", "d"), ("NAME", "n"), ("MODEL", "m")];
    let lists = [
        ("NAME,SETTING=VALUE", "n,cpu-cores=2-5"),
        ("NAME:COUNT[:DEVICE]", "n:7"),
        ("GPU:BYTES", "0:7"),
        ("[MODE,]SETTING=VALUE", "rate=7"),
    ];
    let more = [
        ("CACHE,SETTING=VALUE_OR_SECRET", "local,size=7"),
        ("SETTING", "default-max-batch-size=7"),
        ("SETTING=VALUE", "summary_latencies=true"),
        ("FILE", "f"),
        ("RATE", "0.5"),
        ("APIS:KEY=SECRET", "health:k=v"),
        ("ORIGINS", "https://a"),
        ("/DIRECTORY", "/d"),
        ("FIRST-LAST", "81-90"),
    ];
    let names = [&names[..], &lists, &more].concat();
    match flag.takes {
        Takes::Switch => "true",
        Takes::One(value) | Takes::Many(value) => match value.split_once('|') {
            Some(_) => value.split('|').find(|choice| Fallback::Value(choice) != flag.default).unwrap(),
            None => names.iter().find(|(kind, _)| *kind == value).map_or("7", |(_, value)| value),
        },
    }
}

/// Returns a flag as it is given on a line, and the line without it.
fn lines(flag: &Flag<Settings>) -> [String; 2] {
    let name = flag.name();
    let without = match name {
        // This flag is refused without the other.
        "load-model" => "m --model-control-mode=explicit",
        "http-use-ssl" => "m --http-server-cert=c --http-server-key=k",
        "grpc-use-ssl" => "m --grpc-server-cert=c --grpc-server-key=k",
        "metrics-use-ssl" => "m --metrics-server-cert=c --metrics-server-key=k",
        "http-use-ssl-mutual" => "m --http-server-cert=c --http-server-key=k --http-root-cert=r",
        "grpc-use-ssl-mutual" => "m --grpc-server-cert=c --grpc-server-key=k --grpc-root-cert=r",
        "metrics-use-ssl-mutual" => "m --metrics-server-cert=c --metrics-server-key=k --metrics-root-cert=r",
        "model-repository" => "",
        _ => "m",
    };
    let value = if flag.takes == Takes::Switch { String::new() } else { format!("={}", value_of(flag)) };
    [format!("{without} --{name}{value}"), without.to_owned()]
}

#[test]
fn both_ways_of_naming_a_repository_mean_the_same() {
    let want = Settings { repositories: vec!["models".into()], ..Settings::default() };
    for line in ["models", "--model-repository=models", "--model-store models", "--model-repository models"] {
        assert_eq!(serve(line).as_ref(), Ok(&want), "{line}");
    }
}

#[test]
fn every_flag_changes_what_it_says() {
    for flag in own_flags() {
        let [line, without] = lines(flag);
        assert_ne!(Ok(serve(&line).unwrap()), serve(&without), "{line}");
        if flag.takes != Takes::Switch {
            let spaced = line.replace(&format!("--{}=", flag.name()), &format!("--{} ", flag.name()));
            assert_ne!(spaced, line);
            assert_eq!(serve(&spaced), serve(&line), "{spaced}");
        }
    }
}

#[test]
fn every_flag_has_a_help_and_says_what_holds_without_it() {
    for flag in flags(SECTIONS) {
        let name = flag.name();
        assert!(!flag.help.is_empty() && !flag.help.ends_with('.'), "{name}: {}", flag.help);
        match flag.default {
            Fallback::Value(value) => {
                let mut settings = Settings::default();
                (flag.apply)(&mut settings, value).unwrap();
                settings.warnings.clear();
                assert_eq!(settings, Settings::default(), "--{name}={value} is the default");
            }
            Fallback::Text(text) => assert!(!text.is_empty(), "{name}"),
            Fallback::Absent => assert!(!matches!(flag.takes, Takes::One(_)), "{name} has a value, also by default"),
        }
    }
}

/// `UPDATE_EXPECT=1` writes the guide's page anew.
#[test]
fn the_guide_has_all_flags() {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut page = "# Flags of the server\n\n`deuteron serve --help` prints the same. Each flag is also a variable of the \
                    environment (`DEUTERON_HTTP_PORT` for `--http-port`) and a key of the file of `--config` (`http-port`). \
                    A flag overrides its variable, and a variable the file. A test generates this page from the source.\n"
        .to_owned();
    for section in SECTIONS {
        page.push_str(&format!("\n## {}\n\n| flag | default | effect |\n|---|---|---|\n", section.title));
        for flag in section.flags {
            let value = match flag.takes {
                Takes::One(value) | Takes::Many(value) => format!(" {value}"),
                Takes::Switch => String::new(),
            };
            let names: Vec<_> = flag.names.iter().map(|name| format!("`--{name}{}`", cell(&value))).collect();
            let default = match flag.default {
                Fallback::Value(value) => format!("`{}`", cell(value)),
                Fallback::Text(text) => cell(text),
                Fallback::Absent => String::new(),
            };
            page.push_str(&format!("| {} | {default} | {} |\n", names.join(", "), cell(flag.help)));
        }
    }
    expect_test::expect_file!["../../../docs/guide/flags.md"].assert_eq(&page);
}

#[test]
fn every_flag_has_a_variable_that_says_the_same() {
    let mut names = Vec::new();
    for flag in own_flags() {
        let [line, without] = lines(flag);
        let variable = flag.variable();
        let value = value_of(flag);
        assert_eq!(serve_with(&without, &[(&variable, value)]), serve(&line), "{variable}={value}");
        assert_eq!(serve_with(&line, &[(&variable, "nonsense")]), serve(&line), "{variable} gives way to the flag");
        assert_eq!(serve_with(&without, &[(&variable, "")]), serve(&without), "{variable} is empty");
        names.push(variable);
    }
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(names.iter().any(|name| name == REPOSITORY.1));
}

#[test]
fn a_variable_is_refused_by_its_own_name() {
    let check = |variable: &str, value: &str, want: &str| {
        let text = serve_with("m", &[(variable, value)]).unwrap_err();
        assert_eq!(text, format!("{variable}={value}: {want}"));
    };
    check("DEUTERON_HTTP_PORT", "http", "expected a port from 0 to 65535");
    check("DEUTERON_IO", "poll", "expected auto, epoll, glommio or ring");
    check("DEUTERON_SERVER_TIMING", "yes", "expected true or false");
    check("DEUTERON_BACKEND_CONFIG", "default-max-batch-size=2;x", "expected BACKEND,KEY=VALUE or KEY=VALUE");
    assert_eq!(serve_with("m", &[("DEUTERON_SERVER_TIMING", "false")]), serve("m"));
}

#[test]
fn every_flag_is_a_key_of_the_file_that_says_the_same() {
    // A file cannot name another.
    for flag in own_flags().filter(|flag| flag.name() != "config") {
        let [line, without] = lines(flag);
        let text = match flag.takes {
            Takes::Switch => format!("{} = true\n", flag.name()),
            Takes::One(_) | Takes::Many(_) => format!("{} = \"{}\"\n", flag.name(), value_of(flag)),
        };
        let mut of_file = serve_with_file(&format!("{without} --config=f"), &[], &text).unwrap();
        (of_file.config_file, of_file.config_text) = (None, None);
        assert_eq!(of_file, serve(&line).unwrap(), "{text}");
    }
}

/// The flags of tritonserver, from its `src/command_line_parser.cc`.
const OF_TRITON: &str = "\
    allow-client-shm allow-cpu-metrics allow-gpu-metrics allow-grpc allow-http allow-metrics allow-sagemaker allow-vertex-ai \
    backend-config backend-directory buffer-manager-thread-count cache-config cache-directory cuda-memory-pool-byte-size \
    cuda-virtual-address-size disable-auto-complete-config enable-peer-access exit-on-error exit-timeout-secs grpc-address \
    grpc-header-forward-pattern grpc-http2-max-ping-strikes grpc-http2-max-pings-without-data \
    grpc-http2-min-recv-ping-interval-without-data grpc-infer-allocation-pool-size grpc-infer-response-compression-level \
    grpc-infer-thread-count grpc-keepalive-permit-without-calls grpc-keepalive-time grpc-keepalive-timeout \
    grpc-max-connection-age grpc-max-connection-age-grace grpc-max-response-pool-size grpc-port grpc-restricted-protocol \
    grpc-root-cert grpc-server-cert grpc-server-key grpc-use-ssl grpc-use-ssl-mutual host-policy http-address \
    http-header-forward-pattern http-max-input-size http-port http-restricted-api http-thread-count id load-model log-error \
    log-file log-format log-info log-verbose log-warning metrics-address metrics-config metrics-interval-ms metrics-port \
    min-supported-compute-capability model-config-name model-control-mode model-load-gpu-limit model-load-retry-count \
    model-load-thread-count model-namespacing model-repository model-store pinned-memory-pool-byte-size rate-limit \
    rate-limit-resource repoagent-directory repository-poll-secs response-cache-byte-size reuse-grpc-port reuse-http-port \
    sagemaker-port sagemaker-safe-port-range sagemaker-thread-count strict-model-config strict-readiness trace-config \
    trace-count trace-file trace-level trace-log-frequency trace-rate vertex-ai-default-model vertex-ai-port \
    vertex-ai-thread-count";

#[test]
fn no_flag_of_tritonserver_is_unknown() {
    let is_known = |name: &&str| flags(SECTIONS).any(|flag| flag.names.contains(name));
    let unknown: Vec<_> = OF_TRITON.split_whitespace().filter(|name| !is_known(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn a_variable_has_several_values_of_a_flag_that_may_be_given_more_than_once() {
    let resources = ("DEUTERON_RATE_LIMIT_RESOURCE", "R:2;S:3:1;");
    let models = ("DEUTERON_MODEL_REPOSITORY", "a;b c");
    let settings = serve_with("", &[resources, models]).unwrap();
    assert_eq!(settings.repositories, ["a", "b c"].map(PathBuf::from));
    assert_eq!(settings.rate_limit.resources.len(), 2);
    // A word is the flag without its name.
    for line in ["m", "--model-store=m"] {
        assert_eq!(serve_with(line, &[models]), serve("m"), "{line}");
    }
}

#[test]
fn what_kubernetes_says_of_services_is_not_read() {
    for service in ["DEUTERON", "DEUTERON_HTTP", "DEUTERON_GRPC", "DEUTERON_METRICS"] {
        let link = "tcp://10.0.0.1:8000";
        let made = [
            ("SERVICE_HOST", "10.0.0.1"),
            ("SERVICE_PORT", "80"),
            ("SERVICE_PORT_HTTP", "80"),
            ("PORT", link),
            ("PORT_80_TCP", link),
            ("PORT_80_TCP_PROTO", "tcp"),
            ("PORT_80_TCP_PORT", "80"),
            ("PORT_80_TCP_ADDR", "10.0.0.1"),
        ];
        let made: Vec<_> = made.iter().map(|(name, value)| (format!("{service}_{name}"), *value)).collect();
        let variables: Vec<_> = made.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let mut settings = serve_with("m", &variables).unwrap();
        let warnings = std::mem::take(&mut settings.warnings);
        assert_eq!(settings, serve("m").unwrap(), "{service}");
        let wanted = usize::from(service != "DEUTERON");
        assert_eq!(warnings.len(), wanted, "{warnings:?}");
        assert!(
            warnings.iter().all(|text| text.starts_with(&format!("{service}_PORT={link} is what Kubernetes says")))
        );
    }
    for flag in flags(SECTIONS) {
        let name = flag.variable();
        // Kubernetes puts a number behind this word.
        let is_range = name.ends_with("_PORT_RANGE");
        assert!(!name.contains("_SERVICE_") && (!name.contains("_PORT_") || is_range), "{name}");
        assert_ne!(name, "DEUTERON_PORT");
    }
    assert_eq!(serve_with("m", &[("DEUTERON_ID", "tcp://a")]).unwrap().id, "tcp://a");
}

#[test]
fn values_are_taken_in_the_forms_that_tritonserver_takes() {
    let same = |one: &str, other: &str| assert_eq!(serve(one), serve(other), "{one}");
    same("m --model-control-mode=EXPLICIT", "m --model-control-mode=explicit");
    same("m --rate-limit=EXECUTION_COUNT", "m --rate-limit=execution_count");
    same("m --log-verbose=true", "m --log-verbose=1");
    same("m --log-verbose=false", "m");
    same("m --disable-auto-complete-config=true", "m --disable-auto-complete-config");
    same("m --disable-auto-complete-config=0", "m");
    same("m --server-timing=false", "m");
    let settings = serve("m --response-cache-byte-size=7").unwrap();
    assert_eq!((settings.cache.size, settings.warnings.len()), (7, 1));
    same("--server-timing m", "m --server-timing");
    same("--model-repository=m --model-repository=n --model-repository=m", "m n");
    same("m --http-header-forward-pattern= --grpc-use-ssl=false --model-namespacing=0", "m");
    let named = |line: &str| serve(line).unwrap().id;
    assert_eq!((named("m --compat=triton"), named("m --compat=triton --id=a")), ("triton".into(), "a".into()));
    // The flag adds metrics, and changes nothing else.
    let with_tei = serve("m --compat=tei").unwrap();
    assert_eq!(with_tei.compat, Compat::Tei);
    assert_eq!(Settings { compat: Compat::Protocol, ..with_tei }, serve("m").unwrap());
}

#[test]
fn a_load_is_tried_again_a_bounded_number_of_times() {
    let retries = |count: &str| {
        serve(&format!("m --model-load-retry-count={count}")).map(|settings| settings.repository_rules.load_retries)
    };
    assert_eq!((retries("0"), retries("100")), (Ok(0), Ok(100)));
    let refused = "--model-load-retry-count=101: expected up to 100: each may take as long as --load-timeout-secs";
    assert_eq!(retries("101"), Err(refused.to_owned()));
}

#[test]
fn a_listed_value_is_taken_and_no_other_is() {
    for flag in own_flags() {
        let (Takes::One(list) | Takes::Many(list)) = flag.takes else { continue };
        let Some(_) = list.split_once('|') else { continue };
        for choice in list.split('|') {
            assert!((flag.apply)(&mut Settings::default(), choice).is_ok(), "--{}={choice}", flag.name());
        }
        let text = serve(&format!("m --{}=nonsense", flag.name())).unwrap_err();
        assert!(list.split('|').all(|choice| text.contains(choice)), "{text}");
        assert!(text.starts_with(&format!("--{}=nonsense: expected ", flag.name())), "{text}");
    }
}

#[test]
fn the_last_of_flags_that_say_the_same_holds() {
    let check = |line: &str, want: bool| assert_eq!(serve(line).unwrap().auto_complete, want, "{line}");
    check("m --strict-model-config=true --backend-config=auto-complete-config=true", true);
    check("m --backend-config=auto-complete-config=true --strict-model-config=true", false);
    assert_eq!(serve("m --http-port=1 --http-port=2"), serve("m --http-port=2"));
    assert_eq!(serve("m --server-timing --server-timing"), serve("m --server-timing"));
    let paths = serve("a --model-repository=b --id=x c --model-store d -- -e").unwrap().repositories;
    assert_eq!(paths, ["a", "b", "c", "d", "-e"].map(PathBuf::from));
}

#[test]
fn a_path_need_not_be_utf_8() {
    use std::os::unix::ffi::OsStringExt;

    let path = OsString::from_vec(b"m\xff".to_vec());
    let command = || clap::Command::new("deuteron").no_binary_name(true).args(arguments());
    let read = |matches: &ArgMatches, variables: Variables| read(matches, variables, &|_| Ok(String::new()));
    let matches = command().try_get_matches_from([&path]).unwrap();
    assert_eq!(read(&matches, &|_| None).unwrap().repositories, [PathBuf::from(&path)]);
    let matches = command().try_get_matches_from([OsString::from("--id"), path.clone()]).unwrap();
    assert_eq!(read(&matches, &|_| None).unwrap_err(), "--id=m\u{fffd}: expected UTF-8");
    let variables = |name: &str| Some(path.clone()).filter(|_| name == "DEUTERON_ID");
    let matches = command().try_get_matches_from(["m"]).unwrap();
    assert_eq!(read(&matches, &variables).unwrap_err(), "DEUTERON_ID=m\u{fffd}: expected UTF-8");
}

#[test]
fn a_flag_may_be_abbreviated_as_far_as_it_is_one() {
    let settings = serve("--model-repo=m --http-p=81 --strict-read=false").unwrap();
    assert_eq!(settings.repositories, [PathBuf::from("m")]);
    assert!(!settings.strict_readiness);
    let check = |line: &str, want: &str| assert_eq!(serve(line).unwrap_err(), want, "{line}");
    check(
        "m --strict-=false",
        "flag '--strict-' is ambiguous: it may be '--strict-accelerators', '--strict-readiness' or '--strict-model-config'",
    );
    // Of a name that begins others, the whole name counts.
    assert!(serve("m --log-error=true --gpu=off").is_ok());
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let check = |line: &str, want: &str| assert_eq!(serve(line).unwrap_err(), want, "{line}");
    check(
        "",
        "no model repository: name a directory of models, as in `deuteron serve examples/models`; --help tells more",
    );
    check("m --nope", "unknown flag '--nope'; --help lists the flags");
    check("m --htp-port=1", "unknown flag '--htp-port': did you mean '--http-port'? --help lists the flags");
    check("m --http-port", "--http-port <PORT>: expected a value");
    check("m --server-timing=x", "--server-timing=x: expected true or false");
    check("m --format=json", "unknown flag '--format': did you mean '--log-format'? --help lists the flags");
    check("m n --model-name=x", "--model-name names one model, and there are several paths");
    check("m -x", "unknown flag '-x'; --help lists the flags");
    check("m --http-port=70000", "--http-port=70000: expected a port from 0 to 65535");
    check("m --http-max-input-size=0", "--http-max-input-size=0: must be greater than 0.");
    check("m --allow-http=maybe", "--allow-http=maybe: expected true or false");
    for (cache, want) in [
        ("local", "option format is '<cache name>,<setting>=<value>'"),
        ("local,size", "option format is '<cache name>,<setting>=<value>'"),
        ("local,size=x", "expected a whole number"),
        ("local,length=1", "'length' is no setting of the cache 'local'; expected 'size'"),
    ] {
        // Without the value, which may be a password.
        check(&format!("m --cache-config={cache}"), &format!("--cache-config: {want}"));
    }
    check("m --cuda-memory-pool-byte-size=7", "--cuda-memory-pool-byte-size=7: expected GPU:BYTES, as in 0:67108864");
    check("m --admission=maybe", "--admission=maybe: expected none, queue or deadline");
    check("m --io=poll", "--io=poll: expected auto, epoll, glommio or ring");
    check("m --shards 0", "--shards=0: must be greater than 0.");
    let text = "--model-control-mode=off: expected none, poll or explicit";
    check("m --model-control-mode=off", text);
    let text = "--load-model names models for --model-control-mode=explicit; without it all are loaded";
    check("m --load-model=a", text);
    for cores in ["", "-", "1-", "5-2", "x", "1,", "0-99999999999999999999", "0-1024"] {
        let line = format!("m --worker-cores={cores}");
        check(&line, &format!("--worker-cores={cores}: expected cores, as in 2-5,8"));
    }
    let both = "m --rate-limit=execution_count --model-control-mode";
    assert!(["poll", "explicit"].iter().all(|mode| serve(&format!("{both}={mode}")).unwrap().rate_limit.is_on));
    check("m --rate-limit=on", "--rate-limit=on: expected execution_count or off");
    for policy in ["", "a", "a,", ",cpu-cores=1", "a,=1", "cpu-cores=1"] {
        let line = format!("m --host-policy={policy}");
        check(&line, &format!("--host-policy={policy}: option format is '<policy name>,<setting>=<value>'"));
    }
    for resource in ["r", "r:", ":1", "r:-1", "r:1:", "r:1:x", "r:1:2:3"] {
        let line = format!("m --rate-limit-resource={resource}");
        let format = "option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'";
        check(&line, &format!("--rate-limit-resource={resource}: {format}"));
    }
    check(
        "m --backend-config=onnxruntime,x=1",
        "--backend-config=onnxruntime,x=1: backend 'onnxruntime' has no setting 'x'; it has default-max-batch-size, \
         engine and library",
    );
    check(
        "m --http-port=9000 --grpc-port=9000",
        "The server cannot listen to HTTP requests and GRPC requests at the same address and port",
    );
}

#[test]
fn the_deprecated_flag_gives_way_to_the_one_that_disables() {
    let check = |line: &str, is_on: bool, warnings: usize| {
        let settings = serve(line).unwrap();
        assert_eq!((settings.auto_complete, settings.warnings.len()), (is_on, warnings), "{line}");
    };
    check("m", true, 0);
    check("m --strict-model-config=true", false, 1);
    check("m --strict-model-config=false", true, 1);
    check("m --disable-auto-complete-config", false, 0);
    check("m --disable-auto-complete-config --strict-model-config=false", false, 2);
    check("m --strict-model-config=true --disable-auto-complete-config", false, 1);
    let warnings = serve("m --disable-auto-complete-config --strict-model-config=false").unwrap().warnings;
    assert!(warnings.iter().all(|warning| warning.starts_with("Warning: ")), "{warnings:?}");
}

#[test]
fn cores_policies_and_resources_are_lists() {
    let settings = serve(
        "m --worker-cores=8,2-4,3 --host-policy=a,cpu-cores=0-1 --host-policy b,cpu-cores=5,7-8 \
         --rate-limit-resource=R:2 --rate-limit-resource=S:3:1 --rate-limit=off",
    )
    .unwrap();
    assert_eq!(settings.worker_cores, Some(vec![2, 3, 4, 8]));
    let policies = [("a".to_owned(), vec![0, 1]), ("b".to_owned(), vec![5, 7, 8])];
    assert_eq!(settings.host_policies, BTreeMap::from(policies));
    let policies = serve("m --host-policy=a,cpu-cores=0-1 --host-policy=a,numa-node=1 --host-policy=b,nice=").unwrap();
    let shown = format!("{:?} {:?}", policies.host_policies, policies.host_policy_settings);
    let want = "{\"a\": [0, 1]} {\"a\": {\"cpu-cores\": \"0-1\", \"numa-node\": \"1\"}, \"b\": {\"nice\": \"\"}}";
    assert_eq!((shown.as_str(), policies.warnings.len()), (want, 2));
    let resource = |name: &str, count, device| RateResource { name: name.to_owned(), count, device };
    assert_eq!(settings.rate_limit.resources, [resource("R", 2, None), resource("S", 3, Some(1))]);
    assert!(!settings.rate_limit.is_on);
}

#[test]
fn the_variables_of_hosting_services_say_what_flags_do_not() {
    let serve = |line: &str, more: &[(&str, &str)]| {
        let routes = [("AIP_PREDICT_ROUTE", "/p"), ("AIP_HEALTH_ROUTE", "/h")];
        serve_with(line, &[&routes[..], more].concat())
    };
    let on = serve("m --allow-vertex-ai=true", &[("AIP_HTTP_PORT", "81")]).unwrap();
    assert_eq!(on.foreign.vertex_ai.endpoint().map(|(_, port)| port), Some(81));
    assert!(on.http.is_some() && on.grpc.is_some() && on.foreign.vertex_ai.check().is_ok());
    let port = |line: &str| serve(line, &[("AIP_HTTP_PORT", "81")]).unwrap().foreign.vertex_ai.endpoint().unwrap().1;
    assert_eq!(port("m --allow-vertex-ai=true --vertex-ai-port=82"), 82, "the flag holds");
    assert_eq!(serve("m", &[("AIP_HTTP_PORT", "x")]), serve("m", &[]), "without the front end nothing is read");
    let refused = serve("m --allow-vertex-ai=true", &[("AIP_HTTP_PORT", "x")]);
    assert_eq!(refused.unwrap_err(), "AIP_HTTP_PORT=x: expected a port from 0 to 65535");
    let lacks = |line: &str, variable: &[(&str, &str)]| serve_with(line, variable).unwrap().foreign.vertex_ai.check();
    let on = "m --allow-vertex-ai=true";
    assert!(lacks(on, &[("AIP_HEALTH_ROUTE", "/h")]).is_err_and(|why| why.starts_with("API_PREDICT_ROUTE is not")));
    assert!(lacks(on, &[("AIP_PREDICT_ROUTE", "/p")]).is_err_and(|why| why.starts_with("AIP_HEALTH_ROUTE is not")));
    assert_eq!(lacks("m", &[]), Ok(()));

    let prediction = [("AIP_MODE", "PREDICTION"), ("AIP_STORAGE_URI", "u")];
    let shown = |line: &str, more: &[(&str, &str)]| {
        let settings = serve(line, &[&prediction[..], more].concat()).unwrap();
        (settings.foreign.vertex_ai.is_on, settings.http.is_some(), settings.grpc.is_some(), settings.repositories)
    };
    assert_eq!(shown("", &[]), (true, false, false, vec!["u".into()]));
    assert_eq!(shown("m --allow-grpc=true", &[]), (true, false, true, vec!["m".into()]));
    assert_eq!(shown("m", &[("DEUTERON_ALLOW_HTTP", "true")]), (true, true, false, vec!["m".into()]));
    assert_eq!(shown("m --allow-vertex-ai=false", &[]), (false, false, false, vec!["m".into()]));
    assert!(serve_with("", &[("AIP_STORAGE_URI", "u")]).is_err(), "only where Vertex AI is served");

    let sagemaker =
        |line: &str, variables: &[(&str, &str)]| serve_with(line, variables).map(|all| all.foreign.sagemaker);
    let on = "m --allow-sagemaker=true";
    let variables = [
        ("SAGEMAKER_BIND_TO_PORT", "83"),
        ("SAGEMAKER_SAFE_PORT_RANGE", "8000-9000"),
        ("SAGEMAKER_TRITON_PING_MODE", "live"),
        ("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "n"),
        ("SAGEMAKER_TRITON_INFERENCE_TYPE", "generate_stream"),
    ];
    let all = sagemaker(on, &variables).unwrap();
    assert_eq!((all.port, all.safe_ports, all.pings_live), (Some(83), Some((8000, 9000)), true));
    assert_eq!((all.model.as_str(), all.invocation), ("n", InvocationKind::GenerateStream));
    assert_eq!(sagemaker("m", &variables), Ok(SageMakerSettings::default()));
    let refused = sagemaker(on, &[("SAGEMAKER_TRITON_INFERENCE_TYPE", "x")]).unwrap_err();
    let want = "Invalid SAGEMAKER_TRITON_INFERENCE_TYPE 'x': expected infer, generate or generate_stream";
    assert_eq!(refused, want);
    for range in ["x", "9-8", "8000", "1-99999"] {
        assert!(sagemaker(&format!("{on} --sagemaker-safe-port-range={range}"), &[]).is_err(), "{range}");
    }
    let refused = sagemaker(&format!("{on} --sagemaker-safe-port-range=8081-9000"), &[]).unwrap_err();
    let want = "The server cannot listen to HTTP requests at port 8000, allowed port range is [8081, 9000]";
    assert_eq!(refused, want);
    let elsewhere = "--sagemaker-safe-port-range=8081-9000 --http-address=127.0.0.1 --grpc-address=127.0.0.1";
    assert!(
        sagemaker(&format!("{on} {elsewhere} --metrics-port=8082"), &[]).is_ok(),
        "other addresses are not its own"
    );
    let same = sagemaker(&format!("{on} --sagemaker-port=8000"), &[]).unwrap_err();
    assert_eq!(same, "The server cannot listen to HTTP requests and SageMaker requests at the same address and port");
}

/// The variables that tritonserver's own tests set.
const TEST_HOOKS: [(&str, &str); 5] = [
    ("TRITONSERVER_DELAY_SCHEDULER", "4"),
    ("TRITONSERVER_BACKLOG_DELAY_SCHEDULER", "2"),
    ("TRITONSERVER_SERVER_DELAY_GRPC_RESPONSE_SEC", "3"),
    ("TRITONSERVER_DELAY_GRPC_PROCESS", "5000"),
    ("TRITONSERVER_DELAY_GRPC_COMPLETE", "7"),
];

#[cfg(not(feature = "test-hooks"))]
#[test]
fn a_build_for_users_reads_no_test_hooks() {
    let mut with = serve_with("m", &TEST_HOOKS).unwrap();
    assert!(std::mem::take(&mut with.warnings).iter().all(|warning| warning.contains("has no effect here")));
    assert_eq!(Ok(with), serve("m"));
}

#[cfg(feature = "test-hooks")]
#[test]
fn a_build_for_tests_reads_what_they_hold_back() {
    let settings = serve_with("m", &TEST_HOOKS).unwrap();
    assert!(settings.warnings.is_empty(), "nothing that is read has no effect: {:?}", settings.warnings);
    let hooks = settings.foreign.test_hooks;
    let want = TestHooks {
        first_batch_requests: 4,
        first_batch_backlog: 2,
        grpc_answer_delay: Duration::from_secs(3),
        grpc_infer_delay: Duration::from_secs(5),
        grpc_infer_answer_delay: Duration::from_millis(7),
    };
    assert_eq!(hooks, want);
    let refused = serve_with("m", &[("TRITONSERVER_DELAY_SCHEDULER", "x")]).unwrap_err();
    assert_eq!(refused, "TRITONSERVER_DELAY_SCHEDULER=x: expected a whole number");
    assert_eq!(serve("m").unwrap().foreign.test_hooks, TestHooks::default());
}

#[test]
fn models_that_are_loaded_on_demand_go_with_no_other_way_to_find_them() {
    let check = |line: &str, want: &str| assert_eq!(serve(line).unwrap_err(), want, "{line}");
    let cached = "m --model-cache-bytes-max=1000";
    check("m --model-cache-bytes-max=0", "--model-cache-bytes-max=0: must be greater than 0.");
    let text = "--model-cache-bytes-max loads models when they are asked for, and --model-control-mode=poll all of them: \
                give one of the two";
    check(&format!("{cached} --model-control-mode=poll"), text);
    let text = "--model-cache-bytes-max finds a model by its name alone: it does not go with --model-namespacing";
    check(&format!("{cached} --model-namespacing=true"), text);
    let settings = serve(&format!("{cached} --model-cache-wait-ms=7 --load-model=a")).unwrap();
    assert_eq!(settings.model_cache, ModelCacheSettings { size_max: Some(1_000), wait: Duration::from_millis(7) });
    assert!(settings.loads_when_asked() && settings.control_mode == ControlMode::None);
}
