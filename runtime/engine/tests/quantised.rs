//! Quantised checkpoints as the Hub has them (tests/fixtures/models/make_quantised.py) against Hugging Face on the
//! weights that the formats' own libraries dequantise, in f32.

mod common;

use common::{cpu, fixtures, open, reference};
use halyard_device_check::goldens::{self, F32, Free};

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

fn check(name: &str, llm: &halyard_engine::Llm) {
    let golden = fixtures().join("quant").join(name).join("goldens.json");
    for case in goldens::check(llm, &golden, F32, Free::All).unwrap_or_else(|why| panic!("{name}: {why}")) {
        println!(
            "{name} {}: {} positions ({} near ties), worst logprob difference {:.2e}",
            case.name, case.positions, case.near_ties, case.worst
        );
    }
}

formats! {
    awq_on_cpu, awq_on_reference => "awq";
    gptq_4_on_cpu, gptq_4_on_reference => "gptq-4";
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
    fp8_blocks_on_cpu, fp8_blocks_on_reference => "fp8-blocks";
    model_optimizer_nvfp4_on_cpu, model_optimizer_nvfp4_on_reference => "modelopt-nvfp4";
    bits_and_bytes_nf4_on_cpu, bits_and_bytes_nf4_on_reference => "bnb-nf4";
    bits_and_bytes_fp4_on_cpu, bits_and_bytes_fp4_on_reference => "bnb-fp4";
    bits_and_bytes_int8_on_cpu, bits_and_bytes_int8_on_reference => "bnb-int8";
}
