//! The parts of a gRPC call that all kinds share: its metadata, its faults and its end.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::connection::http2::{CallFault, CallStatus};
use crate::error::{Code, Error, RetryAfter};
use crate::policy::PolicyProtocol;
use crate::protocol::grpc::status;
use crate::protocol::policy::{self, ForwardedFields};
use crate::runtime::clock;
use crate::shard::Shard;
use crate::shard::requests::http2_link::Http2Link;
use crate::wire::http2::StreamId;

/// Returns the header fields of a call that are forwarded to its model.
pub(super) fn forwarded(shard: &Shard, link: &Http2Link, stream: StreamId) -> Option<ForwardedFields> {
    let policy = &shard.server_context.policy.grpc;
    policy.forwarded.as_ref()?;
    let fields = link.with(|connection| connection.take_fields(stream));
    policy::forwarded(policy, PolicyProtocol::Grpc, shard.requests.admission.needs_keys(), || fields.as_deref())
}

/// The error of a call whose messages did not come as they must.
pub(super) fn fault_error(fault: CallFault) -> Error {
    match fault {
        CallFault::Deadline => Error::new(Code::DeadlineExceeded, "Deadline Exceeded"),
        CallFault::Gather(error) => status::gather_error(error),
        CallFault::Late => Error::new(Code::DeadlineExceeded, "the request did not arrive in time"),
        CallFault::Memory(shortage) => shortage.into(),
        CallFault::Missing => Error::internal("a unary call has one message, and none came"),
        CallFault::More => Error::internal("a unary call has one message, and more came"),
        CallFault::Truncated => status::truncated(),
    }
}

/// Ends a call: with an error, or well.
pub(super) fn end(link: &Http2Link, stream: StreamId, error: Option<&Error>) {
    let status = error.map(|error| {
        let (code, text) = status::trailers(error);
        let fields = match error.code() {
            // The time of a retry, for a client that retries by itself (gRPC proposal A6,
            // "Pushback").
            Code::Exhausted | Code::RateLimited => error.retry_after(),
            _ => None,
        };
        let pushback = |wait: RetryAfter| ("grpc-retry-pushback-ms", Cow::Owned(wait.millis().to_string()));
        CallStatus { code, text: text.into_owned(), fields: SmallVec::from_iter(fields.map(pushback)) }
    });
    link.with(|connection| connection.end_call(stream, status, clock::now()));
}
