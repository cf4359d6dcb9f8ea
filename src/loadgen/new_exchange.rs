//! Makes the protocol of a new connection, with TLS around it if the server has it. Pure.

use crate::loadgen::exchange::Exchange;
use crate::loadgen::http1::Http1Exchange;
use crate::loadgen::http2::Http2Exchange;
use crate::loadgen::request::RequestPlan;
use crate::loadgen::target::Protocol;
use crate::loadgen::tls::TlsExchange;

/// The protocol of a new connection for the requests of a plan. Bodies of successes are stored if `keeps_bodies`.
pub fn new_exchange(plan: &RequestPlan, keeps_bodies: bool) -> Box<dyn Exchange> {
    let exchange: Box<dyn Exchange> = match plan.protocol {
        Protocol::Http => Box::new(Http1Exchange::new(keeps_bodies)),
        Protocol::Grpc => {
            let exchange = Http2Exchange::new(&plan.address.authority(), &plan.fields, keeps_bodies);
            Box::new(exchange.with_scheme(if plan.tls.is_some() { "https" } else { "http" }))
        }
    };
    match &plan.tls {
        Some(config) => Box::new(TlsExchange::new(config, plan.protocol, exchange)),
        None => exchange,
    }
}
