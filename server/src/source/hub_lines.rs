//! The protocol between the server and `halyard-hub`: one JSON line a message, one request at a time. Compiled into
//! both programs, so that neither links the other.

use serde::{Deserialize, Serialize};

/// A request of the server, about the repository that the program was started for.
#[derive(Debug, Deserialize, Serialize)]
pub enum Request {
    /// The names of all files at the root: [`Answer::Name`] each, then [`Answer::End`].
    Names {
        /// Branch, tag or commit; `None`: the main branch.
        revision: Option<String>,
    },
    /// A file's facts: [`Answer::File`].
    File {
        /// Branch, tag or commit; `None`: the main branch.
        revision: Option<String>,
        /// Its name.
        name: String,
    },
    /// A part of a file: [`Answer::Bytes`] as often as it takes, then [`Answer::End`].
    Read {
        /// Its commit.
        commit: String,
        /// Its name.
        name: String,
        /// The first byte.
        from: u64,
        /// After the last byte.
        to: u64,
    },
}

/// An answer of `halyard-hub`.
#[derive(Debug, Deserialize, Serialize)]
pub enum Answer {
    /// A file of the repository.
    Name(String),
    /// A file as the hub announces it.
    File {
        /// The commit that it belongs to.
        commit: String,
        /// Its size.
        bytes: u64,
        /// Its version; of large files the sha256.
        etag: String,
    },
    /// So many bytes of the file follow this line.
    Bytes(usize),
    /// There is no more.
    End,
    /// The hub's refusal, and what helps.
    Failed(String),
}
