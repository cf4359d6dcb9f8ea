use expect_test::expect_file;

use super::*;

/// An environment without variables, in which every path exists.
const PLAIN: Environment =
    Environment { variables: &|_| None, has_path: &|_| true, read_file: &|_| Ok("htp-port = 1".to_owned()) };

fn read(line: &str) -> Result<Command, String> {
    parse(line.split_whitespace(), PLAIN)
}

fn printed(line: &str) -> String {
    match read(line) {
        Ok(Command::Help(text) | Command::Print(text)) => text,
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn the_declarations_hold_together() {
    // clap's own checks of the declarations, such as duplicate names and letters.
    program_command().debug_assert();
}

#[test]
fn models_are_served_with_the_command_and_without() {
    let want = read("serve models").unwrap();
    let Command::Serve(settings) = &want else { panic!("{want:?}") };
    assert_eq!(settings.repositories, [PathBuf::from("models")]);
    for line in ["models", "--model-repository=models", "--model-store models", "serve --model-repository models"] {
        assert_eq!(read(line).as_ref(), Ok(&want), "{line}");
    }
    let repository = |name: &str| Some("models".into()).filter(|_| name == "DEUTERON_MODEL_REPOSITORY");
    for words in [&[][..], &["serve"]] {
        assert_eq!(parse(words, Environment { variables: &repository, ..PLAIN }).as_ref(), Ok(&want));
    }
    // Only the first word is a command.
    let Ok(Command::Serve(settings)) = read("--id=x m serve bench") else { panic!("not served") };
    assert_eq!(settings.repositories.len(), 3);
}

#[test]
fn a_mistyped_command_is_told_the_nearest() {
    let nowhere = Environment { has_path: &|_| false, ..PLAIN };
    let check = |word: &str, near: &str| {
        let text = format!(
            "unknown command '{word}'{near} --help lists the commands; there is no path of that name either, which \
             `deuteron serve ./{word}` would serve"
        );
        assert_eq!(parse([word], nowhere), Err(text));
        assert!(matches!(read(word), Ok(Command::Serve(_))), "a path");
    };
    check("srve", ", did you mean 'serve'?");
    check("server", ", did you mean 'serve'?");
    check("bnech", ", did you mean 'bench'?");
    check("confg", ", did you mean 'config'?");
    check("completion", ", did you mean 'completions'?");
    check("hlep", ", did you mean 'help'?");
    check("infer", ", did you mean `deuteron ask MODEL --input VALUE`?");
    check("ls", ", did you mean `deuteron config show PATH`?");
    check("validate", ", did you mean `deuteron check PATH` or `deuteron config check FILE`?");
    check("models", ";");
    for path in ["m", "serv/e", "./srve", "serve.onnx"] {
        assert!(matches!(parse([path], nowhere), Ok(Command::Serve(_))), "{path} is like no command");
    }
    let want = "unknown command 'shwo': did you mean 'show'? --help lists the commands";
    assert_eq!(read("config shwo m"), Err(want.to_owned()));
}

#[test]
fn a_configuration_is_shown_in_one_of_three_forms() {
    let shown = |line: &str| match read(line) {
        Ok(Command::ShowConfig(settings, form)) => (settings.repositories, form),
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(shown("config show m"), (vec!["m".into()], ConfigForm::Pbtxt));
    assert_eq!(shown("config show m --format=json"), (vec!["m".into()], ConfigForm::Json));
    assert_eq!(shown("config show --format toml m"), (vec!["m".into()], ConfigForm::Toml));
    assert_eq!(shown("config show --format steps m"), (vec!["m".into()], ConfigForm::Steps));
    let check = |line: &str, want: &str| assert_eq!(read(line), Err(want.to_owned()), "{line}");
    check("config show m --format=xml", "--format xml: expected pbtxt, json, toml or steps");
    check("config", "a command is missing: expected show, check or help");
    check("config m", "unknown command 'm'; --help lists the commands");
    check("config show m n", "one path at a time, as in `deuteron config show m`");
}

#[test]
fn the_program_alone_says_what_to_do_next() {
    let text = parse([] as [&str; 0], PLAIN).unwrap_err();
    for word in ["deuteron serve", "deuteron init python", "deuteron doctor", "deuteron --help"] {
        assert!(text.contains(word), "{text}");
    }
    // `serve` asks only for what is missing.
    let text = read("serve").unwrap_err();
    assert!(text.starts_with("no model repository") && !text.contains('\n'), "{text}");
    let Ok(Command::Print(page)) = read("man") else { panic!("no page") };
    assert!(page.contains("128"), "exit codes");
}

#[test]
fn a_file_of_flags_is_checked_without_a_model() {
    let Ok(Command::Complain(faults)) = read("config check deuteron.toml") else { panic!("no fault") };
    assert_eq!(faults.len(), 1);
    assert!(faults[0].starts_with("deuteron.toml: line 1: unknown key 'htp-port'"), "{faults:?}");
    let empty = Environment { read_file: &|_| Ok(String::new()), ..PLAIN };
    let fine = parse(["config", "check", "f"], empty);
    assert_eq!(fine, Ok(Command::Print("f: 0 flags, no fault\n".to_owned())));
    assert_eq!(read("config check"), Err("<FILE> is missing; --help tells more".to_owned()));
}

#[test]
fn a_python_model_is_begun_by_its_name() {
    let new = |line: &str| match read(line) {
        Ok(Command::Init(model)) => (model.name, model.path),
        other => panic!("{line}: {other:?}"),
    };
    assert_eq!(new("init python m"), ("m".to_owned(), ".".into()));
    assert_eq!(new("init python m --path=models"), ("m".to_owned(), "models".into()));
    assert_eq!(new("init python --path models/new m"), ("m".to_owned(), "models/new".into()));
    let check = |line: &str, want: &str| {
        let text = read(line).unwrap_err();
        assert!(text.starts_with(want), "{line}: {text}");
    };
    check("init python", "<NAME> is missing");
    check("init python ../m", "'../m' cannot be the name of a model");
    check("init python m n", "unexpected 'n'");
    check("init", "a command is missing: expected python, text, image, ensemble or help");
    let Ok(Command::Init(model)) = read("init image m") else { panic!("no model") };
    assert_eq!(model.kind, NewModelKind::Image);
    check("init pyhton m", "unknown command 'pyhton': did you mean 'python'?");
}

#[test]
fn every_command_has_a_help_and_a_version() {
    for command in [
        "",
        "serve",
        "ask",
        "check",
        "config",
        "config show",
        "config check",
        "init",
        "init python",
        "health",
        "bench",
        "completions",
        "man",
        "steps",
        "steps compare",
        "steps schema",
        "steps suggest",
        "version",
    ] {
        let help = printed(&format!("{command} --help"));
        assert!(help.contains(format!("Usage: deuteron {command}").trim_end()), "{command}: {help}");
        let short = printed(&format!("{command} -h"));
        assert!(short.contains(format!("Usage: deuteron {command}").trim_end()), "{command}: {short}");
        let (lines, columns) = (short.lines().count(), short.lines().map(|line| line.chars().count()).max());
        assert!(lines <= 24 && columns <= Some(100), "{command} -h is as long as a screen: {short}");
        assert!(short == help || short.ends_with("\n--help lists all.\n"), "{command}: {short}");
        assert_eq!(printed(&format!("help {command}")), help);
        assert_eq!(printed(&format!("{command} --version")), VERSION);
    }
    assert_eq!(printed("version"), VERSION);
    assert_eq!(printed("-V"), VERSION);
}

#[test]
fn completions_and_the_manual_know_commands_flags_and_values() {
    for shell in ["bash", "fish", "zsh"] {
        let script = printed(&format!("completions {shell}"));
        for word in ["bench", "http-port", "glommio", "concurrency-range", "init"] {
            assert!(script.contains(word), "{shell} does not know {word}");
        }
    }
    // Of `ask`, and of both names of the flag of `bench`.
    assert_eq!(printed("completions zsh").matches(":_deuteron_models").count(), 3);
    assert_eq!(printed("completions fish").matches("(deuteron ask --list 2>/dev/null)").count(), 2);
    let bash = printed("completions bash");
    let offered = |flag: &str| {
        let (_, rest) = bash.split_once(&format!("                --{flag})\n")).unwrap();
        rest.lines().take_while(|line| !line.contains(";;")).map(str::trim).collect::<Vec<_>>().join(" ")
    };
    assert!(offered("config").contains("compgen -f") && offered("input-data").contains("compgen -f"));
    assert!(!offered("http-port").contains("compgen"), "{}", offered("http-port"));
    assert_eq!(read("completions csh"), Err("<SHELL> csh: expected bash, fish or zsh".to_owned()));
    assert_eq!(read("completions"), Err("<SHELL> is missing; --help tells more".to_owned()));
    let [all, bench] = ["man", "man bench"].map(printed);
    let has = |page: &str, text: &str| page.replace('\\', "").contains(text);
    for text in [".TH deuteron 1", "--http-port", "DEUTERON_HTTP_PORT", "bench"] {
        assert!(has(&all, text), "{text}");
    }
    assert!(has(&bench, "--concurrency-range") && !has(&bench, "--http-port"));
}

#[test]
fn the_flags_of_perf_analyzer_are_refused_for_bench_alone() {
    let check = |line: &str, want: &str| assert_eq!(read(line), Err(want.to_owned()), "{line}");
    let text = "perf_analyzer's flag '--streaming' is not supported: ModelStreamInfer is not supported";
    check("bench -m m --streaming", text);
    check("bench -m m -l 5", "perf_analyzer's flag '-l' is not supported: use --search-slo=p99=10ms");
    check("m --streaming", "unknown flag '--streaming'; --help lists the flags");
    check("bench resnet", "unexpected 'resnet': a model is named with -m, as in `deuteron bench -m resnet`");
    check("m --port=1", "unknown flag '--port': did you mean '--http-port' or '--grpc-port'? --help lists the flags");
    let near = "did you mean '--concurrency'? --help lists the flags";
    check("bench -m m --concurency=4", &format!("unknown flag '--concurency': {near}"));
    assert!(matches!(read("bench -m m"), Ok(Command::Bench(_))));
}

#[test]
fn flags_of_all_commands_may_be_abbreviated() {
    for line in ["serve --model-repo=m", "--model-repo=m"] {
        let Ok(Command::Serve(settings)) = read(line) else { panic!("{line}") };
        assert_eq!(settings.repositories, [PathBuf::from("m")], "{line}");
    }
    assert!(read("m --strict-=false").unwrap_err().starts_with("flag '--strict-' is ambiguous: it may be "));
    let Ok(Command::Bench(bench)) = read("bench -m m --request-c=4") else { panic!("bench") };
    assert_eq!(bench.measurement.request_count, Some(4));
}

#[test]
fn the_help_is_the_table() {
    let mut program = program_command().term_width(100);
    expect_file!["../../tests/snapshots/help.txt"].assert_eq(&program.render_help().to_string());
    program.build();
    let bench = program.find_subcommand_mut("bench").unwrap();
    expect_file!["../../tests/snapshots/bench_help.txt"].assert_eq(&bench.render_help().to_string());
}
