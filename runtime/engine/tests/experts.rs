//! Models with experts in a running engine: with adapters, and on a platform that lacks their ops. Their numbers are
//! compared in `goldens.rs`.

use std::sync::Arc;

use crate::common::wrapped::{Change, wrapped};
use crate::common::{config, cpu, fixtures, open, reference};
use halyard_engine::{AdapterSource, Llm, LoraConfig, Request, RequestOutput, SamplingParams};
use halyard_platform_api::Device;

const MODEL: &str = "qwen3-moe";

/// Ids of one prompt's continuation and log-probabilities of the prompt, without and with adapters, in the same steps.
fn outputs(llm: &Llm, adapters: &[Option<&str>]) -> Vec<(Vec<u32>, Vec<f32>)> {
    let prompt: Vec<u32> = (0..20).map(|i| (i * 7 + 3) % 400).collect();
    let submit = |lora: &Option<&str>| {
        let params = SamplingParams {
            ignore_eos: true,
            prompt_logprobs: Some(1),
            ..SamplingParams::greedy(12)
        };
        let mut request = Request::new("test", prompt.clone(), params);
        request.lora = lora.map(str::to_owned);
        llm.engine().submit(request).expect("accepted")
    };
    let running: Vec<_> = adapters.iter().map(submit).collect();
    let outputs = running.into_iter().map(|stream| stream.blocking_collect());
    let read = |mut output: RequestOutput| {
        let scored = output.prompt_logprobs.take().expect("asked for").into_iter().flatten();
        let logprobs = scored.map(|scored| scored.chosen.logprob).collect();
        (output.outputs.remove(0).token_ids, logprobs)
    };
    outputs.map(read).collect()
}

/// The largest difference.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert!(
        a.len() == b.len() && a.len() > 10,
        "{} and {} positions",
        a.len(),
        b.len()
    );
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn with_adapter(device: Arc<dyn Device>) -> Llm {
    open(&fixtures().join(MODEL), device, |config| {
        config.lora = Some(LoraConfig {
            adapters: vec![("dummy".to_owned(), AdapterSource::Dummy { rank: 16, seed: 5 })],
            ..LoraConfig::default()
        });
    })
}

#[test]
fn an_adapter_changes_attention_and_dense_layers_beside_experts() {
    let base = &outputs(&open(&fixtures().join(MODEL), cpu(), |_| {}), &[None])[0];
    let both = [None, Some("dummy")];
    let (on_cpu, on_reference) = (
        outputs(&with_adapter(cpu()), &both),
        outputs(&with_adapter(reference()), &both),
    );
    for (cpu, reference) in on_cpu.iter().zip(&on_reference) {
        assert_eq!(cpu.0, reference.0);
        assert!(apart(&cpu.1, &reference.1) < 1e-4);
    }
    assert_eq!(&on_cpu[0], base, "rows without the adapter are the base model's");
    let change = apart(&on_cpu[1].1, &base.1);
    assert!(change > 1e-3, "the adapter changes its row, by {change}");
}

#[test]
fn a_platform_without_the_ops_of_experts_is_told_which() {
    let lacking = |op| wrapped(cpu(), Change::Lacks(op));
    for op in ["moe_route", "moe_linear", "moe_combine"] {
        let refusal = Llm::open(config(&fixtures().join(MODEL)), lacking(op))
            .map(|_| ())
            .unwrap_err();
        let text = refusal.to_string();
        assert!(text.contains("cannot run the model") && text.contains(op), "{text}");
        // A model without experts does not need them.
        open(&fixtures().join("qwen3"), lacking(op), |_| {});
    }
}
