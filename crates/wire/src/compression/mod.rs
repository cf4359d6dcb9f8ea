//! Compression of messages: the codings of HTTP (RFC 9110 §8.4) and of gRPC, the fields that name
//! them, and both directions in steps. Called by the shard, which yields between steps and counts
//! memory; a step does a bounded amount of work.

pub mod deflate;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod inflate;

#[cfg(test)]
mod tests;

/// A compression that this server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// `deflate`: zlib's format (RFC 1950). Bare DEFLATE, which some clients send by that name, is read too.
    Deflate,
    /// `gzip` (RFC 1952).
    Gzip,
    /// `zstd` (RFC 8878). Not one of gRPC's.
    Zstd,
}

/// The codings of a body: the value of `Accept-Encoding` in a refusal (RFC 9110 §12.5.3).
pub const HTTP_CODINGS: &str = "gzip, deflate, zstd";
/// The codings of messages: the value of `grpc-accept-encoding`, as gRPC's own libraries write it.
pub const GRPC_CODINGS: &str = "identity, deflate, gzip";

impl Coding {
    /// Returns its name in fields.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deflate => "deflate",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    fn from_name(name: &[u8]) -> Option<Self> {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match () {
            // RFC 9110 §8.4.1.3.
            () if is("gzip") || is("x-gzip") => Some(Self::Gzip),
            () if is("deflate") => Some(Self::Deflate),
            () if is("zstd") => Some(Self::Zstd),
            () => None,
        }
    }

    /// Returns the coding for responses to a gRPC client, by its `grpc-accept-encoding`, gzip
    /// before deflate.
    pub fn from_grpc_accept(value: &[u8]) -> Option<Self> {
        let has = |name: &str| list(value).any(|known| known == name.as_bytes());
        [Self::Gzip, Self::Deflate].into_iter().find(|coding| has(coding.name()))
    }
}

/// The encoding of a message, by its head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentCoding {
    /// Not encoded.
    #[default]
    Identity,
    /// Encoded once.
    Coded(Coding),
    /// Encoded in a way that this server cannot undo: unknown, or several one after the other.
    Unknown,
}

impl ContentCoding {
    /// Takes in the value of a `Content-Encoding` field; one may come several times.
    #[must_use]
    pub fn and(self, value: &[u8]) -> Self {
        list(value).filter(|name| !name.eq_ignore_ascii_case(b"identity")).fold(self, |have, name| match have {
            Self::Identity => Coding::from_name(name).map_or(Self::Unknown, Self::Coded),
            Self::Coded(_) | Self::Unknown => Self::Unknown,
        })
    }

    /// The value of `grpc-encoding`: one name, in lower case.
    pub fn from_grpc(value: &[u8]) -> Self {
        match value {
            b"identity" => Self::Identity,
            b"deflate" => Self::Coded(Coding::Deflate),
            b"gzip" => Self::Coded(Coding::Gzip),
            _ => Self::Unknown,
        }
    }
}

/// The client's wish for the encoding of its answer, by `Accept-Encoding` (RFC 9110 §12.5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptedCoding {
    /// The coding that it prefers; `None` if it prefers none, or prefers the plain answer.
    pub coding: Option<Coding>,
    /// True if it refuses a plain answer, so that a small one is encoded too.
    pub is_forced: bool,
}

impl AcceptedCoding {
    /// Reads the values of all `Accept-Encoding` fields, in order. As in Triton the highest quality
    /// wins, of equal ones the first. An asterisk asks for no coding: it allows the plain answer.
    /// If a client refuses the plain answer, an asterisk stands for gzip.
    pub fn from_fields<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let (mut best, mut quality_best) = (None, 0);
        let (mut identity, mut any, mut is_gzip_named) = (None, None, false);
        for item in values.into_iter().flat_map(list) {
            let mut parts = item.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let name = parts.next().unwrap_or_default();
            let quality = parts.find_map(quality).unwrap_or(QUALITY_MAX);
            let coding = match name {
                b"*" => {
                    any = any.or(Some(quality));
                    continue;
                }
                name if name.eq_ignore_ascii_case(b"identity") => {
                    identity = identity.or(Some(quality));
                    None
                }
                name => match Coding::from_name(name) {
                    Some(coding) => Some(coding),
                    None => continue,
                },
            };
            is_gzip_named |= coding == Some(Coding::Gzip);
            if quality > quality_best {
                (best, quality_best) = (coding, quality);
            }
        }
        let is_forced = identity.or(any) == Some(0);
        if is_forced && quality_best == 0 && any.is_some_and(|quality| quality > 0) && !is_gzip_named {
            best = Some(Coding::Gzip);
        }
        Self { coding: best, is_forced: is_forced && best.is_some() }
    }
}

/// A quality of 1, in thousandths.
const QUALITY_MAX: u16 = 1_000;

/// Returns the thousandths of `q=`; `None` for another parameter. A value that is not a number is
/// 0, as in Triton.
fn quality(parameter: &[u8]) -> Option<u16> {
    let value = parameter.strip_prefix(b"q=").or_else(|| parameter.strip_prefix(b"Q="))?;
    let (whole, part) = match value {
        [whole, b'.', part @ ..] if part.len() <= 3 => (whole, part),
        [whole] => (whole, &[][..]),
        _ => return Some(0),
    };
    let digits = part.iter().chain(b"000").take(3);
    let thousandths = digits.clone().all(u8::is_ascii_digit).then(|| {
        digits.fold(u16::from(whole.wrapping_sub(b'0')), |sum, digit| {
            sum.saturating_mul(10).saturating_add(u16::from(digit - b'0'))
        })
    });
    Some(thousandths.filter(|value| *value <= QUALITY_MAX).unwrap_or(0))
}

/// The items of a list, without empty ones.
fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|item| !item.is_empty())
}
