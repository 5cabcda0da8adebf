//! Scales of keys and values in a checkpoint: found under all their names, folded into the weights that compute keys
//! and values, refused if they are invalid.

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use halyard_models::weights::Part::{self, Bias, Weight};
use halyard_models::weights::{Linear, MlpLinear, Norm};
use halyard_models::{DummyWeights, LoadFormat, LoraAdapter, LoraLimits, LoraTargets, ModelError, ModelFiles, Role};
use halyard_platform_api::DType;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use support::{TempFolder, fixtures};

fn open(folder: &Path) -> ModelFiles {
    ModelFiles::open(folder, LoadFormat::Auto, DummyWeights::default()).expect("a model")
}

/// Name, type, shape and bytes of a tensor.
type Stored<'n> = (&'n str, Dtype, Vec<usize>, Vec<u8>);

/// A fixture with other tensors, or more of them, in one file.
fn with(name: &str, tensors: &[Stored<'_>]) -> TempFolder {
    let (folder, from) = (TempFolder::new(), fixtures().join("models").join(name));
    for file in ["config.json", "tokenizer.json"] {
        folder.write(file, std::fs::read(from.join(file)).expect("readable"));
    }
    let entries = std::fs::read_dir(&from).expect("a folder");
    let paths = entries.map(|entry| entry.expect("readable").path());
    let files = paths.filter(|path| path.extension().is_some_and(|end| end == "safetensors"));
    let files: Vec<Vec<u8>> = files.map(|path| std::fs::read(path).expect("readable")).collect();
    let stored = files
        .iter()
        .map(|bytes| SafeTensors::deserialize(bytes).expect("a file"));
    let stored: Vec<SafeTensors<'_>> = stored.collect();
    let mut all: BTreeMap<String, TensorView<'_>> = stored.iter().flat_map(|file| file.tensors()).collect();
    for (name, dtype, shape, bytes) in tensors {
        let view = TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor");
        all.insert(name.to_string(), view);
    }
    folder.write("model.safetensors", safetensors::serialize(all, None).expect("a file"));
    folder
}

fn scale(name: &str, value: f32) -> Stored<'_> {
    (name, Dtype::F32, vec![], value.to_le_bytes().to_vec())
}

fn values(model: &ModelFiles, layer: usize, weight: Part) -> Vec<f32> {
    let tensor = model.weights.tensor(Role::Layer(layer, weight)).expect("there");
    tensor.to_f32().expect("decodes")
}

/// Largest distance of two lists from a factor between them, as a part of the larger value.
fn off(before: &[f32], after: &[f32], factor: f32) -> f32 {
    assert_eq!(before.len(), after.len());
    let off = |(a, b): (&f32, &f32)| (a * factor - b).abs() / (a * factor).abs().max(1e-6);
    before.iter().zip(after).map(off).fold(0.0, f32::max)
}

/// By how much each weight of a layer changes: (weight, factor).
fn check(folder: &Path, layer: usize, expected: &[(Part, f32)], within: f32) {
    let before = open(folder);
    let mut after = open(folder);
    assert!(after.use_kv_scales().expect("readable"));
    for &(weight, factor) in expected {
        let off = off(&values(&before, layer, weight), &values(&after, layer, weight), factor);
        assert!(off <= within, "{weight:?}: {off} from a factor of {factor}");
    }
}

const K: f32 = 0.3;
const V: f32 = 0.07;

#[test]
fn products_of_queries_and_keys_stay_and_so_does_what_values_give() {
    let of = |name: &str| format!("model.layers.1.{name}");
    let (k, v) = (of("self_attn.k_scale"), of("self_attn.v_scale"));
    let scales = [scale(&k, K), scale(&v, V)];
    let plain = [
        (Weight(Linear::Q), K),
        (Weight(Linear::K), 1.0 / K),
        (Weight(Linear::V), 1.0 / V),
        (Weight(Linear::O), V),
        (Weight(Linear::Mlp(MlpLinear::Gate)), 1.0),
    ];
    let exact = 2e-7;
    check(with("llama", &scales).path(), 1, &plain, exact);
    // A layer whose scales the file lacks is as it was.
    check(
        with("llama", &scales).path(),
        0,
        &plain.map(|(weight, _)| (weight, 1.0)),
        0.0,
    );
    // 8-bit weights: their rows' scales take it up.
    check(with("llama-fp8", &scales).path(), 1, &plain, exact);
    let biases = [
        (Bias(Linear::Q), K),
        (Bias(Linear::K), 1.0 / K),
        (Bias(Linear::V), 1.0 / V),
    ];
    check(with("qwen2", &scales).path(), 1, &biases, exact);
    // Behind a norm of queries and keys nothing before it counts.
    let normed = [
        (Weight(Linear::Q), 1.0),
        (Weight(Linear::K), 1.0),
        (Part::Norm(Norm::Query), K),
        (Part::Norm(Norm::Key), 1.0 / K),
        (Weight(Linear::V), 1.0 / V),
        (Weight(Linear::O), V),
    ];
    check(with("qwen3", &scales).path(), 1, &normed, exact);
}

#[test]
fn a_norm_that_adds_one_to_its_weights_is_changed_as_a_whole() {
    let name = "model.layers.0.self_attn.k_scale";
    let folder = with("gemma3", &[scale(name, K)]);
    let (before, mut after) = (open(folder.path()), open(folder.path()));
    assert!(after.use_kv_scales().expect("readable"));
    for (weight, factor) in [(Part::Norm(Norm::Query), K), (Part::Norm(Norm::Key), 1.0 / K)] {
        let whole = |model: &ModelFiles| -> Vec<f32> { values(model, 0, weight).iter().map(|w| 1.0 + w).collect() };
        let off = off(&whole(&before), &whole(&after), factor);
        assert!(off < 1e-5, "{weight:?}: {off}");
    }
}

/// A matrix in 16 bits is rounded once more, to nearest.
#[test]
fn sixteen_bits_stay_sixteen_bits() {
    let bytes = std::fs::read(fixtures().join("models/llama/model.safetensors")).expect("readable");
    let stored = SafeTensors::deserialize(&bytes).expect("a file");
    let o_proj = "model.layers.0.self_attn.o_proj.weight";
    let tensor = stored.tensor(o_proj).expect("there");
    assert_eq!(tensor.dtype(), Dtype::F32);
    let halves: Vec<half::bf16> = f32s(tensor.data()).map(half::bf16::from_f32).collect();
    let half_bytes = halves.iter().flat_map(|h| h.to_le_bytes()).collect();
    let half = (o_proj, Dtype::BF16, tensor.shape().to_vec(), half_bytes);
    let folder = with("llama", &[scale("model.layers.0.self_attn.v_scale", V), half]);
    let mut model = open(folder.path());
    assert!(model.use_kv_scales().expect("readable"));
    let found = model.weights.tensor(Role::Layer(0, Weight(Linear::O))).expect("there");
    let rows = found.rows(0..found.num_rows());
    assert_eq!(rows.len(), 2 * halves.len());
    for (i, (before, after)) in halves.iter().zip(rows.chunks_exact(2)).enumerate() {
        let expected = half::bf16::from_f32(before.to_f32() * V);
        assert_eq!(half::bf16::from_le_bytes([after[0], after[1]]), expected, "value {i}");
    }
    // Some columns of some rows are those of the whole.
    let part = found.submatrix(3..5, 8..12);
    let at = |row: usize| (row * found.row_len() + 8) * 2;
    assert_eq!(part[..8], rows[at(3)..at(3) + 8]);
    assert_eq!(part[8..], rows[at(4)..at(4) + 8]);
}

fn f32s(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

#[test]
fn a_checkpoint_without_scales_stays_as_it_is() {
    let folder = fixtures().join("models/llama-fp8");
    let (before, mut after) = (open(&folder), open(&folder));
    assert!(!after.use_kv_scales().expect("readable"));
    assert_eq!(before.description, after.description);
}

#[test]
fn every_name_of_a_scale_is_known() {
    for (name, weight) in [
        ("self_attn.attn.k_scale", Weight(Linear::K)),
        ("self_attn.k_proj.k_scale", Weight(Linear::K)),
        ("self_attn.k_proj.output_scale", Weight(Linear::K)),
        ("self_attn.kv_scale", Weight(Linear::K)),
        ("self_attn.attn.v_scale", Weight(Linear::V)),
        ("self_attn.v_proj.v_scale", Weight(Linear::V)),
        ("self_attn.v_proj.output_scale", Weight(Linear::V)),
        ("self_attn.kv_scale", Weight(Linear::V)),
    ] {
        let name = format!("model.layers.0.{name}");
        let half = half::f16::from_f32(0.25).to_le_bytes().to_vec();
        let folder = with("llama", &[(&name, Dtype::F16, vec![1], half)]);
        check(folder.path(), 0, &[(weight, 4.0)], 0.0);
    }
}

#[test]
fn what_is_no_scale_is_refused_by_name() {
    let name = "model.layers.1.self_attn.k_scale";
    let refused = |dtype, shape: &[usize], bytes: Vec<u8>| {
        let folder = with("llama", &[(name, dtype, shape.to_vec(), bytes)]);
        open(folder.path()).use_kv_scales().expect_err("refused")
    };
    for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = refused(Dtype::F32, &[], value.to_le_bytes().to_vec());
        assert!(
            matches!(&error, ModelError::BadField { field, .. } if field == name),
            "{error}"
        );
    }
    let by_head = refused(Dtype::F32, &[2], vec![0; 8]).to_string();
    assert!(
        by_head.contains("[2]") && by_head.contains(name) && by_head.contains("--kv-cache-dtype"),
        "{by_head}"
    );
    let bytes = refused(Dtype::U8, &[1], vec![1]).to_string();
    assert!(bytes.contains("U8"), "{bytes}");
}

/// An adapter adds to what the base's linears give, so it is changed as they are.
#[test]
fn adapters_are_changed_as_their_linears() {
    let (k, v) = ("model.layers.0.self_attn.k_scale", "model.layers.0.self_attn.v_scale");
    let folder = with("llama", &[scale(k, K), scale(v, V)]);
    let (before, mut after) = (open(folder.path()), open(folder.path()));
    assert!(after.use_kv_scales().expect("readable"));
    let limits = LoraLimits {
        max_rank: 16,
        dtype: DType::F32,
        targets: LoraTargets::ALL,
    };
    let path = fixtures().join("models/llama-lora/rslora8");
    let read = |model: &ModelFiles| LoraAdapter::open(&path, &model.description, &limits).expect("reads");
    let (before, after) = (read(&before), read(&after));
    for (weight, factor) in [
        (Weight(Linear::Q), K),
        (Weight(Linear::K), 1.0 / K),
        (Weight(Linear::V), 1.0 / V),
        (Weight(Linear::O), V),
        (Weight(Linear::Mlp(MlpLinear::Gate)), 1.0),
    ] {
        let module = |adapter: &'_ LoraAdapter| adapter.module(Role::Layer(0, weight)).expect("a target").clone();
        let (old, new) = (module(&before), module(&after));
        assert_eq!(old.a, new.a, "{weight:?}");
        let (old, new): (Vec<f32>, Vec<f32>) = (f32s(&old.b).collect(), f32s(&new.b).collect());
        assert!(off(&old, &new, factor) < 1e-6, "{weight:?}");
    }
}
