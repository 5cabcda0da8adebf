//! What all readers of calls share: bounds, names, and whether a group of calls goes on.

/// The longest name of a function or of a parameter, with what stands around it. A longer one is text.
pub(super) const MAX_NAME_BYTES: usize = 512;
/// How deep brackets of arguments may nest where they are read and not only passed on.
pub(super) const MAX_DEPTH: usize = 64;

/// Whether this can be the name of a function or a parameter.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control() || "<>{}()[]\"'".contains(c))
}

/// Whether a group of calls goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    /// It does.
    More,
    /// It is over; what was read since the mark says nothing.
    Done,
}
