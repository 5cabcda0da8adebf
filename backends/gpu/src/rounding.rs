//! The option that decides whether products round tokens to 8 bits where an op allows it. Each platform reads it from
//! its own variables.

use std::ffi::OsString;

/// When tokens are rounded to 8 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// They are not.
    Never,
    /// Where the device multiplies and adds bytes fast.
    WhereFast,
    /// On every device that can.
    Always,
}

impl Rounding {
    /// What a variable's value says: `force` always, nothing or `0` never, anything else where it is fast.
    pub fn asked(value: Option<OsString>) -> Rounding {
        match value {
            Some(value) if value == "force" => Rounding::Always,
            Some(value) if !value.is_empty() && value != "0" => Rounding::WhereFast,
            _ => Rounding::Never,
        }
    }
}
