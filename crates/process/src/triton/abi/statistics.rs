//! The reports of backends on their work: `TRITONBACKEND_ModelInstanceReport*Statistics` and the
//! objects of those.

use crate::triton::abi::functions;
use crate::triton::answers::ReportedTimes;
use crate::triton::error::ErrorHandle;
use crate::triton::instance_object::InstanceObject;
use crate::triton::object::{Handle, Out, Owned};
use crate::triton::request::RequestObject;
use crate::triton::response::FactoryObject;
use crate::triton::statistics::ResponseStatisticsObject;

functions! {
    // The outcome is that of the response; the times are taken over.
    TRITONBACKEND_ModelInstanceReportStatistics(
        instance: Handle<InstanceObject>, request: Handle<RequestObject>, _success: bool, _exec_start: u64,
        compute_start: u64, compute_end: u64, exec_end: u64
    ) {
        instance.get()?;
        request.get()?.answers.report(ReportedTimes { compute_start, compute_end, exec_end });
        Ok(())
    }

    // The server counts a batch itself, with the first of its answers.
    TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance: Handle<InstanceObject>, _batch_size: u64, _exec_start: u64, _compute_start: u64,
        _compute_end: u64, _exec_end: u64
    ) {
        instance.get().map(drop)
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
        factory.get()?;
        statistics.get()?.change(|report| report.has_factory = true);
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
        statistics.get()?;
        error.get_if_given().map(drop)
    }

    TRITONBACKEND_ModelInstanceReportResponseStatistics(statistics: Handle<ResponseStatisticsObject>) {
        statistics.get()?.check()
    }
}
