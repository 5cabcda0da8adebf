//! Models against Hugging Face, teacher-forced: fed HF's ids, at every position the argmax agrees unless HF's own top-2
//! gap is under the bound, and the log-probability is within tolerance. Where asked, the model also runs free to HF's
//! ids.

use std::path::Path;

use halyard_engine::{Llm, OutputStream, Request, RequestOutput, SamplingParams};
use serde_json::Value;

/// How far a path may be from HF in fp32.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Largest difference of a log-probability.
    pub logprob: f64,
    /// A top-2 gap of HF's below this may fall either way.
    pub gap: f64,
}

/// f32 throughout: both sides round every product, in different orders.
pub const F32: Bounds = Bounds {
    logprob: 2e-3,
    gap: 2e-3,
};
/// KV in bf16: keys and values keep 8 bits, half a unit in 256 each.
pub const KV_BF16: Bounds = Bounds {
    logprob: 0.15,
    gap: 0.3,
};
/// Against goldens whose keys and values went through E4M3: a value near the middle of two codes may fall either way,
/// which moves HF's own float64 run by up to 0.0046 (gemma3). Ten times that; exact keys and values are 0.63 and more
/// away. The distances stand in the golden files.
pub const KV_FP8: Bounds = Bounds {
    logprob: 0.05,
    gap: 0.05,
};
/// The same with activations in f16: HF's own f16 runs over such keys and values are up to 0.44 away (llama).
pub const F16_KV_FP8: Bounds = Bounds { logprob: 0.5, gap: 0.3 };
/// The same with activations in bf16: HF's own bf16 runs are up to 1.32 away (llama), and 0.95 where gaps are widest
/// (gemma3), so that two candidates may change places across as much.
pub const BF16_KV_FP8: Bounds = Bounds { logprob: 1.5, gap: 1.0 };
/// The tiny models with goldens over keys and values in E4M3.
pub const KV_FP8_MODELS: [&str; 4] = ["llama", "smollm2", "qwen3", "gemma3"];
/// The same by scales of their checkpoints. Scales left out are 1.1 and more away, one of the two kinds 0.81: f32 tells
/// that from what rounding does, and half precision does not (two positions are 0.57 and 0.62 away in f16, HF's own f16
/// runs 0.40 and 0.26).
pub const KV_SCALE_MODELS: [&str; 2] = ["llama-fp8-kv", "qwen3-kv"];
/// Their golden files, in the models' folders.
pub const KV_FP8_GOLDENS: &str = "goldens-kv-fp8.json";

/// Against goldens whose keys and values went through I8: which way a value between two codes falls moves HF's own
/// float64 run by up to 0.0094 (gemma3). Ten times that; exact keys and values are 0.10 and more away.
pub const KV_INT8: Bounds = Bounds {
    logprob: 0.095,
    gap: 0.095,
};
/// The same through U4: HF's own float64 run is up to 0.0022 away (gemma3), exact keys and values 1.5 and more.
pub const KV_INT4: Bounds = Bounds {
    logprob: 0.022,
    gap: 0.022,
};
/// I8 with activations in f16: HF's own f16 runs over such keys and values are up to 0.20 away (gemma3).
pub const F16_KV_INT8: Bounds = Bounds {
    logprob: 0.25,
    gap: 0.2,
};
/// I8 with activations in bf16: errors of both kinds add up, and so do the bounds. HF's own bf16 runs are up to 0.33
/// away (smollm2).
pub const BF16_KV_INT8: Bounds = Bounds {
    logprob: BF16.logprob + KV_INT8.logprob,
    gap: BF16.gap + KV_INT8.gap,
};
/// U4 with activations in f16: HF's own f16 runs are up to 0.45 away (llama), and two candidates that move so far
/// towards each other change places across twice as much.
pub const F16_KV_INT4: Bounds = Bounds { logprob: 0.6, gap: 0.9 };
/// U4 with activations in bf16: HF's own bf16 runs are up to 1.20 away (llama).
pub const BF16_KV_INT4: Bounds = Bounds { logprob: 1.5, gap: 1.0 };
/// Not compared in half precision over U4: HF's own runs are 1.26 (f16) and 1.59 (bf16) away, as codes of 4 bits fall
/// either way there, and a gap of 1.48 is turned on CUDA.
pub const NOT_OVER_U4_IN_HALVES: &str = "gemma3";
/// The golden files of [`KV_FP8_MODELS`] over keys and values in I8 and U4.
pub const KV_INT8_GOLDENS: &str = "goldens-kv-int8.json";
/// As [`KV_INT8_GOLDENS`].
pub const KV_INT4_GOLDENS: &str = "goldens-kv-int4.json";

/// Activations in int8 blocks of 32, as llama.cpp's products have them: 1/254 of the block's largest value. Which way a
/// value falls depends on the last bits of what comes before it, so that processors differ: llama.cpp with such
/// activations and KV in f16 chooses SmolLM2's second candidate where HF's gap is 0.3585 (`llamacpp_q8_0` in the golden
/// file, case `unicode`).
pub const INT8: Bounds = Bounds {
    logprob: 0.35,
    gap: 0.4,
};
/// Both, as the server runs quantised weights by default: errors of both kinds add up, and so do the bounds.
pub const INT8_KV_BF16: Bounds = Bounds {
    logprob: INT8.logprob + KV_BF16.logprob,
    gap: INT8.gap + KV_BF16.gap,
};
/// Activations, weights and KV in bf16: every value between two ops keeps 8 bits, layer after layer. HF's own bf16 runs
/// of the tiny models are up to 0.44 away from its fp32 (transformers on a CPU; mistral). A gap of 0.3101 (gemma3-gguf,
/// `ids47`, position 10) falls either way when every op is computed in f64 and only its result rounded to bf16: 28 of
/// 40 runs with noise of 1e-7 turn it, and no other gap of 0.3 or more in any case.
pub const BF16: Bounds = Bounds {
    logprob: 0.5,
    gap: 0.35,
};
/// Models that are not compared in bf16, and in f16. All but llama-k-mix have experts, and a rounding gives a token
/// other ones. HF's own runs (transformers 5.23 on a CPU) are 0.80 (glm4-moe) to 3.27 (deepseek-v3) away from its fp32
/// in bf16 (qwen2-moe: 0.13, compared), in f16 0.21 (glm4-moe) to 3.15 (deepseek-v3). In f16 granite-moe, qwen2-moe and
/// gpt-oss are within 0.034 there and 0.14 to 1.15 away on CUDA, by two sets of kernels to the same digits; conformance
/// holds their ops in f16. llama-k-mix has weights of random blocks: HF's own bf16 run is 0.82 away and turns a gap of
/// 0.93 (transformers 5.24; its fp32 run gives the golden's digits).
pub const NOT_IN_BF16: [&str; 9] = [
    "granite-moe",
    "glm4-moe",
    "deepseek-v2",
    "deepseek-v3",
    "deepseek-v3-fp8",
    "gguf/deepseek-v3-gguf.gguf",
    "gguf/qwen3-moe-iq-gguf.gguf",
    "gguf/llama-k-mix-gguf.gguf",
    "gpt-oss",
];
/// See [`NOT_IN_BF16`].
pub const NOT_IN_F16: [&str; 8] = [
    "granite-moe",
    "qwen2-moe",
    "glm4-moe",
    "deepseek-v3",
    "deepseek-v3-fp8",
    "gguf/deepseek-v3-gguf.gguf",
    "gguf/qwen3-moe-iq-gguf.gguf",
    "gpt-oss",
];
/// The same in f16, which keeps 11 bits; HF's own f16 runs are up to 0.064 away (qwen3). A gap of 0.0816 (gemma3-gguf,
/// `ids47`, position 3) is 0.035 in HF's own f16 run (transformers 5.24 on a CPU), and turned by 3 of 40 such runs in
/// which results of products and norms are rounded once more (noise of 2^-11); no greater one is.
pub const F16: Bounds = Bounds {
    logprob: 0.08,
    gap: 0.09,
};

/// Which cases also run free to HF's ids.
#[derive(Clone, Copy, Debug)]
pub enum Free {
    /// Every one.
    All,
    /// Those named.
    Only(&'static [&'static str]),
}

impl Free {
    fn wants(self, name: &str) -> bool {
        match self {
            Free::All => true,
            Free::Only(names) => names.contains(&name),
        }
    }
}

/// The result of a case.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// Its name.
    pub name: String,
    /// Positions compared.
    pub positions: usize,
    /// Of those, near ties of HF's.
    pub near_ties: usize,
    /// Largest difference of a log-probability.
    pub worst: f64,
    /// Log-probabilities compared, those of the prompt among them, and the sum of their differences' squares.
    pub squares: (usize, f64),
}

/// The root of the mean square of all differences: unlike the worst one, which way a single value was rounded hardly
/// moves it.
pub fn root_mean_square(reports: &[CaseReport]) -> f64 {
    let (count, sum) = reports.iter().fold((0, 0.0), |all, report| {
        (all.0 + report.squares.0, all.1 + report.squares.1)
    });
    (sum / count.max(1) as f64).sqrt()
}

/// Checks every case of a golden file.
///
/// # Errors
/// The first position that is out of bounds, a free run that differs, a tokenizer that gives other ids, or a file that
/// is no golden file.
pub fn check(llm: &Llm, goldens: &Path, bounds: Bounds, free: Free) -> Result<Vec<CaseReport>, String> {
    let golden = read(goldens)?;
    let cases = golden["cases"].as_array().ok_or("the golden file has no cases")?;
    cases
        .iter()
        .map(|case| {
            let name = case["name"].as_str().ok_or("a case has no name")?;
            let report = check_forced(llm, case, bounds).map_err(|why| format!("{name}: {why}"))?;
            if free.wants(name) {
                let tokens = golden["max_new_tokens"].as_u64().ok_or("no max_new_tokens")?;
                check_free(llm, case, tokens as u32).map_err(|why| format!("{name} running free: {why}"))?;
            }
            check_tokenizer(llm, case).map_err(|why| format!("{name}: {why}"))?;
            Ok(report)
        })
        .collect()
}

/// Reads a golden file.
pub(crate) fn read(path: &Path) -> Result<Value, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|e| format!("{}: {e}", path.display()))
}

pub(crate) fn ids(value: &Value) -> Result<Vec<u32>, String> {
    let list = value.as_array().ok_or_else(|| format!("{value} is no list of ids"))?;
    let id = |v: &Value| v.as_u64().map(|id| id as u32).ok_or_else(|| format!("{v} is no id"));
    list.iter().map(id).collect()
}

pub(crate) fn number(value: &Value) -> Result<f64, String> {
    value.as_f64().ok_or_else(|| format!("{value} is no number"))
}

/// Where a case stands in its file, its adapter, the case, and how many tokens a free run takes.
type AdapterCase<'a> = (usize, Option<&'a str>, Value, u32);

/// The results of all cases, submitted together.
fn all_at_once(
    llm: &Llm,
    cases: &[AdapterCase<'_>],
    request: &dyn Fn(&Value, u32) -> Result<Request, String>,
) -> Result<Vec<RequestOutput>, String> {
    let submit = |(_, adapter, case, tokens): &AdapterCase<'_>| {
        let mut request = request(case, *tokens)?;
        request.lora = adapter.map(str::to_owned);
        llm.engine().submit(request).map_err(|e| e.to_string())
    };
    let streams = cases.iter().map(submit).collect::<Result<Vec<_>, _>>()?;
    Ok(streams.into_iter().map(OutputStream::blocking_collect).collect())
}

/// Checks every case of several golden files, each with the adapter that it is of (`None`: without), all at the same
/// time: cases of different adapters share steps. First teacher-forced, then those of `free` running free.
///
/// # Errors
/// As [`check`], naming the adapter.
pub fn check_adapters(
    llm: &Llm,
    goldens: &[(Option<&str>, &Path)],
    bounds: Bounds,
    free: Free,
) -> Result<Vec<CaseReport>, String> {
    let mut cases: Vec<AdapterCase<'_>> = Vec::new();
    for (adapter, path) in goldens {
        let golden = read(path)?;
        let list = golden["cases"].as_array().ok_or("the golden file has no cases")?;
        let tokens = golden["max_new_tokens"].as_u64().ok_or("no max_new_tokens")? as u32;
        let numbered = list.iter().enumerate();
        cases.extend(numbered.map(|(i, case)| (i, *adapter, case.clone(), tokens)));
    }
    // The same prompt of every adapter side by side.
    cases.sort_by_key(|(i, ..)| *i);
    let in_case = |why: String, adapter: Option<&str>, case: &Value| {
        format!("{} with {}: {why}", case["name"], adapter.unwrap_or("no adapter"))
    };
    let forced = all_at_once(llm, &cases, &|case, _| forced(case))?;
    let mut reports = Vec::new();
    for ((_, adapter, case, _), output) in cases.iter().zip(&forced) {
        reports.push(compare_forced(case, output, bounds).map_err(|why| in_case(why, *adapter, case))?);
    }
    cases.retain(|(_, _, case, _)| case["name"].as_str().is_some_and(|name| free.wants(name)));
    let run_free = |case: &Value, tokens| {
        let prompt = ids(&case["prompt_ids"])?;
        Ok(Request::new("free", prompt, SamplingParams::greedy(tokens)))
    };
    for ((_, adapter, case, _), output) in cases.iter().zip(&all_at_once(llm, &cases, &run_free)?) {
        compare_free(case, output).map_err(|why| in_case(why, *adapter, case))?;
    }
    Ok(reports)
}

/// Feeds prompt and HF's ids, and checks every position of the answer.
fn check_forced(llm: &Llm, case: &Value, bounds: Bounds) -> Result<CaseReport, String> {
    let stream = llm.engine().submit(forced(case)?).map_err(|e| e.to_string())?;
    compare_forced(case, &stream.blocking_collect(), bounds)
}

/// Prompt and HF's ids as one prompt whose every position is scored.
fn forced(case: &Value) -> Result<Request, String> {
    let (prompt, answer) = (ids(&case["prompt_ids"])?, ids(&case["hf_fp32"]["ids"])?);
    let params = SamplingParams {
        prompt_logprobs: Some(1),
        ..SamplingParams::greedy(1)
    };
    Ok(Request::new("forced", [prompt, answer].concat(), params))
}

fn compare_forced(case: &Value, output: &RequestOutput, bounds: Bounds) -> Result<CaseReport, String> {
    let (prompt, golden) = (ids(&case["prompt_ids"])?, &case["hf_fp32"]);
    let answer = ids(&golden["ids"])?;
    let scored = output
        .prompt_logprobs
        .as_ref()
        .ok_or_else(|| format!("no prompt log-probabilities came: {:?}", output.outputs.first()))?;
    let num_all = prompt.len() + answer.len();
    if scored.len() != num_all {
        return Err(format!("{} positions were scored of {num_all}", scored.len()));
    }
    let mut report = CaseReport {
        name: case["name"].as_str().unwrap_or_default().to_owned(),
        positions: answer.len(),
        near_ties: 0,
        worst: 0.0,
        squares: (0, 0.0),
    };
    let mut compare = |subject: String, found: f32, expected: &Value| {
        let error = (f64::from(found) - number(expected)?).abs();
        report.worst = report.worst.max(error);
        report.squares = (report.squares.0 + 1, report.squares.1 + error * error);
        // A NaN is within no bound.
        if error <= bounds.logprob {
            return Ok(());
        }
        Err(format!("{subject}: logprob {found} against {expected}"))
    };
    for (i, &id) in answer.iter().enumerate() {
        let at = scored[prompt.len() + i].as_ref().ok_or("a position was not scored")?;
        compare(format!("position {i}"), at.chosen.logprob, &golden["logprobs"][i])?;
        let gap = number(&golden["top2_gap"][i])?;
        if at.chosen.token != id || (gap >= bounds.gap && at.top[0].token != id) {
            return Err(format!(
                "position {i}: argmax {}, HF has {id} with a gap of {gap}",
                at.top[0].token
            ));
        }
    }
    for (i, value) in golden["prompt_logprobs"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
        .skip(1)
    {
        let at = scored[i].as_ref().ok_or("a position was not scored")?;
        compare(format!("prompt position {i}"), at.chosen.logprob, value)?;
    }
    let gaps = golden["top2_gap"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_f64);
    report.near_ties = gaps.filter(|&gap| gap < bounds.gap).count();
    Ok(report)
}

fn check_free(llm: &Llm, case: &Value, tokens: u32) -> Result<(), String> {
    let outputs = llm
        .generate_ids(vec![ids(&case["prompt_ids"])?], &SamplingParams::greedy(tokens))
        .map_err(|e| e.to_string())?;
    compare_free(case, &outputs[0])
}

fn compare_free(case: &Value, output: &RequestOutput) -> Result<(), String> {
    let (found, expected) = (&output.outputs[0].token_ids, ids(&case["hf_fp32"]["ids"])?);
    if *found == expected {
        return Ok(());
    }
    Err(format!("{found:?}, HF has {expected:?}"))
}

fn check_tokenizer(llm: &Llm, case: &Value) -> Result<(), String> {
    let Some(text) = case["prompt_text"].as_str() else {
        return Ok(());
    };
    let encoded = llm.engine().tokenizer().encode(text, case["messages"].is_null());
    let (found, expected) = (encoded.map_err(|e| e.to_string())?, ids(&case["prompt_ids"])?);
    if found == expected {
        return Ok(());
    }
    Err(format!("the prompt's ids are {found:?}, HF has {expected:?}"))
}
