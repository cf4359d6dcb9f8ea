use expect_test::expect_file;

use super::*;

fn read(line: &str) -> Result<Settings, String> {
    match parse(line.split_whitespace().map(str::to_owned))? {
        Command::Bench(settings) => Ok(*settings),
        Command::Help => panic!("help"),
    }
}

#[test]
fn every_flag_changes_what_it_says() {
    let values = [
        ("NAME", "poisson"),
        ("HOST:PORT", "a:1"),
        ("PROTOCOL", "grpc"),
        ("NAME:VALUE", "a:b"),
        ("START:END:STEP", "2:8:2"),
        ("START:END", "7:9"),
        ("p99=10ms", "p99=10ms"),
        ("MODE", "count_windows"),
        ("SOURCE", "zero"),
        ("NAME:D,D", "A:1,2"),
        ("NAME:VALUE:TYPE", "a:1:int"),
        ("FORMAT", "json"),
    ];
    for flag in flags() {
        let name = flag.names[0];
        let value = match name {
            "request-distribution" => "constant",
            _ => values.iter().find(|(kind, _)| *kind == flag.value).map_or("7", |(_, value)| value),
        };
        let base = match name {
            "pid" => "-m m --compare=a --pid-b=1",
            "pid-b" => "-m m --compare=a --pid=1",
            "search-range" => "-m m --search-slo=p99=1ms",
            "binary" => "-m m --json",
            _ => "-m m",
        };
        let line = if flag.value.is_empty() { format!("{base} --{name}") } else { format!("{base} --{name}={value}") };
        let base = match name {
            "pid" | "pid-b" => "-m m --compare=a",
            _ => base,
        };
        assert_ne!(read(&line).unwrap(), read(base).unwrap(), "{line}");
    }
}

#[test]
fn short_forms_and_other_names_mean_the_same() {
    let long = "--model-name m --url h:1 --protocol grpc --batch-size 2 --model-version 3 --measurement-interval 4 --filename f --verbose";
    assert_eq!(read("-m m -u h:1 -i gRPC -b 2 -x 3 -p 4 -f f -v"), read(long));
    assert_eq!(read("-m m --rate 5"), read("-m m --request-rate-range 5"));
    assert_eq!(read("-m m --concurrency 5"), read("-m m --concurrency-range 5:5"));
}

#[test]
fn no_two_flags_share_a_name() {
    let mut names: Vec<String> = flags().flat_map(|flag| flag.names.iter().map(|name| (*name).to_owned())).collect();
    names.extend(flags().filter_map(|flag| flag.short.map(String::from)));
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn ranges_are_all_their_values() {
    let check = |text, want: &[f64]| assert_eq!(range(text).as_deref(), Ok(want), "{text}");
    check("4", &[4.0]);
    check("1:4", &[1.0, 2.0, 3.0, 4.0]);
    check("1:10:4", &[1.0, 5.0, 9.0]);
    check("1:64:x4", &[1.0, 4.0, 16.0, 64.0]);
    check("0.5:1:0.25", &[0.5, 0.75, 1.0]);
    for text in ["", "0", "4:1", "1:2:0", "1:2:x1", "1:2:3:4", "a", "1:100000", "1:inf"] {
        assert!(range(text).is_err(), "{text}");
    }
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let check = |line: &str, want: &str| assert_eq!(read(line).unwrap_err(), want, "{line}");
    check("", "no model: name one with -m");
    check("-m a/b", "-m=a/b: expected letters, digits, -, ., _ or ~");
    check("-m m --nope", "unknown flag '--nope'; --help lists them");
    check("-m m extra", "unexpected 'extra'; --help lists the flags");
    check("-m m --streaming", "perf_analyzer's flag '--streaming' is not supported: ModelStreamInfer is not supported");
    check("-m m -l 5", "perf_analyzer's flag '-l' is not supported: use --search-slo=p99=10ms");
    check(
        "-m m --ssl-grpc-root-certifications-file x",
        "perf_analyzer's flag '--ssl-grpc-root-certifications-file' is not supported: TLS is not supported",
    );
    check("-m m --concurrency 1.5", "--concurrency=1.5: expected whole numbers up to 100000");
    check(
        "-m m --rate 5 --concurrency 5",
        "--request-rate-range and --concurrency-range exclude each other; each may be given once",
    );
    check("-m m -i grpc -u a/b", "--url=a/b: a gRPC server has no path");
    check("-m m -i grpc --json", "JSON tensors are HTTP's; gRPC has raw contents");
    check("-m m --pid-b 5", "--pid-b is of the second server; name it with --compare");
    check("-m m --compare a --pid 5", "a comparison takes --pid and --pid-b, or neither");
    check("-m m -H Content-Length:5", "-H=Content-Length:5: it says where requests end, which is not yours to say");
    check("-m m --shape A", "--shape=A: expected NAME:D,D");
    check("-m m -b 0", "-b=0: must be greater than 0");
    check("-m m --sequence-id-range 0:5", "--sequence-id-range=0:5: ids begin at 1 and START comes first");
    check("-m m --percentile 100", "--percentile=100: must be below 100");
}

#[test]
fn the_help_is_the_table() {
    expect_file!["../tests/snapshots/bench_help.txt"].assert_eq(&help());
}
