//! Keeps the kernel languages from drifting apart. A file that several languages have must state the same revision of
//! its algorithm in each, and `revisions.txt` records it with a digest of each language's code. A repair in one
//! language alone fails until the others were checked (decision 0052). The list must be complete, too.
//!
//! `HALYARD_BLESS=1 cargo test -p halyard-kernels-gpu --test revisions` records what was looked at. It does not record
//! revisions that differ.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use halyard_kernels_gpu::{Language, SOURCES, files};

/// What one language has of a file.
#[derive(Clone, Debug, PartialEq)]
struct Twin {
    path: String,
    text: &'static str,
}

impl Twin {
    /// The folder of its language.
    fn language(&self) -> &str {
        self.path.split('/').next().unwrap_or_default()
    }
}

/// The same file in several languages, by its name without extension: `ops/norm`, `include/kv`.
type Twins = BTreeMap<String, Vec<Twin>>;

/// What `revisions.txt` records of a file: the revision, and by language's folder the digest of its code.
#[derive(Clone, Debug, Default, PartialEq)]
struct Recorded {
    revision: u32,
    digests: BTreeMap<String, u32>,
}

const HEAD: &str = "\
# Kernel files and headers that several languages have: the revision of their algorithm, which each of them states,
# and a digest of each one's code (without comments and white space). Written by
# HALYARD_BLESS=1 cargo test -p halyard-kernels-gpu --test revisions
";

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The headers that are a language's own, and not in `shared/`.
fn own_headers(language: Language) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let shared = |name: &str| package().join("shared").join(name).exists();
    language.headers().iter().filter(move |(name, _)| !shared(name))
}

fn twins() -> Twins {
    let mut all = Twins::new();
    for language in Language::ALL {
        let (folder, extension) = language.place();
        let mut add = |key: String, path: String, text| all.entry(key).or_default().push(Twin { path, text });
        for (name, text) in files(language) {
            add(format!("ops/{name}"), format!("{folder}/ops/{name}.{extension}"), text);
        }
        for (name, text) in own_headers(language) {
            let stem = name.split('.').next().unwrap_or(name);
            add(format!("include/{stem}"), format!("{folder}/include/{name}"), text);
        }
    }
    all.retain(|_, twins| twins.len() > 1);
    all
}

/// The revision that a text states, and why its code may be older than that, if it says so:
/// `// revision: 2 (rounded like this before)`.
fn stated(text: &str) -> Option<(u32, bool)> {
    let line = text.lines().find_map(|line| line.strip_prefix("// revision: "))?;
    let (number, reason) = line.split_once(' ').unwrap_or((line, ""));
    Some((number.parse().ok()?, reason.len() > 2))
}

/// FNV-1a over the code: what compilers read, but for white space.
fn digest(text: &str) -> u32 {
    let (mut hash, mut rest) = (0x811c_9dc5_u32, text);
    while let Some(c) = rest.chars().next() {
        let skipped = match rest {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            _ if rest.starts_with("\\\n") => 2,
            _ if c.is_whitespace() => c.len_utf8(),
            _ => 0,
        };
        if skipped == 0 {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
            }
        }
        rest = &rest[skipped.max(c.len_utf8())..];
    }
    hash
}

/// Languages that state no revision or different ones, and digests that changed while it did not: one line each. What
/// blessing may record is only in the second list.
fn drift(twins: &Twins, recorded: &BTreeMap<String, Recorded>) -> (Vec<String>, Vec<String>) {
    let (mut wrong, mut unrecorded) = (Vec::new(), Vec::new());
    for (key, twins) in twins {
        let paths: Vec<&str> = twins.iter().map(|twin| twin.path.as_str()).collect();
        let revisions: Vec<_> = twins.iter().map(|twin| stated(twin.text)).collect();
        let Some(first) = revisions[0].filter(|(number, _)| revisions.iter().all(|r| r.map(|r| r.0) == Some(*number)))
        else {
            let each = paths.iter().zip(&revisions).map(|(path, revision)| match revision {
                Some((number, _)) => format!("{path} states revision {number}"),
                None => format!("{path} states none (write `// revision: 1`)"),
            });
            let each: Vec<String> = each.collect();
            wrong.push(format!("{}: give all the same algorithm and revision", each.join(", ")));
            continue;
        };
        let Some(known) = recorded.get(key) else {
            unrecorded.push(format!("{key} is not in revisions.txt"));
            continue;
        };
        let kept = |twin: &&Twin| known.digests.get(twin.language()) == Some(&digest(twin.text));
        let (same, changed): (Vec<&Twin>, Vec<&Twin>) = twins.iter().partition(kept);
        let list = |twins: &[&Twin]| {
            twins
                .iter()
                .map(|twin| twin.path.as_str())
                .collect::<Vec<_>>()
                .join(", ")
        };
        let bumped = twins
            .iter()
            .filter(|twin| same.contains(twin) && !stated(twin.text).is_some_and(|(_, why)| why));
        let bumped: Vec<&Twin> = bumped.collect();
        match first.0.cmp(&known.revision) {
            Ordering::Less => wrong.push(format!(
                "{key}: revision {} was recorded, {} is stated",
                known.revision, first.0
            )),
            Ordering::Greater if !bumped.is_empty() => wrong.push(format!(
                "{key}: revision {} is stated, but the code of revision {} stands in {}: change it, or say in brackets \
                 behind the number why it computes so already",
                first.0,
                known.revision,
                list(&bumped)
            )),
            Ordering::Greater => unrecorded.push(format!("{key}: revision {} is stated", first.0)),
            Ordering::Equal if !changed.is_empty() => unrecorded.push(format!(
                "{key}: {} changed since revision {} was recorded; unchanged: {}. Can results differ? Then make the \
                 change in every language, look at kernels/cpu and backends/reference, and state the next revision",
                list(&changed),
                known.revision,
                if same.is_empty() {
                    "none".to_string()
                } else {
                    list(&same)
                }
            )),
            Ordering::Equal => {}
        }
    }
    let gone = recorded.keys().filter(|key| !twins.contains_key(*key));
    unrecorded.extend(gone.map(|key| format!("{key} is in revisions.txt, and in no two languages")));
    (wrong, unrecorded)
}

fn read_record(text: &str) -> BTreeMap<String, Recorded> {
    let mut all = BTreeMap::new();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [key, revision, digests @ ..] = words.as_slice() else {
            panic!("revisions.txt: {line}");
        };
        let digests = digests.iter().map(|word| {
            let (language, digest) = word.split_once('=').expect("language=digest");
            (
                language.to_string(),
                u32::from_str_radix(digest, 16).expect("eight hexadecimal digits"),
            )
        });
        let recorded = Recorded {
            revision: revision.parse().expect("a revision is a number"),
            digests: digests.collect(),
        };
        all.insert(key.to_string(), recorded);
    }
    all
}

fn written(twins: &Twins) -> String {
    let digest = |twin: &Twin| format!(" {}={:08x}", twin.language(), digest(twin.text));
    let line = |(key, twins): (&String, &Vec<Twin>)| {
        let revision = stated(twins[0].text).map_or(0, |(number, _)| number);
        format!("{key} {revision}{}\n", twins.iter().map(digest).collect::<String>())
    };
    format!("{HEAD}{}", twins.iter().map(line).collect::<String>())
}

#[test]
fn languages_state_the_revision_that_is_recorded() {
    let path = package().join("revisions.txt");
    let twins = twins();
    let recorded = read_record(&std::fs::read_to_string(&path).unwrap_or_default());
    let (wrong, unrecorded) = drift(&twins, &recorded);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if std::env::var_os("HALYARD_BLESS").is_some() {
        std::fs::write(&path, written(&twins)).expect("revisions.txt can be written");
        return;
    }
    assert!(
        unrecorded.is_empty(),
        "{}\nHALYARD_BLESS=1 records what you looked at",
        unrecorded.join("\n")
    );
}

#[test]
fn drift_is_found() {
    let twins = |cuda: &'static str, glsl: &'static str| -> Twins {
        let twin = |path: &str, text| Twin {
            path: path.to_string(),
            text,
        };
        [(
            "ops/gelu".to_string(),
            vec![twin("cuda/ops/gelu.cu", cuda), twin("glsl/ops/gelu.comp", glsl)],
        )]
        .into()
    };
    let (cuda, glsl) = (
        "// revision: 1\nx * (1 + erf(u))\n",
        "// revision: 1\nx * (1.0 + erf(u));\n",
    );
    let recorded = read_record(&written(&twins(cuda, glsl)));
    let found = |cuda, glsl| drift(&twins(cuda, glsl), &recorded);
    let (none, seen) = (Vec::<String>::new(), |lines: &[String], words: &str| {
        lines.len() == 1 && lines[0].contains(words)
    });
    assert_eq!(found(cuda, glsl), (none.clone(), none.clone()));
    // Comments and layout are no change.
    assert_eq!(
        found("// Gelu.\n// revision: 1\nx *\\\n  (1 + erf(u))/* ok */\n", glsl),
        (none.clone(), none.clone())
    );
    // A repair in one language.
    let (wrong, unrecorded) = found("// revision: 1\nx * erfc(-u)\n", glsl);
    assert!(
        wrong.is_empty() && seen(&unrecorded, "cuda/ops/gelu.cu changed since"),
        "{unrecorded:?}"
    );
    assert!(seen(&unrecorded, "unchanged: glsl/ops/gelu.comp"), "{unrecorded:?}");
    // With its revision, but not the others'.
    let (wrong, _) = found("// revision: 2\nx * erfc(-u)\n", glsl);
    assert!(seen(&wrong, "glsl/ops/gelu.comp states revision 1"), "{wrong:?}");
    // With the others' number, but not their code.
    let (wrong, _) = found(
        "// revision: 2\nx * erfc(-u)\n",
        "// revision: 2\nx * (1.0 + erf(u));\n",
    );
    assert!(
        seen(&wrong, "code of revision 1 stands in glsl/ops/gelu.comp"),
        "{wrong:?}"
    );
    let reason = "// revision: 2 (so before)\nx * (1.0 + erf(u));\n";
    let (wrong, unrecorded) = found("// revision: 2\nx * erfc(-u)\n", reason);
    assert!(
        wrong.is_empty() && seen(&unrecorded, "revision 2 is stated"),
        "{wrong:?}"
    );
    // In both, and blessed.
    let repaired = twins("// revision: 2\nx * erfc(-u)\n", "// revision: 2\nx * erfc(-u);\n");
    assert!(drift(&repaired, &recorded).0.is_empty());
    let recorded = read_record(&written(&repaired));
    assert_eq!(drift(&repaired, &recorded), (none.clone(), none.clone()));
    let (wrong, _) = drift(&twins(cuda, glsl), &recorded);
    assert!(seen(&wrong, "revision 2 was recorded, 1 is stated"), "{wrong:?}");
    // Missing, new and gone.
    let (wrong, _) = found("x * (1 + erf(u))\n", glsl);
    assert!(seen(&wrong, "cuda/ops/gelu.cu states none"), "{wrong:?}");
    assert!(seen(
        &drift(&twins(cuda, glsl), &BTreeMap::new()).1,
        "not in revisions.txt"
    ));
    assert!(seen(&drift(&Twins::new(), &recorded).1, "in no two languages"));
}

#[test]
fn the_list_is_whole_and_gives_a_reason_for_what_is_lacking() {
    let in_folder = |path: PathBuf| -> BTreeSet<String> {
        let entries = std::fs::read_dir(&path).expect("a folder of the package");
        entries
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect()
    };
    for language in Language::ALL {
        let (folder, extension) = language.place();
        let listed: BTreeSet<String> = files(language).map(|(name, _)| format!("{name}.{extension}")).collect();
        assert_eq!(
            in_folder(package().join(folder).join("ops")),
            listed,
            "{folder}: files, and the list"
        );
        let listed: BTreeSet<String> = own_headers(language).map(|(name, _)| name.to_string()).collect();
        assert_eq!(
            in_folder(package().join(folder).join("include")),
            listed,
            "{folder}: headers, and the list"
        );
    }
    for source in SOURCES {
        let lacks = source.texts.iter().any(Option::is_none);
        assert_eq!(
            lacks,
            source.lacking.len() > 10,
            "{}: a reason where a language lacks it",
            source.name
        );
    }
}
