//! `TRITONBACKEND_ModelInstanceResponseStatistics`: a decoupled backend's report on one response.

#![expect(clippy::disallowed_types, reason = "what a backend fills, one thread at a time")]

use std::sync::{Mutex, PoisonError};

use crate::triton::object::hosted_object;
use base::error::Error;

/// A `TRITONBACKEND_ModelInstanceResponseStatistics`.
#[derive(Default)]
pub(super) struct ResponseStatisticsObject(Mutex<ReportedResponse>);

hosted_object!(ResponseStatisticsObject, "response statistics", 17);

#[derive(Clone, Copy, Default)]
pub(super) struct ReportedResponse {
    pub(super) has_instance: bool,
    pub(super) has_factory: bool,
    pub(super) start: u64,
    pub(super) output_start: u64,
    pub(super) end: u64,
}

impl ResponseStatisticsObject {
    pub(super) fn change(&self, change: impl FnOnce(&mut ReportedResponse)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Checks that the report is complete. The server counts a response when it passes it on, so it
    /// is not used further.
    ///
    /// # Errors
    /// `InvalidArgument` if a part is missing, or the times run backwards.
    pub(super) fn check(&self) -> Result<(), Error> {
        let report = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let refuse = |what: &str| Err(Error::invalid(format!("the response statistics have no {what}")));
        if !report.has_instance {
            return refuse("model instance");
        }
        if !report.has_factory {
            return refuse("response factory");
        }
        let is_ordered = report.output_start == 0 || (report.start..=report.end).contains(&report.output_start);
        if report.start > report.end || !is_ordered {
            return Err(Error::invalid("the times of the response statistics run backwards"));
        }
        Ok(())
    }
}
