//! Formats of reasoning, as data: the markers around it, and where it may stand.

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
};

/// Every format, sorted by name.
static FORMATS: &[ReasoningFormat] = &[
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
        name: "kimi_k2",
        first: true,
        ..THINK
    },
    ReasoningFormat {
        name: "ling3",
        anywhere: true,
        ..THINK
    },
    ReasoningFormat { name: "mimo", ..THINK },
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
        name: "mistral",
        open: &["[THINK]", "<think>"],
        close: &["[/THINK]", "</think>"],
        anywhere: true,
        ..THINK
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
