//! Configuration files to descriptions, and every way in which a configuration can be wrong.

mod support;

use std::path::Path;

use halyard_models::config::{Activation, ExpertsMlp, JsonFields, MlpDescription, QkNorm, RopeScaling};
use halyard_models::families::{FAMILIES, Family};
use halyard_models::gguf::GgufFile;
use halyard_models::{GenerationDefaults, ModelDescription, ModelError};
use halyard_platform_api::DType;
use halyard_platform_api::ops::{RopeStyle, Scoring};
use serde_json::{Value, json};
use support::{GgufWriter, TempFolder, array_value, f32_value, string_value, u32_value};

fn describe(config: &Value) -> Result<ModelDescription, ModelError> {
    let folder = TempFolder::new();
    let path = folder.write("config.json", config.to_string());
    Family::describe_config(&JsonFields::open(&path)?).map(|(_, description)| description)
}

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, "hidden_size": 64,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": [2, 7, 2],
        "torch_dtype": "bfloat16"
    })
}

fn with(mut config: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn has_bias(mlp: MlpDescription) -> bool {
    matches!(mlp, MlpDescription::Dense(mlp) if mlp.bias)
}

fn gguf(writer: &GgufWriter) -> Result<ModelDescription, ModelError> {
    let folder = TempFolder::new();
    let path = folder.write("m.gguf", writer.bytes());
    Family::describe_file(&GgufFile::open(&path)?).map(|(_, description)| description)
}

#[test]
fn llama_defaults_follow_hugging_face() {
    let model = describe(&llama()).unwrap();
    let mixer = model.layers[0].mixer;
    assert_eq!((mixer.head_dim, mixer.num_kv_heads, model.num_layers()), (16, 2, 3));
    assert_eq!(model.eos_token_ids, [2, 7]);
    assert_eq!(model.checkpoint_dtype, Some(DType::BF16));
    assert_eq!(mixer.scale, 0.25);
    assert!(!model.tie_word_embeddings && !mixer.qkv_bias && !has_bias(model.layers[0].mlp));
    assert_eq!(
        (model.ropes[0].theta, model.ropes[0].style),
        (10_000.0, RopeStyle::Neox)
    );
    assert!(model.layers.iter().all(|layer| layer.mixer.window.is_none()));

    let model = describe(&with(
        llama(),
        json!({"attention_bias": true, "mlp_bias": true, "head_dim": 32}),
    ))
    .unwrap();
    for layer in &model.layers {
        assert!(layer.mixer.qkv_bias && layer.mixer.o_bias && has_bias(layer.mlp));
        assert_eq!(layer.mixer.q_size(), 128);
    }
}

#[test]
fn windows_follow_each_family() {
    let mistral = json!({"architectures": ["MistralForCausalLM"], "model_type": "mistral"});
    let window = |config: Value| {
        describe(&config)
            .unwrap()
            .layers
            .iter()
            .map(|l| l.mixer.window)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        window(with(llama(), mistral.clone())),
        [Some(4096); 3],
        "absent: MistralConfig's default"
    );
    let nulled = with(with(llama(), mistral.clone()), json!({"sliding_window": null}));
    assert_eq!(window(nulled), [None; 3]);
    let set = with(with(llama(), mistral), json!({"sliding_window": 128}));
    assert_eq!(window(set), [Some(128); 3]);

    let qwen = with(
        llama(),
        json!({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "sliding_window": 32,
            "max_window_layers": 1}),
    );
    assert_eq!(window(qwen.clone()), [None; 3], "use_sliding_window is off by default");
    let on = with(qwen.clone(), json!({"use_sliding_window": true}));
    assert_eq!(window(on.clone()), [None, Some(32), Some(32)]);
    let types = json!({"layer_types": ["sliding_attention", "full_attention", "full_attention"]});
    assert_eq!(window(with(on.clone(), types)), [Some(32), None, None]);
    let error = describe(&with(on.clone(), json!({"layer_types": ["full_attention"]})))
        .unwrap_err()
        .to_string();
    assert!(error.contains("layer_types") && error.contains("3 entries"), "{error}");
    let error = describe(&with(on, json!({"layer_types": ["a", "b", "c"]}))).unwrap_err();
    assert!(matches!(error, ModelError::Unsupported { .. }), "{error}");
}

fn gemma() -> Value {
    json!({"hidden_size": 640, "num_hidden_layers": 12, "intermediate_size": 2048, "sliding_window": 512,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}})
}

#[test]
fn gemma3_reads_text_and_multimodal_configs_old_and_new() {
    let multimodal = json!({"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "eos_token_id": [1, 106], "text_config": gemma()});
    let model = describe(&multimodal).unwrap();
    assert_eq!(model.architecture, "Gemma3ForConditionalGeneration");
    // Fields that published text configs leave out.
    let mixer = model.layers[0].mixer;
    assert_eq!(
        (model.vocab_size, mixer.num_heads, mixer.num_kv_heads, mixer.head_dim),
        (262_208, 8, 4, 256)
    );
    assert_eq!(model.max_position_embeddings, 131_072);
    assert_eq!(model.eos_token_ids, [1, 106]);
    assert!(model.layers.iter().all(|layer| layer.mixer.scale == 1.0 / 16.0));
    assert!(model.tie_word_embeddings);
    assert_eq!(model.norm.weight_offset, 1.0);
    let windows: Vec<_> = model.layers.iter().map(|l| (l.mixer.window, l.mixer.rope)).collect();
    assert_eq!(
        windows[4..7],
        [(Some(512), Some(1)), (None, Some(0)), (Some(512), Some(1))]
    );
    assert_eq!(model.ropes[0].scaling, RopeScaling::Linear { factor: 8.0 });
    assert_eq!((model.ropes[0].theta, model.ropes[1].theta), (1e6, 1e4));
    assert_eq!(
        model.ropes[1].scaling,
        RopeScaling::None,
        "scaling is for full layers only"
    );

    // sqrt(640), rounded to the type that computes.
    assert_eq!(model.embedding_scale_in(DType::F32), 25.298_222);
    assert_eq!(model.embedding_scale_in(DType::BF16), 25.25);

    let new = json!({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "rope_scaling": null,
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}, "_sliding_window_pattern": 6,
        "layer_types": (0..12).map(|i| if i == 3 { "full_attention" } else { "sliding_attention" })
            .collect::<Vec<_>>()});
    let model = describe(&with(gemma(), new)).unwrap();
    assert_eq!((model.ropes[0].theta, model.ropes[1].theta), (5e5, 2e4));
    assert_eq!(model.layers.iter().position(|l| l.mixer.window.is_none()), Some(3));
}

#[test]
fn gemma3_gguf_has_no_norm_offset_and_every_sixth_layer_full() {
    let mut writer = GgufWriter::tiny_llama();
    for (key, value) in std::mem::take(&mut writer.metadata) {
        writer.set(&key.replace("llama.", "gemma3."), value);
    }
    writer
        .set("general.architecture", string_value("gemma3"))
        .set("gemma3.block_count", u32_value(7));
    writer
        .set("gemma3.attention.sliding_window", u32_value(16))
        .set("gemma3.rope.freq_base", f32_value(1e6));
    let model = gguf(&writer).unwrap();
    assert_eq!(model.norm.weight_offset, 0.0, "the converter has added it");
    let full: Vec<usize> = (0..7).filter(|&i| model.layers[i].mixer.window.is_none()).collect();
    assert_eq!(full, [5]);
    assert_eq!((model.ropes[0].theta, model.ropes[1].theta), (1e6, 1e4));
    assert_eq!(model.ropes[0].style, RopeStyle::Neox);
    assert_eq!(model.embedding_scale, 8f32.sqrt());

    writer.set("gemma3.attention.sliding_window_pattern", u32_value(2));
    let full: Vec<bool> = gguf(&writer)
        .unwrap()
        .layers
        .iter()
        .map(|l| l.mixer.window.is_none())
        .collect();
    assert_eq!(full, [false, true, false, true, false, true, false]);
    writer.set(
        "gemma3.attention.sliding_window_pattern",
        array_value(7, &[vec![1], vec![0]]),
    );
    let error = gguf(&writer).unwrap_err().to_string();
    assert!(
        error.contains("sliding_window_pattern") && error.contains("7 entries"),
        "{error}"
    );
}

#[test]
fn llama_gguf_is_interleaved_and_adds_the_template_s_end_of_turn() {
    let mut writer = GgufWriter::tiny_llama();
    let model = gguf(&writer).unwrap();
    assert_eq!(
        model.ropes[0].style,
        RopeStyle::Interleaved,
        "the converter permutes rows of q and k"
    );
    assert!(model.tie_word_embeddings, "no output.weight");
    assert_eq!(model.eos_token_ids, [4, 5], "</s> by id, <|im_end|> by name");
    assert_eq!(model.vocab_size, 6);

    writer
        .tensor_f32("rope_freqs.weight", &[2])
        .tensor_f32("output.weight", &[8, 6]);
    let model = gguf(&writer).unwrap();
    assert!(matches!(&model.ropes[0].scaling, RopeScaling::Factors(f) if f.len() == 2));
    assert!(!model.tie_word_embeddings);
    writer.remove("tokenizer.chat_template");
    assert_eq!(gguf(&writer).unwrap().eos_token_ids, [4]);
    writer.remove("llama.block_count");
    let error = gguf(&writer).unwrap_err();
    assert!(
        matches!(&error, ModelError::MissingField { field, .. } if field == "llama.block_count"),
        "{error}"
    );
}

#[test]
fn absurd_values_name_field_value_and_limit() {
    let cases = [
        (json!({"num_attention_heads": 0}), "num_attention_heads", "0"),
        (json!({"num_attention_heads": -4}), "num_attention_heads", "-4"),
        (
            json!({"num_key_value_heads": 3}),
            "num_key_value_heads",
            "a divisor of num_attention_heads, 4",
        ),
        (json!({"num_key_value_heads": 0}), "num_key_value_heads", "from 1"),
        (json!({"hidden_size": 0}), "hidden_size", "from 1"),
        (json!({"hidden_size": 1e30}), "hidden_size", "an integer"),
        (json!({"hidden_size": 1u64 << 40}), "hidden_size", "from 1 to 1048576"),
        (json!({"vocab_size": "many"}), "vocab_size", "an integer"),
        (json!({"vocab_size": u64::MAX}), "vocab_size", "from 1"),
        (
            json!({"num_hidden_layers": 1_000_000_000_000u64}),
            "num_hidden_layers",
            "from 1 to 2048",
        ),
        (json!({"num_hidden_layers": 0}), "num_hidden_layers", "from 1"),
        (json!({"head_dim": 7}), "head_dim", "even"),
        (
            json!({"num_attention_heads": 8192, "num_key_value_heads": 8192, "head_dim": 4096}),
            "num_attention_heads",
            "at most",
        ),
        (json!({"intermediate_size": 1.5}), "intermediate_size", "an integer"),
        (
            json!({"max_position_embeddings": 0}),
            "max_position_embeddings",
            "from 1",
        ),
        (json!({"rms_norm_eps": 0.0}), "rms_norm_eps", "above 0"),
        (json!({"rope_theta": -1.0}), "rope_theta", "above 1"),
        (json!({"eos_token_id": 1000}), "eos_token_id", "below vocab_size, 1000"),
        (json!({"eos_token_id": [-1]}), "eos_token_id", "a token id"),
        (
            json!({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}),
            "rope scaling factor",
            "at least 1",
        ),
        (
            json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
                "high_freq_factor": 1.0}}),
            "high_freq_factor",
            "above low_freq_factor",
        ),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 0}}),
            "rope_scaling.original_max_position_embeddings",
            "from 1",
        ),
        (json!({"rope_scaling": 7}), "rope_scaling", "an object"),
        (json!({"partial_rotary_factor": 1e-9}), "rotary dimensions", "from 2"),
    ];
    for (change, field, limit) in cases {
        let error = describe(&with(llama(), change.clone())).map(|_| ()).unwrap_err();
        assert!(matches!(error, ModelError::BadField { .. }), "{change}: {error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("`{field}`")) && text.contains(limit),
            "{change}: {text}"
        );
    }
}

#[test]
fn what_is_missing_or_unsupported_is_said() {
    let mut config = llama();
    config.as_object_mut().unwrap().remove("hidden_size");
    let error = describe(&config).unwrap_err();
    assert!(
        matches!(&error, ModelError::MissingField { field, .. } if field == "hidden_size"),
        "{error}"
    );

    for (change, field, value) in [
        (
            json!({"quantization_config": {"quant_method": "aqlm"}}),
            "quantization_config.quant_method",
            "aqlm",
        ),
        (json!({"hidden_act": "relu"}), "hidden_act", "relu"),
        (
            json!({"rope_scaling": {"type": "proportional"}}),
            "rope_scaling.type",
            "proportional",
        ),
    ] {
        let error = describe(&with(llama(), change)).unwrap_err();
        let ModelError::Unsupported { field: f, value: v, .. } = error else {
            panic!("{error}")
        };
        assert_eq!((f.as_str(), v.as_str()), (field, value));
    }
}

#[test]
fn an_unknown_architecture_lists_the_known_ones() {
    let error = describe(&with(llama(), json!({"architectures": ["FooForCausalLM"]}))).unwrap_err();
    let ModelError::UnknownArchitecture {
        found, known, nearest, ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(found, "FooForCausalLM");
    assert!(nearest.is_none(), "{error}");
    for family in FAMILIES {
        for name in family.hf_architectures {
            assert!(known.contains(name) && error.to_string().contains(name), "{name}");
        }
    }
    let odd =
        json!({"architectures": ["Qwen9ForCausalLM"], "gate_of_heads": true, "use_cache": true, "hidden_dropout": 0.0});
    let error = describe(&with(llama(), odd)).unwrap_err().to_string();
    let expected = "the nearest known one is `Qwen3ForCausalLM`, which does not know: gate_of_heads; if they compute";
    assert!(error.contains(expected), "{error}");
    let mut writer = GgufWriter::tiny_llama();
    writer.set("general.architecture", string_value("mamba"));
    let error = gguf(&writer).unwrap_err().to_string();
    assert!(error.contains("`mamba`"), "{error}");
    for name in FAMILIES.iter().flat_map(|family| family.gguf_architectures) {
        assert!(error.contains(name), "{name}: {error}");
    }
}

#[test]
fn json_files_that_are_none_are_refused() {
    let folder = TempFolder::new();
    for text in ["", "{", "[1]", "null", "\u{feff}x", "{\"a\": 1,}"] {
        let error = JsonFields::open(&folder.write("config.json", text))
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, ModelError::Json { .. }), "{text:?}: {error}");
    }
}

#[test]
fn scaling_extends_the_context_as_vllm_counts_it() {
    let positions = |scaling: Value| {
        let model = describe(&with(llama(), json!({"rope_scaling": scaling}))).unwrap();
        model.max_position_embeddings
    };
    assert_eq!(positions(json!({"type": "linear", "factor": 4.0})), 2048);
    assert_eq!(
        positions(json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256})),
        1024
    );
    assert_eq!(positions(json!({"type": "dynamic", "factor": 4.0})), 512);
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    assert_eq!(positions(llama3), 512);
}

#[test]
fn rope_frequencies_equal_hugging_face_s() {
    let golden: Value = serde_json::from_str(include_str!("data/rope.json")).unwrap();
    for (name, case) in golden.as_object().unwrap() {
        let changes =
            json!({"hidden_size": 512, "max_position_embeddings": 32768, "rope_parameters": case["parameters"]});
        let model = describe(&with(llama(), changes)).unwrap();
        let rope = &model.ropes[0];
        let expected = case["inverse_frequencies"].as_array().unwrap();
        let found = rope.inverse_frequencies(32_768);
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let expected = expected.as_f64().unwrap();
            let relative = (f64::from(*found) / expected - 1.0).abs();
            assert!(relative < 3e-7, "{name}: frequency {i} is {found}, expected {expected}");
        }
        let factor = case["attention_factor"].as_f64().unwrap();
        assert!(
            (f64::from(rope.attention_factor()) - factor).abs() < 1e-6,
            "{name}: attention factor"
        );
    }
}

#[test]
fn long_ropes_take_the_factors_of_the_longest_sequence_and_no_bad_ones() {
    let long = |short: Value, original: Value| {
        let scaling = json!({"type": "longrope", "short_factor": short, "long_factor": vec![4.0; 8],
            "original_max_position_embeddings": original});
        describe(&with(llama(), json!({"rope_scaling": scaling})))
    };
    let model = long(json!(vec![2.0; 8]), json!(256)).unwrap();
    let plain = describe(&llama()).unwrap().ropes[0].inverse_frequencies(1);
    for (positions, divisor) in [(256, 2.0), (257, 4.0)] {
        let found = model.ropes[0].inverse_frequencies(positions);
        assert!(found.iter().zip(&plain).all(|(f, p)| *f == p / divisor), "{positions}");
    }
    // A file of 512 positions from 256: √(1 + ln 2 / ln 256).
    assert!((model.ropes[0].attention_factor() - 1.060_66).abs() < 1e-4);
    for (short, original) in [
        (json!(vec![2.0; 7]), json!(256)),
        (json!(vec![0.0; 8]), json!(256)),
        (json!(vec![1e300; 8]), json!(256)),
        (json!(vec![2.0; 8]), json!(1)),
        (json!(vec!["2"; 8]), json!(256)),
    ] {
        let error = long(short.clone(), original.clone()).unwrap_err();
        assert!(
            matches!(error, ModelError::BadField { .. }),
            "{short} from {original}: {error}"
        );
    }
}

#[test]
fn rope_tables_hold_cosines_then_sines() {
    let model = describe(&llama()).unwrap();
    let rope = &model.ropes[0];
    let table = rope.table(3);
    assert_eq!(table.len(), 3 * 16);
    assert_eq!(table[..16], [[1.0f32; 8], [0.0; 8]].concat());
    let frequency = rope.inverse_frequencies(3)[1];
    assert!((table[2 * 16 + 1] - (2.0 * frequency).cos()).abs() < 1e-6);
    assert!((table[2 * 16 + 8 + 1] - (2.0 * frequency).sin()).abs() < 1e-6);
    // Rows that several threads fill.
    let long = rope.table(3_001);
    assert_eq!(long[..3 * 16], table);
    for position in [1_023, 1_024, 1_500, 2_048, 3_000] {
        let angle = position as f32 * frequency;
        let (cosine, sine) = (long[position * 16 + 1], long[position * 16 + 8 + 1]);
        assert!(
            (cosine - angle.cos()).abs() < 1e-6 && (sine - angle.sin()).abs() < 1e-6,
            "{position}"
        );
    }
}

#[test]
fn generation_defaults_are_read_and_bounded() {
    let folder = TempFolder::new();
    let read = |config: Value| {
        let path = folder.write("generation_config.json", config.to_string());
        GenerationDefaults::read(&JsonFields::open(&path).unwrap())
    };
    let defaults =
        read(json!({"temperature": 0.7, "top_p": 0.8, "top_k": 20, "eos_token_id": [5, 6], "min_p": null})).unwrap();
    assert_eq!(
        (defaults.temperature, defaults.top_p, defaults.top_k),
        (Some(0.7), Some(0.8), Some(20))
    );
    assert_eq!(
        (defaults.eos_token_ids.as_slice(), defaults.min_p),
        ([5, 6].as_slice(), None)
    );
    assert_eq!(read(json!({"eos_token_id": 3})).unwrap().eos_token_ids, [3]);
    for (bad, field) in [
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_p": 2}), "top_p"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
    ] {
        let error = read(bad).unwrap_err().to_string();
        assert!(
            error.contains(&format!("`{field}`")) && error.contains("from"),
            "{error}"
        );
    }
}

#[test]
fn experts_stand_in_the_layers_that_hugging_face_gives_them() {
    let moe = |changes: Value| {
        let own = json!({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 6,
            "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 32, "norm_topk_prob": true});
        describe(&with(with(llama(), own), changes))
    };
    let dense = |changes| -> Vec<usize> {
        let layers = moe(changes).unwrap().layers;
        (0..6)
            .filter(|&i| matches!(layers[i].mlp, MlpDescription::Dense(_)))
            .collect()
    };
    assert_eq!(dense(json!({})), [0; 0]);
    assert_eq!(dense(json!({"mlp_only_layers": [0, 4]})), [0, 4]);
    assert_eq!(dense(json!({"decoder_sparse_step": 2})), [0, 2, 4]);
    assert_eq!(
        dense(json!({"decoder_sparse_step": 3, "mlp_only_layers": [5]})),
        [0, 1, 3, 4, 5]
    );
    assert_eq!(dense(json!({"num_experts": 0})).len(), 6);
    let renamed = moe(json!({"num_experts": null, "num_local_experts": 12})).unwrap();
    assert_eq!(renamed.layers[0].mlp.num_experts(), 12);

    let model = moe(json!({"mlp_only_layers": [1]})).unwrap();
    let expected = ExpertsMlp {
        num_experts: 16,
        top_k: 4,
        scoring: Scoring::Softmax,
        factor: 1.0,
        norm_topk: true,
        intermediate_size: 32,
        activation: Activation::Silu,
        shared: None,
        groups: None,
        choice_bias: false,
        bias: false,
    };
    assert_eq!(model.layers[0].mlp, MlpDescription::Experts(expected));
    assert_eq!(
        model.layers[1].mlp.intermediate_size(),
        96,
        "the dense layer's own width"
    );
    assert_eq!(model.layers[0].mixer.qk_norm, Some(QkNorm::Heads));
    let windows = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 3});
    let windows = moe(windows).unwrap().layers;
    assert!(windows.iter().all(|layer| layer.mixer.window == Some(8)), "every layer");

    for (change, field, limit) in [
        (
            json!({"num_experts_per_tok": 17}),
            "num_experts_per_tok",
            "from 1 to 16",
        ),
        (json!({"num_experts_per_tok": 0}), "num_experts_per_tok", "from 1"),
        (json!({"num_experts": 1 << 20}), "num_experts", "from 1 to 2048"),
        (json!({"moe_intermediate_size": 0}), "moe_intermediate_size", "from 1"),
        (
            json!({"num_experts_per_tok": 16, "moe_intermediate_size": 1 << 19}),
            "num_experts_per_tok",
            "at most 2 for rows of 524288",
        ),
        (json!({"decoder_sparse_step": 0}), "decoder_sparse_step", "from 1"),
        (
            json!({"mlp_only_layers": [-1]}),
            "mlp_only_layers",
            "a list of integers",
        ),
    ] {
        let error = moe(change.clone()).unwrap_err();
        assert!(matches!(error, ModelError::BadField { .. }), "{change}: {error}");
        let text = error.to_string();
        assert!(
            text.contains(&format!("`{field}`")) && text.contains(limit),
            "{change}: {text}"
        );
    }
}

#[test]
fn gpt_oss_takes_what_its_configuration_class_assumes_and_no_absurd_bound() {
    let config = json!({"architectures": ["GptOssForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 3});
    let model = describe(&config).unwrap();
    let windows: Vec<_> = model.layers.iter().map(|layer| layer.mixer.window).collect();
    assert_eq!(windows, [Some(128), None, Some(128)]);
    let RopeScaling::Yarn(yarn) = &model.ropes[0].scaling else {
        panic!("{:?}", model.ropes[0].scaling)
    };
    assert_eq!(
        (yarn.factor, yarn.original_max_position_embeddings, yarn.truncate),
        (32.0, 4096, false)
    );
    let MlpDescription::Experts(experts) = model.layers[0].mlp else {
        panic!("{:?}", model.layers[0].mlp)
    };
    assert_eq!((experts.num_experts, experts.top_k, experts.bias), (128, 4, true));
    for (changes, words) in [
        (json!({"swiglu_limit": -1.0}), "swiglu_limit"),
        (json!({"swiglu_alpha": 0.0}), "swiglu_alpha"),
        (json!({"num_experts_per_tok": 129}), "num_experts_per_tok"),
    ] {
        let error = describe(&with(config.clone(), changes)).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn groups_of_experts_must_divide_them_and_hold_enough() {
    let config = json!({"architectures": ["Glm4MoeForCausalLM"], "hidden_size": 64, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "n_routed_experts": 16,
        "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2});
    let model = describe(&config).unwrap();
    assert_eq!(
        (model.layers[0].mlp.num_experts(), model.layers[1].mlp.num_experts()),
        (0, 16)
    );
    for (changes, words) in [
        (json!({"n_group": 3}), "n_group"),
        (json!({"n_group": 17}), "n_group"),
        (json!({"topk_group": 5}), "topk_group"),
        (json!({"topk_group": 0}), "topk_group"),
        (
            json!({"n_group": 8, "topk_group": 1}),
            "`num_experts_per_tok` is 4, but must be from 1 to 2",
        ),
        (
            json!({"n_group": 16, "topk_group": 8}),
            "`n_group` is 16, but must be at most 8",
        ),
        (json!({"routed_scaling_factor": 1e39}), "routed_scaling_factor"),
    ] {
        let error = describe(&with(config.clone(), changes.clone()))
            .unwrap_err()
            .to_string();
        assert!(error.contains(words), "{changes}: {error}");
    }
}

#[test]
fn layers_whose_pages_would_differ_are_refused() {
    let mut model = describe(&llama()).unwrap();
    model.layers[2].mixer.num_kv_heads = 4;
    let error = model.check(Path::new("config.json")).unwrap_err().to_string();
    assert!(error.contains("4 of 16") && error.contains("2 of 16"), "{error}");
}
