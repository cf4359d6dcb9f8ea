//! The metrics endpoint: `/metrics` is the sum over all shards, `/` the console for clients that
//! may see it. Any other path is an empty 200, as in tritonserver.

use std::rc::Rc;

use bytes::Bytes;

use crate::budget::ReceiveReservation;
use crate::error::{Code, Error};
use crate::policy::PolicyProtocol;
use crate::protocol::front_end::FrontEnd;
use crate::protocol::policy::ApiPart;
use crate::protocol::rest;
use crate::runtime::socket::ByteStream;
use crate::shard::Shard;
use crate::shard::connections::ConnectionGuard;
use crate::shard::connections::ConnectionRights;
use crate::shard::services::console::{self, ConsoleRequest};
use crate::shard::services::metrics_text;
use crate::shard::sessions::http1::{self, Http1Start, RestAnswer};
use crate::wire::message::{Message, Method, Reply};

/// Serves one connection to its end.
pub async fn run(shard: &Rc<Shard>, socket: impl ByteStream, connection_guard: &ConnectionGuard) {
    let rules = shard.server_context.service.console;
    let is_console_shown = console::is_shown(rules.audience, || socket.peer());
    let rest = RestAnswer::new(shard, shard.requests.access.peer(&socket), connection_guard, FrontEnd::Kserve);
    let (parts, http_trace) = (Rc::clone(&rest.parts), Rc::clone(&rest.http_trace));
    let own = Rc::clone(shard);
    let answer = move |message: Message, memory: ReceiveReservation| {
        let (shard, rest) = (Rc::clone(&own), rest.clone());
        async move {
            let asked = if is_console_shown { console::read(rules, &message) } else { Ok(None) };
            match asked {
                Ok(Some(ConsoleRequest::Rest | ConsoleRequest::Change)) => Box::pin(rest.run(message, memory)).await,
                Ok(asked) => Some(reply(&shard, &message, asked).await),
                Err(error) => Some(rest::error_reply(&error)),
            }
        }
    };
    let start = Http1Start { socket, first: Vec::new(), may_rest: false, connection_guard, http_trace, parts };
    let _ = http1::serve(shard, start, answer).await;
}

async fn reply(shard: &Shard, message: &Message, asked: Option<ConsoleRequest>) -> Reply {
    if let Some(ConsoleRequest::File(content_type, bytes)) = asked {
        // Without a key, so that the page can ask for one.
        return console::file_reply(content_type, bytes);
    }
    let part = match asked {
        Some(ConsoleRequest::Log(_)) if shard.server_context.policy.is_admin_closed => {
            let text = "with --admin-socket the console does not show the log";
            return rest::error_reply(&Error::new(Code::Forbidden, text));
        }
        Some(ConsoleRequest::Log(_)) => ApiPart::LOG_LINES,
        _ => ApiPart::METRICS,
    };
    let rights = ConnectionRights::default();
    if let Err(error) =
        shard.requests.admission.admit(PolicyProtocol::Http, part, rights, |name| message.fields.get(name))
    {
        return rest::error_reply(&error);
    }
    match asked {
        Some(ConsoleRequest::Log(number)) => return console::log_reply(number).await,
        Some(ConsoleRequest::Server) => return console::server_reply(shard.server_context.service.console),
        _ => {}
    }
    if !matches!(message.method, Method::Get | Method::Head) {
        let mut reply = rest::error_reply(&Error::new(Code::MethodNotAllowed, "Method Not Allowed"));
        reply.fields.push(("Allow", Bytes::from_static(b"GET, HEAD")));
        return reply;
    }
    match &message.path[..] {
        b"/metrics" | b"/metrics/" => metrics_text::reply(shard, message.fields.get("accept")).await,
        _ => Reply::new(200, metrics_text::CONTENT_TYPE, Bytes::new()),
    }
}
