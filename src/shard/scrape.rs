//! The metrics port: `/metrics` as the sum over all shards; any other path is an empty 200, as
//! tritonserver answers.

use std::rc::Rc;

use bytes::Bytes;

use crate::error::{Code, Error};
use crate::metrics;
use crate::protocol::rest;
use crate::shard::connections::Membership;
use crate::shard::io::Socket;
use crate::shard::{Shard, World, http1};
use crate::wire::message::{Message, Method, Reply};

/// Serves one connection to its end.
pub async fn run(shard: &Rc<Shard>, socket: Socket, membership: &Membership) {
    let shard = Rc::clone(shard);
    let world = Rc::clone(&shard);
    let answer = move |message: Message| {
        let reply = reply(&world.world, &message);
        async move { reply }
    };
    http1::serve(&shard, socket, Vec::new(), membership, answer).await;
}

fn reply(world: &World, message: &Message) -> Reply {
    if !matches!(message.method, Method::Get | Method::Head) {
        return rest::error_reply(&Error::new(Code::MethodNotAllowed, "Method Not Allowed"));
    }
    let body = match &message.path[..] {
        b"/metrics" | b"/metrics/" => Bytes::from(text(world)),
        _ => Bytes::new(),
    };
    Reply::new(200, "text/plain; charset=utf-8", body)
}

fn text(world: &World) -> String {
    let models: Vec<_> = world.served.iter().map(|served| served.figures()).collect();
    let shards: Vec<_> = world.shard_cells.iter().map(|cells| &**cells).collect();
    metrics::encode(&models, &shards)
}
