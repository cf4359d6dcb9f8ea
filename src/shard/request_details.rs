//! What models that look see of a request beside its tensors ([`ModelSpec::takes_details`]). Other models are not told,
//! so that their requests pay nothing. Called by [`crate::shard::infer`], once for each model that a request reaches.
//!
//! [`ModelSpec::takes_details`]: crate::model::ModelSpec::takes_details

use std::mem::take;
use std::sync::Arc;

use crate::backend::RequestDetails;
use crate::backend::details::{FLAG_SEQUENCE_END, FLAG_SEQUENCE_START};
use crate::model::SequenceMark;
use crate::protocol::infer::{InferRequest, SequenceParameters};
use crate::shard::infer::Arrival;

/// The details of a request, whose parameters are taken; `None` where it says nothing beside its tensors.
pub(super) fn take_details(request: &mut InferRequest, arrival: &Arrival) -> Option<Arc<RequestDetails>> {
    let SequenceParameters { id: correlation_id, is_start, is_end } = request.sequence.clone();
    let details = RequestDetails {
        id: request.plan.id.clone(),
        correlation_id,
        flags: flags(is_start, is_end),
        timeout: request.timeout,
        priority: request.priority,
        parameters: take(&mut request.parameters),
        trace: None,
        deadline: arrival.deadline,
        chain: arrival.chain.clone(),
    };
    (details != RequestDetails::default()).then(|| Arc::new(details))
}

/// The details of a request that was put into a sequence of its own (iterative sequences): its model sees the id and
/// the flags of that, as in Triton.
pub(super) fn in_sequence(details: Option<Arc<RequestDetails>>, mark: &SequenceMark) -> Arc<RequestDetails> {
    let details = details.map(Arc::unwrap_or_clone).unwrap_or_default();
    let (correlation_id, flags) = (Some(mark.id.clone()), flags(mark.is_start, mark.is_end));
    Arc::new(RequestDetails { correlation_id, flags, ..details })
}

fn flags(is_start: bool, is_end: bool) -> u32 {
    let start = if is_start { FLAG_SEQUENCE_START } else { 0 };
    start | if is_end { FLAG_SEQUENCE_END } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::details::CallChain;
    use crate::model::CorrelationId;
    use crate::model::parameters::{ParameterValue, Parameters};
    use crate::protocol::infer::ResponsePlan;
    use crate::time::Instant;

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

    fn arrival() -> Arrival {
        Arrival { received: Instant::ZERO, deadline: None, depth: 0, chain: CallChain::default() }
    }

    #[test]
    fn a_request_that_says_nothing_has_no_details() {
        assert_eq!(take_details(&mut request(), &arrival()), None);
    }

    #[test]
    fn all_that_a_request_says_is_in_its_details_and_the_flags_also_outside_of_a_sequence() {
        let check = |change: fn(&mut InferRequest, &mut Arrival), want: fn(&mut RequestDetails)| {
            let (mut request, mut arrival, mut details) = (request(), arrival(), RequestDetails::default());
            change(&mut request, &mut arrival);
            want(&mut details);
            assert_eq!(take_details(&mut request, &arrival).as_deref(), Some(&details));
            assert!(request.parameters.is_empty(), "they are taken");
        };
        check(|request, _| request.plan.id = "7".to_owned(), |details| details.id = "7".to_owned());
        check(|request, _| request.sequence.id = id(9), |details| details.correlation_id = id(9));
        check(|request, _| request.sequence.is_start = true, |details| details.flags = 1);
        check(|request, _| request.sequence.is_end = true, |details| details.flags = 2);
        check(
            |request, _| (request.sequence.is_start, request.sequence.is_end) = (true, true),
            |details| details.flags = 3,
        );
        check(|request, _| request.priority = 3, |details| details.priority = 3);
        check(
            |request, _| request.timeout = Duration::from_micros(5),
            |details| details.timeout = Duration::from_micros(5),
        );
        check(|request, _| request.parameters = parameters(), |details| details.parameters = parameters());
        check(
            |_, arrival| arrival.deadline = Some(Instant::from_micros(8)),
            |details| details.deadline = Some(Instant::from_micros(8)),
        );
        check(|_, arrival| arrival.chain = chain(), |details| details.chain = chain());
    }

    #[test]
    fn a_sequence_of_its_own_replaces_what_the_client_said_of_one() {
        let mark = SequenceMark { id: CorrelationId::Own(4), is_start: true, is_end: false };
        let said = RequestDetails { id: "7".to_owned(), flags: 2, ..RequestDetails::default() };
        let want = RequestDetails { correlation_id: Some(CorrelationId::Own(4)), flags: 1, ..said.clone() };
        assert_eq!(*in_sequence(Some(Arc::new(said)), &mark), want);
        assert_eq!(*in_sequence(None, &mark), RequestDetails { id: String::new(), ..want });
    }

    fn id(number: u64) -> Option<CorrelationId> {
        CorrelationId::from_number(number)
    }

    fn parameters() -> Parameters {
        Parameters(vec![("mine".to_owned(), ParameterValue::Double(f64::MAX))])
    }

    fn chain() -> CallChain {
        CallChain::default().with("a".into(), 1, "a_0_0".into())
    }
}
