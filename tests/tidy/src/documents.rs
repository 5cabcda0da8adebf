//! Rules for documents: the width of Markdown, links with an existing target, unique numbers of decisions, errors that
//! programs really say, and pages that the site has.
//!
//! [`width`] looks at one file; the others need the whole tree, because a link can only be checked with its target.

use std::collections::{BTreeMap, BTreeSet};

use crate::Finding;
use crate::tree::SourceFile;

/// Longest line of Markdown in characters.
pub const MAX_COLUMNS: usize = 120;

const DECISIONS: &str = "docs/decisions/";

/// The page that is looked up by the words of an error.
const TROUBLESHOOTING: &str = "docs/troubleshooting.md";

/// The site's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Lines of Markdown are short. Rows of tables may be long, and so may a link or a word, which cannot be broken.
pub fn width(path: &str, text: &str) -> Vec<Finding> {
    if !path.ends_with(".md") {
        return Vec::new();
    }
    let long = |line: &str| {
        let wide = line.trim_end().chars().count() > MAX_COLUMNS;
        let line = line.trim();
        wide && !line.starts_with('|') && line.trim_start_matches("- ").contains(' ')
    };
    let found = text.lines().enumerate().filter(|(_, line)| long(line));
    let message = format!("more than {MAX_COLUMNS} columns: break the line, or better the sentence");
    found
        .map(|(i, _)| Finding::new(path, i + 1, message.as_str()))
        .collect()
}

/// Every relative link in Markdown names a file or folder of the repository, and a heading of that file where it names
/// one.
pub fn links(files: &[SourceFile]) -> Vec<Finding> {
    let texts: BTreeMap<&str, &str> = files
        .iter()
        .map(|file| (file.path.as_str(), file.text.as_str()))
        .collect();
    let folders: BTreeSet<&str> = texts
        .keys()
        .flat_map(|path| path.match_indices('/').map(|(at, _)| &path[..at]))
        .collect();
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path.ends_with(".md")) {
        for (line, target) in targets(&file.text) {
            let (relative, heading) = target
                .split_once('#')
                .map_or((target, None), |(path, id)| (path, Some(id)));
            let path = match relative {
                "" => Some(file.path.clone()),
                relative => resolved(&file.path, relative),
            };
            let message = match path.as_deref().map(|path| (path, texts.get(path))) {
                Some((_, Some(text))) => match heading {
                    Some(id) if !headings(text).contains(id) => format!("the link {target}: no such heading there"),
                    _ => continue,
                },
                Some((path, None)) if folders.contains(path) => continue,
                _ => format!("the link {target}: nothing of that name in the repository"),
            };
            findings.push(Finding::new(&file.path, line, message));
        }
    }
    findings
}

/// Words that begin a row of the page of errors are in a source, as a reader will look for them.
pub fn quoted_errors(files: &[SourceFile]) -> Vec<Finding> {
    let Some(page) = files.iter().find(|file| file.path == TROUBLESHOOTING) else {
        return Vec::new();
    };
    let sources = files
        .iter()
        .filter(|file| file.path.ends_with(".rs") && !file.path.starts_with("tests/"));
    let sources: Vec<String> = sources.map(|file| joined_lines(&file.text)).collect();
    let rows = page.text.lines().enumerate();
    let quoted = rows.filter_map(|(i, line)| {
        // Two backticks hold words that have one.
        let row = line.strip_prefix("| `")?;
        let words = match row.strip_prefix("` ") {
            Some(row) => row.split_once(" ``")?.0,
            None => row.split_once('`')?.0,
        };
        Some((i + 1, words))
    });
    let unsaid = quoted.filter(|(_, words)| !sources.iter().any(|source| source.contains(words)));
    let finding = |(line, words): (usize, &str)| {
        let message = format!("no source says `{words}`: quote the words that the program prints");
        Finding::new(TROUBLESHOOTING, line, message)
    };
    unsaid.map(finding).collect()
}

/// Texts that go on in the next line, as they are printed.
fn joined_lines(text: &str) -> String {
    let mut pieces = text.split("\\\n");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |joined, piece| joined + piece.trim_start())
}

/// Every page right below docs/ is in the site's table of contents.
pub fn summary(files: &[SourceFile]) -> Vec<Finding> {
    let Some(summary) = files.iter().find(|file| file.path == SUMMARY) else {
        return Vec::new();
    };
    let listed: BTreeSet<&str> = targets(&summary.text).into_iter().map(|(_, target)| target).collect();
    let pages = files.iter().filter_map(|file| file.path.strip_prefix("docs/"));
    let pages = pages.filter(|page| page.ends_with(".md") && !page.contains('/') && *page != "SUMMARY.md");
    let missing = pages.filter(|page| !listed.contains(page));
    missing
        .map(|page| Finding::new(SUMMARY, 0, format!("{page} is not listed")))
        .collect()
}

/// A number stands for one decision, as its file's name and its title say; a cited number must exist.
pub fn decisions(files: &[SourceFile]) -> Vec<Finding> {
    let (mut findings, mut known) = (Vec::new(), BTreeMap::new());
    for file in files {
        let Some(name) = file.path.strip_prefix(DECISIONS).filter(|name| *name != "README.md") else {
            continue;
        };
        let Some(number) = four_digits(name) else {
            let message = "a decision's name begins with its number of four digits";
            findings.push(Finding::new(&file.path, 0, message));
            continue;
        };
        if let Some(other) = known.insert(number, &file.path) {
            let message = format!("{number} is also the number of {other}: take the next free one");
            findings.push(Finding::new(&file.path, 0, message));
        }
        if !file.text.starts_with(&format!("# {number}")) {
            findings.push(Finding::new(
                &file.path,
                1,
                format!("the title does not begin with `# {number}`"),
            ));
        }
    }
    for file in files {
        for (i, line) in file.text.lines().enumerate() {
            let cited = ["decision ", "decisions/"]
                .iter()
                .flat_map(|before| line.split(before).skip(1));
            for number in cited
                .filter_map(four_digits)
                .filter(|number| !known.contains_key(number))
            {
                let message = format!("cites decision {number}, which does not exist");
                findings.push(Finding::new(&file.path, i + 1, message));
            }
        }
    }
    findings
}

/// The number at the start, if it has four digits and no more.
fn four_digits(text: &str) -> Option<&str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    (digits == 4).then(|| &text[..4])
}

/// Targets of links with their lines, without those of other hosts. Code is no link.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut fenced) = (Vec::new(), false);
    for (i, line) in text.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        // Every second piece between backticks is code.
        let prose = line
            .split('`')
            .enumerate()
            .filter(|(piece, _)| piece % 2 == 0)
            .map(|(_, text)| text);
        for piece in prose {
            let ends = piece.split("](").skip(1);
            found.extend(ends.filter_map(|end| Some((i + 1, end.split_once(')')?.0))));
        }
    }
    found.retain(|(_, target)| !target.contains(':') && !target.is_empty());
    found
}

/// A path relative to a file's folder, as the repository names it; `None` above the root.
fn resolved(from: &str, relative: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in relative.trim_end_matches('/').split('/') {
        match part {
            "." | "" => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The identifiers that a page gives its headings: small letters, spaces to hyphens, no other punctuation.
fn headings(text: &str) -> BTreeSet<String> {
    let heads = text.lines().filter(|line| line.starts_with('#'));
    let identifier = |head: &str| -> String {
        let head = head.trim_start_matches('#').trim().to_lowercase();
        let kept = head.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    heads.map(identifier).collect()
}
