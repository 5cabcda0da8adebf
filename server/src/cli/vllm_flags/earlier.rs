//! Flags that vLLM 0.33 no longer has, but older start scripts, charts and compose files use. `--device` is not among
//! them: it is a flag here, and `command_line` reads its older values.

use super::State::{Accepted, Only, Refused};
use super::Takes::{Bool, Switch, Value};
use super::{Flag, flag};

const SPEC: &str = "speculative decoding is not built yet";
const ROPE: &str = "give it in config.json's words, --hf-overrides '{\"rope_scaling\": …}'";
const STEPS: &str = "each step is planned anew";
const RECORDED: &str = "decode steps are recorded for the sizes that come";
const TOKENIZER: &str = "prompts are tokenised outside the engine thread";

/// Flags of earlier versions.
#[rustfmt::skip]
pub const EARLIER: &[Flag] = &[
    flag("--calculate-kv-scales", &[], Bool, Refused("scales come with the checkpoint; int8 has one for each token")),
    flag("--cuda-graph-sizes", &[], Value, Accepted(RECORDED)),
    flag("--disable-async-output-proc", &[], Switch, Accepted("steps overlap by --async-depth, which the device sets")),
    flag("--disable-frontend-multiprocessing", &[], Bool, Accepted("one process serves")),
    flag("--disable-mm-preprocessor-cache", &[], Bool, Accepted("requests take text only")),
    flag("--enable-prompt-adapter", &[], Bool, Refused("prompt adapters are not built yet")),
    flag("--enable-reasoning", &[], Bool, Accepted("--reasoning-parser is enough")),
    flag("--engine-use-ray", &[], Switch, Refused("there is no Ray; leave it out")),
    flag("--guided-decoding-backend", &[], Value, Accepted("one library compiles all structured outputs")),
    flag("--long-lora-scaling-factors", &[], Value, Refused("adapters that stretch positions are not served")),
    flag("--lora-extra-vocab-size", &[], Value,
        Only(&["0"], "adapters add no tokens", "adapters that add tokens are not served")),
    flag("--max-context-len-to-capture", &[], Value, Accepted(RECORDED)),
    flag("--max-long-partial-prefills", &[], Value, Accepted("--long-prefill-token-threshold bounds long prompts")),
    flag("--max-num-partial-prefills", &[], Value, Accepted("as many prompts share a step as fit into it")),
    flag("--max-seq-len-to-capture", &[], Value, Accepted(RECORDED)),
    flag("--multi-step-stream-outputs", &[], Bool, Accepted("every token is sent as it comes")),
    flag("--num-lookahead-slots", &[], Value, Only(&["0"], "none", SPEC)),
    flag("--num-scheduler-steps", &[], Value, Accepted(STEPS)),
    flag("--num-speculative-tokens", &[], Value, Refused(SPEC)),
    flag("--preemption-mode", &[], Value,
        Only(&["recompute", "none"], "preempted requests are computed anew", "preempted requests are computed anew")),
    flag("--rope-scaling", &[], Value, Refused(ROPE)),
    flag("--rope-theta", &[], Value, Refused(ROPE)),
    flag("--scheduler-delay-factor", &[], Value,
        Only(&["0", "0.0"], "no prompt is held back", "no prompt is held back")),
    flag("--speculative-model", &[], Value, Refused(SPEC)),
    flag("--swap-space", &[], Value, Accepted("preempted requests are computed anew, nothing is swapped")),
    flag("--task", &[], Value,
        Only(&["auto", "generate"], "text is generated", "embedding and classification models are not built yet")),
    flag("--tokenizer-pool-size", &[], Value, Accepted(TOKENIZER)),
    flag("--tokenizer-pool-type", &[], Value, Accepted(TOKENIZER)),
    flag("--use-v2-block-manager", &[], Switch, Accepted("there is one block manager")),
    flag("--worker-use-ray", &[], Switch, Refused("there is no Ray; use --tensor-parallel-size on one host")),
];
