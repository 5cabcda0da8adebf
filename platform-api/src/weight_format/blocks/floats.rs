//! Numbers in a block's bytes, little-endian.

use super::super::tables::f16_to_f32;

/// The f16 at `at`.
pub(super) fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16_to_f32([bytes[at], bytes[at + 1]])
}

/// The u16 at `at`.
pub(super) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The u32 at `at`.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
