//! Formats of tool calls, as data, by vLLM's names.

use super::element_calls::ElementCalls;
use super::family::Family;
use super::json_calls::{JsonCalls, Listing};
use super::literal_calls::LiteralCalls;
use super::message_marks::{Kind, Messages, Recipients};
use super::named_calls::NamedCalls;
use super::python_calls::PythonCalls;
use super::types::Types;
use super::xml_calls::{Attributes, Trim, Typing, XmlCalls};

/// How a model writes that it calls a function.
#[derive(Debug)]
pub(super) struct ToolFormat {
    name: &'static str,
    pub(super) family: Family,
    /// Markers around the text of an answer, which are no part of it.
    pub(super) around_text: &'static [&'static str],
    /// Whether a tokenizer may add a suffix to its markers.
    pub(super) may_have_suffix: bool,
}

const TAGGED: JsonCalls = JsonCalls {
    open: &["<tool_call>"],
    close: &["</tool_call>"],
    bare: false,
    list: Listing::Objects,
    names: &["name"],
    arguments: &["arguments", "parameters"],
};

const LISTED: JsonCalls = JsonCalls {
    list: Listing::Both,
    ..TAGGED
};

/// Llama writes `{"name": …, "parameters": {…}}` with nothing around it, or after the marker of its code.
const LLAMA: JsonCalls = JsonCalls {
    open: &["<|python_tag|>"],
    close: &[],
    bare: true,
    ..TAGGED
};

/// Mistral before its eleventh tokenizer: `[TOOL_CALLS] [{…}]`.
static MISTRAL_LIST: JsonCalls = JsonCalls {
    open: &["[TOOL_CALLS]"],
    close: &[],
    ..LISTED
};

const MISTRAL: NamedCalls = NamedCalls {
    section: None,
    open: &["[TOOL_CALLS]"],
    call: "[TOOL_CALLS]",
    kind_end: None,
    name_end: &["[ARGS]", "{"],
    id: Some("[CALL_ID]"),
    fence: None,
    close: None,
    name_is_id: false,
    or: Some(&MISTRAL_LIST),
};

const DEEPSEEK_V31: NamedCalls = NamedCalls {
    section: Some(("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")),
    open: &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
    call: "<｜tool▁call▁begin｜>",
    kind_end: None,
    name_end: &["<｜tool▁sep｜>"],
    id: None,
    fence: None,
    close: Some("<｜tool▁call▁end｜>"),
    name_is_id: false,
    or: None,
};

const DEEPSEEK_V3: NamedCalls = NamedCalls {
    kind_end: Some("<｜tool▁sep｜>"),
    name_end: &["\n```json\n"],
    fence: Some("```"),
    ..DEEPSEEK_V31
};

const KIMI_K2: NamedCalls = NamedCalls {
    section: Some(("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")),
    open: &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
    call: "<|tool_call_begin|>",
    name_end: &["<|tool_call_argument_begin|>"],
    close: Some("<|tool_call_end|>"),
    name_is_id: true,
    ..DEEPSEEK_V31
};

const QWEN3: XmlCalls = XmlCalls {
    section: Some(("<tool_call>", "</tool_call>")),
    open: &["<tool_call>", "<function="],
    call: "<function=",
    name_end: &[">"],
    close: "</function>",
    parameter: "<parameter=",
    key_end: ">",
    value: None,
    value_end: "</parameter>",
    attributes: None,
    trim: Trim::LineBreak,
    untyped: Types::STRING,
    skip: &[],
    kind: None,
    json: None,
    typing: Typing::Schema,
    doubled: false,
    breaks: &[],
};

const SEED_OSS: XmlCalls = XmlCalls {
    section: Some(("<seed:tool_call>", "</seed:tool_call>")),
    open: &["<seed:tool_call>", "<function="],
    ..QWEN3
};

const GLM: XmlCalls = XmlCalls {
    section: None,
    open: &["<tool_call>"],
    call: "<tool_call>",
    name_end: &["\n", "<arg_key>", "</tool_call>"],
    close: "</tool_call>",
    parameter: "<arg_key>",
    key_end: "</arg_key>",
    value: Some("<arg_value>"),
    value_end: "</arg_value>",
    trim: Trim::Nothing,
    ..QWEN3
};

const NAMED: Attributes = Attributes {
    function: "name",
    parameter: "name",
    string: ("string", "true"),
};

const HY_V3: XmlCalls = XmlCalls {
    section: Some(("<tool_calls>", "</tool_calls>")),
    open: &["<tool_calls>", "<tool_call>"],
    name_end: &["<tool_sep>"],
    ..GLM
};

const HY_V4: XmlCalls = XmlCalls {
    name_end: GLM.name_end,
    ..HY_V3
};

const K2_HORIZON: XmlCalls = XmlCalls {
    section: Some(("<ifm|tool_calls>", "</ifm|tool_calls>")),
    open: &["<ifm|tool_calls>", "<ifm|tool_call>"],
    call: "<ifm|tool_call>",
    name_end: &["\n", "<ifm|arg_key>", "</ifm|tool_call>"],
    close: "</ifm|tool_call>",
    parameter: "<ifm|arg_key>",
    key_end: "</ifm|arg_key>",
    kind: Some(("<ifm|arg_type>", "</ifm|arg_type>")),
    value: Some("<ifm|arg_value>"),
    value_end: "</ifm|arg_value>",
    json: Some(&K2_HORIZON_JSON),
    ..GLM
};

/// What ends calls of K2 Horizon that are JSON; the markers that begin are those of the tags.
static K2_HORIZON_JSON: JsonCalls = JsonCalls {
    open: &["<ifm|tool_call>", "</ifm|tool_calls>"],
    close: &["</ifm|tool_call>"],
    arguments: &["arguments"],
    ..TAGGED
};

const MINIMAX_M3: ElementCalls = ElementCalls {
    prefix: "]<]minimax[>[",
    section: ("]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>"),
    open: &["]<]minimax[>[<tool_call>"],
    call: "]<]minimax[>[<invoke",
    close: "]<]minimax[>[</invoke>",
};

static INKLING_CALLS: Family = Family::Json(JsonCalls {
    open: &["<|content_invoke_tool_json|>"],
    close: &["<|end_message|>", "<|content_model_end_sampling|>"],
    arguments: &["args", "arguments", "parameters"],
    ..TAGGED
});

pub(super) static INKLING_MESSAGES: Messages = Messages {
    start: "<|message_model|>",
    bodies: &[
        ("<|content_text|>", Kind::Text),
        ("<|content_thinking|>", Kind::Reasoning),
        ("<|content_invoke_tool_json|>", Kind::Call),
        ("<|content_invoke_tool_text|>", Kind::Text),
        ("<|content_tool_error|>", Kind::Text),
    ],
    ends: &["<|end_message|>", "<|content_model_end_sampling|>"],
    recipients: None,
};

const MUSE: XmlCalls = XmlCalls {
    section: Some(("<atem:function_calls>", "</atem:function_calls>")),
    open: &["<atem:function_calls>", "<atem:invoke"],
    call: "<atem:invoke",
    close: "</atem:invoke>",
    parameter: "<atem:parameter",
    value_end: "</atem:parameter>",
    typing: Typing::Strings,
    doubled: true,
    breaks: &["<|eom|>", "<|eot|>", "<|start|>"],
    ..MINIMAX_M2
};

static MUSE_CALLS: Family = Family::Xml(MUSE);

static MUSE_GLIMMER_CALLS: Family = Family::Xml(XmlCalls {
    typing: Typing::Json,
    ..MUSE
});

pub(super) static MUSE_MESSAGES: Messages = Messages {
    start: "<|start|>",
    bodies: &[("<|message|>", Kind::Addressed)],
    ends: &["<|eom|>", "<|eot|>"],
    recipients: Some(&Recipients {
        before: "to=",
        thoughts: &["", "self"],
        text: &["user", "commentary"],
        dropped: &["developer"],
    }),
};

pub(super) static MUSE_GLIMMER_MESSAGES: Messages = Messages {
    recipients: Some(&Recipients {
        before: "to=",
        thoughts: &["self"],
        text: &["", "user"],
        dropped: &[],
    }),
    ..MUSE_MESSAGES
};

const MINIMAX_M2: XmlCalls = XmlCalls {
    section: Some(("<minimax:tool_call>", "</minimax:tool_call>")),
    open: &["<minimax:tool_call>"],
    call: "<invoke",
    close: "</invoke>",
    parameter: "<parameter",
    attributes: Some(&NAMED),
    trim: Trim::Nothing,
    ..QWEN3
};

const DEEPSEEK_V32: XmlCalls = XmlCalls {
    section: Some(("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")),
    open: &["<｜DSML｜function_calls>", "<｜DSML｜invoke"],
    call: "<｜DSML｜invoke",
    close: "</｜DSML｜invoke>",
    parameter: "<｜DSML｜parameter",
    value_end: "</｜DSML｜parameter>",
    untyped: Types::ANY,
    ..MINIMAX_M2
};

const DEEPSEEK_V4: XmlCalls = XmlCalls {
    section: Some(("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")),
    open: &["<｜DSML｜tool_calls>", "<｜DSML｜invoke"],
    ..DEEPSEEK_V32
};

const DEEPSEEK_V41: XmlCalls = XmlCalls {
    section: Some(("<｜DSML｜ calls>", "</｜DSML｜ calls>")),
    open: &["<｜DSML｜ calls>", "<｜DSML｜ invoke"],
    call: "<｜DSML｜ invoke",
    close: "</｜DSML｜ invoke>",
    parameter: "<｜DSML｜ parameter",
    value_end: "</｜DSML｜ parameter>",
    ..DEEPSEEK_V32
};

const DOTS: XmlCalls = XmlCalls {
    section: Some(("<dots_function_call>", "</dots_function_call>")),
    open: &["<dots_function_call>"],
    ..MINIMAX_M2
};

const STEP3: XmlCalls = XmlCalls {
    section: Some(("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>")),
    open: &["<｜tool_calls_begin｜>"],
    call: "<steptml:invoke",
    close: "</steptml:invoke>",
    parameter: "<steptml:parameter",
    value_end: "</steptml:parameter>",
    trim: Trim::All,
    skip: &[
        "<｜tool_call_begin｜>",
        "function",
        "<｜tool_sep｜>",
        "<｜tool_call_end｜>",
    ],
    ..MINIMAX_M2
};

const MINICPM5: XmlCalls = XmlCalls {
    section: None,
    open: &["<function"],
    call: "<function",
    close: "</function>",
    parameter: "<param",
    value_end: "</param>",
    untyped: Types::ANY,
    ..MINIMAX_M2
};

const KIMI_K3: XmlCalls = XmlCalls {
    section: Some(("<|open|>tools<|sep|>", "<|close|>tools<|sep|>")),
    open: &["<|open|>tools<|sep|>"],
    call: "<|open|>call",
    name_end: &["<|sep|>"],
    close: "<|close|>call<|sep|>",
    parameter: "<|open|>argument",
    key_end: "<|sep|>",
    value_end: "<|close|>argument<|sep|>",
    attributes: Some(&Attributes {
        function: "tool",
        parameter: "key",
        string: ("type", "string"),
    }),
    untyped: Types::ANY,
    ..MINIMAX_M2
};

/// Kimi K3 writes its answer in a tag of its own, within that of a message.
pub(super) const KIMI_K3_TEXT: &[&str] = &[
    "<|open|>response<|sep|>",
    "<|close|>response<|sep|>",
    "<|close|>message<|sep|>",
];

const PLAMO3: NamedCalls = NamedCalls {
    section: Some((
        "<|plamo:begin_tool_requests:plamo|>",
        "<|plamo:end_tool_requests:plamo|>",
    )),
    open: &["<|plamo:begin_tool_requests:plamo|>"],
    call: "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>",
    name_end: &[
        "<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>",
    ],
    close: Some("<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"),
    ..DEEPSEEK_V31
};

const COHERE: JsonCalls = JsonCalls {
    open: &["<|START_ACTION|>"],
    close: &["<|END_ACTION|>"],
    names: &["tool_name"],
    arguments: &["parameters"],
    ..LISTED
};

const PYTHONIC: PythonCalls = PythonCalls {
    open: &[],
    close: &[],
    bare: true,
    lines: false,
};

const GEMMA4: LiteralCalls = LiteralCalls {
    open: &["<|tool_call>"],
    prefix: "call:",
    close: "<tool_call|>",
    quote: "<|\"|>",
};

const fn format(name: &'static str, family: Family) -> ToolFormat {
    ToolFormat {
        name,
        family,
        around_text: &[],
        may_have_suffix: false,
    }
}

/// Every format, sorted by name.
static FORMATS: &[ToolFormat] = &[
    format(
        "apertus",
        Family::Json(JsonCalls {
            open: &["<|tools_prefix|>"],
            close: &["<|tools_suffix|>"],
            names: &[],
            arguments: &[],
            ..LISTED
        }),
    ),
    format("cohere_command3", Family::Json(COHERE)),
    format("cohere_command4", Family::Json(COHERE)),
    format("deepseek_v3", Family::Named(DEEPSEEK_V3)),
    format("deepseek_v31", Family::Named(DEEPSEEK_V31)),
    format("deepseek_v32", Family::Xml(DEEPSEEK_V32)),
    format("deepseek_v4", Family::Xml(DEEPSEEK_V4)),
    format("deepseek_v41", Family::Xml(DEEPSEEK_V41)),
    format("dots", Family::Xml(DOTS)),
    format("ernie45", Family::Json(TAGGED)),
    format(
        "functiongemma",
        Family::Literal(LiteralCalls {
            open: &["<start_function_call>"],
            close: "<end_function_call>",
            quote: "<escape>",
            ..GEMMA4
        }),
    ),
    format("gemma4", Family::Literal(GEMMA4)),
    format(
        "gigachat3",
        Family::Json(JsonCalls {
            open: &["function call<|role_sep|>\n", "<|function_call|>"],
            close: &[],
            ..TAGGED
        }),
    ),
    format("glm45", Family::Xml(GLM)),
    format("glm47", Family::Xml(GLM)),
    format(
        "granite",
        Family::Json(JsonCalls {
            open: &["<|tool_call|>", "<tool_call>"],
            close: &[],
            ..LISTED
        }),
    ),
    format(
        "granite-20b-fc",
        Family::Json(JsonCalls {
            open: &["<function_call>"],
            close: &[],
            ..TAGGED
        }),
    ),
    format("granite4", Family::Json(TAGGED)),
    format("hermes", Family::Json(TAGGED)),
    format(
        "hunyuan_a13b",
        Family::Json(JsonCalls {
            open: &["<tool_calls>"],
            close: &["</tool_calls>"],
            ..LISTED
        }),
    ),
    ToolFormat {
        may_have_suffix: true,
        ..format("hy_v3", Family::Xml(HY_V3))
    },
    ToolFormat {
        may_have_suffix: true,
        ..format("hy_v4", Family::Xml(HY_V4))
    },
    format("inkling", Family::Messages(&INKLING_MESSAGES, &INKLING_CALLS)),
    format(
        "internlm",
        Family::Json(JsonCalls {
            open: &["<|action_start|><|plugin|>"],
            close: &["<|action_end|>"],
            ..TAGGED
        }),
    ),
    format(
        "jamba",
        Family::Json(JsonCalls {
            open: &["<tool_calls>"],
            close: &["</tool_calls>"],
            ..LISTED
        }),
    ),
    format("k2_horizon", Family::Xml(K2_HORIZON)),
    format("kimi_k2", Family::Named(KIMI_K2)),
    ToolFormat {
        around_text: KIMI_K3_TEXT,
        ..format("kimi_k3", Family::Xml(KIMI_K3))
    },
    format(
        "lfm2",
        Family::Python(PythonCalls {
            open: &["<|tool_call_start|>"],
            close: &["<|tool_call_end|>"],
            bare: false,
            ..PYTHONIC
        }),
    ),
    format("ling3", Family::Xml(GLM)),
    format("llama3_json", Family::Json(LLAMA)),
    format("llama4_json", Family::Json(LLAMA)),
    format(
        "llama4_pythonic",
        Family::Python(PythonCalls {
            open: &["<|python_start|>"],
            close: &["<|python_end|>"],
            ..PYTHONIC
        }),
    ),
    format(
        "longcat",
        Family::Json(JsonCalls {
            open: &["<longcat_tool_call>"],
            close: &["</longcat_tool_call>"],
            ..TAGGED
        }),
    ),
    format("mimo", Family::Xml(QWEN3)),
    format("minicpm5", Family::Xml(MINICPM5)),
    format("minimax_m2", Family::Xml(MINIMAX_M2)),
    format("minimax_m3", Family::Elements(MINIMAX_M3)),
    format("mistral", Family::Named(MISTRAL)),
    format("muse", Family::Messages(&MUSE_MESSAGES, &MUSE_CALLS)),
    format(
        "muse_glimmer",
        Family::Messages(&MUSE_GLIMMER_MESSAGES, &MUSE_GLIMMER_CALLS),
    ),
    format("musespark1x", Family::Messages(&MUSE_MESSAGES, &MUSE_CALLS)),
    format(
        "olmo3",
        Family::Python(PythonCalls {
            open: &["<function_calls>"],
            close: &["</function_calls>"],
            bare: false,
            lines: true,
        }),
    ),
    format("openai", Family::Harmony),
    format(
        "phi4_mini_json",
        Family::Json(JsonCalls {
            open: &["functools"],
            close: &[],
            ..LISTED
        }),
    ),
    format("plamo3", Family::Named(PLAMO3)),
    format("poolside_v1", Family::Xml(GLM)),
    format("pythonic", Family::Python(PYTHONIC)),
    format("qwen3_coder", Family::Xml(QWEN3)),
    format("qwen3_json", Family::Json(TAGGED)),
    format("qwen3_xml", Family::Xml(QWEN3)),
    format("seed_oss", Family::Xml(SEED_OSS)),
    format("step3", Family::Xml(STEP3)),
    format("step3p5", Family::Xml(QWEN3)),
    format("step5", Family::Xml(QWEN3)),
    format(
        "xlam",
        Family::Json(JsonCalls {
            open: &["[TOOL_CALLS]", "<tool_call>"],
            close: &[],
            bare: true,
            ..LISTED
        }),
    ),
];

/// The names of the formats of tool calls.
pub fn tool_formats() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.name)
}

/// The format of a name.
pub(super) fn tool_format(name: &str) -> Option<&'static ToolFormat> {
    FORMATS.iter().find(|format| format.name == name)
}

impl ToolFormat {
    /// Its name, which is vLLM's.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// The same for another family of markers.
    pub(super) fn with_family(&self, family: Family) -> Self {
        Self { family, ..*self }
    }
}
