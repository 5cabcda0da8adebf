//! Quantised checkpoints as the Hub has them (tests/fixtures/models/make_quantised.py) against Hugging Face on the
//! weights that the formats' own libraries dequantise, in f32.

use crate::common::wrapped::{Change, wrapped};
use crate::common::{config, cpu, fixtures, open, open_on, reference};
use halyard_device_check::goldens::{self, F32, Free};
use halyard_engine::{Llm, LoraConfig};
use halyard_models::{Rounding, WeightQuantization};
use halyard_platform_api::WeightFormat as W;

macro_rules! formats {
    ($($cpu:ident, $reference:ident => $name:literal;)*) => {$(
        #[test]
        fn $cpu() {
            check($name, &open(&fixtures().join("quant").join($name), cpu(), |_| {}));
        }

        #[test]
        fn $reference() {
            check($name, &open(&fixtures().join("quant").join($name), reference(), |_| {}));
        }
    )*};
}

fn check(name: &str, llm: &Llm) {
    check_golden(name, &format!("quant/{name}/goldens.json"), llm);
}

fn check_golden(name: &str, golden: &str, llm: &Llm) {
    for case in
        goldens::check(llm, &fixtures().join(golden), F32, Free::All).unwrap_or_else(|why| panic!("{name}: {why}"))
    {
        println!(
            "{name} {}: {} positions ({} near ties), worst logprob difference {:.2e}",
            case.name, case.positions, case.near_ties, case.worst
        );
    }
}

formats! {
    awq_on_cpu, awq_on_reference => "awq";
    autoawq_on_cpu, autoawq_on_reference => "autoawq";
    gptq_4_on_cpu, gptq_4_on_reference => "gptq-4";
    gptq_4_of_groups_that_rows_cut_on_cpu, gptq_4_of_groups_that_rows_cut_on_reference => "gptq-4-cut-groups";
    gptq_4_of_whole_rows_on_cpu, gptq_4_of_whole_rows_on_reference => "gptq-4-sym-row";
    gptq_4_in_act_order_on_cpu, gptq_4_in_act_order_on_reference => "gptq-4-act-order";
    gptq_2_of_the_second_format_on_cpu, gptq_2_of_the_second_format_on_reference => "gptq-2-v2";
    gptq_3_on_cpu, gptq_3_on_reference => "gptq-3";
    gptq_8_on_cpu, gptq_8_on_reference => "gptq-8";
    auto_round_on_cpu, auto_round_on_reference => "auto-round";
    compressed_w4a16_on_cpu, compressed_w4a16_on_reference => "ct-w4a16";
    compressed_w4a16_with_zeros_on_cpu, compressed_w4a16_with_zeros_on_reference => "ct-w4a16-asym";
    compressed_w8a16_on_cpu, compressed_w8a16_on_reference => "ct-w8a16";
    compressed_w8a8_on_cpu, compressed_w8a8_on_reference => "ct-w8a8";
    compressed_nvfp4_on_cpu, compressed_nvfp4_on_reference => "ct-nvfp4";
    compressed_mxfp4_on_cpu, compressed_mxfp4_on_reference => "ct-mxfp4";
    compressed_mixed_by_layer_on_cpu, compressed_mixed_by_layer_on_reference => "ct-mixed";
    hqq_4_on_cpu, hqq_4_on_reference => "hqq-4";
    hqq_3_by_columns_on_cpu, hqq_3_by_columns_on_reference => "hqq-3-axis-0";
    hqq_mixed_by_kind_on_cpu, hqq_mixed_by_kind_on_reference => "hqq-mixed";
    fp8_blocks_on_cpu, fp8_blocks_on_reference => "fp8-blocks";
    fp8_square_blocks_on_cpu, fp8_square_blocks_on_reference => "fp8-square-blocks";
    model_optimizer_nvfp4_on_cpu, model_optimizer_nvfp4_on_reference => "modelopt-nvfp4";
    bits_and_bytes_nf4_on_cpu, bits_and_bytes_nf4_on_reference => "bnb-nf4";
    bits_and_bytes_fp4_on_cpu, bits_and_bytes_fp4_on_reference => "bnb-fp4";
    bits_and_bytes_int8_on_cpu, bits_and_bytes_int8_on_reference => "bnb-int8";
}

/// Act-order where some inputs keep their order: the ranks divide columns, or adapters may be added.
#[test]
fn act_order_over_ranks_and_beside_adapters() {
    let path = fixtures().join("quant/gptq-4-act-order");
    let ranks = open_on(&path, &[cpu(), cpu()], |_| {});
    check("gptq-4-act-order", &ranks);
    let beside_adapters = open(&path, cpu(), |c| c.lora = Some(LoraConfig::default()));
    check("gptq-4-act-order", &beside_adapters);
    for (llm, expected) in [
        (&ranks, "4 quantised matrices"),
        (&beside_adapters, "2 quantised matrices"),
    ] {
        let notes = llm.engine().info().notes.join("\n");
        assert!(notes.contains(expected), "{expected} in {notes}");
    }
}

/// Rounded while loading, against Hugging Face on weights that PyTorch rounded (tests/fixtures/models/make_rounded.py).
#[test]
fn weights_rounded_while_loading_give_pytorchs_text() {
    for (rounding, name) in [(Rounding::Int8, "int8"), (Rounding::Int4, "int4")] {
        for device in [cpu(), reference()] {
            let llm = open(&fixtures().join("llama3-rope"), device, |c| {
                c.model.quantization = Some(WeightQuantization::Round(rounding));
            });
            check_golden(name, &format!("llama3-rope/goldens-{name}.json"), &llm);
        }
    }
}

/// K-quants of a file that mixes them, and their canonical forms.
const K_QUANTS: [W; 7] = [W::Q2K, W::Q3K, W::Q4K, W::Q5K, W::Q6K, W::Q5_1, W::IQ4NL];
const K_QUANTS_AND_CANONICAL: [W; 12] = [
    W::Q2K,
    W::Q3K,
    W::Q4K,
    W::Q5K,
    W::Q6K,
    W::Q5_1,
    W::IQ4NL,
    W::U4G16,
    W::U4G32,
    W::I8G16,
    W::I8G32,
    W::Iq4NlG32,
];

/// A platform without the stored format gets the canonical one, without that BF16 where it is exact, without it F32:
/// the same model each time.
#[test]
fn a_platform_without_a_format_gets_the_next_form_of_it() {
    let golden_of = |path: &str| match path.strip_suffix(".gguf") {
        Some(stem) => format!("{stem}.golden.json"),
        None => format!("{path}/goldens.json"),
    };
    let cases: [(&str, &'static [W]); 8] = [
        ("gguf/llama-k-mix-gguf.gguf", &K_QUANTS),
        ("gguf/llama-k-mix-gguf.gguf", &K_QUANTS_AND_CANONICAL),
        ("gpt-oss-mxfp4", &[W::Mxfp4]),
        ("gpt-oss-mxfp4", &[W::Mxfp4, W::E2M1G32]),
        ("quant/ct-nvfp4", &[W::E2M1G16]),
        ("llama-fp8", &[W::F8E4M3]),
        ("quant/hqq-4", &[W::U4G64]),
        ("quant/awq", &[W::U4G32]),
    ];
    for (path, lacking) in cases {
        let llm = open(
            &fixtures().join(path),
            wrapped(cpu(), Change::LacksFormats(lacking)),
            |_| {},
        );
        check_golden(path, &golden_of(path), &llm);
        for format in lacking.iter().filter(|format| !format.is_canonical()) {
            let begin = format!("weights of {} are handed to", format.name());
            let note = llm.engine().info().notes.iter().find(|note| note.starts_with(&begin));
            let note = note.unwrap_or_else(|| panic!("{path} without {lacking:?}: {:?}", llm.engine().info().notes));
            assert!(
                note.contains(&format!("{}: it was taken away", format.name())),
                "{note}"
            );
            // Rows have 64 values and more.
            let canonical = format.narrowed(64);
            let next = match canonical.filter(|canonical| !lacking.contains(canonical)) {
                Some(canonical) => canonical,
                None if *format == W::Mxfp4 => W::BF16,
                None => W::F32,
            };
            let next = format!(" as {}, which has", next.name());
            assert!(note.contains(&next), "{next} in: {note}");
        }
    }
}

/// What takes more memory than its file is said.
#[test]
fn matrices_that_no_canonical_form_holds_are_noted() {
    let note_of = |name: &str| {
        let llm = open(&fixtures().join("quant").join(name), cpu(), |_| {});
        let mut notes = llm.engine().info().notes.iter();
        notes.find(|note| note.contains("are handed out as F32")).cloned()
    };
    // Act-order is sorted by group.
    assert_eq!(note_of("gptq-4-act-order"), None);
    // Of its seven kinds of matrices one has groups of columns.
    let noted = note_of("hqq-mixed").expect("a note");
    assert!(
        noted.starts_with("2 quantised matrices (model.layers.0.mlp.up_proj.weight and"),
        "{noted}"
    );
    assert_eq!(note_of("hqq-4"), None);
}

#[test]
fn a_platform_without_any_form_is_refused_by_each_and_what_it_takes() {
    let lacking: &'static [W] = &[W::U4G32, W::F32];
    let device = wrapped(cpu(), Change::LacksFormats(lacking));
    let error = Llm::open(config(&fixtures().join("quant/awq")), device)
        .err()
        .expect("refused");
    let text = error.to_string();
    for part in [
        "weights of U4_G32 in no form: U4_G32: it was taken away; F32: it was taken away",
        "it takes F16, BF16, Q4_0",
        "use a checkpoint in one of these, or another platform",
    ] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    assert!(text.len() < 4096, "{text}");
}
