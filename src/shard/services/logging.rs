//! The log settings extension: the settings of the log, as clients read and change them.

use crate::error::Error;
use crate::log::{self, LogFormat};
use crate::protocol::logging::{LogState, LogUpdate};

/// Changes the settings of the log as a client asks, and returns those in effect.
///
/// # Errors
/// `Unsupported` for a change if clients may not change anything.
pub fn settings(update: &LogUpdate, is_allowed: bool) -> Result<LogState, Error> {
    if *update != LogUpdate::default() {
        if !is_allowed {
            return Err(Error::unsupported(
                "Log settings over the network are read-only. Start the server with '--allow-log-settings=true' to \
                 change them.",
            ));
        }
        let format = |name| LogFormat::NAMES.iter().find(|(have, _)| *have == name).map(|(_, format)| *format);
        log::change(|settings| {
            settings.info = update.info.unwrap_or(settings.info);
            settings.warning = update.warning.unwrap_or(settings.warning);
            settings.error = update.error.unwrap_or(settings.error);
            settings.verbose = update.verbose.unwrap_or(settings.verbose);
            settings.format = update.format.and_then(format).unwrap_or(settings.format);
        });
        log::info(&format!("a client changed what is logged: {update:?}"));
    }
    let now = log::settings();
    let format = LogFormat::NAMES.iter().find(|(_, format)| *format == now.format).map_or("", |(name, _)| *name);
    let (file, verbose) = (log::file(), now.verbose);
    Ok(LogState { file, info: now.info, warning: now.warning, error: now.error, verbose, format })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::logging::FORMATS;

    #[test]
    fn every_format_of_the_protocol_is_one_of_the_log() {
        assert_eq!(FORMATS, LogFormat::NAMES.map(|(name, _)| name));
    }

    #[test]
    fn only_whom_a_flag_lets_changes_anything() {
        let before = settings(&LogUpdate::default(), false).unwrap();
        let update = LogUpdate { error: Some(false), ..LogUpdate::default() };
        let refused = settings(&update, false).unwrap_err();
        assert_eq!(refused.code().on_wire(), (501, 12));
        assert!(refused.text().contains("--allow-log-settings=true"));
        assert_eq!(settings(&LogUpdate::default(), false), Ok(before));
    }
}
