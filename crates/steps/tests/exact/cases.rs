//! Plays the cases that scripts write with `cases.py`.

use std::collections::HashMap;
use std::fs;
use std::time::Instant;

use base::tensor::{Datatype, Shape, Tensor};
use steps::StepList;
use steps::tensors::{floats, integers, strings};

use crate::support::folder::Folder;

/// Runs the script and compares all cases in its file `cases`. Prints their count and the largest difference.
pub fn compare(script: &str) {
    let Some(folder) = crate::played(script, &[form()]) else { return };
    compare_files(script, &folder);
}

/// The same in an environment of its own.
pub fn compare_in(name: &str, requirements: &str, script: &str) {
    let Some(folder) = crate::played_in(name, requirements, script, &[form()]) else { return };
    compare_files(script, &folder);
}

/// The same; the whole form has transformers, to which the script holds its rules.
pub fn compare_with_transformers(script: &str) {
    if !crate::is_whole() {
        return compare(script);
    }
    let requirements = "requirements-transformers.txt";
    let Some(folder) = crate::played_in("steps-transformers", requirements, script, &[form()]) else { return };
    compare_files(script, &folder);
}

fn form() -> &'static str {
    if crate::is_whole() { "whole" } else { "short" }
}

/// Compares the cases that a script wrote to a folder.
pub fn compare_files(script: &str, folder: &Folder) {
    let file = fs::read(folder.path().join("cases")).unwrap();
    let mut reader = Reader { rest: &file };
    let (mut count, mut totals) = (0_usize, Totals::default());
    while !reader.rest.is_empty() {
        play(&mut reader, &mut totals);
        count += 1;
    }
    assert!(count > 0, "the script wrote cases");
    println!(
        "{script}: {count} cases, {} values equal, {} within a tolerance, largest difference {:e} relative, {:e} absolute; \
         {} µs in steps",
        totals.exact, totals.near, totals.worst, totals.worst_absolute, totals.time_us
    );
}

#[derive(Default)]
struct Totals {
    exact: usize,
    near: usize,
    worst: f64,
    worst_absolute: f64,
    time_us: u128,
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn part(&mut self) -> &'a [u8] {
        let (size, rest) = self.rest.split_first_chunk::<4>().unwrap();
        let (part, rest) = rest.split_at(u32::from_le_bytes(*size) as usize);
        self.rest = rest;
        part
    }

    fn text(&mut self) -> &'a str {
        std::str::from_utf8(self.part()).unwrap()
    }

    fn tensor(&mut self) -> (&'a str, Tensor, [f64; 2]) {
        let name = self.text();
        let datatype = Datatype::from_name(self.text()).unwrap();
        let shape: Shape = self.part().as_chunks().0.iter().map(|dimension| i64::from_le_bytes(*dimension)).collect();
        let contents = self.part().to_vec().into();
        let tolerance = self.part().as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect::<Vec<_>>();
        (name, Tensor { datatype, shape, contents }, tolerance.try_into().unwrap())
    }
}

fn play(reader: &mut Reader<'_>, totals: &mut Totals) {
    let text = reader.text();
    let counts = reader.part().as_chunks().0.iter().map(|count| u32::from_le_bytes(*count)).collect::<Vec<_>>();
    let inputs: HashMap<_, _> =
        (0..counts[0]).map(|_| reader.tensor()).map(|(name, tensor, _)| (name, tensor)).collect();
    let wanted: Vec<_> = (0..counts[1]).map(|_| reader.tensor()).collect();
    let files: HashMap<_, _> = (0..counts[2]).map(|_| (reader.text(), reader.part())).collect();
    let read_file = |name: &str, _| files.get(name).map(|file| file.to_vec()).ok_or_else(|| "no such file".to_owned());
    let list = StepList::read(text, &read_file).unwrap_or_else(|error| panic!("{}\n{text}", error.text()));
    let names: Vec<_> = wanted.iter().map(|(name, _, _)| *name).collect();
    let start = Instant::now();
    let got = list.run(|name| inputs.get(name).cloned(), &names);
    totals.time_us += start.elapsed().as_micros();
    let got = got.unwrap_or_else(|error| panic!("{}\n{text}", error.text()));
    for ((name, want, tolerance), got) in wanted.iter().zip(&got) {
        let got = got.as_ref().unwrap_or_else(|| panic!("no '{name}': {text}"));
        let place = format!("'{name}' of {text}");
        assert_eq!((got.datatype, &got.shape), (want.datatype, &want.shape), "{place}");
        if *tolerance != [0.0; 2] {
            near(&place, got, want, *tolerance, totals);
            continue;
        }
        if got.contents != want.contents {
            differ(&place, got, want);
        }
        totals.exact += base::tensor::element_count(&want.shape).unwrap();
    }
}

fn near(place: &str, got: &Tensor, want: &Tensor, [relative, absolute]: [f64; 2], totals: &mut Totals) {
    let (got, want) = (floats("got", got).unwrap(), floats("want", want).unwrap());
    for (index, (got, want)) in got.iter().zip(&want[..]).enumerate() {
        totals.near += 1;
        if got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan() {
            continue;
        }
        let (got, want) = (f64::from(*got), f64::from(*want));
        let difference = (got - want).abs();
        totals.worst_absolute = totals.worst_absolute.max(difference);
        assert!(
            difference <= relative * want.abs() + absolute,
            "{place} at {index}: {got:e}, but {want:e} is expected"
        );
        if difference > absolute {
            totals.worst = totals.worst.max(difference / want.abs());
        }
    }
}

/// Fails at the first element that is not equal.
fn differ(place: &str, got: &Tensor, want: &Tensor) {
    match want.datatype {
        Datatype::Bytes => {
            let texts = |tensor: &Tensor| {
                let texts = strings("", tensor).unwrap();
                texts.into_iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect::<Vec<_>>()
            };
            assert_eq!(texts(got), texts(want), "{place}");
        }
        Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64 | Datatype::Bf16 => {
            let (got, want) = (floats("", got).unwrap(), floats("", want).unwrap());
            for (index, (got, want)) in got.iter().zip(&want[..]).enumerate() {
                // Of two NaN the bits may differ: they say nothing.
                let is_equal = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(is_equal, "{place} at {index}: {got:e}, but {want:e} is expected");
            }
        }
        _ => assert_eq!(integers("", got).unwrap(), integers("", want).unwrap(), "{place}"),
    }
}
