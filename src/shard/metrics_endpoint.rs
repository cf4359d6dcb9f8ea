//! The metrics endpoint: `/metrics` is the sum over all shards; any other path is an empty 200, as in tritonserver.

use std::rc::Rc;

use bytes::Bytes;

use crate::error::{Code, Error};
use crate::policy::PolicyProtocol;
use crate::protocol::policy::ApiPart;
use crate::protocol::rest;
use crate::runtime::socket::ByteStream;
use crate::shard::connections::ConnectionGuard;
use crate::shard::connections::ConnectionRights;
use crate::shard::metrics_text;
use crate::shard::{Shard, http1};
use crate::wire::message::{Message, Method, Reply};

/// Serves one connection to its end.
pub async fn run(shard: &Rc<Shard>, socket: impl ByteStream, connection_guard: &ConnectionGuard) {
    let shard = Rc::clone(shard);
    let own = Rc::clone(&shard);
    let answer = move |message: Message, _| {
        let shard = Rc::clone(&own);
        async move { Some(reply(&shard, &message).await) }
    };
    let guard = (connection_guard, Rc::default());
    let _ = http1::serve(&shard, (socket, false), Vec::new(), guard, Rc::default(), answer).await;
}

async fn reply(shard: &Shard, message: &Message) -> Reply {
    let (part, rights) = (ApiPart::METRICS, ConnectionRights::default());
    if let Err(error) = shard.admit(PolicyProtocol::Http, part, rights, |name| message.fields.get(name)) {
        return rest::error_reply(&error);
    }
    if !matches!(message.method, Method::Get | Method::Head) {
        let mut reply = rest::error_reply(&Error::new(Code::MethodNotAllowed, "Method Not Allowed"));
        reply.fields.push(("Allow", Bytes::from_static(b"GET, HEAD")));
        return reply;
    }
    match &message.path[..] {
        b"/metrics" | b"/metrics/" => metrics_text::reply(shard).await,
        _ => Reply::new(200, metrics_text::CONTENT_TYPE, Bytes::new()),
    }
}
