//! Adapter files: PEFT's own are read, and what does not fit format, engine or model is refused with its name, what was
//! found and what would do.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use halyard_models::weights::{Linear, MlpLinear};
use halyard_models::{
    DummyWeights, LoadFormat, LoraAdapter, LoraLimits, LoraTargets, ModelDescription, ModelFiles, Role,
};
use halyard_platform_api::DType;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Value, json};

const LIMITS: LoraLimits = LoraLimits {
    max_rank: 16,
    targets: LoraTargets::ALL,
    dtype: DType::F32,
};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models")
}

fn description(model: &str) -> ModelDescription {
    let files = ModelFiles::open(&fixtures().join(model), LoadFormat::Auto, DummyWeights::default());
    (*files.expect("the fixture").description).clone()
}

fn llama() -> ModelDescription {
    description("llama")
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    let value = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    bytes.chunks_exact(4).map(value).collect()
}

#[test]
fn peft_adapters_are_read() {
    let model = llama();
    let open = |name: &str| LoraAdapter::open(&fixtures().join("llama-lora").join(name), &model, &LIMITS).expect(name);
    let plain = open("rank4");
    assert_eq!((plain.rank, plain.scale, plain.num_modules()), (4, 2.0, 4));
    let stabilised = open("rslora8");
    assert_eq!((stabilised.rank, stabilised.scale), (8, (6.0 / 8f64.sqrt()) as f32));
    assert_eq!(stabilised.num_modules(), 14, "seven linears of two layers");
    let patterned = open("rank16");
    let down = patterned
        .module(Role::weight(0, Linear::Mlp(MlpLinear::Down)))
        .expect("a target");
    assert_eq!((patterned.rank, patterned.scale, down.rank), (16, 1.0, 5));
    assert_eq!((down.a.len(), down.b.len()), (4 * 5 * 64, 4 * 48 * 5));
    assert!(patterned.module(Role::weight(0, Linear::Q)).is_none());
    // Values of another scale than the adapter's hold the ratio: alpha 40 of one module, rank 5 of others.
    let stored = Copy::of("rank16");
    let stored_b = |layer: usize, name: &str| {
        let name = format!("base_model.model.model.layers.{layer}.mlp.{name}.lora_B.weight");
        let halves = stored.tensors[&name].2.chunks_exact(2);
        halves
            .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect::<Vec<_>>()
    };
    for (layer, linear, name, ratio) in [
        (0, MlpLinear::Up, "up_proj", 1.0),
        (1, MlpLinear::Up, "up_proj", 2.5),
        (1, MlpLinear::Down, "down_proj", 16.0 / 5.0),
    ] {
        let module = patterned
            .module(Role::weight(layer, Linear::Mlp(linear)))
            .expect("a target");
        let expected: Vec<f32> = stored_b(layer, name).iter().map(|value| value * ratio).collect();
        assert_eq!(f32s(&module.b), expected, "{name} of layer {layer}");
    }
}

/// An adapter's files in a folder of its own, to be changed.
struct Copy {
    config: Value,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Copy {
    fn of(name: &str) -> Copy {
        let folder = fixtures().join("llama-lora").join(name);
        let config = std::fs::read(folder.join("adapter_config.json")).expect("readable");
        let bytes = std::fs::read(folder.join("adapter_model.safetensors")).expect("readable");
        let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
        let all = tensors.tensors().into_iter();
        Copy {
            config: serde_json::from_slice(&config).expect("JSON"),
            tensors: all
                .map(|(name, t)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
                .collect(),
        }
    }

    /// What reading it says.
    fn open(&self, limits: &LoraLimits) -> Result<LoraAdapter, String> {
        self.open_for(&llama(), limits)
    }

    fn open_for(&self, model: &ModelDescription, limits: &LoraLimits) -> Result<LoraAdapter, String> {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("halyard-adapter-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("writable");
        std::fs::write(folder.join("adapter_config.json"), self.config.to_string()).expect("writable");
        let mut views = Vec::new();
        for (name, (dtype, shape, bytes)) in &self.tensors {
            views.push((name, TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor")));
        }
        let bytes = safetensors::serialize(views, None).expect("serializable");
        std::fs::write(folder.join("adapter_model.safetensors"), bytes).expect("writable");
        let outcome = LoraAdapter::open(&folder, model, limits).map_err(|error| error.to_string());
        std::fs::remove_dir_all(folder).expect("removable");
        outcome
    }

    fn refused(&self, words: &[&str]) {
        let error = self.open(&LIMITS).expect_err("refused");
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    }
}

fn with(key: &str, value: Value) -> Copy {
    let mut copy = Copy::of("rank4");
    copy.config[key] = value;
    copy
}

#[test]
fn features_that_change_the_result_are_refused_by_name() {
    for (key, value, words) in [
        ("use_dora", json!(true), ["`use_dora`", "DoRA"]),
        ("bias", json!("all"), ["`bias`", "bias=\"none\""]),
        ("lora_bias", json!(true), ["`lora_bias`", "lora_bias=false"]),
        ("modules_to_save", json!(["lm_head"]), ["`modules_to_save`", "lm_head"]),
        ("peft_type", json!("IA3"), ["`peft_type`", "IA3"]),
        ("task_type", json!("SEQ_CLS"), ["`task_type`", "CAUSAL_LM"]),
        ("fan_in_fan_out", json!(true), ["`fan_in_fan_out`", "transposed"]),
        ("target_parameters", json!(["x"]), ["`target_parameters`", "x"]),
        (
            "trainable_token_indices",
            json!([7]),
            ["`trainable_token_indices`", "embeddings"],
        ),
        (
            "alpha_pattern",
            json!({"^q_proj$": 3}),
            ["alpha_pattern.^q_proj$", "regular expression"],
        ),
        ("r", json!(0), ["`r` is 0", "from 1"]),
        ("r", json!(17), ["`r` is 17", "--max-lora-rank 16"]),
        ("r", json!(513), ["`r` is 513", "512"]),
        ("r", json!("four"), ["`r`", "integer"]),
        ("rank_pattern", json!({"q_proj": 99}), ["rank_pattern.q_proj", "99"]),
        ("target_modules", json!(7), ["`target_modules`", "a list"]),
        (
            "target_modules",
            json!(["q_proj", "k_proj"]),
            ["k_proj", "layer 0 has no matrices"],
        ),
    ] {
        with(key, value).refused(&words);
    }
    let mut without = Copy::of("rank4");
    without.config.as_object_mut().expect("an object").remove("r");
    without.refused(&["`r` is missing"]);
}

const Q_A: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
const Q_B: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

/// The adapter with one tensor called otherwise.
fn renamed(to: &str) -> Copy {
    let mut copy = Copy::of("rank4");
    let tensor = copy.tensors.remove(Q_A).expect("it is there");
    copy.tensors.insert(to.to_owned(), tensor);
    copy
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let name = |module: &str| format!("base_model.model.{module}.lora_A.weight");
    renamed(&name("lm_head")).refused(&["lm_head.lora_A.weight", "`lm_head`", "q_proj,k_proj"]);
    renamed(&name("model.vision.layers.0.self_attn.q_proj")).refused(&["model.vision"]);
    renamed(&name("model.layers.2.self_attn.q_proj")).refused(&["layer 2", "layers 0 to 1"]);
    renamed("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector").refused(&["DoRA"]);
    renamed("base_model.model.model.embed_tokens.lora_embedding_A").refused(&["embeddings"]);
    renamed("base_model.model.model.layers.0.self_attn.q_proj.lora_B.bias").refused(&["neither A nor B"]);
    let mut single = Copy::of("rank4");
    single.tensors.remove(Q_A);
    single.refused(&["q_proj.lora_A.weight", "missing", "only B"]);
    let mut doubled = Copy::of("rank4");
    let tensor = doubled.tensors[Q_A].clone();
    doubled
        .tensors
        .insert(Q_A.replace("lora_A.weight", "lora_A.default.weight"), tensor);
    doubled.refused(&["the same matrix as"]);
    let mut empty = Copy::of("rank4");
    empty.tensors.clear();
    empty.refused(&["no adapter"]);
}

#[test]
fn matrices_of_another_shape_or_type_are_refused() {
    let mut narrow = Copy::of("rank4");
    narrow
        .tensors
        .insert(Q_A.to_owned(), (Dtype::F32, vec![4, 32], vec![0; 4 * 4 * 32]));
    narrow.refused(&[Q_A, "[4, 32]", "[4, 48]"]);
    let mut other_rank = Copy::of("rank4");
    other_rank
        .tensors
        .insert(Q_B.to_owned(), (Dtype::F32, vec![48, 3], vec![0; 4 * 48 * 3]));
    other_rank.refused(&[Q_B, "[48, 3]", "[48, 4]"]);
    let mut hidden_rank = Copy::of("rank4");
    hidden_rank
        .tensors
        .insert(Q_A.to_owned(), (Dtype::F32, vec![64, 48], vec![0; 4 * 64 * 48]));
    hidden_rank.refused(&[Q_A, "64", "--max-lora-rank 16"]);
    let mut integers = Copy::of("rank4");
    integers
        .tensors
        .insert(Q_A.to_owned(), (Dtype::I32, vec![4, 48], vec![0; 4 * 4 * 48]));
    integers.refused(&[Q_A, "I32", "F32, F16, BF16"]);
    let mut broken = Copy::of("rank4");
    let mut bytes = vec![0; 4 * 4 * 48];
    bytes[400..404].copy_from_slice(&f32::NAN.to_le_bytes());
    broken.tensors.insert(Q_A.to_owned(), (Dtype::F32, vec![4, 48], bytes));
    broken.refused(&[Q_A, "NaN", "finite"]);
}

#[test]
fn targets_can_be_limited() {
    let limits = LoraLimits {
        targets: "q_proj,o_proj".parse().expect("names"),
        ..LIMITS
    };
    let error = Copy::of("rank4").open(&limits).expect_err("it changes v_proj");
    assert!(
        error.contains("v_proj") && error.contains("--lora-target-modules allows q_proj,o_proj"),
        "{error}"
    );
    assert!(Copy::of("rank4").open(&LIMITS).is_ok());
}

#[test]
fn adapters_change_attention_and_dense_mlps_beside_experts() {
    let model = description("qwen3-moe");
    let rank4 = |modules: &[(&str, [usize; 2])]| {
        let mut copy = Copy::of("rank4");
        copy.config["target_modules"] = json!(["q_proj", "gate_proj"]);
        copy.tensors.clear();
        for (module, [out, input]) in modules {
            for (matrix, shape) in [("A", vec![4, *input]), ("B", vec![*out, 4])] {
                let name = format!("base_model.model.model.layers.{module}.lora_{matrix}.weight");
                let bytes = vec![0; 4 * shape[0] * shape[1]];
                copy.tensors.insert(name, (Dtype::F32, shape, bytes));
            }
        }
        copy.open_for(&model, &LIMITS)
    };
    let [q, gate] = [[64, 48], [96, 48]];
    let good = [
        ("0.self_attn.q_proj", q),
        ("1.self_attn.q_proj", q),
        ("1.mlp.gate_proj", gate),
        ("2.self_attn.q_proj", q),
    ];
    // Layers 0 and 2 have no gate_proj that the configuration could mean.
    assert_eq!(rank4(&good).expect("an adapter").num_modules(), 4);
    let refused = |module, shape, words: &[&str]| {
        let error = rank4(&[&good[..], &[(module, shape)]].concat()).expect_err("refused");
        for word in words {
            assert!(error.contains(word), "`{word}` is not in: {error}");
        }
    };
    refused(
        "0.mlp.gate_proj",
        gate,
        &["gate_proj in layer 0, which has experts", "dense MLPs"],
    );
    refused(
        "0.mlp.experts.3.up_proj",
        [32, 48],
        &["`model.layers.0.mlp.experts.3.up_proj`", "q_proj,k_proj"],
    );
    refused("2.mlp.gate", [6, 48], &["`model.layers.2.mlp.gate`"]);
    let error = rank4(&good[..2]).expect_err("a dense layer's gate_proj is missing");
    assert!(error.contains("of which layer"), "{error}");

    let dummy = LoraAdapter::dummy(&model, &LIMITS, 3, 1).expect("a small rank");
    assert_eq!(
        dummy.num_modules(),
        3 * 4 + 3,
        "attention of three layers, one dense MLP"
    );
}

#[test]
fn dummies_change_every_target_of_every_model() {
    for name in ["llama", "qwen2", "gemma3"] {
        let model = description(name);
        let dummy = |seed| LoraAdapter::dummy(&model, &LIMITS, 3, seed).expect("a small rank");
        assert_eq!(dummy(1).num_modules(), 7 * model.num_layers(), "{name}");
        assert_eq!(dummy(1), dummy(1));
        assert_ne!(dummy(1), dummy(2));
    }
}

#[test]
fn what_is_no_adapter_is_said() {
    let open = |folder: &Path| {
        LoraAdapter::open(folder, &llama(), &LIMITS)
            .expect_err("none")
            .to_string()
    };
    let elsewhere = open(&fixtures());
    assert!(elsewhere.contains("no adapter_config.json"), "{elsewhere}");
    let nowhere = open(Path::new("/nowhere/at/all"));
    assert!(nowhere.contains("no LoRA adapter here"), "{nowhere}");
}
