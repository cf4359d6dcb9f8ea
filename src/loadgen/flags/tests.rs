use super::*;
use crate::flags::{Fallback, Takes, flags};
use crate::loadgen::flags::value::range;

fn bench(line: &str) -> Result<BenchSettings, String> {
    let mut command = clap::Command::new("bench").no_binary_name(true).args_override_self(true).args(arguments());
    let matches = command.try_get_matches_from_mut(line.split_whitespace());
    let matches = matches.map_err(|error| flags::explain(&error, &command))?;
    read(&matches, &|_| None, &|_| None)
}

#[test]
fn every_flag_changes_what_it_says() {
    let values = [
        ("NAME", "n"),
        ("HOST:PORT", "a:1"),
        ("NAME:VALUE", "a:b"),
        ("START:END:STEP", "2:8:2"),
        ("START:END", "7:9"),
        ("p99=10ms", "p99=10ms"),
        ("SOURCE", "zero"),
        ("NAME:D,D", "A:1,2"),
        ("NAME:VALUE:TYPE", "a:1:int"),
    ];
    for flag in flags(SECTIONS) {
        let name = flag.name();
        let value = match flag.takes {
            Takes::Switch => None,
            Takes::One(value) | Takes::Many(value) => Some(match value.split_once('|') {
                Some(_) => value.split('|').find(|choice| Fallback::Value(choice) != flag.default).unwrap(),
                None => values.iter().find(|(kind, _)| *kind == value).map_or("7", |(_, value)| value),
            }),
        };
        let (base, without) = match name {
            "pid" => ("-m m --compare=a --pid-b=1", "-m m --compare=a"),
            "pid-b" => ("-m m --compare=a --pid=1", "-m m --compare=a"),
            "search-range" => ("-m m --search-slo=p99=1ms", "-m m --search-slo=p99=1ms"),
            "binary" => ("-m m --json", "-m m --json"),
            "ca" | "insecure" => ("-m m -u https://a", "-m m -u https://a"),
            "cert" => ("-m m -u https://a --key=k", "-m m -u https://a --key=k --cert=c"),
            "key" => ("-m m -u https://a --cert=c", "-m m -u https://a --cert=c --key=k"),
            _ => ("-m m", "-m m"),
        };
        let line = value.map_or(format!("{base} --{name}"), |value| format!("{base} --{name}={value}"));
        assert_ne!(bench(&line).unwrap(), bench(without).unwrap(), "{line}");
        if let Some(value) = value {
            assert_eq!(bench(&format!("{base} --{name} {value}")), bench(&line), "{line}");
        }
    }
}

#[test]
fn every_flag_has_a_help_and_a_default_that_holds_without_it() {
    for flag in flags(SECTIONS) {
        let name = flag.name();
        assert!(!flag.help.is_empty() && !flag.help.ends_with('.'), "{name}: {}", flag.help);
        if let Fallback::Value(value) = flag.default {
            let mut draft = Draft::default();
            (flag.apply)(&mut draft, value).unwrap();
            // Given alone, these also ask for sequences.
            draft.settings.sequence.is_asked = false;
            assert_eq!(draft.settings, BenchSettings::default(), "--{name}={value} is the default");
        }
    }
}

#[test]
fn short_forms_and_other_names_mean_the_same() {
    let long = "--model-name m --url h:1 --protocol grpc --batch-size 2 --model-version 3 --measurement-interval 4 --filename f --verbose";
    assert_eq!(bench("-m m -u h:1 -i gRPC -b 2 -x 3 -p 4 -f f -v"), bench(long));
    assert_eq!(bench("-m m --rate 5"), bench("-m m --request-rate-range 5"));
    assert_eq!(bench("-m m --concurrency 5"), bench("-m m --concurrency-range 5:5"));
    let of_http = "-m m -u https://a --ssl-https-ca-certificates-file=a --ssl-https-client-certificate-file=c --ssl-https-private-key-file=k";
    let of_grpc = "-m m -u https://a --ssl-grpc-root-certifications-file=a --ssl-grpc-certificate-chain-file=c --ssl-grpc-private-key-file=k";
    assert_eq!(bench(of_http), bench("-m m -u https://a --ca=a --cert=c --key=k"));
    assert_eq!(bench(of_grpc), bench(of_http));
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
    let check = |line: &str, want: &str| assert_eq!(bench(line).unwrap_err(), want, "{line}");
    check("", "no model: name one with -m");
    check("-m a/b", "--model-name=a/b: expected letters, digits, -, ., _ or ~");
    check("-m m --nope", "unknown flag '--nope'; --help lists the flags");
    check("-m m extra", "unexpected 'extra'; --help lists the flags");
    check("-m m --concurrency 1.5", "--concurrency-range=1.5: expected whole numbers up to 100000");
    check(
        "-m m --rate 5 --concurrency 5",
        "--request-rate-range and --concurrency-range exclude each other; each may be given once",
    );
    check("-m m -i grpc -u a/b", "--url=a/b: a gRPC server has no path");
    check("-m m -i grpc --json", "JSON tensors are HTTP's; gRPC has raw contents");
    check("-m m --pid-b 5", "--pid-b is of the second server; name it with --compare");
    check("-m m --compare a --pid 5", "a comparison takes --pid and --pid-b, or neither");
    check("-m m -H Content-Length:5", "--header=Content-Length:5: it frames the request and cannot be set");
    check("-m m --shape A", "--shape=A: expected NAME:D,D");
    check("-m m -b 0", "--batch-size=0: must be greater than 0");
    check("-m m --sequence-id-range 0:5", "--sequence-id-range=0:5: ids begin at 1 and START comes first");
    check("-m m --percentile 100", "--percentile=100: must be below 100");
    let for_tls = "is for TLS: name the server as --url=https://HOST:PORT";
    check("-m m -u a --ca c", &format!("--ca {for_tls}"));
    check("-m m --insecure", &format!("--insecure {for_tls}"));
    check("-m m -u https://a --cert c", "a client's certificate has a key: --cert and --key belong together");
    check("-m m -u https://a --ca c --insecure", "--insecure trusts any server; leave --ca out");
}

#[test]
fn a_flag_of_perf_analyzer_that_is_not_here_says_what_to_do() {
    let check = |dashed: &str, want: &str| {
        let text = explain_absent(dashed).unwrap();
        assert_eq!(text, format!("perf_analyzer's flag '{dashed}' is not supported: {want}"));
    };
    check("--streaming", "ModelStreamInfer is not supported");
    check("-l", "use --search-slo=p99=10ms");
    check("--ssl-grpc-use-ssl", "name the server with --url=grpcs://HOST:PORT");
    check("--ssl-https-verify-peer", "a server is verified unless --insecure is given");
    check("--ssl-https-private-key-type", "files are PEM; leave it out");
    assert_eq!(explain_absent("--nope"), None);
}

#[test]
fn a_value_may_begin_with_a_dash() {
    assert_eq!(bench("-m m --string-data -x").unwrap().string, Some("-x".to_owned()));
}
