//! A plugin's manifest: parsed and checked before any code of its library runs.

use std::collections::BTreeMap;
use std::fmt;

use halyard_platform_api::abi::logits_tables::KIND_LOGITS_PROCESSOR;
use halyard_platform_api::abi::request_tables::{KIND_IO_PROCESSOR, KIND_LORA_RESOLVER};
use halyard_platform_api::abi::tables::{ABI_MAJOR, ABI_MINOR, ABI_MINOR_MIN, KIND_PLATFORM, KIND_STAT_LOGGER};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The kind of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A hardware platform.
    Platform,
    /// A metric sink.
    StatLogger,
    /// Rewrites requests and answers.
    IoProcessor,
    /// Finds LoRA adapters.
    LoraResolver,
    /// Changes which tokens come.
    LogitsProcessor,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 5] = [
        Kind::Platform,
        Kind::StatLogger,
        Kind::IoProcessor,
        Kind::LoraResolver,
        Kind::LogitsProcessor,
    ];

    /// The kind's number in the entry's answer.
    pub fn code(self) -> u32 {
        match self {
            Kind::Platform => KIND_PLATFORM,
            Kind::StatLogger => KIND_STAT_LOGGER,
            Kind::IoProcessor => KIND_IO_PROCESSOR,
            Kind::LoraResolver => KIND_LORA_RESOLVER,
            Kind::LogitsProcessor => KIND_LOGITS_PROCESSOR,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Platform => "platform",
            Kind::StatLogger => "stat-logger",
            Kind::IoProcessor => "io-processor",
            Kind::LoraResolver => "lora-resolver",
            Kind::LogitsProcessor => "logits-processor",
        })
    }
}

/// The facts of a plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the manifest's form: 1.
    pub manifest: u32,
    /// What it is.
    pub kind: Kind,
    /// Its name: what `--platform` takes.
    pub name: String,
    /// Its version.
    pub version: String,
    /// ABI it was built with, `major.minor`.
    pub abi: String,
    /// Its entry symbol.
    pub entry: String,
    /// The highest usable one is chosen when the operator names none; negative: only by name.
    #[serde(default)]
    pub priority: i32,
    /// One line of description.
    #[serde(default)]
    pub about: String,
    /// Processor features that its code needs everywhere, comma-separated.
    #[serde(default)]
    pub cpu_features: String,
    /// Keys of a newer form; shown, not used.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// Why this host cannot read a manifest that is none the worse for it.
fn unknown_here(object: &Value) -> Option<String> {
    if let Some(form) = object.get("manifest").and_then(Value::as_u64).filter(|form| *form > 1) {
        return Some(format!("a manifest of form {form} (this host reads form 1)"));
    }
    let kind = object.get("kind")?.as_str()?;
    let known = Kind::ALL.iter().any(|known| known.to_string() == kind);
    (!known).then(|| format!("a plugin of the kind `{kind}`, which this host does not have"))
}

impl Manifest {
    /// Every manifest of a section that this host can read: JSON objects one after the other, with NUL bytes or blanks
    /// between them. An object of a newer form or kind is passed over; the log says so.
    ///
    /// # Errors
    /// In words: which object is broken and how, or that all are of forms and kinds that are not known here.
    pub fn parse_section(section: &[u8]) -> Result<Vec<Manifest>, String> {
        // A NUL cannot stand inside a JSON text, so this changes padding only.
        let text: Vec<u8> = section.iter().map(|&b| if b == 0 { b' ' } else { b }).collect();
        let mut all: Vec<Manifest> = Vec::new();
        let mut newer = Vec::new();
        for (i, parsed) in serde_json::Deserializer::from_slice(&text)
            .into_iter::<Value>()
            .enumerate()
        {
            let broken = |e: serde_json::Error| format!("object {i} is not a manifest: {e}");
            let parsed = parsed.map_err(broken)?;
            if let Some(unknown) = unknown_here(&parsed) {
                tracing::info!("a plugin's manifest is passed over: object {i} is {unknown}");
                newer.push(unknown);
                continue;
            }
            let manifest = Manifest::deserialize(parsed).map_err(broken)?;
            manifest.check().map_err(|e| format!("object {i}: {e}"))?;
            if all.iter().any(|m| m.kind == manifest.kind && m.name == manifest.name) {
                return Err(format!("two {} manifests are named `{}`", manifest.kind, manifest.name));
            }
            all.push(manifest);
        }
        match (all.is_empty(), newer.is_empty()) {
            (false, _) => Ok(all),
            (true, true) => Err("the section is empty".to_string()),
            (true, false) => Err(format!("it holds {}: a newer Halyard may read it", newer.join(", "))),
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.manifest != 1 {
            return Err(format!("form {} of manifests; this host reads form 1", self.manifest));
        }
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(plain) {
            return Err(format!(
                "the name {:?} is not 1 to 64 of a-z, 0-9, `-`, `_` and `.`",
                self.name
            ));
        }
        let in_symbol = |c: char| c.is_ascii_alphanumeric() || "_-.$".contains(c);
        if self.entry.is_empty() || self.entry.len() > 256 || !self.entry.chars().all(in_symbol) {
            return Err(format!("the entry {:?} is not a symbol's name", self.entry));
        }
        if self.abi_version().is_none() {
            return Err(format!("the abi {:?} is not `major.minor`", self.abi));
        }
        Ok(())
    }

    /// The ABI's major and minor version.
    fn abi_version(&self) -> Option<(u32, u32)> {
        let (major, minor) = self.abi.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    }

    /// Whether this host loads the manifest's ABI version. A plugin with a newer minor version may still agree on an
    /// older one at its entry, so only what can never fit is refused here.
    pub fn abi_fits(&self) -> bool {
        self.abi_version()
            .is_some_and(|(major, minor)| major == ABI_MAJOR && minor >= ABI_MINOR_MIN)
    }
}

/// The ABI versions that this host loads, in words.
pub fn host_abi() -> String {
    format!("ABI {ABI_MAJOR}.{ABI_MINOR_MIN} to {ABI_MAJOR}.{ABI_MINOR}")
}

#[cfg(test)]
mod tests {
    use super::{Kind, Manifest};

    const ONE: &str = r#"{"manifest":1,"kind":"platform","name":"a","version":"1","abi":"0.2","entry":"e","priority":-3,"later":{"x":1}}"#;

    #[test]
    fn several_manifests_with_padding_between_them_are_read() {
        let two = ONE.replace("\"a\"", "\"b\"").replace("platform", "stat-logger");
        let section = format!("\0\0{ONE}\n\0\0\0{two}\0");
        let all = Manifest::parse_section(section.as_bytes()).expect("two manifests");
        let found: Vec<(Kind, &str)> = all.iter().map(|m| (m.kind, m.name.as_str())).collect();
        assert_eq!(found, [(Kind::Platform, "a"), (Kind::StatLogger, "b")]);
        assert_eq!((all[0].priority, all[0].other.len()), (-3, 1));
    }

    #[test]
    fn broken_manifests_are_refused_with_words() {
        let refused = |text: &str, words: &str| {
            let error = Manifest::parse_section(text.as_bytes()).expect_err(words);
            assert!(error.contains(words), "{error}");
        };
        refused("", "empty");
        refused("\0\0", "empty");
        refused("hello", "object 0");
        refused(&format!("{ONE}{{"), "object 1");
        refused(&format!("{ONE}{ONE}"), "two platform manifests");
        refused(&ONE.replace(":1,", ":2,"), "form 2");
        refused(&ONE.replace("\"a\"", "\"A b\""), "A b");
        refused(&ONE.replace("\"e\"", "\"\""), "entry");
        refused(&ONE.replace("0.2", "zero"), "zero");
        refused(&ONE.replace("platform", "toaster"), "toaster");
        refused(&ONE.replace(":1,", ":0,"), "form 0");
    }

    #[test]
    fn objects_of_newer_forms_and_kinds_are_passed_over() {
        let (kind, form) = (ONE.replace("platform", "toaster"), ONE.replace(":1,", ":2,"));
        let all = Manifest::parse_section(format!("{kind}{ONE}{form}").as_bytes()).expect("one is known");
        assert_eq!((all.len(), all[0].kind), (1, Kind::Platform));
        let none = Manifest::parse_section(format!("{kind}{form}").as_bytes()).expect_err("none is known");
        assert!(none.contains("toaster") && none.contains("form 2"), "{none}");
    }
}
