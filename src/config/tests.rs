use expect_test::expect_file;

use super::*;

fn serve(line: &str) -> Result<Settings, String> {
    match parse_command(line.split_whitespace().map(str::to_owned))? {
        Command::Serve(settings) => Ok(*settings),
        other => panic!("{other:?}"),
    }
}

#[test]
fn both_ways_of_naming_a_repository_mean_the_same() {
    let want = Settings { repositories: vec!["models".into()], ..Settings::default() };
    for line in ["serve models", "--model-repository=models", "--model-store models", "serve --model-repository models"]
    {
        assert_eq!(serve(line).as_ref(), Ok(&want), "{line}");
    }
}

#[test]
fn every_flag_changes_what_it_says() {
    let values = [("PORT", "81"), ("BOOL", "false"), ("ADDRESS", "127.0.0.1"), ("DIRECTORY", "d"), ("NAME", "n")];
    let named = [("MODE", "execution_count"), ("NAME,cpu-cores=CORES", "n,cpu-cores=2-5")];
    let more = [
        ("NAME:COUNT[:DEVICE]", "n:7"),
        ("none|deadline", "deadline"),
        ("local,size=BYTES", "local,size=7"),
        ("auto|ring|epoll|glommio", "glommio"),
        ("GPU:BYTES", "0:7"),
        ("none|poll|explicit", "poll"),
    ];
    let values = [&values[..], &named, &more, &[("SETTING", "default-max-batch-size=7")]].concat();
    for flag in FLAGS {
        let name = flag.names[0];
        let value = values.iter().find(|(kind, _)| *kind == flag.value).map_or("7", |(_, value)| value);
        let value =
            if ["allow-client-shm", "gpu-auto", "strict-model-config"].contains(&name) { "true" } else { value };
        let line = if flag.value.is_empty() { format!("m --{name}") } else { format!("m --{name}={value}") };
        let without = if name == "load-model" { "m --model-control-mode=explicit" } else { "m" };
        let line = line.replacen('m', without, 1);
        assert_ne!(serve(&line).unwrap(), serve(without).unwrap(), "{line}");
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let check = |line: &str, want: &str| assert_eq!(serve(line).unwrap_err(), want, "{line}");
    check("", "no model repository: name a directory of models, as in `deuteron serve examples/models`");
    check("m --nope", "unknown flag '--nope'; --help lists them");
    check("m -x", "unknown flag '-x'; --help lists them");
    check("m --http-port=70000", "--http-port=70000: expected a port from 0 to 65535");
    check("m --http-max-input-size=0", "--http-max-input-size=0: must be greater than 0.");
    check("m --allow-http=maybe", "--allow-http=maybe: expected true or false");
    for (cache, want) in [
        ("local", "option format is '<cache name>,<setting>=<value>'"),
        ("local,size", "option format is '<cache name>,<setting>=<value>'"),
        ("local,size=x", "expected a whole number"),
        ("local,length=1", "'length' is no setting of the cache; expected 'size'"),
        ("redis,host=x", "there is no cache 'redis'; expected 'local'"),
    ] {
        check(&format!("m --cache-config={cache}"), &format!("--cache-config={cache}: {want}"));
    }
    check("m --cuda-memory-pool-byte-size=7", "--cuda-memory-pool-byte-size=7: expected GPU:BYTES, as in 0:67108864");
    check("m --admission=maybe", "--admission=maybe: expected 'none' or 'deadline'");
    check("m --io=poll", "--io=poll: expected 'auto', 'ring', 'epoll' or 'glommio'");
    check("m --shards 0", "--shards=0: must be greater than 0.");
    let text = "--model-control-mode=off: expected 'none', 'poll' or 'explicit'";
    check("m --model-control-mode=off", text);
    let text = "--load-model names models for --model-control-mode=explicit; without it all are loaded";
    check("m --load-model=a", text);
    for cores in ["", "-", "1-", "5-2", "x", "1,", "0-99999999999999999999", "0-1024"] {
        let line = format!("m --worker-cores={cores}");
        check(&line, &format!("--worker-cores={cores}: expected cores, as in 2-5,8"));
    }
    let both = "m --rate-limit=execution_count --model-control-mode";
    assert!(["poll", "explicit"].iter().all(|mode| serve(&format!("{both}={mode}")).unwrap().is_rate_limited));
    check("m --rate-limit=on", "--rate-limit=on: expected execution_count or off");
    for policy in ["", "a", "a,", ",cpu-cores=1", "a,=1", "cpu-cores=1"] {
        let line = format!("m --host-policy={policy}");
        check(&line, &format!("--host-policy={policy}: option format is '<policy name>,<setting>=<value>'"));
    }
    check(
        "m --host-policy=a,numa-node=0",
        "--host-policy=a,numa-node=0: 'numa-node' is not supported yet; give the cores of the node by 'cpu-cores'",
    );
    check(
        "m --host-policy=a,nice=1",
        "--host-policy=a,nice=1: 'nice' is no setting of a host policy; expected 'cpu-cores'",
    );
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
}

#[test]
fn a_configuration_is_shown_in_one_of_three_forms() {
    let parse = |line: &str| parse_command(line.split_whitespace().map(str::to_owned));
    let shown = |line: &str| match parse(line) {
        Ok(Command::ShowConfig(settings, form)) => Ok((settings.repositories.clone(), form)),
        Ok(other) => panic!("{other:?}"),
        Err(why) => Err(why),
    };
    assert_eq!(shown("config show m"), Ok((vec!["m".into()], ConfigForm::Pbtxt)));
    assert_eq!(shown("config show m --format=json"), Ok((vec!["m".into()], ConfigForm::Json)));
    assert_eq!(shown("config show --format toml m"), Ok((vec!["m".into()], ConfigForm::Toml)));
    let check = |line: &str, want: &str| assert_eq!(parse(line).unwrap_err(), want, "{line}");
    check("config show m --format=xml", "--format=xml: expected pbtxt, json or toml");
    check("config", "expected `deuteron config show PATH`");
    check("config m", "expected `deuteron config show PATH`");
    check("config show m n", "one path at a time, as in `deuteron config show m`");
    check("m --format=json", "unknown flag '--format'; --help lists them");
    check("m n --model-name=x", "--model-name names one model, and there are several paths");
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
    let resource = |name: &str, count, device| RateResource { name: name.to_owned(), count, device };
    assert_eq!(settings.rate_resources, [resource("R", 2, None), resource("S", 3, Some(1))]);
    assert!(!settings.is_rate_limited);
}

#[test]
fn the_help_is_the_table() {
    expect_file!["../../tests/snapshots/help.txt"].assert_eq(&help());
}
