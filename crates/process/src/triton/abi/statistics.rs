//! The reports of backends on their work: `TRITONBACKEND_ModelInstanceReport*Statistics` and the
//! objects of those.

use std::sync::Arc;
use std::time::Duration;

use crate::triton::abi::functions;
use crate::triton::error::ErrorHandle;
use crate::triton::instance_object::InstanceObject;
use crate::triton::object::{Handle, Out, Owned};
use crate::triton::request::RequestObject;
use crate::triton::response::FactoryObject;
use crate::triton::statistics::ResponseStatisticsObject;
use base::metrics::StageTimes;

functions! {
    TRITONBACKEND_ModelInstanceReportStatistics(
        instance: Handle<InstanceObject>, request: Handle<RequestObject>, success: bool, exec_start: u64,
        compute_start: u64, compute_end: u64, exec_end: u64
    ) {
        instance.get()?;
        let times = times([exec_start, compute_start, compute_end, exec_end]);
        request.get()?.answers.report(success, times);
        Ok(())
    }

    TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance: Handle<InstanceObject>, batch_size: u64, exec_start: u64, compute_start: u64, compute_end: u64,
        exec_end: u64
    ) {
        if let Some(execution) = instance.get()?.execution_to_report() {
            let times = times([exec_start, compute_start, compute_end, exec_end]);
            execution.report(u32::try_from(batch_size).unwrap_or(u32::MAX), times);
        }
        Ok(())
    }

    TRITONBACKEND_ModelInstanceResponseStatisticsNew(statistics: Out<Handle<ResponseStatisticsObject>>) {
        let owned = Owned::new(ResponseStatisticsObject::default());
        statistics.set(owned.handle())?;
        owned.into_handle();
        Ok(())
    }

    TRITONBACKEND_ModelInstanceResponseStatisticsDelete(statistics: Handle<ResponseStatisticsObject>) {
        statistics.delete()
    }

    TRITONBACKEND_ModelInstanceResponseStatisticsSetModelInstance(
        statistics: Handle<ResponseStatisticsObject>, instance: Handle<InstanceObject>
    ) {
        instance.get()?;
        statistics.get()?.change(|report| report.has_instance = true);
        Ok(())
    }

    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseFactory(
        statistics: Handle<ResponseStatisticsObject>, factory: Handle<FactoryObject>
    ) {
        let reports = Arc::clone(factory.get()?.answers.response_reports());
        statistics.get()?.change(|report| report.reports = Some(reports));
        Ok(())
    }

    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseStart(
        statistics: Handle<ResponseStatisticsObject>, time: u64
    ) {
        statistics.get()?.change(|report| report.start = time);
        Ok(())
    }

    TRITONBACKEND_ModelInstanceResponseStatisticsSetComputeOutputStart(
        statistics: Handle<ResponseStatisticsObject>, time: u64
    ) {
        statistics.get()?.change(|report| report.output_start = time);
        Ok(())
    }

    TRITONBACKEND_ModelInstanceResponseStatisticsSetResponseEnd(
        statistics: Handle<ResponseStatisticsObject>, time: u64
    ) {
        statistics.get()?.change(|report| report.end = time);
        Ok(())
    }

    TRITONBACKEND_ModelInstanceResponseStatisticsSetError(
        statistics: Handle<ResponseStatisticsObject>, error: ErrorHandle
    ) {
        let error = error.get_if_given()?.map(|error| error.to_error().code());
        statistics.get()?.change(|report| report.error = error);
        Ok(())
    }

    TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics: Handle<ResponseStatisticsObject>) {
        statistics.get()?.report()
    }
}

/// The times between the instants of a report, in nanoseconds of the backend's own clock.
fn times([exec_start, compute_start, compute_end, exec_end]: [u64; 4]) -> StageTimes {
    let between = |from: u64, until: u64| Duration::from_nanos(until.saturating_sub(from));
    StageTimes {
        input: between(exec_start, compute_start),
        infer: between(compute_start, compute_end),
        output: between(compute_end, exec_end),
    }
}
