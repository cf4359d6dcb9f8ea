//! `TRITONSERVER_Log*`: into the server's own log.

use crate::python::message::LogLevel;
use crate::triton::abi::{ExportedFunction, answer, values};
use crate::triton::error::ErrorHandle;
use crate::triton::object::Text;
use crate::triton::services;
use base::error::Error;

values! {
    TRITONSERVER_LogIsEnabled(level: u32) -> bool, or false => {
        match level_of(level) {
            Ok(LogLevel::Verbose) => services::get().is_ok_and(|services| services.is_verbose),
            Ok(_) => true,
            Err(_) => false,
        }
    }

    TRITONSERVER_LogMessage(level: u32, file: Text, line: i32, text: Text) -> ErrorHandle, or ErrorHandle::null() => {
        answer("TRITONSERVER_LogMessage", || {
            let (level, text) = (level_of(level)?, text.get("text")?);
            let services = services::get()?;
            if !matches!(level, LogLevel::Verbose) || services.is_verbose {
                // The path of the source on the machine that built the backend is of no use: its
                // name is.
                let file = file.get_if_given().unwrap_or_default();
                let name = file.rsplit('/').next().unwrap_or_default();
                (services.log)(level, &format!("({name}:{line}) {text}"));
            }
            Ok(())
        })
    }
}

fn level_of(number: u32) -> Result<LogLevel, Error> {
    match number {
        0 => Ok(LogLevel::Info),
        1 => Ok(LogLevel::Warning),
        2 => Ok(LogLevel::Error),
        3 => Ok(LogLevel::Verbose),
        number => Err(Error::invalid(format!("{number} is no TRITONSERVER_LogLevel"))),
    }
}

pub(super) fn exports() -> Vec<ExportedFunction> {
    values()
}
