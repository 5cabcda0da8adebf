//! The list of targets: what each one reads, its seeds, and how many cases the test runs.

use std::path::{Path, PathBuf};

use crate::mutate::Form;
use crate::targets::{answer, client, grammar, http, models, plugins, response_template, text, zmtp};

/// What a case came to: input that was taken, or refused with a reason. Anything else is a panic, an abort or a hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was taken.
    Accepted,
    /// It was refused in words.
    Refused,
}

/// Whether a result was good.
pub fn outcome<T, E: std::fmt::Display>(result: &Result<T, E>) -> Outcome {
    match result {
        Ok(_) => Outcome::Accepted,
        Err(error) => {
            assert!(!error.to_string().trim().is_empty(), "a refusal without words");
            Outcome::Refused
        }
    }
}

/// Runs one input.
pub type Case = Box<dyn FnMut(&[u8]) -> Outcome>;

/// A reader of what strangers write.
pub struct Target {
    /// Name.
    pub name: &'static str,
    /// What its input is made of.
    pub form: Form,
    /// Inputs that are right, from the fixtures.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Prepares what all cases share.
    pub start: fn(&Path) -> Case,
    /// Bytes that the process may have allocated at any moment.
    pub memory_bytes: usize,
    /// Cases of the test.
    pub test_cases: u64,
}

const MIB: usize = 1 << 20;

/// Every target.
pub const TARGETS: &[Target] = &[
    Target {
        name: "gguf",
        form: Form::Bytes,
        seeds: models::gguf_seeds,
        start: models::gguf,
        memory_bytes: 256 * MIB,
        test_cases: 6000,
    },
    Target {
        name: "safetensors",
        form: Form::SizedJson,
        seeds: models::safetensors_seeds,
        start: models::safetensors,
        memory_bytes: 256 * MIB,
        test_cases: 8000,
    },
    Target {
        name: "safetensors-index",
        form: Form::Json,
        seeds: models::index_seeds,
        start: models::index,
        memory_bytes: 256 * MIB,
        test_cases: 8000,
    },
    Target {
        name: "config",
        form: Form::Json,
        seeds: models::config_seeds,
        start: models::config,
        memory_bytes: 256 * MIB,
        test_cases: 20_000,
    },
    Target {
        name: "generation-config",
        form: Form::Json,
        seeds: models::generation_seeds,
        start: models::generation,
        memory_bytes: 256 * MIB,
        test_cases: 30_000,
    },
    Target {
        name: "lora-config",
        form: Form::Json,
        seeds: models::lora_config_seeds,
        start: models::lora_config,
        memory_bytes: 256 * MIB,
        test_cases: 15_000,
    },
    Target {
        name: "tokenizer",
        form: Form::Json,
        seeds: text::tokenizer_seeds,
        start: text::tokenizer,
        memory_bytes: 512 * MIB,
        test_cases: 400,
    },
    Target {
        name: "tokenizer-config",
        form: Form::Json,
        seeds: text::tokenizer_config_seeds,
        start: text::tokenizer_config,
        memory_bytes: 256 * MIB,
        test_cases: 20_000,
    },
    Target {
        name: "template",
        form: Form::Text,
        seeds: text::template_seeds,
        start: text::template,
        memory_bytes: 1024 * MIB,
        test_cases: 400,
    },
    Target {
        name: "answer",
        form: Form::Text,
        seeds: answer::seeds,
        start: answer::answer,
        memory_bytes: 128 * MIB,
        test_cases: 20_000,
    },
    Target {
        name: "response-template",
        form: Form::Json,
        seeds: response_template::seeds,
        start: response_template::response_template,
        memory_bytes: 256 * MIB,
        test_cases: 2_000,
    },
    Target {
        name: "constraint",
        form: Form::Json,
        seeds: grammar::constraint_seeds,
        start: grammar::constraint,
        memory_bytes: 1024 * MIB,
        test_cases: 1500,
    },
    Target {
        name: "grammar",
        form: Form::Text,
        seeds: grammar::grammar_seeds,
        start: grammar::grammar,
        memory_bytes: 1024 * MIB,
        test_cases: 1500,
    },
    Target {
        name: "manifest",
        form: Form::Json,
        seeds: plugins::manifest_seeds,
        start: plugins::manifest,
        memory_bytes: 128 * MIB,
        test_cases: 40_000,
    },
    Target {
        name: "elf",
        form: Form::Bytes,
        seeds: plugins::elf_seeds,
        start: plugins::elf,
        memory_bytes: 128 * MIB,
        test_cases: 30_000,
    },
    Target {
        name: "op-spec",
        form: Form::Bytes,
        seeds: plugins::op_seeds,
        start: plugins::op,
        memory_bytes: 128 * MIB,
        test_cases: 100_000,
    },
    Target {
        name: "program",
        form: Form::Bytes,
        seeds: plugins::program_seeds,
        start: plugins::program,
        memory_bytes: 128 * MIB,
        test_cases: 40_000,
    },
    Target {
        name: "record",
        form: Form::Bytes,
        seeds: plugins::record_seeds,
        start: plugins::record,
        memory_bytes: 128 * MIB,
        test_cases: 60_000,
    },
    Target {
        name: "record-json",
        form: Form::Json,
        seeds: plugins::record_json_seeds,
        start: plugins::record_json,
        memory_bytes: 128 * MIB,
        test_cases: 30_000,
    },
    Target {
        name: "completion",
        form: Form::Json,
        seeds: http::completion_seeds,
        start: http::completion,
        memory_bytes: 1024 * MIB,
        test_cases: 2000,
    },
    Target {
        name: "chat",
        form: Form::Json,
        seeds: http::chat_seeds,
        start: http::chat,
        memory_bytes: 1024 * MIB,
        test_cases: 2000,
    },
    Target {
        name: "tokenize",
        form: Form::Json,
        seeds: http::tokenize_seeds,
        start: http::tokenize,
        memory_bytes: 1024 * MIB,
        test_cases: 4000,
    },
    Target {
        name: "detokenize",
        form: Form::Json,
        seeds: http::detokenize_seeds,
        start: http::detokenize,
        memory_bytes: 1024 * MIB,
        test_cases: 4000,
    },
    Target {
        name: "lora-load",
        form: Form::Json,
        seeds: http::lora_seeds,
        start: http::lora,
        memory_bytes: 1024 * MIB,
        test_cases: 1500,
    },
    Target {
        name: "admin",
        form: Form::Json,
        seeds: http::admin_seeds,
        start: http::admin,
        memory_bytes: 1024 * MIB,
        test_cases: 2000,
    },
    Target {
        name: "event-stream",
        form: Form::Text,
        seeds: client::seeds,
        start: client::events,
        memory_bytes: 128 * MIB,
        test_cases: 60_000,
    },
    Target {
        name: "zmtp",
        form: Form::Bytes,
        seeds: zmtp::seeds,
        start: zmtp::peer,
        memory_bytes: 16 * MIB,
        test_cases: 20_000,
    },
];

/// The target of a name.
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file of tests/fixtures.
pub fn fixture(path: &str) -> PathBuf {
    root().join("tests/fixtures").join(path)
}

/// The contents of a file of tests/fixtures.
pub fn fixture_bytes(path: &str) -> Vec<u8> {
    std::fs::read(fixture(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

impl Target {
    /// Where its committed inputs are.
    pub fn corpus(&self) -> PathBuf {
        root().join("tests/fuzz/corpus").join(self.name)
    }

    /// Committed inputs with their names, in order.
    pub fn committed(&self) -> Vec<(String, Vec<u8>)> {
        let files = std::fs::read_dir(self.corpus()).into_iter().flatten().flatten();
        let mut found: Vec<(String, Vec<u8>)> = files
            .filter_map(|file| {
                let name = file.file_name().to_string_lossy().into_owned();
                Some((name, std::fs::read(file.path()).ok()?))
            })
            .collect();
        found.sort();
        found
    }
}
