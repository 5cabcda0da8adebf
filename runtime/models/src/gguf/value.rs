//! Typed metadata values of a GGUF file. Integer and float widths are widened (exactly) on reading:
//! writers differ in them, and no reader cares.

use super::cursor::Cursor;
use crate::error::Result;

/// Deepest nesting of arrays. The format sets no limit; real files have one level.
const MAX_ARRAY_DEPTH: u32 = 4;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// u8, u16, u32, u64.
    Unsigned(u64),
    /// i8, i16, i32, i64.
    Signed(i64),
    /// f32, f64.
    Float(f64),
    /// bool.
    Bool(bool),
    /// UTF-8 text.
    String(String),
    /// Elements of one type.
    Array(GgufArray),
}

/// The elements of an array value.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufArray {
    /// u8, u16, u32, u64.
    Unsigned(Vec<u64>),
    /// i8, i16, i32, i64.
    Signed(Vec<i64>),
    /// f32, f64.
    Float(Vec<f64>),
    /// bool.
    Bool(Vec<bool>),
    /// UTF-8 text.
    String(Vec<String>),
    /// Arrays of arrays.
    Array(Vec<GgufArray>),
}

impl GgufArray {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Unsigned(v) => v.len(),
            Self::Signed(v) => v.len(),
            Self::Float(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::Array(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl GgufValue {
    /// What kind of value it is, for messages.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a bool",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
        }
    }

    /// The value for a message; long ones are described.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Unsigned(v) => v.to_string(),
            Self::Signed(v) => v.to_string(),
            Self::Float(v) => v.to_string(),
            Self::Bool(v) => v.to_string(),
            Self::String(v) if v.len() <= 80 => format!("{v:?}"),
            Self::String(v) => format!("a string of {} bytes", v.len()),
            Self::Array(v) => format!("an array of {} elements", v.len()),
        }
    }

    pub(super) fn read(cursor: &mut Cursor, key: &str) -> Result<Self> {
        let kind = Kind::read(cursor, key)?;
        Ok(match kind {
            Kind::Array => Self::Array(read_array(cursor, key, 0)?),
            Kind::String => Self::String(cursor.string(key)?.to_owned()),
            Kind::Bool => Self::Bool(read_bool(cursor, key)?),
            Kind::Unsigned(width) => Self::Unsigned(read_unsigned(cursor, width, key)?),
            Kind::Signed(width) => Self::Signed(read_signed(cursor, width, key)?),
            Kind::Float(width) => Self::Float(read_float(cursor, width, key)?),
        })
    }
}

/// A value type of the format; the number is the width in bytes.
#[derive(Clone, Copy)]
enum Kind {
    Unsigned(u64),
    Signed(u64),
    Float(u64),
    Bool,
    String,
    Array,
}

impl Kind {
    fn read(cursor: &mut Cursor, key: &str) -> Result<Self> {
        let offset = cursor.position();
        let code = cursor.u32(key)?;
        Ok(match code {
            0 => Self::Unsigned(1),
            1 => Self::Signed(1),
            2 => Self::Unsigned(2),
            3 => Self::Signed(2),
            4 => Self::Unsigned(4),
            5 => Self::Signed(4),
            6 => Self::Float(4),
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::Unsigned(8),
            11 => Self::Signed(8),
            12 => Self::Float(8),
            _ => {
                return Err(cursor.malformed(format!("value type of `{key}`"), offset, "0 to 12", code.to_string()));
            }
        })
    }

    /// Fewest bytes that one element can take.
    fn min_bytes(self) -> u64 {
        match self {
            Self::Unsigned(width) | Self::Signed(width) | Self::Float(width) => width,
            Self::Bool => 1,
            Self::String => 8,
            Self::Array => 12,
        }
    }
}

fn read_array(cursor: &mut Cursor, key: &str, depth: u32) -> Result<GgufArray> {
    let offset = cursor.position();
    if depth >= MAX_ARRAY_DEPTH {
        return Err(cursor.malformed(
            format!("array `{key}`"),
            offset,
            format!("at most {MAX_ARRAY_DEPTH} levels of nesting"),
            "more",
        ));
    }
    let kind = Kind::read(cursor, key)?;
    let count = cursor.count(kind.min_bytes(), key)?;
    let range = 0..count;
    Ok(match kind {
        Kind::Unsigned(width) => GgufArray::Unsigned(
            range
                .map(|_| read_unsigned(cursor, width, key))
                .collect::<Result<_>>()?,
        ),
        Kind::Signed(width) => {
            GgufArray::Signed(range.map(|_| read_signed(cursor, width, key)).collect::<Result<_>>()?)
        }
        Kind::Float(width) => GgufArray::Float(range.map(|_| read_float(cursor, width, key)).collect::<Result<_>>()?),
        Kind::Bool => GgufArray::Bool(range.map(|_| read_bool(cursor, key)).collect::<Result<_>>()?),
        Kind::String => GgufArray::String(
            range
                .map(|_| cursor.string(key).map(str::to_owned))
                .collect::<Result<_>>()?,
        ),
        Kind::Array => GgufArray::Array(
            range
                .map(|_| read_array(cursor, key, depth + 1))
                .collect::<Result<_>>()?,
        ),
    })
}

fn read_unsigned(cursor: &mut Cursor, width: u64, key: &str) -> Result<u64> {
    let mut bytes = [0; 8];
    bytes[..width as usize].copy_from_slice(cursor.take(width, key)?);
    Ok(u64::from_le_bytes(bytes))
}

fn read_signed(cursor: &mut Cursor, width: u64, key: &str) -> Result<i64> {
    let unused_bits = 64 - 8 * width as u32;
    // Shifting up and back down arithmetically extends the sign.
    Ok((read_unsigned(cursor, width, key)? << unused_bits) as i64 >> unused_bits)
}

fn read_float(cursor: &mut Cursor, width: u64, key: &str) -> Result<f64> {
    if width == 4 {
        Ok(f32::from_le_bytes(cursor.array(key)?).into())
    } else {
        Ok(f64::from_le_bytes(cursor.array(key)?))
    }
}

fn read_bool(cursor: &mut Cursor, key: &str) -> Result<bool> {
    let offset = cursor.position();
    match cursor.array::<1>(key)?[0] {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(cursor.malformed(format!("bool `{key}`"), offset, "0 or 1", other.to_string())),
    }
}
