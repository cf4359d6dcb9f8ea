//! The trace settings of a server: the global one, and those of models, which inherit the fields
//! that are not set for them. A change makes a new table. The control thread owns the changes; each
//! shard has the current table.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::setting::{TraceLevel, TraceMode, TraceSetting};
use base::error::Error;

/// A client's change to one field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SettingUpdate<T> {
    /// Take the field from the setting above: for a model the global one, for that one the command line.
    Clear,
    /// Leave it.
    #[default]
    Keep,
    /// Set it.
    Set(T),
}

/// A client's change to a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingChange {
    /// `trace_level`.
    pub level: SettingUpdate<TraceLevel>,
    /// `trace_rate`.
    pub rate: SettingUpdate<u32>,
    /// `trace_count`.
    pub count: SettingUpdate<i64>,
    /// `log_frequency`.
    pub log_frequency: SettingUpdate<u32>,
}

/// All settings at one time.
#[derive(Clone, Debug)]
pub struct TraceTable {
    /// The command line's.
    base: Arc<TraceSetting>,
    global: SettingEntry,
    models: BTreeMap<String, SettingEntry>,
    /// The file that traces are written to; empty for no file.
    file: Arc<str>,
    /// The command line's options for the mode, as clients see them.
    options: Arc<[(String, String)]>,
}

/// A setting, and the set of fields that are its own.
#[derive(Clone, Debug)]
struct SettingEntry {
    setting: Arc<TraceSetting>,
    own: OwnFields,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OwnFields {
    level: bool,
    rate: bool,
    count: bool,
    log_frequency: bool,
}

impl Default for TraceTable {
    fn default() -> Self {
        Self::new(TraceSetting::new(TraceLevel::OFF, 1_000, -1, 0, TraceMode::Triton), "", Vec::new())
    }
}

impl TraceTable {
    /// The table of the command line. `options` are further options of the mode for clients.
    pub fn new(base: TraceSetting, file: &str, options: Vec<(String, String)>) -> Self {
        let base = Arc::new(base);
        let global = TraceSetting::new(base.level, base.rate, base.count_max, base.log_frequency, base.mode);
        let global = SettingEntry { setting: Arc::new(global), own: OwnFields::default() };
        Self { base, global, models: BTreeMap::new(), file: file.into(), options: options.into() }
    }

    /// The setting that holds for a model; the global one if `model` is empty.
    pub fn setting(&self, model: &str) -> &Arc<TraceSetting> {
        let entry = if self.models.is_empty() { None } else { self.models.get(model) };
        &entry.unwrap_or(&self.global).setting
    }

    /// Returns true if any request may be traced.
    pub fn is_on(&self) -> bool {
        let mut all = std::iter::once(&self.global).chain(self.models.values());
        all.any(|entry| !entry.setting.level.is_off() && self.fault(&entry.setting).is_none())
    }

    /// Returns the file that traces are written to; empty for no file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the further options of the mode for clients.
    pub fn options(&self) -> &[(String, String)] {
        &self.options
    }

    /// The table after a change of a model's setting, or of the global one if `model` is empty. A
    /// model without fields of its own left uses the global setting.
    ///
    /// # Errors
    /// `InvalidArgument`, with Triton's text, for a setting that could not trace.
    pub fn changed(&self, model: &str, change: &SettingChange) -> Result<Self, Error> {
        let mut next = self.clone();
        if !model.is_empty() {
            next.change_model(model, change)?;
            return Ok(next);
        }
        next.global = self.entry(Some(&self.global), &self.base, change)?;
        // The fields that models inherit change with it.
        for model in self.models.keys() {
            next.change_model(model, &SettingChange::default())?;
        }
        Ok(next)
    }

    /// Marks the settings that this table has and `next` has not.
    pub fn handle_replaced(&self, next: &Self) {
        let entries = |table: &Self| {
            let models = table.models.values().cloned().collect::<Vec<_>>();
            std::iter::once(table.global.clone()).chain(models).map(|entry| entry.setting).collect::<Vec<_>>()
        };
        let kept = entries(next);
        for setting in entries(self).iter().filter(|setting| !kept.iter().any(|other| Arc::ptr_eq(setting, other))) {
            setting.handle_replaced();
        }
    }

    fn change_model(&mut self, model: &str, change: &SettingChange) -> Result<(), Error> {
        let entry = self.entry(self.models.get(model), &self.global.setting, change)?;
        if entry.own == OwnFields::default() {
            self.models.remove(model);
        } else {
            self.models.insert(model.to_owned(), entry);
        }
        Ok(())
    }

    /// The entry after a change: each field is the changed one, else its own previous one, else
    /// that of the setting above.
    fn entry(
        &self,
        current: Option<&SettingEntry>,
        above: &TraceSetting,
        change: &SettingChange,
    ) -> Result<SettingEntry, Error> {
        let own = current.map(|current| current.own).unwrap_or_default();
        let before = |is_own: bool| current.filter(|_| is_own).map_or(above, |current| &*current.setting);
        let (level, own_level) = change.level.over(own.level, before(own.level).level, above.level);
        let (rate, own_rate) = change.rate.over(own.rate, before(own.rate).rate, above.rate);
        let (count, own_count) = change.count.over(own.count, before(own.count).remaining(), above.remaining());
        let (log_frequency, own_frequency) =
            change.log_frequency.over(own.log_frequency, before(own.log_frequency).log_frequency, above.log_frequency);
        let setting = TraceSetting::new(level, rate, count, log_frequency, self.base.mode);
        if !level.is_off()
            && let Some(fault) = self.fault(&setting)
        {
            return Err(Error::invalid(format!("Attempting to set invalid trace setting :{fault}")));
        }
        let own = OwnFields { level: own_level, rate: own_rate, count: own_count, log_frequency: own_frequency };
        Ok(SettingEntry { setting: Arc::new(setting), own })
    }

    /// Returns the reason why a setting cannot trace, in Triton's words.
    fn fault(&self, setting: &TraceSetting) -> Option<&'static str> {
        match setting.mode {
            // By OTLP a rate of 0 traces the requests that bring a context.
            TraceMode::OpenTelemetry => None,
            TraceMode::Triton if setting.rate == 0 => Some("sample rate must be non-zero"),
            TraceMode::Triton if self.file.is_empty() => Some("trace file name is not given"),
            TraceMode::Triton => None,
        }
    }
}

impl<T: Copy> SettingUpdate<T> {
    /// The value of a field after the change, and true if it is the setting's own.
    const fn over(self, is_own: bool, own: T, above: T) -> (T, bool) {
        match self {
            Self::Clear => (above, false),
            Self::Keep if is_own => (own, true),
            Self::Keep => (above, false),
            Self::Set(value) => (value, true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SettingUpdate::{Clear, Set};
    use super::*;

    const ON: TraceLevel = TraceLevel { timestamps: true, tensors: false };

    fn table() -> TraceTable {
        TraceTable::new(TraceSetting::new(ON, 1, -1, 0, TraceMode::Triton), "f", Vec::new())
    }

    fn text(table: &TraceTable, model: &str) -> String {
        let setting = table.setting(model);
        let level: Vec<_> = setting.level.names().collect();
        format!("{} {} {} {}", level.join("+"), setting.rate, setting.remaining(), setting.log_frequency)
    }

    #[test]
    fn a_model_takes_from_the_global_setting_what_is_not_its_own() {
        let mut table = table();
        let mut step = |model: &str, change: SettingChange, want: [&str; 2]| {
            table = table.changed(model, &change).unwrap();
            assert_eq!([text(&table, ""), text(&table, "m")], want, "{model} {change:?}");
        };
        let none = SettingChange::default();
        // The steps of Triton's own test of clearing.
        step(
            "m",
            SettingChange { rate: Set(12), log_frequency: Set(34), ..none },
            ["TIMESTAMPS 1 -1 0", "TIMESTAMPS 12 -1 34"],
        );
        step(
            "",
            SettingChange { rate: Set(56), count: Set(78), level: Set(TraceLevel::OFF), ..none },
            ["OFF 56 78 0", "OFF 12 78 34"],
        );
        step("", SettingChange { rate: Clear, count: Clear, ..none }, ["OFF 1 -1 0", "OFF 12 -1 34"]);
        step("m", SettingChange { rate: Clear, level: Clear, ..none }, ["OFF 1 -1 0", "OFF 1 -1 34"]);
        step("m", SettingChange { log_frequency: Clear, ..none }, ["OFF 1 -1 0", "OFF 1 -1 0"]);
        step("", SettingChange { level: Clear, ..none }, ["TIMESTAMPS 1 -1 0", "TIMESTAMPS 1 -1 0"]);
        assert!(table.models.is_empty(), "nothing is its own any more");
    }

    #[test]
    fn what_was_counted_goes_on_counting_in_the_setting_that_follows() {
        let change = SettingChange { count: Set(5), ..SettingChange::default() };
        let table = table().changed("", &change).unwrap();
        assert!(table.setting("").sample(false));
        let next = table.changed("", &SettingChange { log_frequency: Set(2), ..SettingChange::default() }).unwrap();
        assert_eq!(text(&next, ""), "TIMESTAMPS 1 4 2");
        table.handle_replaced(&next);
        assert!(table.setting("").is_replaced() && !next.setting("").is_replaced());
    }

    #[test]
    fn a_setting_that_could_not_trace_is_refused_unless_it_is_off() {
        let change = SettingChange { rate: Set(0), ..SettingChange::default() };
        let error = table().changed("", &change).unwrap_err();
        assert_eq!(error.text(), "Attempting to set invalid trace setting :sample rate must be non-zero");
        let off = SettingChange { level: Set(TraceLevel::OFF), ..change };
        assert!(table().changed("", &off).is_ok());
        let error = TraceTable::default().changed("m", &SettingChange { level: Set(ON), ..SettingChange::default() });
        let want = "Attempting to set invalid trace setting :trace file name is not given";
        assert_eq!(error.unwrap_err().text(), want);
        assert!(table().is_on() && !TraceTable::default().is_on());
        let otlp = TraceTable::new(TraceSetting::new(ON, 0, -1, 0, TraceMode::OpenTelemetry), "", Vec::new());
        assert!(otlp.is_on(), "it traces what brings a context");
    }
}
