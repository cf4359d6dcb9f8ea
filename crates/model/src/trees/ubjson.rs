//! UBJSON (draft 12), as far as XGBoost writes it: a binary JSON, big-endian. Typed arrays stay as
//! bytes. Nesting is bounded by `JSON_DEPTH_MAX`, the number of values by `TREE_VALUES_MAX`: each
//! becomes much larger in memory than in the file.

use std::borrow::Cow;

use crate::limits::TREE_VALUES_MAX;
use crate::trees::TreeFault;
use crate::trees::value::{NumberArray, TreeValue};
use base::limits::JSON_DEPTH_MAX;

/// Reads a document.
///
/// # Errors
///
/// If it is not UBJSON, with the offset.
pub(super) fn decode(file: &[u8]) -> Result<TreeValue<'_>, TreeFault> {
    let mut reader = UbjsonReader { rest: file, size: file.len(), values: 0 };
    let kind = reader.byte()?;
    let value = reader.value(kind, 0)?;
    if reader.rest.is_empty() { Ok(value) } else { Err(reader.fault("something follows the document").into()) }
}

struct UbjsonReader<'a> {
    rest: &'a [u8],
    size: usize,
    values: usize,
}

impl<'a> UbjsonReader<'a> {
    fn fault(&self, why: &str) -> String {
        format!("{why} at byte {}", self.size.saturating_sub(self.rest.len()))
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.rest.split_at_checked(size).ok_or_else(|| self.fault("the file is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn word<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (word, rest) = self.rest.split_first_chunk().ok_or_else(|| self.fault("the file is cut off"))?;
        self.rest = rest;
        Ok(*word)
    }

    /// The next byte that is not a no-op.
    fn byte(&mut self) -> Result<u8, String> {
        loop {
            let [byte] = self.word()?;
            if byte != b'N' {
                return Ok(byte);
            }
        }
    }

    fn integer(&mut self, kind: u8) -> Result<i64, String> {
        Ok(match kind {
            b'i' => i8::from_be_bytes(self.word()?).into(),
            b'U' => u8::from_be_bytes(self.word()?).into(),
            b'I' => i16::from_be_bytes(self.word()?).into(),
            b'l' => i32::from_be_bytes(self.word()?).into(),
            b'L' => i64::from_be_bytes(self.word()?),
            _ => return Err(self.fault("expected an integer")),
        })
    }

    fn length(&mut self) -> Result<usize, String> {
        let kind = self.byte()?;
        let length = self.integer(kind)?;
        usize::try_from(length).map_err(|_| self.fault("a length is negative"))
    }

    fn text(&mut self) -> Result<Cow<'a, str>, String> {
        let length = self.length()?;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| self.fault("a string is not UTF-8"))
    }

    fn value(&mut self, kind: u8, depth: usize) -> Result<TreeValue<'a>, String> {
        self.values = self.values.saturating_add(1);
        if self.values > TREE_VALUES_MAX {
            return Err(format!("it has more than {TREE_VALUES_MAX} values outside of arrays of numbers"));
        }
        if depth > JSON_DEPTH_MAX {
            return Err(format!("it is nested deeper than {JSON_DEPTH_MAX}"));
        }
        Ok(match kind {
            b'Z' => TreeValue::Null,
            b'T' => TreeValue::Bool(true),
            b'F' => TreeValue::Bool(false),
            b'd' => TreeValue::Number(f32::from_be_bytes(self.word()?).into()),
            b'D' => TreeValue::Number(f64::from_be_bytes(self.word()?)),
            b'C' => {
                self.take(1)?;
                TreeValue::Null
            }
            b'S' => TreeValue::Text(self.text()?),
            b'[' => self.array(depth)?,
            b'{' => self.object(depth)?,
            #[expect(clippy::cast_precision_loss, reason = "no integer of a model outside of typed arrays is so large")]
            _ => TreeValue::Number(self.integer(kind)? as f64),
        })
    }

    /// The type and the number of elements that a container declares.
    fn container(&mut self) -> Result<(Option<u8>, Option<usize>), String> {
        let kind = match self.rest {
            [b'$', kind, rest @ ..] => {
                self.rest = rest;
                Some(*kind)
            }
            _ => None,
        };
        let count = match self.rest {
            [b'#', rest @ ..] => {
                self.rest = rest;
                Some(self.length()?)
            }
            _ if kind.is_some() => return Err(self.fault("a typed container has no count")),
            _ => None,
        };
        Ok((kind, count))
    }

    fn array(&mut self, depth: usize) -> Result<TreeValue<'a>, String> {
        let (kind, count) = self.container()?;
        if let (Some(kind), Some(count)) = (kind, count)
            && let Some(size) = number_size(kind)
        {
            let size = count.checked_mul(size).ok_or_else(|| self.fault("an array is too long"))?;
            return Ok(TreeValue::Numbers(NumberArray::Binary(kind, self.take(size)?)));
        }
        let mut values = Vec::new();
        while count.is_none_or(|count| values.len() < count) {
            let kind = match kind {
                Some(kind) => kind,
                None => self.byte()?,
            };
            if kind == b']' && count.is_none() {
                break;
            }
            values.push(self.value(kind, depth.saturating_add(1))?);
        }
        Ok(TreeValue::List(values))
    }

    fn object(&mut self, depth: usize) -> Result<TreeValue<'a>, String> {
        let (kind, count) = self.container()?;
        let mut members = Vec::new();
        while count.is_none_or(|count| members.len() < count) {
            if count.is_none() && self.rest.first() == Some(&b'}') {
                self.byte()?;
                break;
            }
            let name = self.text()?;
            let kind = match kind {
                Some(kind) => kind,
                None => self.byte()?,
            };
            members.push((name, self.value(kind, depth.saturating_add(1))?));
        }
        Ok(TreeValue::Members(members))
    }
}

const fn number_size(kind: u8) -> Option<usize> {
    match kind {
        b'i' | b'U' => Some(1),
        b'I' => Some(2),
        b'l' | b'd' => Some(4),
        b'L' | b'D' => Some(8),
        _ => None,
    }
}
