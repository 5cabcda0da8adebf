//! The programs, run by a small interpreter in plain f32, against Hugging Face on the tiny models.
//!
//! The interpreter knows the ops from their documentation only; backends have their own tests. What is
//! judged here is description, names, rope tables, dequantisation and the order of ops, teacher-forced: the
//! golden ids are fed, and at every position argmax and log-probability must agree.

mod interpreter;
#[path = "../support/mod.rs"]
mod support;

use halyard_models::config::MlpDescription;
use halyard_models::program::{KvLayout, ProgramOptions, Shard, TensorRole, build_forward, build_head};
use halyard_models::{DummyWeights, LoadFormat, ModelError, ModelFiles, Role};
use halyard_platform_api::{DType, Node, OpSpec, WeightFormat};
use serde_json::Value;

use interpreter::Interpreter;

/// Largest difference of log-probabilities: f32 sums in another order, over a dozen layers' products.
const LOGPROB_BOUND: f64 = 2e-4;
/// Below this fp32 gap of the two best logits, rounding decides the argmax.
const TIE: f64 = 1e-3;

fn options(max_tokens: usize, shard: Shard, narrow_last_layer: bool) -> ProgramOptions {
    ProgramOptions {
        act: DType::F32,
        kv: DType::F32,
        block_size: 16,
        attention_backend: 0,
        max_tokens: max_tokens as u32,
        max_seqs: 1,
        max_kv_len: max_tokens as u32,
        max_logits_rows: max_tokens as u32,
        allow_quantized_act: false,
        narrow_last_layer,
        communicator: 0,
        shard,
        expert_parallel: false,
        lora: None,
    }
}

/// The ranks of a model, and whether each has whole experts.
#[derive(Clone, Copy)]
struct Over {
    ranks: u32,
    experts: bool,
}

fn logprob(logits: &[f32], id: usize) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|&l| f64::from(l - most).exp()).sum();
    f64::from(logits[id] - most) - total.ln()
}

fn numbers(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|v| v.as_f64().unwrap_or(f64::NAN))
        .collect()
}

/// Compares every case of a golden file; returns positions checked and the worst difference.
fn compare(model: &str, golden: &str, over: Over, narrow: bool) -> (usize, f64) {
    let models = support::fixtures().join("models");
    let files = ModelFiles::open(&models.join(model), LoadFormat::Auto, DummyWeights::default()).unwrap();
    let golden: Value = serde_json::from_slice(&std::fs::read(models.join(golden)).unwrap()).unwrap();
    let (mut positions, mut worst) = (0, 0.0f64);
    for case in golden["cases"].as_array().unwrap() {
        let prompt: Vec<usize> = numbers(&case["prompt_ids"]).iter().map(|&id| id as usize).collect();
        let expected = &case["hf_fp32"];
        let generated: Vec<usize> = numbers(&expected["ids"]).iter().map(|&id| id as usize).collect();
        let ids = [prompt.as_slice(), &generated].concat();
        let logits = Interpreter::logits(&files, &ids, over, narrow);
        let mut check = |position: usize, id: usize, expected: f64| {
            let difference = (logprob(&logits[position], id) - expected).abs();
            assert!(
                difference <= LOGPROB_BOUND,
                "{model}, {}: position {position} differs by {difference}",
                case["name"]
            );
            worst = worst.max(difference);
            positions += 1;
        };
        let prompt_logprobs = numbers(&expected["prompt_logprobs"]);
        for position in 1..prompt.len() {
            check(position - 1, prompt[position], prompt_logprobs[position]);
        }
        let (logprobs, gaps) = (numbers(&expected["logprobs"]), numbers(&expected["top2_gap"]));
        for (i, &id) in generated.iter().enumerate() {
            let position = prompt.len() + i - 1;
            check(position, id, logprobs[i]);
            let best = (0..logits[position].len()).max_by(|&a, &b| logits[position][a].total_cmp(&logits[position][b]));
            assert!(
                best == Some(id) || gaps[i] < TIE,
                "{model}, {}: argmax at {position}",
                case["name"]
            );
        }
    }
    (positions, worst)
}

macro_rules! agrees_with_hugging_face {
    ($($test:ident: $model:literal, $golden:literal $(, over $ranks:literal)*;)*) => {$(
        #[test]
        fn $test() {
            // Where the last layer's second half belongs to the forward program, and where to the head.
            for (ranks, narrow) in [(1, false), (1, true) $(, ($ranks, true))*] {
                let over = Over { ranks, experts: false };
                let (positions, worst) = compare($model, $golden, over, narrow);
                println!(
                    "{} over {ranks}: {positions} positions, worst log-probability difference {worst:.2e}",
                    $model
                );
                assert!(positions > 100, "only {positions} positions were compared");
            }
        }
    )*};
}

agrees_with_hugging_face! {
    llama_agrees_with_hugging_face: "llama", "llama/goldens.json";
    llama3_rope_agrees_with_hugging_face: "llama3-rope", "llama3-rope/goldens.json", over 2, over 4;
    mistral_agrees_with_hugging_face: "mistral", "mistral/goldens.json", over 2, over 4;
    smollm2_agrees_with_hugging_face: "smollm2", "smollm2/goldens.json", over 3;
    qwen2_agrees_with_hugging_face: "qwen2", "qwen2/goldens.json", over 2, over 4;
    qwen3_agrees_with_hugging_face: "qwen3", "qwen3/goldens.json", over 2, over 4;
    qwen3_moe_agrees_with_hugging_face: "qwen3-moe", "qwen3-moe/goldens.json", over 2, over 4;
    gemma3_agrees_with_hugging_face: "gemma3", "gemma3/goldens.json", over 2, over 4;
    gemma_agrees_with_hugging_face: "gemma", "gemma/goldens.json", over 2;
    gemma2_agrees_with_hugging_face: "gemma2", "gemma2/goldens.json", over 2;
    mixtral_agrees_with_hugging_face: "mixtral", "mixtral/goldens.json", over 2;
    ministral_agrees_with_hugging_face: "ministral", "ministral/goldens.json", over 2;
    ministral3_agrees_with_hugging_face: "ministral3", "ministral3/goldens.json", over 2;
    mistral_s_own_files_agree_with_hugging_face: "mistral-consolidated", "mistral/goldens.json", over 2;
    mixtral_in_mistral_s_own_files_agrees_with_hugging_face: "mixtral-consolidated", "mixtral/goldens.json", over 2;
    phi3_agrees_with_hugging_face: "phi3", "phi3/goldens.json", over 2;
    phi3_long_agrees_with_hugging_face: "phi3-long", "phi3-long/goldens.json";
    qwen2_moe_agrees_with_hugging_face: "qwen2-moe", "qwen2-moe/goldens.json", over 2;
    granite_agrees_with_hugging_face: "granite", "granite/goldens.json", over 2;
    glm4_moe_agrees_with_hugging_face: "glm4-moe", "glm4-moe/goldens.json", over 2;
    deepseek_v2_agrees_with_hugging_face: "deepseek-v2", "deepseek-v2/goldens.json", over 2, over 4;
    deepseek_v3_agrees_with_hugging_face: "deepseek-v3", "deepseek-v3/goldens.json", over 2, over 4;
    deepseek_v3_gguf_agrees_with_hugging_face: "gguf/deepseek-v3-gguf.gguf", "gguf/deepseek-v3-gguf.golden.json";
    deepseek_v3_in_fp8_agrees_with_hugging_face: "deepseek-v3-fp8", "deepseek-v3-fp8/goldens.json", over 2, over 4;
    gpt_oss_agrees_with_hugging_face: "gpt-oss", "gpt-oss/goldens.json", over 2;
    gpt_oss_in_mxfp4_agrees_with_hugging_face: "gpt-oss-mxfp4", "gpt-oss-mxfp4/goldens.json", over 2;
    nemotron_agrees_with_hugging_face: "nemotron", "nemotron/goldens.json", over 2;
    cohere_with_norms_agrees_with_hugging_face: "cohere-plus", "cohere-plus/goldens.json", over 2;
    stablelm_with_norms_agrees_with_hugging_face: "stablelm-12b", "stablelm-12b/goldens.json", over 2;
    granite_moe_agrees_with_hugging_face: "granite-moe", "granite-moe/goldens.json", over 2;
    smollm3_agrees_with_hugging_face: "smollm3", "smollm3/goldens.json", over 2;
    glm4_agrees_with_hugging_face: "glm4", "glm4/goldens.json", over 2;
    glm_agrees_with_hugging_face: "glm", "glm/goldens.json";
    cohere_agrees_with_hugging_face: "cohere", "cohere/goldens.json";
    cohere2_agrees_with_hugging_face: "cohere2", "cohere2/goldens.json", over 2;
    olmo2_agrees_with_hugging_face: "olmo2", "olmo2/goldens.json";
    olmo3_agrees_with_hugging_face: "olmo3", "olmo3/goldens.json";
    olmoe_agrees_with_hugging_face: "olmoe", "olmoe/goldens.json";
    exaone4_agrees_with_hugging_face: "exaone4", "exaone4/goldens.json", over 2;
    starcoder2_agrees_with_hugging_face: "starcoder2", "starcoder2/goldens.json", over 2;
    stablelm_agrees_with_hugging_face: "stablelm", "stablelm/goldens.json";
    gpt_neox_agrees_with_hugging_face: "gpt-neox", "gpt-neox/goldens.json", over 2;
    gpt2_agrees_with_hugging_face: "gpt2", "gpt2/goldens.json", over 3;
    falcon_agrees_with_hugging_face: "falcon", "falcon/goldens.json";
    falcon_new_agrees_with_hugging_face: "falcon-new", "falcon-new/goldens.json", over 2;
    internlm2_agrees_with_hugging_face: "internlm2", "internlm2/goldens.json", over 2;
    internlm3_agrees_with_hugging_face: "internlm3", "internlm3/goldens.json";
    baichuan_agrees_with_hugging_face: "baichuan", "baichuan/goldens.json", over 2;
    qwen_agrees_with_hugging_face: "qwen", "qwen/goldens.json";
    llama_linear_agrees_with_hugging_face: "llama-linear", "llama-linear/goldens.json";
    qwen2_yarn_agrees_with_hugging_face: "qwen2-yarn", "qwen2-yarn/goldens.json";
    llama_gguf_agrees_with_hugging_face: "gguf/llama-gguf.gguf", "gguf/llama-gguf.golden.json";
    llama3_rope_gguf_agrees_with_hugging_face: "gguf/llama3-rope-gguf.gguf", "gguf/llama3-rope-gguf.golden.json";
    qwen3_gguf_agrees_with_hugging_face: "gguf/qwen3-gguf.gguf", "gguf/qwen3-gguf.golden.json";
    qwen3_moe_gguf_agrees_with_hugging_face: "gguf/qwen3-moe-gguf.gguf", "gguf/qwen3-moe-gguf.golden.json";
    llama_k_mix_gguf_agrees_with_hugging_face: "gguf/llama-k-mix-gguf.gguf", "gguf/llama-k-mix-gguf.golden.json";
    llama_iq_mix_gguf_agrees_with_hugging_face: "gguf/llama-iq-mix-gguf.gguf", "gguf/llama-iq-mix-gguf.golden.json";
    qwen3_moe_iq_gguf_agrees_with_hugging_face: "gguf/qwen3-moe-iq-gguf.gguf", "gguf/qwen3-moe-iq-gguf.golden.json";
    gemma_gguf_agrees_with_hugging_face: "gguf/gemma-gguf.gguf", "gguf/gemma-gguf.golden.json";
    gemma2_gguf_agrees_with_hugging_face: "gguf/gemma2-gguf.gguf", "gguf/gemma2-gguf.golden.json";
    mixtral_gguf_agrees_with_hugging_face: "gguf/mixtral-gguf.gguf", "gguf/mixtral-gguf.golden.json";
    phi3_gguf_agrees_with_hugging_face: "gguf/phi3-gguf.gguf", "gguf/phi3-gguf.golden.json";
    granite_gguf_agrees_with_hugging_face: "gguf/granite-gguf.gguf", "gguf/granite-gguf.golden.json";
    nemotron_gguf_agrees_with_hugging_face: "gguf/nemotron-gguf.gguf", "gguf/nemotron-gguf.golden.json";
    gpt_oss_gguf_agrees_with_hugging_face: "gguf/gpt-oss-gguf.gguf", "gguf/gpt-oss-gguf.golden.json";
    granite_moe_gguf_agrees_with_hugging_face: "gguf/granite-moe-gguf.gguf", "gguf/granite-moe-gguf.golden.json";
    olmo2_gguf_agrees_with_hugging_face: "gguf/olmo2-gguf.gguf", "gguf/olmo2-gguf.golden.json";
    olmoe_gguf_agrees_with_hugging_face: "gguf/olmoe-gguf.gguf", "gguf/olmoe-gguf.golden.json";
    smollm3_gguf_agrees_with_hugging_face: "gguf/smollm3-gguf.gguf", "gguf/smollm3-gguf.golden.json";
    exaone4_gguf_agrees_with_hugging_face: "gguf/exaone4-gguf.gguf", "gguf/exaone4-gguf.golden.json";
    cohere_gguf_agrees_with_hugging_face: "gguf/cohere-gguf.gguf", "gguf/cohere-gguf.golden.json";
    cohere2_gguf_agrees_with_hugging_face: "gguf/cohere2-gguf.gguf", "gguf/cohere2-gguf.golden.json";
    glm4_gguf_agrees_with_hugging_face: "gguf/glm4-gguf.gguf", "gguf/glm4-gguf.golden.json";
    starcoder2_gguf_agrees_with_hugging_face: "gguf/starcoder2-gguf.gguf", "gguf/starcoder2-gguf.golden.json";
    qwen2_moe_gguf_agrees_with_hugging_face: "gguf/qwen2-moe-gguf.gguf", "gguf/qwen2-moe-gguf.golden.json";
    gemma3_gguf_agrees_with_hugging_face: "gguf/gemma3-gguf.gguf", "gguf/gemma3-gguf.golden.json";
}

/// Each rank has whole experts, one more or less where their number does not divide.
#[test]
fn ranks_of_whole_experts_agree_with_hugging_face() {
    for (model, ranks) in [
        ("qwen3-moe", &[2, 4][..]),
        ("qwen2-moe", &[2]),
        ("mixtral", &[2, 4]),
        ("granite-moe", &[2]),
        ("glm4-moe", &[2, 4]),
        ("deepseek-v2", &[2, 4]),
        ("deepseek-v3", &[2, 4]),
        ("deepseek-v3-fp8", &[2, 4]),
        ("gpt-oss", &[2, 4]),
        ("gpt-oss-mxfp4", &[2]),
    ] {
        for &ranks in ranks {
            let over = Over { ranks, experts: true };
            let (positions, worst) = compare(model, &format!("{model}/goldens.json"), over, true);
            println!("{model} over {ranks}: {positions} positions, worst log-probability difference {worst:.2e}");
            assert!(positions > 100, "only {positions} positions were compared");
        }
    }
}

/// The formats of the first layer's products on the last of so many ranks: of q, k and v; the output projection; gate
/// and up; down.
fn formats_of_layer(model: &str, size: u32) -> Vec<WeightFormat> {
    let path = support::fixtures().join("models").join(model);
    let files = ModelFiles::open(&path, LoadFormat::Auto, DummyWeights::default()).unwrap();
    let options = options(8, Shard { rank: size - 1, size }, false);
    let format_of = |role: Role| files.weights.format(role);
    let layout = KvLayout::of(&files.description);
    let built = build_forward(&files.description, &layout, &options, &format_of).unwrap();
    formats_of_linears(&built.program.nodes)[..4].to_vec()
}

fn formats_of_linears(nodes: &[Node]) -> Vec<WeightFormat> {
    let format = |node: &Node| match &node.spec {
        OpSpec::Linear(op) => Some(op.weight),
        _ => None,
    };
    nodes.iter().filter_map(format).collect()
}

/// Square blocks are a matrix's where each of its parts is a whole number of them; merged or cut otherwise, rows have
/// groups of their own, and the same values.
#[test]
fn square_blocks_stay_where_nothing_cuts_them() {
    use WeightFormat::{F8B128, F8G32, F8G64, F8G128};
    let model = "quant/fp8-square-blocks";
    // Keys and values have 64 rows.
    assert_eq!(formats_of_layer(model, 1), [F8G128, F8B128, F8B128, F8B128]);
    assert_eq!(formats_of_layer(model, 2), [F8G128, F8G64, F8B128, F8B128]);
    assert_eq!(formats_of_layer(model, 4), [F8G128, F8G32, F8G128, F8G64]);
    for ranks in [1, 2, 4] {
        let over = Over { ranks, experts: false };
        let (positions, worst) = compare(model, &format!("{model}/goldens.json"), over, true);
        println!("{model} over {ranks}: {positions} positions, worst log-probability difference {worst:.2e}");
        assert!(positions > 100, "only {positions} positions were compared");
    }
}

/// Square blocks whose columns no group divides are asked for as f32, and a last rank's logits that begin inside of a
/// block in groups.
#[test]
fn square_blocks_that_ranks_cut_have_another_form() {
    let path = support::fixtures().join("models/quant/fp8-square-blocks");
    let files = ModelFiles::open(&path, LoadFormat::Auto, DummyWeights::default()).unwrap();
    let mut description = (*files.description).clone();
    description.vocab_size = 752;
    for layer in &mut description.layers {
        if let MlpDescription::Dense(mlp) = &mut layer.mlp {
            mlp.intermediate_size = 176;
        }
    }
    let options = options(8, Shard { rank: 1, size: 2 }, false);
    let format_of = |_: Role| Ok(WeightFormat::F8B128);
    let layout = KvLayout::of(&description);
    let layers = build_forward(&description, &layout, &options, &format_of).unwrap();
    // 88 columns of down.
    assert_eq!(formats_of_linears(&layers.program.nodes)[3], WeightFormat::F32);
    let head = build_head(&description, &options, &format_of).unwrap();
    // 384 rows, from row 368 on.
    assert_eq!(formats_of_linears(&head.program.nodes), [WeightFormat::F8G128]);
}

/// The refusal of tiny model `model` on `size` ranks.
fn refusal(model: &str, size: u32) -> String {
    let models = support::fixtures().join("models");
    let files = ModelFiles::open(&models.join(model), LoadFormat::Auto, DummyWeights::default()).unwrap();
    let options = options(8, Shard { rank: size - 1, size }, true);
    let format_of = |role: Role| files.weights.format(role);
    let layout = KvLayout::of(&files.description);
    let error = build_forward(&files.description, &layout, &options, &format_of).unwrap_err();
    assert!(matches!(error, ModelError::Indivisible { .. }), "{error}");
    error.to_string()
}

#[test]
fn what_ranks_cannot_share_is_refused_with_both_numbers() {
    let heads = refusal("llama", 2);
    assert!(
        heads.contains("num_attention_heads is 3, which 2 tensor-parallel ranks"),
        "{heads}"
    );
    let kv_heads = refusal("smollm2", 9);
    assert!(kv_heads.contains("intermediate_size is 96, which 9"), "{kv_heads}");
    let blocks = refusal("gguf/llama3-rope-gguf.gguf", 4);
    assert!(
        blocks.contains("is 24, which 4 tensor-parallel ranks") && blocks.contains("blocks of 32"),
        "{blocks}"
    );
}

#[test]
fn more_ranks_than_experts_are_refused_with_both_numbers() {
    let path = support::fixtures().join("models/qwen3-moe");
    let files = ModelFiles::open(&path, LoadFormat::Auto, DummyWeights::default()).unwrap();
    let mut description = (*files.description).clone();
    for layer in &mut description.layers {
        if let MlpDescription::Experts(mlp) = &mut layer.mlp {
            mlp.num_experts = 3;
        }
    }
    let build = |size: u32| {
        let options = ProgramOptions {
            expert_parallel: true,
            ..options(8, Shard { rank: 0, size }, false)
        };
        let layout = KvLayout::of(&description);
        build_forward(&description, &layout, &options, &|_| Ok(WeightFormat::F32)).map(|_| ())
    };
    build(2).expect("two and one");
    let error = build(4).unwrap_err().to_string();
    assert!(
        error.contains("num_experts is 3, which 4 tensor-parallel ranks"),
        "{error}"
    );
    assert!(error.contains("--enable-expert-parallel"), "{error}");
}

/// A backend may then turn q and k on their way into attention and leave the product as it is. Every layer's slices are
/// overwritten by the next layer's product, as a whole or in parts.
#[test]
fn rotated_q_and_k_are_nobodys_business_after_attention() {
    for model in ["llama", "qwen3", "gemma3"] {
        let files = ModelFiles::open(
            &support::fixtures().join("models").join(model),
            LoadFormat::Auto,
            DummyWeights::default(),
        )
        .unwrap();
        let format_of = |role: Role| files.weights.format(role);
        let layout = KvLayout::of(&files.description);
        let options = options(8, Shard { rank: 0, size: 1 }, false);
        let program = build_forward(&files.description, &layout, &options, &format_of)
            .unwrap()
            .program;
        let mut layers = 0;
        for (first, node) in program.nodes.iter().enumerate() {
            if !matches!(node.spec, OpSpec::Rope(_)) {
                continue;
            }
            let (region, _) = program.region(first, 3);
            let [rope, write, attention] = &region.nodes[..] else {
                panic!("{model}: rope, kv_write and attention in a row")
            };
            let internal = |t: u16| region.tensors[usize::from(t)].internal;
            assert!(internal(rope.operands[2]), "{model}: q and k, node {first}");
            assert!(
                internal(write.operands[0]) && internal(attention.operands[0]),
                "{model}, node {first}"
            );
            assert!(
                !internal(attention.operands[7]),
                "{model}: the output projection reads what attention wrote"
            );
            layers += 1;
        }
        assert!(layers > 1, "{model} has {layers} layers");
    }
}

/// Slots are as wide as the widest layer needs them, and each layer uses its own part.
#[test]
fn layers_may_differ_in_heads_and_widths() {
    let path = support::fixtures().join("models/mistral");
    let files = ModelFiles::open(&path, LoadFormat::Auto, DummyWeights::default()).unwrap();
    let mut description = (*files.description).clone();
    description.layers[1].mixer.num_heads *= 2;
    if let MlpDescription::Dense(mlp) = &mut description.layers[0].mlp {
        mlp.intermediate_size *= 3;
    }
    let description = description.check(&path).unwrap();
    let options = options(8, Shard { rank: 0, size: 1 }, false);
    let format_of = |_| Ok(WeightFormat::F32);
    let program = build_forward(&description, &KvLayout::of(&description), &options, &format_of).unwrap();
    let width = |tensor: u16| match program.roles[usize::from(tensor)] {
        TensorRole::Activation { width, .. } => width,
        _ => 0,
    };
    let (mut heads, mut gates, mut outputs) = (Vec::new(), Vec::new(), Vec::new());
    for node in &program.program.nodes {
        match &node.spec {
            OpSpec::Attention(op) => heads.push((op.num_heads, width(node.operands[0]), width(node.operands[7]))),
            OpSpec::SiluMul(op) => gates.push((op.width, width(node.operands[1]), width(node.operands[2]))),
            OpSpec::Linear(op) if op.out_features == 64 => outputs.push((op.in_features, width(node.operands[0]))),
            _ => {}
        }
    }
    // 4 heads of 16 and 8, an MLP of 288 and of 96: output and down projections of both layers.
    assert_eq!(heads, [(4, 64, 64), (8, 128, 128)]);
    assert_eq!(gates, [(288, 288, 288), (96, 96, 96)]);
    assert_eq!(outputs, [(64, 64), (288, 288), (128, 128), (96, 96)]);
    assert_eq!(program.slots[1].width, 128, "attention's result");
}
