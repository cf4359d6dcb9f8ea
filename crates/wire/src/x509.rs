//! Reads the one field of a certificate that the server needs by itself: the end of its validity
//! (RFC 5280 §4.1.2.5), with as much of its DER (X.690) as that takes. rustls handles everything
//! else. Called for the metrics and at start; the bytes are the operator's own.

/// Returns the end of the validity of a certificate in DER, in seconds since the Unix epoch; `None`
/// if the bytes are not a certificate.
pub fn not_after(certificate: &[u8]) -> Option<u64> {
    let (_, certificate, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, mut rest, _) = element(certificate).filter(|(tag, ..)| *tag == SEQUENCE)?;
    // The version is left out of certificates of version 1.
    if rest.first() == Some(&VERSION) {
        rest = element(rest)?.2;
    }
    // Serial number, signature algorithm and issuer.
    for _ in 0..3 {
        rest = element(rest)?.2;
    }
    let (_, validity, _) = element(rest).filter(|(tag, ..)| *tag == SEQUENCE)?;
    let (_, _, rest) = element(validity)?;
    let (tag, time, _) = element(rest)?;
    match tag {
        UTC_TIME => {
            // RFC 5280 §4.1.2.5.1: 50 and more is of the century before.
            let year = number(time.get(..2)?)?;
            seconds(if year >= 50 { 1900 + year } else { 2000 + year }, time.get(2..)?)
        }
        GENERALIZED_TIME => seconds(number(time.get(..4)?)?, time.get(4..)?),
        _ => None,
    }
}

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// The tag and the contents of the first element, and the bytes after it.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (size, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        // Two bytes of size are enough for a name, three for any certificate.
        0x81..=0x83 => {
            let (size, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (size.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(size)?;
    Some((*tag, contents, rest))
}

/// The seconds since the epoch of `MMDDHHMMSSZ` in a year.
fn seconds(year: u64, rest: &[u8]) -> Option<u64> {
    let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| rest.get(at..at + 2).and_then(number));
    if rest.get(10..) != Some(b"Z") {
        return None;
    }
    let (month, day) = (month?, day?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days by the calendar whose years begin in March, so that the leap day is the last (Howard Hinnant's).
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1 - DAYS_TO_EPOCH;
    Some(((days * 24 + hour?) * 60 + minute?) * 60 + second?)
}

/// From the first of March of the year 0 to the epoch.
const DAYS_TO_EPOCH: u64 = 719_468;

fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |sum: u64, digit| digit.is_ascii_digit().then(|| sum * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate with the fields before the time, and the time.
    fn certificate(version: &[u8], tag: u8, time: &str) -> Vec<u8> {
        let wrap = |tag: u8, contents: &[u8]| [&[tag, u8::try_from(contents.len()).unwrap()], contents].concat();
        let begin = wrap(UTC_TIME, b"200101000000Z");
        let validity = wrap(SEQUENCE, &[begin, wrap(tag, time.as_bytes())].concat());
        let fields = [version, &[2, 1, 7], &wrap(SEQUENCE, &[5, 0]), &wrap(SEQUENCE, &[]), &validity, &[5, 0]].concat();
        wrap(SEQUENCE, &wrap(SEQUENCE, &fields))
    }

    #[test]
    fn the_end_of_validity_is_read_in_both_forms() {
        let version: &[u8] = &[VERSION, 3, 2, 1, 2];
        let check = |tag, time: &str, want| {
            assert_eq!(not_after(&certificate(version, tag, time)), want, "{time}");
            assert_eq!(not_after(&certificate(&[], tag, time)), want, "{time}, version 1");
        };
        check(UTC_TIME, "700101000000Z", Some(0));
        check(UTC_TIME, "491231235959Z", Some(2_524_607_999));
        check(GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000));
        check(GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799));
        check(GENERALIZED_TIME, "20240229120000Z", Some(1_709_208_000));
        check(GENERALIZED_TIME, "20240301000000Z", Some(1_709_251_200));
        check(UTC_TIME, "500101000000Z", None);
        for wrong in ["", "7001010000", "700101000000", "700101000000+0100", "70010100000aZ", "701301000000Z"] {
            check(UTC_TIME, wrong, None);
        }
        check(4, "700101000000Z", None);
    }

    #[test]
    fn what_is_cut_short_is_no_certificate() {
        let whole = certificate(&[], UTC_TIME, "700101000000Z");
        for size in 0..whole.len() {
            assert_eq!(not_after(&whole[..size]), None, "{size} bytes");
        }
        assert_eq!(not_after(&[SEQUENCE, 0x84, 0, 0, 0, 1, 0]), None);
    }
}
