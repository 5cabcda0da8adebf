//! The patterns to redact, as one question about a position in a text: does a secret begin here, certainly not, or is
//! more text needed to decide?
//!
//! An answer other than [`Found::NeedMore`] never changes when more text comes. So a stream gives the same result as
//! the whole text, however it is cut. Each question is decided within [`MAX_HELD`] bytes.

/// Most bytes from a place on that any question looks at: an e-mail address, 64 bytes, an at sign and 255 more.
pub const MAX_HELD: usize = MAX_LOCAL + 1 + MAX_DOMAIN;

/// RFC 5321's bounds of an address.
const MAX_LOCAL: usize = 64;
const MAX_DOMAIN: usize = 255;
/// Longest label of a PEM block that is looked at.
const MAX_LABEL: usize = 48;
/// Shortest token after `Bearer`: no word of a language is as long, and every token is.
const MIN_BEARER: usize = 20;
const MAX_BLANKS: usize = 8;

/// A class of bytes.
pub type Class = fn(u8) -> bool;

/// What begins at a place.
#[derive(Clone, Copy, Debug)]
pub enum Found {
    /// Nothing.
    No,
    /// That depends on text that has not come yet.
    NeedMore,
    /// A secret.
    Secret {
        /// Bytes of it that stay, such as the word `Bearer`.
        keep: usize,
        /// Its bytes so far, those that stay included.
        len: usize,
        /// What belongs to it behind these.
        rest: Rest,
    },
}

/// How a secret goes on once it is recognised. Its rest is dropped as it comes and never held.
#[derive(Clone, Copy, Debug)]
pub enum Rest {
    /// It is complete.
    None,
    /// All bytes of a class.
    Run(Class),
    /// A PEM block up to its end line.
    Pem,
}

fn alphanumeric(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
}

fn upper_or_digit(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}

fn word_or_dash(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

fn bearer_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._~+/=-".contains(&byte)
}

fn pem_label(byte: u8) -> bool {
    upper_or_digit(byte) || byte == b' '
}

fn blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn local_part(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._%+-".contains(&byte)
}

fn domain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-'
}

/// Bytes inside a PEM block: base64, line ends (also written as `\n`), and the headers of old formats.
pub fn pem_body(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte.is_ascii_whitespace() || b"+/=:,-\\".contains(&byte)
}

/// Keys with a fixed beginning: beginning, the bytes that follow, and how many of them at least.
const KEYS: &[(&str, Class, usize)] = &[
    ("sk-", word_or_dash, 20),
    ("AKIA", upper_or_digit, 16),
    ("ASIA", upper_or_digit, 16),
    ("ghp_", alphanumeric, 36),
    ("gho_", alphanumeric, 36),
    ("ghu_", alphanumeric, 36),
    ("ghs_", alphanumeric, 36),
    ("ghr_", alphanumeric, 36),
    ("github_pat_", word_or_dash, 22),
    ("glpat-", word_or_dash, 20),
    ("xoxa-", word_or_dash, 20),
    ("xoxb-", word_or_dash, 20),
    ("xoxp-", word_or_dash, 20),
    ("xoxr-", word_or_dash, 20),
    ("xoxs-", word_or_dash, 20),
    ("AIza", word_or_dash, 35),
    ("hf_", alphanumeric, 30),
    ("npm_", alphanumeric, 36),
];

/// A text as far as it has come, asked about places in rising order.
pub struct Text<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Nothing more comes.
    pub ended: bool,
    /// Places before this one begin no address.
    no_address_before: usize,
    /// From a place looked at to here there are only bytes of a local part.
    local_end: usize,
}

impl<'a> Text<'a> {
    /// A text of which no place was asked about.
    pub fn new(bytes: &'a [u8], ended: bool) -> Text<'a> {
        Text {
            bytes,
            ended,
            no_address_before: 0,
            local_end: 0,
        }
    }

    /// What begins at `at`, where `before` is the byte in front of it.
    pub fn secret_at(&mut self, at: usize, before: Option<u8>) -> Found {
        let first = self.bytes[at];
        let inside_word = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !inside_word {
            for (start, class, least) in KEYS.iter().filter(|(start, ..)| start.as_bytes()[0] == first) {
                match self.key(at, start, *class, *least) {
                    Found::No => {}
                    found => return found,
                }
            }
            if first.eq_ignore_ascii_case(&b'b') {
                match self.bearer(at) {
                    Found::No => {}
                    found => return found,
                }
            }
        }
        if first == b'-' {
            return match self.pem_line(at, "-----BEGIN ", true) {
                Some(0) => Found::No,
                Some(len) => Found::Secret {
                    keep: 0,
                    len,
                    rest: Rest::Pem,
                },
                None => Found::NeedMore,
            };
        }
        self.address(at)
    }

    /// Whether a PEM block's end line is at `at`: its length, 0 for none, `None` when more text must come first.
    pub fn pem_end_at(&self, at: usize) -> Option<usize> {
        self.pem_line(at, "-----END ", false)
    }

    /// Whether `expected` is at `at`; `None` when more text must come first.
    fn literal(&self, at: usize, expected: &str, same: fn(&u8, &u8) -> bool) -> Option<bool> {
        let found = &self.bytes[at..];
        let equal = found.iter().zip(expected.as_bytes()).all(|(a, b)| same(a, b));
        if equal && found.len() < expected.len() && !self.ended {
            return None;
        }
        Some(equal && found.len() >= expected.len())
    }

    /// How many bytes of `class` there are from `at` on, at most `most`; `None` when more text may add to them.
    fn run(&self, at: usize, class: Class, most: usize) -> Option<usize> {
        let found = self.bytes[at..]
            .iter()
            .take(most)
            .take_while(|byte| class(**byte))
            .count();
        if found < most && at + found == self.bytes.len() && !self.ended {
            return None;
        }
        Some(found)
    }

    fn key(&self, at: usize, start: &str, class: Class, least: usize) -> Found {
        match self.literal(at, start, |a, b| a == b) {
            Some(true) => {}
            Some(false) => return Found::No,
            None => return Found::NeedMore,
        }
        match self.run(at + start.len(), class, least) {
            Some(found) if found == least => Found::Secret {
                keep: 0,
                len: start.len() + least,
                rest: Rest::Run(class),
            },
            Some(_) => Found::No,
            None => Found::NeedMore,
        }
    }

    /// `Bearer`, blanks, a token: the token goes.
    fn bearer(&self, at: usize) -> Found {
        const WORD: &str = "bearer";
        match self.literal(at, WORD, u8::eq_ignore_ascii_case) {
            Some(true) => {}
            Some(false) => return Found::No,
            None => return Found::NeedMore,
        }
        let blanks = match self.run(at + WORD.len(), blank, MAX_BLANKS) {
            Some(0) => return Found::No,
            Some(blanks) => blanks,
            None => return Found::NeedMore,
        };
        let keep = WORD.len() + blanks;
        match self.run(at + keep, bearer_token, MIN_BEARER) {
            Some(MIN_BEARER) => Found::Secret {
                keep,
                len: keep + MIN_BEARER,
                rest: Rest::Run(bearer_token),
            },
            Some(_) => Found::No,
            None => Found::NeedMore,
        }
    }

    /// The length of a PEM line that begins with `start`, 0 when there is none; of a private key's only, when `private`
    /// says so.
    fn pem_line(&self, at: usize, start: &str, private: bool) -> Option<usize> {
        const END: &str = "-----";
        if !self.literal(at, start, |a, b| a == b)? {
            return Some(0);
        }
        let label_at = at + start.len();
        let label = self.run(label_at, pem_label, MAX_LABEL)?;
        let label_end = label_at + label;
        let is_private = self.bytes[label_at..label_end]
            .windows(11)
            .any(|part| part == b"PRIVATE KEY");
        if private && !is_private {
            return Some(0);
        }
        let complete = self.literal(label_end, END, |a, b| a == b)?;
        Some(if complete { label_end + END.len() - at } else { 0 })
    }

    /// An e-mail address, whose local part and domain are ASCII.
    fn address(&mut self, at: usize) -> Found {
        let first = self.bytes[at];
        if at < self.no_address_before || !(first.is_ascii_alphanumeric() || first == b'_') {
            return Found::No;
        }
        // Each byte is looked at once, however many places ask about it.
        let mut end = self.local_end.max(at);
        while end < self.bytes.len() && end <= at + MAX_LOCAL && local_part(self.bytes[end]) {
            end += 1;
        }
        self.local_end = end;
        if end > at + MAX_LOCAL {
            // Too long from here; from a later place it may be an address.
            return Found::No;
        }
        if end == self.bytes.len() && !self.ended {
            return Found::NeedMore;
        }
        if self.bytes.get(end) != Some(&b'@') {
            self.no_address_before = end;
            return Found::No;
        }
        let Some(run) = self.run(end + 1, domain, MAX_DOMAIN) else {
            return Found::NeedMore;
        };
        match domain_len(&self.bytes[end + 1..end + 1 + run]) {
            0 => {
                self.no_address_before = end + 1;
                Found::No
            }
            len => Found::Secret {
                keep: 0,
                len: end + 1 + len - at,
                rest: Rest::None,
            },
        }
    }
}

/// Bytes of the longest domain name at the beginning of `run`: two labels or more, the last one of letters; 0 for none.
/// A last label that goes on with something else (`example.com-`) counts up to there.
fn domain_len(run: &[u8]) -> usize {
    let (mut longest, mut start) = (0, 0);
    for (index, label) in run.split(|byte| *byte == b'.').enumerate() {
        if label.is_empty() || label[0] == b'-' {
            break;
        }
        let letters = label.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
        let international = label.len() > 4 && label[..4].eq_ignore_ascii_case(b"xn--");
        let counted = if international { label.len() } else { letters };
        if index > 0 && counted >= 2 {
            longest = start + counted;
        }
        start += label.len() + 1;
    }
    longest
}
