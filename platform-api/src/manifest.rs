//! The manifest: JSON in the ELF section [`SECTION`], read before any foreign code runs; and what the export macros
//! make of it.
//!
//! A library holds one or more plugins, each with a manifest of its own (the section is their concatenation, NUL bytes
//! between them allowed) and its own entry symbol, named in the manifest. Keys: `manifest` (1), `kind` (`platform` |
//! `stat-logger` | `io-processor` | `lora-resolver` | `logits-processor`), `name`, `version`, `abi` (`major.minor`),
//! `entry` (symbol), `priority` (integer; negative: only when asked for by name), `about`, `cpu_features`
//! (comma-separated, as `/proc/cpuinfo` names them, may be empty).

use crate::abi::tables::EntryFn;

/// The ELF section that holds manifests.
pub const SECTION: &str = ".halyard.manifest";

/// A plugin that is linked into this program: it passes through the same entry and tables as a loaded one.
#[derive(Clone, Copy, Debug)]
pub struct LinkedPlugin {
    /// The manifest's JSON.
    pub manifest: &'static str,
    /// The entry.
    pub entry: EntryFn,
}

/// Stops the build when a text of an export macro would break the manifest's JSON.
pub const fn plain_text(text: &str) {
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        assert!(
            bytes[i] >= b' ' && bytes[i] != b'"' && bytes[i] != b'\\',
            "a text of a plugin manifest has a quote, a backslash or a control character"
        );
        i += 1;
    }
}

/// The text's bytes as an array, for the section.
pub const fn section_bytes<const N: usize>(text: &str) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(text.as_bytes());
    out
}
