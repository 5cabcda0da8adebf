//! The command line of `halyard-device-check`.

use std::path::PathBuf;

use halyard_platform_api::DType;

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Every op against the reference.
    Conformance,
    /// Tiny models of every family, and a real one, against Hugging Face.
    Goldens,
    /// Adapters in mixed batches against Hugging Face PEFT.
    Lora,
    /// Recorded steps give what one-shot steps give.
    Recording,
    /// Drafted tokens change no answer.
    Drafts,
    /// Last hidden states against Hugging Face.
    HiddenStates,
    /// Many replays take no more memory.
    Replays,
    /// Sums between devices, and how long they take.
    Collectives,
    /// Several devices give what one gives.
    TensorParallel,
}

const ALL: [(&str, Check); 9] = [
    ("conformance", Check::Conformance),
    ("goldens", Check::Goldens),
    ("lora", Check::Lora),
    ("recording", Check::Recording),
    ("drafts", Check::Drafts),
    ("hidden-states", Check::HiddenStates),
    ("replays", Check::Replays),
    ("collectives", Check::Collectives),
    ("tensor-parallel", Check::TensorParallel),
];

/// The parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// In order.
    pub checks: Vec<Check>,
    /// The platform's name.
    pub platform: String,
    /// Its library; `None`: in this program's folder.
    pub plugin: Option<PathBuf>,
    /// The folder of tiny models and goldens.
    pub fixtures: PathBuf,
    /// SmolLM2-135M Q4_1.
    pub model: Option<PathBuf>,
    /// Only this op or suite (memory, execution, rules, composites, invariance) of the conformance suite.
    pub only_op: Option<String>,
    /// Only rows of it that fit each of these (`halyard_conformance::row_fits`).
    pub only_variant: Vec<String>,
    /// Only every `.1`-th row of it, tiny model and recording, from number `.0` on: what
    /// [`halyard_conformance::Options::of_test_run`] says where `--share` is given.
    pub share: (usize, usize),
    /// Handles of the device that share the conformance suite, a thread each.
    pub jobs: usize,
    /// Steps of the replay check.
    pub replays: u32,
    /// Only this type of the goldens and of LoRA.
    pub only_dtype: Option<DType>,
    /// Only the goldens over keys and values of these types.
    pub only_kv: Vec<DType>,
    /// Only these tiny models of the goldens, over a cache in the type of the activations.
    pub only_models: Vec<String>,
    /// Not these tiny models of the goldens: the platform says that it lacks an op of theirs.
    pub except_models: Vec<String>,
}

/// How to call the program.
pub const USAGE: &str = "usage: halyard-device-check --platform NAME [--plugin FILE] [--fixtures FOLDER] [--model \
    FILE.gguf] [--op NAME] [--variant PART|PART…|!PART]… [--jobs COUNT] [--share] [--replays COUNT] \
    [--dtype f32|f16|bf16] [--kv fp8|int8|int4]… [--golden MODEL]… [--except MODEL]… \
    [conformance] [goldens] [lora] [recording] [drafts] [hidden-states] [replays] [collectives] [tensor-parallel]";

impl Options {
    /// Whether the goldens of a tiny model are wanted.
    pub fn wants(&self, model: &str) -> bool {
        let is_named = |names: &[String]| names.iter().any(|name| name == model);
        (self.only_models.is_empty() || is_named(&self.only_models)) && !is_named(&self.except_models)
    }

    /// Whether number `number` of a list is of the share.
    pub fn shares(&self, number: usize) -> bool {
        number % self.share.1 == self.share.0
    }

    /// Reads arguments. Without a check: all.
    ///
    /// # Errors
    /// What is wrong, and how to call the program.
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            checks: Vec::new(),
            platform: String::new(),
            plugin: None,
            fixtures: PathBuf::from("tests/fixtures/models"),
            model: None,
            only_op: None,
            only_variant: Vec::new(),
            share: (0, 1),
            jobs: 1,
            replays: 10_000,
            only_dtype: None,
            only_kv: Vec::new(),
            only_models: Vec::new(),
            except_models: Vec::new(),
        };
        while let Some(argument) = arguments.next() {
            if let Some((_, check)) = ALL.iter().find(|(name, _)| *name == argument) {
                options.checks.push(*check);
                continue;
            }
            if argument == "--share" {
                options.share = halyard_conformance::Options::of_test_run().share;
                continue;
            }
            let value = arguments
                .next()
                .ok_or_else(|| format!("{argument} has no value\n{USAGE}"))?;
            match argument.as_str() {
                "--platform" => options.platform = value,
                "--plugin" => options.plugin = Some(value.into()),
                "--fixtures" => options.fixtures = value.into(),
                "--model" => options.model = Some(value.into()),
                "--op" => options.only_op = Some(value),
                "--kv" => options.only_kv.push(match value.as_str() {
                    "fp8" => DType::F8E4M3,
                    "int8" => DType::I8,
                    "int4" => DType::U4,
                    _ => return Err(format!("--kv {value}: fp8, int8 and int4 have goldens\n{USAGE}")),
                }),
                "--golden" => options.only_models.push(value),
                "--except" => options.except_models.push(value),
                "--variant" => options.only_variant.push(value),
                "--dtype" => {
                    options.only_dtype = Some(match value.as_str() {
                        "f32" => DType::F32,
                        "f16" => DType::F16,
                        "bf16" => DType::BF16,
                        _ => return Err(format!("--dtype {value}: f32, f16 and bf16 are checked\n{USAGE}")),
                    });
                }
                "--jobs" => {
                    options.jobs = value
                        .parse()
                        .ok()
                        .filter(|jobs| (1..=64).contains(jobs))
                        .ok_or_else(|| format!("--jobs {value}: give a number of threads, 1 to 64"))?;
                }
                "--replays" => {
                    options.replays = value
                        .parse()
                        .map_err(|e| format!("--replays {value}: {e}; give a number of steps"))?;
                }
                _ => return Err(format!("{argument} is not known\n{USAGE}")),
            }
        }
        if options.platform.is_empty() {
            return Err(format!("--platform is missing\n{USAGE}"));
        }
        if options.checks.is_empty() {
            options.checks.extend(ALL.iter().map(|(_, check)| *check));
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn without_a_check_all_run() {
        let options = parse("--platform x --share --replays 7").expect("right");
        assert_eq!(options.checks.len(), ALL.len());
        assert_eq!(options.share, halyard_conformance::Options::of_test_run().share);
        assert_eq!(options.replays, 7);
        assert!(options.wants("a"));
    }

    #[test]
    fn types_of_keys_and_values_have_flags_names() {
        let options = parse("--platform x --kv int8 --kv int4 goldens").expect("right");
        assert_eq!(options.only_kv, [DType::I8, DType::U4]);
        let why = parse("--platform x --kv f32").expect_err("it has no goldens");
        assert!(why.starts_with("--kv f32: fp8, int8 and int4"), "{why}");
    }

    #[test]
    fn goldens_of_named_models_run_alone() {
        let options = parse("--platform x --golden a --golden b/c").expect("right");
        assert_eq!(["a", "b", "b/c"].map(|model| options.wants(model)), [true, false, true]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, word) in [
            ("goldens", "--platform"),
            ("--platform", "no value"),
            ("--platform x --what y", "--what"),
            ("--platform x --replays many", "many"),
            ("--platform x --dtype f64", "f64"),
            ("--platform x --jobs 0", "1 to 64"),
        ] {
            let why = parse(text).expect_err(text);
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
