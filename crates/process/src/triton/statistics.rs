//! `TRITONBACKEND_ModelInstanceResponseStatistics`: a decoupled backend's report on one response.

#![expect(clippy::disallowed_types, reason = "what a backend fills, one thread at a time")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::execution::ResponseReports;
use crate::triton::object::hosted_object;
use base::error::{Code, Error};
use base::metrics::{ResponseOutcome, StageTimes};

/// A `TRITONBACKEND_ModelInstanceResponseStatistics`.
#[derive(Default)]
pub(super) struct ResponseStatisticsObject(Mutex<ReportedResponse>);

hosted_object!(ResponseStatisticsObject, "response statistics", 17);

#[derive(Clone, Default)]
pub(super) struct ReportedResponse {
    pub(super) has_instance: bool,
    /// The reports of the factory's request.
    pub(super) reports: Option<Arc<ResponseReports>>,
    pub(super) start: u64,
    /// 0 for a response without outputs.
    pub(super) output_start: u64,
    pub(super) end: u64,
    /// The code of the response's error.
    pub(super) error: Option<Code>,
}

impl ResponseStatisticsObject {
    pub(super) fn change(&self, change: impl FnOnce(&mut ReportedResponse)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts the response as it is reported (`infer_stats.cc`).
    ///
    /// # Errors
    /// `InvalidArgument` if a part is missing, or the times run backwards.
    pub(super) fn report(&self) -> Result<(), Error> {
        let report = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let missing = |what: &str| Error::invalid(format!("the response statistics have no {what}"));
        if !report.has_instance {
            return Err(missing("model instance"));
        }
        let reports = report.reports.as_ref().ok_or_else(|| missing("response factory"))?;
        let ReportedResponse { start, output_start, end, error, .. } = report;
        let is_ordered = output_start == 0 || (start..=end).contains(&output_start);
        if start > end || !is_ordered {
            return Err(Error::invalid("the times of the response statistics run backwards"));
        }
        let outcome = match error {
            Some(Code::Cancelled) => ResponseOutcome::Cancelled,
            Some(_) => ResponseOutcome::Failed,
            None if output_start == 0 => ResponseOutcome::Empty,
            None => ResponseOutcome::Succeeded,
        };
        let infer_end = if output_start == 0 { end } else { output_start };
        let (infer, output) = (Duration::from_nanos(infer_end - start), Duration::from_nanos(end - infer_end));
        reports.report(outcome, &StageTimes { infer, output, ..StageTimes::default() });
        Ok(())
    }
}
