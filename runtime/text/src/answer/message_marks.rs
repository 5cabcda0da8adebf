//! How the messages of a format are marked, for the tables of formats; `messages` reads by it.

/// How the messages of a format are marked.
#[derive(Debug)]
pub(super) struct Messages {
    /// What begins a header.
    pub(super) start: &'static str,
    /// What ends a header, and what follows each.
    pub(super) bodies: &'static [(&'static str, Kind)],
    /// What ends a message.
    pub(super) ends: &'static [&'static str],
    /// The recipients that a header may name: `to=NAME`.
    pub(super) recipients: Option<&'static Recipients>,
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Reasoning,
    /// A call, from its first byte on.
    Call,
    /// What its recipient says.
    Addressed,
}

/// Whom messages are for. Others are tools.
#[derive(Debug)]
pub(super) struct Recipients {
    /// What stands before the name.
    pub(super) before: &'static str,
    /// Names of readers of thoughts; an empty one is none.
    pub(super) thoughts: &'static [&'static str],
    /// The same of text.
    pub(super) text: &'static [&'static str],
    /// Names of readers whose messages are left out.
    pub(super) dropped: &'static [&'static str],
}

impl Messages {
    /// All markers.
    pub(super) fn markers(&self) -> Vec<&'static str> {
        let bodies = self.bodies.iter().map(|(marker, _)| *marker);
        bodies.chain([self.start]).chain(self.ends.iter().copied()).collect()
    }
}
