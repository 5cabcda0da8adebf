//! The programs of tiny models as text, compared with the files in `data/programs`: a change of structure must leave
//! them as they are. `HALYARD_BLESS=1` writes the files anew.

mod support;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use halyard_models::program::{
    KvLayout, LoraOptions, ModelProgram, ProgramOptions, Rows, Shard, TensorRole, WeightPart, WeightSpec,
    build_forward, build_head,
};
use halyard_models::{DummyWeights, LoadFormat, LoraTargets, ModelError, ModelFiles, Role};
use halyard_platform_api::DType;
use halyard_platform_api::program::ABSENT;

/// Tiny models as paths below `tests/fixtures/models`: together they have every choice of a description once. What the
/// programs of all others compute is compared with Hugging Face's (`program.rs`).
const MODELS: [&str; 24] = [
    "cohere2",
    "deepseek-v3",
    "gemma3",
    "gguf/gemma3-gguf.gguf",
    "gguf/llama-gguf.gguf",
    "gguf/llama3-rope-gguf.gguf",
    "gguf/qwen3-gguf.gguf",
    "gguf/qwen3-moe-gguf.gguf",
    "gpt-neox",
    "gpt2",
    "granite-moe",
    "llama",
    "llama-fp8",
    "llama-fp8-kv",
    "llama3-rope",
    "mistral",
    "olmo2",
    "qwen2",
    "qwen2-moe",
    "qwen3",
    "qwen3-fp8",
    "qwen3-kv",
    "qwen3-moe",
    "smollm2",
];

/// Options in which no two numbers are equal, so that a swapped pair shows.
fn options() -> ProgramOptions {
    ProgramOptions {
        act: DType::F16,
        kv: DType::BF16,
        block_size: 16,
        attention_backend: 1,
        max_tokens: 40,
        max_seqs: 5,
        max_kv_len: 72,
        max_logits_rows: 6,
        allow_quantized_act: false,
        narrow_last_layer: true,
        expert_parallel: false,
        communicator: 0,
        shard: Shard::WHOLE,
        lora: None,
    }
}

fn rank(rank: u32, size: u32) -> ProgramOptions {
    ProgramOptions {
        shard: Shard { rank, size },
        ..options()
    }
}

fn lora(targets: LoraTargets, shard: Shard) -> ProgramOptions {
    ProgramOptions {
        narrow_last_layer: false,
        communicator: 0,
        shard,
        lora: Some(LoraOptions {
            num_slots: 3,
            max_rank: 8,
            dtype: DType::BF16,
            targets,
        }),
        ..options()
    }
}

/// Which programs are written out, and which are named by a hash of their text only.
fn variants() -> Vec<(&'static str, bool, ProgramOptions)> {
    let some: LoraTargets = "q_proj,o_proj,up_proj".parse().expect("known names");
    let exact = ProgramOptions {
        narrow_last_layer: false,
        communicator: 0,
        allow_quantized_act: true,
        act: DType::F32,
        ..options()
    };
    let second = Shard { rank: 1, size: 2 };
    vec![
        ("whole", true, options()),
        ("rank 0 of 2", true, rank(0, 2)),
        ("LoRA on every target", true, lora(LoraTargets::ALL, Shard::WHOLE)),
        ("rank 1 of 2", false, rank(1, 2)),
        ("rank 3 of 4", false, rank(3, 4)),
        ("last layer in the forward program", false, exact),
        ("LoRA on q_proj, o_proj and up_proj", false, lora(some, Shard::WHOLE)),
        ("LoRA on rank 1 of 2", false, lora(LoraTargets::ALL, second)),
    ]
}

/// FNV-1a (Fowler, Noll, Vo).
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What one file is written with: the model, and every spec met so far, which nodes name by its place.
struct Dump {
    files: ModelFiles,
    specs: Vec<String>,
}

impl Dump {
    fn parts(&self, parts: &[WeightPart]) -> String {
        let one = |part: &WeightPart| {
            let name = self.files.weights.file_name(part.role);
            format!(" {name}[{}+{}, {}+]", part.first_row, part.rows, part.first_column)
        };
        parts.iter().map(one).collect()
    }

    /// The spec's name and place in the list of specs.
    fn spec(&mut self, spec: String) -> String {
        let place = self.specs.iter().position(|known| *known == spec).unwrap_or_else(|| {
            self.specs.push(spec.clone());
            self.specs.len() - 1
        });
        let name = spec.split(['(', ' ']).next().unwrap_or_default();
        format!("{name}.{place}")
    }

    fn program(&mut self, program: &ModelProgram) -> Result<String, std::fmt::Error> {
        let mut out = String::new();
        for (i, slot) in program.slots.iter().enumerate() {
            let rows = if slot.rows == Rows::Tokens { "T" } else { "N" };
            writeln!(out, "  s{i} [{rows}, {}] {:?}", slot.width, slot.dtype)?;
        }
        for (i, weight) in program.weights.iter().enumerate() {
            match weight {
                WeightSpec::Vector { parts, rows: 1 } => writeln!(out, "  w{i} vector:{}", self.parts(parts))?,
                WeightSpec::Vector { parts, rows } => {
                    writeln!(out, "  w{i} {rows} vectors:{}", self.parts(parts))?;
                }
                WeightSpec::Matrix {
                    node,
                    format,
                    in_features,
                    parts,
                } => {
                    let parts = self.parts(parts);
                    writeln!(out, "  w{i} node {node} {format:?} in {in_features}:{parts}")?;
                }
            }
        }
        for (i, group) in program.lora.iter().enumerate() {
            let parts = self.parts(&group.parts);
            writeln!(
                out,
                "  lora{i} in {} out {}:{parts}",
                group.in_features, group.out_features
            )?;
        }
        for (i, node) in program.program.nodes.iter().enumerate() {
            let spec = self.spec(format!("{:?}", node.spec));
            let operands: Vec<_> = node.operands.iter().map(|&t| tensor(program, t)).collect();
            writeln!(out, "  {i} {spec}: {}", operands.join(" "))?;
        }
        // Order of nodes, numbers of tensors and everything that the lines above leave out of their declarations.
        writeln!(out, "  program {:016x}", hash(&format!("{:?}", program.program)))?;
        Ok(out)
    }
}

/// A tensor by its role; `*`: internal.
fn tensor(program: &ModelProgram, t: u16) -> String {
    if t == ABSENT {
        return "-".to_owned();
    }
    let internal = if program.program.tensors[usize::from(t)].internal {
        "*"
    } else {
        ""
    };
    match program.roles[usize::from(t)] {
        TensorRole::Activation {
            slot,
            column,
            width,
            heads,
        } => match heads {
            0 => format!("s{slot}[{column}+{width}]{internal}"),
            heads => format!("s{slot}[{column}+{width} / {heads}]{internal}"),
        },
        TensorRole::Weight { index } => format!("w{index}"),
        role => format!("{role:?}").replace(' ', ""),
    }
}

fn dump(model: &str) -> Result<String, std::fmt::Error> {
    let open = |format| {
        let path = support::fixtures().join("models").join(model);
        ModelFiles::open(&path, format, DummyWeights::default()).expect("the fixture")
    };
    let dummy = open(LoadFormat::Dummy);
    let mut dump = Dump {
        files: open(LoadFormat::Auto),
        specs: Vec::new(),
    };
    let description = dump.files.description.clone();
    let layout = KvLayout::of(&description);
    let mut programs = String::new();
    for (variant, whole_text, options) in variants() {
        let built = |dump: &Dump| -> Result<_, ModelError> {
            let format_of = |role: Role| dump.files.weights.format(role);
            let forward = build_forward(&description, &layout, &options, &format_of)?;
            Ok((forward, build_head(&description, &options, &format_of)?))
        };
        match built(&dump) {
            Err(refusal) => writeln!(programs, "\n{variant}: {refusal}")?,
            Ok((forward, head)) => {
                let head = if options.lora.is_some() { None } else { Some(head) };
                for (kind, program) in [("forward", Some(forward)), ("head", head)] {
                    let Some(program) = program else { continue };
                    let known = dump.specs.len();
                    let text = dump.program(&program)?;
                    if whole_text {
                        writeln!(programs, "\n{variant}, {kind}\n{}", text.trim_end())?;
                    } else {
                        let text = format!("{text}{}", dump.specs.split_off(known).join("\n"));
                        writeln!(programs, "\n{variant}, {kind}: {:016x}", hash(&text))?;
                    }
                }
            }
        }
    }
    let mut out = format!("{model}: groups of layers and their windows, weights, specs, programs\n\n");
    for group in &layout.groups {
        writeln!(out, "group of {:?}, window {:?}", group.layers, group.window)?;
    }
    for role in Role::all(&description) {
        let (weights, name) = (&dump.files.weights, dump.files.weights.file_name(role));
        let format = weights.format(role).expect("a weight of the fixture");
        write!(out, "{name} {:?} {format:?}", weights.shape(role))?;
        match dummy.weights.dummy_values(role) {
            Some(values) => writeln!(out, ", dummy key {:08x}{:08x}", values.seed_high, values.seed_low)?,
            None => writeln!(out)?,
        }
    }
    writeln!(out)?;
    for (i, spec) in dump.specs.iter().enumerate() {
        writeln!(out, "{i} {spec}")?;
    }
    Ok(out + &programs)
}

fn dump_file(model: &str) -> PathBuf {
    let name = model.trim_start_matches("gguf/").replace('.', "-");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/programs/{name}.txt"))
}

#[test]
fn programs_are_those_of_the_dump() {
    let mut changed = Vec::new();
    for model in MODELS {
        let (found, file) = (dump(model).expect("text"), dump_file(model));
        if std::env::var_os("HALYARD_BLESS").is_some() {
            std::fs::write(&file, &found).expect("written");
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        if let Some((line, (found, expected))) = (1..)
            .zip(
                found
                    .lines()
                    .map(Some)
                    .chain([None])
                    .zip(expected.lines().map(Some).chain([None])),
            )
            .find(|(_, (found, expected))| found != expected)
        {
            changed.push(format!("{model}, line {line}:\n  is  {found:?}\n  was {expected:?}"));
        }
    }
    assert!(changed.is_empty(), "programs have changed:\n{}", changed.join("\n"));
}
