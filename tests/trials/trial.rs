//! One trial as it is played: its figures, its checks against the row, and the reason if it cannot be played here.

use std::fmt::Display;
use std::sync::Mutex;
use std::time::Duration;

use crate::form::Form;

/// The reason that a trial cannot be played against this server, or on this machine.
#[derive(Debug)]
pub struct NotApplicable(pub String);

/// The end of a trial; its findings are in its [`Trial`].
pub type Played = Result<(), NotApplicable>;

/// The input of a trial, and its findings.
pub struct Trial<'a> {
    pub form: &'a Form,
    figures: Mutex<Vec<String>>,
    failures: Mutex<Vec<String>>,
}

impl<'a> Trial<'a> {
    pub fn new(form: &'a Form) -> Self {
        Self { form, figures: Mutex::default(), failures: Mutex::default() }
    }

    /// The size of the form that is played.
    pub fn size<T>(&self, short: T, long: T) -> T {
        self.form.size(short, long)
    }

    /// Notes a figure.
    pub fn figure(&self, text: impl Display) {
        self.figures.lock().expect("no trial panics within").push(text.to_string());
    }

    /// Forgets the figures so far: those of the first pass, which shows only failures.
    pub fn forget_figures(&self) {
        self.figures.lock().expect("no trial panics within").clear();
    }

    /// Checks a condition of the row, in both forms.
    pub fn check(&self, is_so: bool, otherwise: impl FnOnce() -> String) {
        if !is_so {
            self.failures.lock().expect("no trial panics within").push(otherwise());
        }
    }

    /// Compares bytes with the row in the long form, and with a higher bound in the short form.
    pub fn check_bytes(&self, what: &str, bytes: i64, short: i64, long: i64) {
        let most = self.size(short, long);
        self.check(bytes <= most, || format!("{what} {}, {} at most", mib(bytes), mib(most)));
    }

    /// Compares a time with the row in the long form, and with a much higher bound in the short form, whose machine is
    /// busy.
    pub fn within(&self, what: &str, took: Duration, long: Duration, short: Duration) {
        let bound = self.size(short, long);
        self.check(took <= bound, || format!("{what} took {took:.2?}, {bound:.2?} at most"));
    }

    /// The figures and the failures.
    pub fn found(self) -> (Vec<String>, Vec<String>) {
        (self.figures.into_inner().unwrap_or_default(), self.failures.into_inner().unwrap_or_default())
    }
}

/// A duration as milliseconds.
pub fn ms(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

/// Bytes as MiB, or as KiB below a tenth of that, with a sign.
pub fn mib(bytes: i64) -> String {
    match bytes.unsigned_abs() {
        1..104_858 => format!("{:+.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:+.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}
