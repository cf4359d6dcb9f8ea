//! Details of a request beside its tensors, for models that look at them ([`ModelSpec::takes_details`]). Of requests to
//! other models only an id is kept, for the line of a crash. Called by [`crate::shard::requests::infer`], once for each model
//! that a request reaches.
//!
//! [`ModelSpec::takes_details`]: crate::model::ModelSpec::takes_details

use std::mem::take;
use std::sync::Arc;

use crate::backend::RequestDetails;
use crate::backend::details::{CallChain, FLAG_SEQUENCE_END, FLAG_SEQUENCE_START};
use crate::backend::gpu::DeviceTensors;
use crate::model::SequenceMark;
use crate::protocol::infer::{InferRequest, SequenceParameters};
use crate::time::Instant;
use crate::trace::ActiveTrace;

/// The details of a request, whose parameters are taken; `None` if it has nothing beside its
/// tensors. `deadline` is the client's, `is_step` is true for a step of an ensemble, `chain` has
/// the models whose calls led to the request.
pub(super) fn take_details(
    request: &mut InferRequest,
    deadline: Option<Instant>,
    is_step: bool,
    chain: &CallChain,
    trace: Option<&Arc<ActiveTrace>>,
) -> Option<Arc<RequestDetails>> {
    let SequenceParameters { id: correlation_id, is_start, is_end } = request.sequence.clone();
    let details = RequestDetails {
        id: request.plan.id.clone(),
        correlation_id,
        flags: flags(is_start, is_end),
        timeout: request.timeout,
        priority: request.priority,
        parameters: take(&mut request.parameters),
        trace: trace.and_then(|trace| trace.context()),
        active_trace: trace.cloned(),
        deadline,
        chain: chain.clone(),
        is_step,
        on_device: None,
    };
    (details != RequestDetails::default()).then(|| Arc::new(details))
}

/// The id of a request to a model that does not look, for the line of a crash; `None` if the client gave none.
pub(super) fn id_only(request: &InferRequest) -> Option<Arc<RequestDetails>> {
    let id = &request.plan.id;
    (!id.is_empty()).then(|| Arc::new(RequestDetails { id: id.clone(), ..RequestDetails::default() }))
}

/// The details of a request that was put into a sequence of its own (iterative sequences): its model sees the id and
/// the flags of that, as in Triton.
pub(super) fn in_sequence(details: Option<Arc<RequestDetails>>, mark: &SequenceMark) -> Arc<RequestDetails> {
    let details = details.map(Arc::unwrap_or_clone).unwrap_or_default();
    let (correlation_id, flags) = (Some(mark.id.clone()), flags(mark.is_start, mark.is_end));
    Arc::new(RequestDetails { correlation_id, flags, ..details })
}

/// The details of a request that has tensors on a device.
pub(super) fn on_device_too(
    details: Option<Arc<RequestDetails>>,
    on_device: Option<Arc<DeviceTensors>>,
) -> Arc<RequestDetails> {
    let details = details.map(Arc::unwrap_or_clone).unwrap_or_default();
    Arc::new(RequestDetails { on_device, ..details })
}

fn flags(is_start: bool, is_end: bool) -> u32 {
    let start = if is_start { FLAG_SEQUENCE_START } else { 0 };
    start | if is_end { FLAG_SEQUENCE_END } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::CorrelationId;
    use crate::model::parameters::{ParameterValue, Parameters};
    use crate::protocol::infer::ResponsePlan;

    fn request() -> InferRequest {
        InferRequest {
            inputs: Vec::new(),
            rows: 1,
            priority: 0,
            timeout: Duration::ZERO,
            sequence: SequenceParameters::default(),
            parameters: Parameters::default(),
            plan: ResponsePlan::default(),
        }
    }

    fn details(
        request: &mut InferRequest,
        deadline: Option<Instant>,
        is_step: bool,
        chain: &CallChain,
    ) -> Option<Arc<RequestDetails>> {
        take_details(request, deadline, is_step, chain, None)
    }

    #[test]
    fn a_request_that_says_nothing_has_no_details() {
        assert_eq!(details(&mut request(), None, false, &CallChain::default()), None);
        let step = details(&mut request(), None, true, &CallChain::default());
        assert!(step.is_some_and(|details| details.is_step), "of a step of an ensemble that is said");
    }

    #[test]
    fn all_that_a_request_says_is_in_its_details_and_the_flags_also_outside_of_a_sequence() {
        let id = CorrelationId::from_number(9);
        let parameters = Parameters(vec![("mine".to_owned(), ParameterValue::Double(0.5))]);
        let deadline = Some(Instant::from_micros(8));
        let chain = CallChain::default().with("a".into(), 1, "a_0_0".into());
        let said = InferRequest {
            priority: 3,
            timeout: Duration::from_micros(5),
            sequence: SequenceParameters { id: id.clone(), is_start: true, is_end: true },
            parameters: parameters.clone(),
            plan: ResponsePlan { id: "7".to_owned(), ..ResponsePlan::default() },
            ..request()
        };
        let want = RequestDetails {
            id: "7".to_owned(),
            correlation_id: id.clone(),
            flags: 3,
            timeout: Duration::from_micros(5),
            priority: 3,
            parameters,
            trace: None,
            active_trace: None,
            deadline,
            chain: chain.clone(),
            is_step: false,
            on_device: None,
        };
        let mut request_said = said.clone();
        assert_eq!(details(&mut request_said, deadline, false, &chain).as_deref(), Some(&want));
        assert!(request_said.parameters.is_empty(), "they are taken");

        // Each of them alone requires details.
        let none = CallChain::default();
        let check = |change: fn(&mut InferRequest, &InferRequest), want: RequestDetails| {
            let mut request = request();
            change(&mut request, &said);
            assert_eq!(details(&mut request, None, false, &none).as_deref(), Some(&want));
        };
        let with = RequestDetails::default;
        check(
            |request, said| request.plan.id.clone_from(&said.plan.id),
            RequestDetails { id: "7".to_owned(), ..with() },
        );
        check(
            |request, said| request.sequence.id.clone_from(&said.sequence.id),
            RequestDetails { correlation_id: id, ..with() },
        );
        check(|request, _| request.sequence.is_start = true, RequestDetails { flags: 1, ..with() });
        check(|request, _| request.sequence.is_end = true, RequestDetails { flags: 2, ..with() });
        check(|request, said| request.priority = said.priority, RequestDetails { priority: 3, ..with() });
        check(|request, said| request.timeout = said.timeout, RequestDetails { timeout: want.timeout, ..with() });
        check(
            |request, said| request.parameters.clone_from(&said.parameters),
            RequestDetails { parameters: want.parameters.clone(), ..with() },
        );
        let late = details(&mut request(), deadline, false, &none);
        assert_eq!(late.as_deref(), Some(&RequestDetails { deadline, ..with() }));
        let called = details(&mut request(), None, false, &chain);
        assert_eq!(called.as_deref(), Some(&RequestDetails { chain, ..with() }));
    }

    #[test]
    fn a_sequence_of_its_own_replaces_what_the_client_said_of_one() {
        let mark = SequenceMark { id: CorrelationId::Own(4), is_start: true, is_end: false };
        let said = RequestDetails { id: "7".to_owned(), flags: 2, ..RequestDetails::default() };
        let want = RequestDetails { correlation_id: Some(CorrelationId::Own(4)), flags: 1, ..said.clone() };
        assert_eq!(*in_sequence(Some(Arc::new(said)), &mark), want);
        assert_eq!(*in_sequence(None, &mark), RequestDetails { id: String::new(), ..want });
    }
}
