//! The target of a load, parsed from flags: protocol, address, encoding, request parameters. Pure.

use std::fmt;

/// The protocol of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC over HTTP/2.
    Grpc,
    /// HTTP/1.1.
    Http,
}

impl Protocol {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Grpc => "gRPC",
            Self::Http => "HTTP",
        }
    }
}

/// A server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// A name or an IP address; an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The path before `/v2`, without a slash at its end. Empty for gRPC.
    pub prefix: String,
    /// True if it has TLS: `https://`, `grpcs://`.
    pub has_tls: bool,
}

impl Address {
    /// Parses `host` or `host:port`, with an optional `http://` or `grpc://` before it, `https://` or `grpcs://` for TLS, and, for
    /// HTTP, an optional path behind it. The default port is Triton's: 8000 for HTTP, 8001 for gRPC.
    ///
    /// # Errors
    /// A line for the user, which says what is expected.
    pub fn parse(text: &str, protocol: Protocol) -> Result<Self, String> {
        let (has_tls, rest) = match text.split_once("://") {
            Some(("http" | "grpc", rest)) => (false, rest),
            Some(("https" | "grpcs", rest)) => (true, rest),
            Some((scheme, _)) => {
                return Err(format!("unknown scheme '{scheme}': http://host:port, with TLS https:// or grpcs://"));
            }
            None => (false, text),
        };
        let (authority, path) = rest.split_at_checked(rest.find('/').unwrap_or(rest.len())).unwrap_or((rest, ""));
        let prefix = path.trim_end_matches('/');
        if protocol == Protocol::Grpc && !prefix.is_empty() {
            return Err("a gRPC server has no path".to_owned());
        }
        if prefix.bytes().any(|byte| byte <= b' ' || byte >= 0x7f) {
            return Err("a path is printable ASCII".to_owned());
        }
        let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let usual = if protocol == Protocol::Http { 8000 } else { 8001 };
        let port = port.map_or(Ok(usual), |port| port.parse().map_err(|_| "expected host:port".to_owned()))?;
        if host.is_empty() || host.bytes().any(|byte| byte <= b' ' || byte >= 0x7f || byte == b'@') {
            return Err("expected host:port".to_owned());
        }
        Ok(Self { host: host.to_owned(), port, prefix: prefix.to_owned(), has_tls })
    }

    /// The value of `Host` and `:authority`.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.has_tls { "https://" } else { "" };
        write!(f, "{scheme}{}{}", self.authority(), self.prefix)
    }
}

/// The encoding of tensors over HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Triton's binary tensor data extension.
    Binary,
    /// JSON.
    Json,
}

/// A request parameter's value.
#[derive(Clone, Debug, PartialEq)]
pub enum RequestParameter {
    /// `bool`.
    Bool(bool),
    /// `double`.
    Double(f64),
    /// `int`.
    Int(i64),
    /// `string`.
    String(String),
    /// `uint`.
    Uint(u64),
}

impl RequestParameter {
    /// Parses `name:value:type`, as in perf_analyzer.
    ///
    /// # Errors
    /// A line for the user, which says what is expected.
    pub fn parse(text: &str) -> Result<(String, Self), String> {
        let malformed = || "expected NAME:VALUE:TYPE, the type being bool, int, uint, double or string".to_owned();
        let (rest, kind) = text.rsplit_once(':').ok_or_else(malformed)?;
        let (name, value) = rest.split_once(':').ok_or_else(malformed)?;
        let refused = || format!("'{value}' is no {kind}");
        let value = match kind {
            "bool" => Self::Bool(value.parse().map_err(|_| refused())?),
            "double" => Self::Double(value.parse().ok().filter(|value: &f64| value.is_finite()).ok_or_else(refused)?),
            "int" | "int64" => Self::Int(value.parse().map_err(|_| refused())?),
            "string" => Self::String(value.to_owned()),
            "uint" | "uint64" => Self::Uint(value.parse().map_err(|_| refused())?),
            _ => return Err(malformed()),
        };
        if name.is_empty() { Err(malformed()) } else { Ok((name.to_owned(), value)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_with_their_defaults() {
        let check = |text: &str, protocol, want: &str| {
            let got = Address::parse(text, protocol).map_or_else(|why| why, |address| address.to_string());
            assert_eq!(got, want, "{text}");
        };
        check("localhost", Protocol::Http, "localhost:8000");
        check("localhost", Protocol::Grpc, "localhost:8001");
        check("http://10.0.0.1:80/v1/ns/", Protocol::Http, "10.0.0.1:80/v1/ns");
        check("grpc://a.b:9", Protocol::Grpc, "a.b:9");
        check("[::1]:9000", Protocol::Http, "[::1]:9000");
        check("[::1]", Protocol::Http, "[::1]:8000");
        check("https://a:1/b", Protocol::Http, "https://a:1/b");
        check("grpcs://[::1]", Protocol::Grpc, "https://[::1]:8001");
        check("ftp://a", Protocol::Http, "unknown scheme 'ftp': http://host:port, with TLS https:// or grpcs://");
        check("a:70000", Protocol::Http, "expected host:port");
        check("", Protocol::Http, "expected host:port");
        check("u@a", Protocol::Http, "expected host:port");
        check("a\r\nX: y", Protocol::Http, "expected host:port");
        check("a/x", Protocol::Grpc, "a gRPC server has no path");
    }

    #[test]
    fn parameters_have_a_type() {
        let check =
            |text, name: &str, want| assert_eq!(RequestParameter::parse(text), Ok((name.to_owned(), want)), "{text}");
        check("a:1:int", "a", RequestParameter::Int(1));
        check("a:true:bool", "a", RequestParameter::Bool(true));
        check("a:b:c:string", "a", RequestParameter::String("b:c".to_owned()));
        check("a:1.5:double", "a", RequestParameter::Double(1.5));
        check("a:18446744073709551615:uint", "a", RequestParameter::Uint(u64::MAX));
        for text in ["a", "a:1", "a:x:int", "a:1:float", ":1:int", "a:inf:double"] {
            assert!(RequestParameter::parse(text).is_err(), "{text}");
        }
    }
}
