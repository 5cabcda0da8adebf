//! Formats of reasoning, as data: the markers around it, and where it may stand.

use super::formats::{INKLING_MESSAGES, MUSE_GLIMMER_MESSAGES, MUSE_MESSAGES};
use super::message_marks::Messages;

/// How a model marks what it thinks before it answers.
#[derive(Debug)]
pub(super) struct ReasoningFormat {
    pub(super) name: &'static str,
    /// Markers that begin it.
    pub(super) open: &'static [&'static str],
    /// Markers that end it.
    pub(super) close: &'static [&'static str],
    /// Whether an answer begins with it although no marker says so, when the prompt says nothing either.
    pub(super) first: bool,
    /// Whether it may begin after text.
    pub(super) anywhere: bool,
    /// Whether a call within it ends it. Otherwise tool markers in it are thoughts.
    pub(super) ends_at_call: bool,
    /// Whether it stays in the text, with its markers.
    pub(super) keep: bool,
    /// Whether each message of an answer says what it is; markers say nothing then.
    pub(super) harmony: bool,
    /// The same for answers that are messages of another form.
    pub(super) messages: Option<&'static Messages>,
    /// Markers around the text of an answer, which are no part of it.
    pub(super) around_text: &'static [&'static str],
    /// Markers within text and reasoning that say nothing.
    pub(super) skip: &'static [&'static str],
    /// Whether a closing marker at the start of an answer says nothing.
    pub(super) drops_close: bool,
    /// Whether line breaks may be written as a backslash and a letter.
    pub(super) escaped_newlines: bool,
    /// Whether a tokenizer may add a suffix to its markers.
    pub(super) may_have_suffix: bool,
}

const THINK: ReasoningFormat = ReasoningFormat {
    name: "",
    open: &["<think>"],
    close: &["</think>"],
    first: false,
    anywhere: false,
    ends_at_call: true,
    keep: false,
    harmony: false,
    messages: None,
    around_text: &[],
    skip: &[],
    drops_close: false,
    escaped_newlines: false,
    may_have_suffix: false,
};

const COHERE: ReasoningFormat = ReasoningFormat {
    open: &["<|START_THINKING|>"],
    close: &["<|END_THINKING|>"],
    ..THINK
};

const MUSE: ReasoningFormat = ReasoningFormat {
    open: &["to=self<|message|>"],
    close: &[],
    ..THINK
};

/// Every format, sorted by name.
static FORMATS: &[ReasoningFormat] = &[
    ReasoningFormat {
        name: "cohere_command3",
        ..COHERE
    },
    ReasoningFormat {
        name: "cohere_command4",
        ..COHERE
    },
    ReasoningFormat {
        name: "deepseek_r1",
        first: true,
        ends_at_call: false,
        ..THINK
    },
    ReasoningFormat {
        name: "deepseek_v3",
        ends_at_call: false,
        ..THINK
    },
    ReasoningFormat {
        name: "deepseek_v4",
        ..THINK
    },
    ReasoningFormat {
        name: "deepseek_v41",
        ..THINK
    },
    ReasoningFormat {
        name: "ernie45",
        first: true,
        ends_at_call: false,
        ..THINK
    },
    ReasoningFormat {
        name: "gemma4",
        open: &["<|channel>thought\n", "<|channel>"],
        close: &["<channel|>"],
        anywhere: true,
        ..THINK
    },
    ReasoningFormat {
        name: "glm45",
        anywhere: true,
        ..THINK
    },
    ReasoningFormat {
        name: "glm47",
        anywhere: true,
        ..THINK
    },
    ReasoningFormat {
        name: "granite",
        open: &["Here is my thought process:", "Here's my thought process:"],
        close: &["Here is my response:", "Here's my response:"],
        ends_at_call: false,
        ..THINK
    },
    ReasoningFormat {
        name: "granite_thinking_parser",
        ..THINK
    },
    ReasoningFormat {
        name: "holo2",
        ends_at_call: false,
        ..THINK
    },
    ReasoningFormat {
        name: "hunyuan_a13b",
        around_text: &["<answer>\n", "\n</answer>"],
        ..THINK
    },
    ReasoningFormat {
        name: "hy_v3",
        ends_at_call: false,
        may_have_suffix: true,
        ..THINK
    },
    ReasoningFormat {
        name: "hy_v4",
        ends_at_call: false,
        may_have_suffix: true,
        ..THINK
    },
    ReasoningFormat {
        name: "inkling",
        open: &["<|content_thinking|>"],
        close: &[],
        messages: Some(&INKLING_MESSAGES),
        ..THINK
    },
    ReasoningFormat {
        name: "k2_horizon",
        open: &["<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"],
        close: &["</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"],
        first: true,
        ..THINK
    },
    ReasoningFormat {
        name: "kimi_k2",
        first: true,
        ..THINK
    },
    ReasoningFormat {
        name: "kimi_k3",
        open: &["<|open|>think<|sep|>"],
        close: &["<|close|>think<|sep|>"],
        around_text: super::formats::KIMI_K3_TEXT,
        ..THINK
    },
    ReasoningFormat {
        name: "ling3",
        anywhere: true,
        ..THINK
    },
    ReasoningFormat { name: "mimo", ..THINK },
    ReasoningFormat {
        name: "minicpmv",
        skip: &[
            "<|im_end|>",
            "<reserved_12>",
            "<reserved_13>",
            "<reserved_14>",
            "<reserved_15>",
            "<|reserved_12|>",
            "<|reserved_13|>",
            "<|reserved_14|>",
            "<|reserved_15|>",
        ],
        escaped_newlines: true,
        ..THINK
    },
    ReasoningFormat {
        name: "minimax_m2",
        first: true,
        ..THINK
    },
    ReasoningFormat {
        name: "minimax_m2_append_think",
        first: true,
        keep: true,
        ..THINK
    },
    ReasoningFormat {
        name: "minimax_m3",
        open: &["<mm:think>"],
        close: &["</mm:think>"],
        anywhere: true,
        ends_at_call: false,
        drops_close: true,
        ..THINK
    },
    ReasoningFormat {
        name: "mistral",
        open: &["[THINK]", "<think>"],
        close: &["[/THINK]", "</think>"],
        anywhere: true,
        ..THINK
    },
    ReasoningFormat {
        name: "muse",
        messages: Some(&MUSE_MESSAGES),
        ..MUSE
    },
    ReasoningFormat {
        name: "muse_glimmer",
        messages: Some(&MUSE_GLIMMER_MESSAGES),
        ..MUSE
    },
    ReasoningFormat {
        name: "musespark1x",
        messages: Some(&MUSE_MESSAGES),
        ..MUSE
    },
    ReasoningFormat {
        name: "nemotron_v3",
        first: true,
        ..THINK
    },
    ReasoningFormat {
        name: "olmo3",
        first: true,
        ends_at_call: false,
        ..THINK
    },
    ReasoningFormat {
        name: "openai_gptoss",
        harmony: true,
        open: &[],
        close: &[],
        ..THINK
    },
    ReasoningFormat {
        name: "plamo3",
        open: &["<|plamo:begin_think:plamo|>"],
        close: &["<|plamo:end_think:plamo|>"],
        first: true,
        ..THINK
    },
    ReasoningFormat {
        name: "poolside_v1",
        ends_at_call: false,
        ..THINK
    },
    ReasoningFormat { name: "qwen3", ..THINK },
    ReasoningFormat {
        name: "seed_oss",
        open: &["<seed:think>"],
        close: &["</seed:think>"],
        ..THINK
    },
    ReasoningFormat {
        name: "step3",
        first: true,
        ends_at_call: false,
        ..THINK
    },
    ReasoningFormat {
        name: "step3p5",
        first: true,
        ..THINK
    },
    ReasoningFormat {
        name: "step5",
        first: true,
        ends_at_call: false,
        ..THINK
    },
];

/// The names of the formats of reasoning.
pub fn reasoning_formats() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.name)
}

/// Where an answer is with its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningPhase {
    /// It may begin with the next marker.
    MayBegin,
    /// It is open.
    Open,
    /// It is over, or there is none: the answer itself may begin, or has begun.
    Over,
}

/// The format of a name.
pub(super) fn reasoning_format(name: &str) -> Option<&'static ReasoningFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

impl ReasoningFormat {
    /// Its name, which is vLLM's.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Whether the answer to `prompt` begins within reasoning that the prompt has opened; `None` when the prompt says
    /// nothing about it. Only the end of the prompt counts: markers of turns before it do not.
    pub(super) fn opened_by(&self, prompt: &str) -> Option<bool> {
        let prompt = prompt.trim_end();
        let ends_with = |markers: &[&str]| markers.iter().any(|marker| prompt.ends_with(marker.trim_end()));
        if ends_with(self.open) {
            Some(true)
        } else if ends_with(self.close) {
            Some(false)
        } else {
            None
        }
    }
}
