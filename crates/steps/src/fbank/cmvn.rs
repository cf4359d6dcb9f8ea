//! Means and deviations of features over a training set: `am.mvn` of FunASR, a network of kaldi's as text.

/// The numbers between the brackets behind `<AddShift>` and `<Rescale>`: those that are added, and the factors after it.
pub fn read(file: &[u8]) -> Result<(Vec<f32>, Vec<f32>), String> {
    let text = std::str::from_utf8(file).map_err(|error| format!("byte {} is not UTF-8", error.valid_up_to()))?;
    let (shifts, scales) = (numbers(text, "<AddShift>")?, numbers(text, "<Rescale>")?);
    if shifts.len() != scales.len() || shifts.is_empty() {
        return Err(format!("\"<AddShift>\" has {} numbers, but \"<Rescale>\" has {}", shifts.len(), scales.len()));
    }
    Ok((shifts, scales))
}

fn numbers(text: &str, part: &str) -> Result<Vec<f32>, String> {
    let missing = || format!("\"{part}\" is missing, or has no numbers in brackets");
    let (_, rest) = text.split_once(part).ok_or_else(missing)?;
    let (_, rest) = rest.split_once('[').ok_or_else(missing)?;
    let (list, _) = rest.split_once(']').ok_or_else(missing)?;
    let number = |word: &str| word.parse::<f32>().ok().filter(|number| number.is_finite());
    list.split_whitespace().map(|word| number(word).ok_or_else(|| format!("\"{word}\" is not a number"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_and_scales_are_read() {
        let text = "<Nnet>\n<Splice> 2 2\n[ 0 ]\n<AddShift> 2 2\n<LearnRateCoef> 0 [ -8.5 1e1 ]\n<Rescale> 2 2\n\
                    <LearnRateCoef> 0 [ 0.5 2 ]\n</Nnet>\n";
        assert_eq!(read(text.as_bytes()), Ok((vec![-8.5, 10.0], vec![0.5, 2.0])));
        let bad = |text: &str, want: &str| assert_eq!(read(text.as_bytes()).unwrap_err(), want);
        bad("", "\"<AddShift>\" is missing, or has no numbers in brackets");
        bad("<AddShift> [ 1 ] <Rescale>", "\"<Rescale>\" is missing, or has no numbers in brackets");
        bad("<AddShift> [ 1 x ] <Rescale> [ 1 ]", "\"x\" is not a number");
        bad("<AddShift> [ 1 ] <Rescale> [ 1 2 ]", "\"<AddShift>\" has 1 numbers, but \"<Rescale>\" has 2");
    }
}
