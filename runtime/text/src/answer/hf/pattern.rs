//! The delimiters of a response template: literals and Python's regular expressions, as automata that read text byte
//! by byte. What such an automaton cannot say is refused by the name of the feature.

use regex_automata::nfa::thompson::{NFA, State, WhichCaptures};
use regex_automata::util::look::Look;
use regex_automata::util::primitives::{PatternID, StateID};
use regex_syntax::hir::literal::{ExtractKind, Extractor};
use regex_syntax::hir::{self, Hir, HirKind};

/// The longest pattern or literal.
const MAX_PATTERN_BYTES: usize = 1024;
/// Literals of one delimiter.
const MAX_LITERALS: usize = 32;
/// Groups of one pattern.
const MAX_GROUPS: usize = 16;
/// The automaton of one pattern.
const MAX_AUTOMATON_BYTES: usize = 1 << 20;
/// How deep a pattern nests.
const MAX_NESTING: u32 = 32;

/// The groups that stand for what a pattern looks ahead to, which is no part of the match.
const AHEAD: &str = "__ahead";

/// What one delimiter matches.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) nfa: NFA,
    /// Bytes that a match may begin with; none that begin it when it may match nothing.
    pub(super) first: Box<[bool; 256]>,
    /// For each slot of the automaton the place where a thread keeps it.
    pub(super) slots: Vec<Option<usize>>,
    /// Places that a thread has.
    pub(super) num_places: usize,
    /// Named groups, and the first of their two places.
    names: Vec<(String, usize)>,
    /// The first places of what is looked ahead to.
    ahead: Vec<usize>,
    /// What every match begins with, and ends with, where that is a few literals; otherwise none.
    pub(super) begins_with: Vec<String>,
    pub(super) ends_with: Vec<String>,
    /// What stands in it literally: special tokens in these are read.
    parts: Vec<String>,
}

impl Pattern {
    /// One of these literals, the longest at its place.
    pub(super) fn literals(literals: &[String]) -> Result<Self, String> {
        if literals.is_empty() || literals.len() > MAX_LITERALS {
            return Err(format!(
                "has {} literals, and may have 1 to {MAX_LITERALS}",
                literals.len()
            ));
        }
        if literals.iter().any(String::is_empty) {
            return Err("has an empty literal".to_owned());
        }
        let mut longest_first: Vec<&String> = literals.iter().collect();
        longest_first.sort_by_key(|literal| std::cmp::Reverse(literal.len()));
        let escaped: Vec<String> = longest_first
            .iter()
            .map(|literal| regex_syntax::escape(literal))
            .collect();
        let longest = literals.iter().map(String::len).max().unwrap_or(0);
        check_length(longest)?;
        let mut pattern = Self::compile(&escaped.join("|"))?;
        pattern.begins_with = literals.to_vec();
        pattern.ends_with = literals.to_vec();
        pattern.parts = literals.to_vec();
        Ok(pattern)
    }

    /// One of Python's regular expressions, where `.` also matches a line break.
    pub(super) fn regex(pattern: &str) -> Result<Self, String> {
        check_length(pattern.len())?;
        Self::compile(&translated(pattern)?)
    }

    fn compile(pattern: &str) -> Result<Self, String> {
        let hir = regex_syntax::ParserBuilder::new()
            .dot_matches_new_line(true)
            .nest_limit(MAX_NESTING)
            .build()
            .parse(pattern)
            .map_err(|error| match error {
                regex_syntax::Error::Parse(error) => error.kind().to_string(),
                regex_syntax::Error::Translate(error) => error.kind().to_string(),
                _ => "is no pattern".to_owned(),
            })?;
        let looks = hir.properties().look_set();
        if let Some(look) = looks
            .iter()
            .find(|look| !matches!(look, hir::Look::Start | hir::Look::End))
        {
            return Err(format!(
                "{look:?}: only the start and the end of the text can be asked for"
            ));
        }
        if hir.properties().minimum_len().unwrap_or(0) == 0 && looks.is_empty() && !pattern.contains(AHEAD) {
            return Err("matches the empty text anywhere".to_owned());
        }
        let groups = hir.properties().explicit_captures_len();
        if groups > MAX_GROUPS {
            return Err(format!("has {groups} groups, and may have {MAX_GROUPS}"));
        }
        let nfa = NFA::compiler()
            .configure(
                NFA::config()
                    .nfa_size_limit(Some(MAX_AUTOMATON_BYTES))
                    .which_captures(WhichCaptures::All),
            )
            .build_from_hir(&hir)
            .map_err(|error| match error.size_limit() {
                Some(limit) => format!("needs an automaton of more than {limit} bytes"),
                None => error.to_string(),
            })?;
        let mut slots = vec![None; nfa.group_info().slot_len()];
        let (mut names, mut ahead, mut num_places) = (Vec::new(), Vec::new(), 0);
        for (group, name) in nfa.group_info().pattern_names(PatternID::ZERO).enumerate() {
            let (Some(name), Some((start, end))) = (name, nfa.group_info().slots(PatternID::ZERO, group)) else {
                continue;
            };
            (slots[start], slots[end]) = (Some(num_places), Some(num_places + 1));
            if name.starts_with(AHEAD) {
                ahead.push(num_places);
            } else {
                names.push((name.to_owned(), num_places));
            }
            num_places += 2;
        }
        let mut parts = Vec::new();
        literal_parts(&hir, &mut parts);
        let ends = |kind| {
            let found = Extractor::new().kind(kind).limit_total(8).extract(&hir);
            let texts = found.literals().unwrap_or_default().iter();
            let texts: Vec<String> = texts
                .filter_map(|literal| String::from_utf8(literal.as_bytes().to_vec()).ok())
                .collect();
            let is_use = ahead.is_empty() && looks.is_empty() && texts.iter().all(|text| text.len() > 1);
            if is_use { texts } else { Vec::new() }
        };
        let (begins_with, ends_with) = (ends(ExtractKind::Prefix), ends(ExtractKind::Suffix));
        Ok(Self {
            first: first_bytes(&nfa),
            begins_with,
            ends_with,
            nfa,
            slots,
            num_places,
            names,
            ahead,
            parts,
        })
    }

    /// The names of its groups.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|(name, _)| name.as_str())
    }

    /// Whether a match may hold this text.
    pub(super) fn may_hold(&self, text: &str) -> bool {
        self.parts.iter().any(|part| part.contains(text))
    }

    /// Where a match ends whose automaton ended at `end`: before what it only looked ahead to.
    pub(super) fn end(&self, places: &[usize], end: usize) -> usize {
        let ahead = self.ahead.iter().map(|&place| places[place]);
        ahead.filter(|&start| start != usize::MAX).min().unwrap_or(end)
    }

    /// The text of a group in a match that did not leave it out.
    pub(super) fn group<'a>(&self, name: &str, places: &[usize], text: &'a str, base: usize) -> Option<&'a str> {
        let (_, place) = self.names.iter().find(|(other, _)| other == name)?;
        let (start, end) = (places[*place], places[*place + 1]);
        (start != usize::MAX && end != usize::MAX).then(|| &text[start - base..end - base])
    }
}

fn check_length(bytes: usize) -> Result<(), String> {
    match bytes > MAX_PATTERN_BYTES {
        true => Err(format!("has {bytes} bytes, and may have {MAX_PATTERN_BYTES}")),
        false => Ok(()),
    }
}

/// The text that stands in a pattern as it is.
fn literal_parts(hir: &Hir, parts: &mut Vec<String>) {
    match hir.kind() {
        HirKind::Literal(literal) => parts.extend(String::from_utf8(literal.0.to_vec())),
        HirKind::Class(_) | HirKind::Empty | HirKind::Look(_) => {}
        HirKind::Repetition(repetition) => literal_parts(&repetition.sub, parts),
        HirKind::Capture(capture) => literal_parts(&capture.sub, parts),
        HirKind::Concat(subs) | HirKind::Alternation(subs) => subs.iter().for_each(|sub| literal_parts(sub, parts)),
    }
}

/// The bytes that take the automaton on from its start; all where it may match nothing.
fn first_bytes(nfa: &NFA) -> Box<[bool; 256]> {
    let mut first = Box::new([false; 256]);
    let mut seen = vec![false; nfa.states().len()];
    let mut todo: Vec<StateID> = vec![nfa.start_anchored()];
    while let Some(id) = todo.pop() {
        if std::mem::replace(&mut seen[id.as_usize()], true) {
            continue;
        }
        match nfa.state(id) {
            State::ByteRange { trans } => first[trans.start as usize..=trans.end as usize].fill(true),
            State::Sparse(sparse) => {
                for trans in &sparse.transitions {
                    first[trans.start as usize..=trans.end as usize].fill(true);
                }
            }
            State::Dense(_) | State::Look { .. } | State::Match { .. } => first.fill(true),
            State::Union { alternates } => todo.extend(alternates.iter()),
            State::BinaryUnion { alt1, alt2 } => todo.extend([alt1, alt2]),
            State::Capture { next, .. } => todo.push(*next),
            State::Fail => {}
        }
    }
    first
}

/// Whether an assertion of the automaton is about the start of the text; otherwise it is about its end.
pub(super) fn is_start(look: Look) -> bool {
    look == Look::Start
}

/// Python's pattern in the syntax of the `regex` crate. What is looked ahead to at its end becomes a group.
fn translated(pattern: &str) -> Result<String, String> {
    let mut out = String::with_capacity(pattern.len() + 16);
    let characters: Vec<char> = pattern.chars().collect();
    let mut num_ahead = 0;
    let mut ahead = |out: &mut String| {
        num_ahead += 1;
        out.push_str(&format!("(?P<{AHEAD}{num_ahead}>"));
    };
    let mut in_class = false;
    let mut at = 0;
    while at < characters.len() {
        let rest = &characters[at..];
        match (rest[0], rest.get(1)) {
            ('\\', Some(&next)) => {
                match next {
                    'Z' if !in_class => out.push_str("\\z"),
                    '<' | '>' => out.push(next),
                    next if !next.is_ascii() => out.push(next),
                    next => out.extend(['\\', next]),
                }
                at += 2;
                continue;
            }
            // The classes of Python do not nest, and have no operators.
            ('[' | '&' | '~', _) if in_class => out.extend(['\\', rest[0]]),
            ('[', _) => {
                in_class = true;
                out.push('[');
                if rest.get(1) == Some(&'^') {
                    out.push('^');
                    at += 1;
                }
                if characters.get(at + 1) == Some(&']') {
                    out.push_str("\\]");
                    at += 1;
                }
            }
            (']', _) if in_class => {
                in_class = false;
                out.push(']');
            }
            (_, _) if in_class => out.push(rest[0]),
            ('$', _) => {
                // The end, or the line break before it.
                check_last(&characters, at + 1, "an end that is not the last of a pattern")?;
                ahead(&mut out);
                out.push_str("\\n?\\z)");
            }
            ('(', Some('?')) => match (rest.get(2), rest.get(3)) {
                (Some('='), _) => {
                    check_last(
                        &characters,
                        group_end(&characters, at),
                        "a lookahead that is not the last of a pattern",
                    )?;
                    ahead(&mut out);
                    at += 2;
                }
                (Some('!'), _) => return Err("a negative lookahead is not supported".to_owned()),
                (Some('<'), Some('=' | '!')) => return Err("a lookbehind is not supported".to_owned()),
                (Some('>'), _) => return Err("an atomic group is not supported".to_owned()),
                (Some('('), _) => return Err("a conditional group is not supported".to_owned()),
                (Some('P'), Some('=')) => return Err("a backreference is not supported".to_owned()),
                _ => out.push('('),
            },
            ('*' | '+' | '?' | '}', Some('+')) => return Err("a possessive repetition is not supported".to_owned()),
            (character, _) => out.push(character),
        }
        at += 1;
    }
    Ok(out)
}

/// The place after the group that begins at `at`.
fn group_end(characters: &[char], mut at: usize) -> usize {
    let (mut depth, mut in_class) = (0_usize, false);
    while at < characters.len() {
        match characters[at] {
            '\\' => at += 1,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
        at += 1;
    }
    at
}

/// Checks that nothing follows a place in any way through a pattern.
fn check_last(characters: &[char], mut at: usize, what: &str) -> Result<(), String> {
    while at < characters.len() {
        match characters[at] {
            ')' => at += 1,
            // Another branch: what follows is what follows its group.
            '|' => {
                let mut depth = 0_usize;
                let mut in_class = false;
                at += 1;
                while at < characters.len() {
                    match characters[at] {
                        '\\' => at += 1,
                        '[' => in_class = true,
                        ']' => in_class = false,
                        '(' if !in_class => depth += 1,
                        ')' if !in_class && depth == 0 => break,
                        ')' if !in_class => depth -= 1,
                        _ => {}
                    }
                    at += 1;
                }
            }
            _ => return Err(format!("{what} is not supported")),
        }
    }
    Ok(())
}
