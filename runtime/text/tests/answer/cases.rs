//! Answers written by hand, above all wrong ones, and what they mean.

/// One answer.
pub struct Case {
    /// The formats that read it so, by a blank.
    pub tools: &'static str,
    /// The format of reasoning, or none.
    pub reasoning: &'static str,
    /// Whether the prompt has opened reasoning.
    pub in_reasoning: Option<bool>,
    /// What the model wrote.
    pub text: &'static str,
    /// The events: T text, R reasoning, C call and its id after #, A arguments, E end of the call and its fault.
    pub events: &'static [&'static str],
}

pub const fn case(tools: &'static str, text: &'static str, events: &'static [&'static str]) -> Case {
    Case {
        tools,
        reasoning: "",
        in_reasoning: None,
        text,
        events,
    }
}

pub const fn thinks(
    tools: &'static str,
    reasoning: &'static str,
    in_reasoning: Option<bool>,
    text: &'static str,
    events: &'static [&'static str],
) -> Case {
    Case {
        tools,
        reasoning,
        in_reasoning,
        text,
        events,
    }
}

const HERMES: &str = "hermes qwen3_json granite4 ernie45";
const LLAMA: &str = "llama3_json llama4_json";
const LISTED: &str = "jamba hunyuan_a13b";
const XML: &str = "qwen3_coder qwen3_xml mimo step3p5 step5";
const PYTHON: &str = "pythonic llama4_pythonic";

/// The table.
pub const CASES: &[Case] = &[
    // Text that is none of what it looks like.
    case(HERMES, "", &[]),
    case(HERMES, " \n", &["T: \n"]),
    case(HERMES, "a < b <tool_cal l>\n", &["T:a < b <tool_cal l>\n"]),
    case(HERMES, "ends with <tool_ca", &["T:ends with <tool_ca"]),
    case(HERMES, "<tool_call>", &["T:<tool_call>"]),
    case(HERMES, "</tool_call> x", &["T:</tool_call> x"]),
    case(
        HERMES,
        "<tool_call>no JSON</tool_call>",
        &["T:<tool_call>no JSON</tool_call>"],
    ),
    case(HERMES, "use <tool_call> tags", &["T:use <tool_call> tags"]),
    case(HERMES, "<tool_call>[1]</tool_call>", &["T:<tool_call>[1]</tool_call>"]),
    case(
        HERMES,
        r#"<tool_call>{"a": 1}</tool_call>"#,
        &[r#"T:<tool_call>{"a": 1}</tool_call>"#],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": 5, "arguments": {}}"#,
        &[r#"T:<tool_call>{"name": 5, "arguments": {}}"#],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "", "arguments": {}}"#,
        &[r#"T:<tool_call>{"name": "", "arguments": {}}"#],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "argu"#,
        &[r#"T:<tool_call>{"name": "f", "argu"#],
    ),
    case(
        HERMES,
        r#"<tool_call><tool_call>{"name": "f", "arguments": {}}</tool_call>"#,
        &["T:<tool_call>", "C:f", "A:{}", "E"],
    ),
    // Shapes of a call.
    case(HERMES, r#"<tool_call>{"name": "f"}</tool_call>"#, &["C:f", "A:{}", "E"]),
    case(
        HERMES,
        r#"<tool_call>{"arguments": {"a": [1]}, "name": "f"}</tool_call>"#,
        &["C:f", r#"A:{"a": [1]}"#, "E"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"id": "call_7", "type": "function", "name": "f", "arguments": {}, "x": {"y": ["}"]}}</tool_call>"#,
        &["C:f#call_7", "A:{}", "E"],
    ),
    case(
        HERMES,
        "<tool_call>{\"name\": \"\\u0066\", \"arguments\" :\n {  }  }\n</tool_call>",
        &["C:f", "A:{  }", "E"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {"a": "<tool_call> </tool_call> \" }"}}</tool_call>"#,
        &["C:f", r#"A:{"a": "<tool_call> </tool_call> \" }"}"#, "E"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {"a": "\u00e9\\"}}</tool_call>"#,
        &["C:f", r#"A:{"a": "\u00e9\\"}"#, "E"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {}}{"name": "g", "arguments": {}}</tool_call>"#,
        &["C:f", "A:{}", "E", "C:g", "A:{}", "E"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "g", "arguments": {}}"#,
        &["C:f", "A:{}", "E", "C:g", "A:{}", "E"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {}}</tool_call> and <tool_call>{"name": "g", "arguments": {}}</tool_call>."#,
        &["C:f", "A:{}", "E", "T: and ", "C:g", "A:{}", "E", "T:."],
    ),
    // Wrong arguments.
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {"a": "Par"#,
        &["C:f", r#"A:{"a": "Par"#, "E:cut off"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": "#,
        &[r#"T:<tool_call>{"name": "f", "arguments": "#],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {"a": 1}"#,
        &["C:f", r#"A:{"a": 1}"#, "E"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>x"#,
        &["C:f", r#"A:{"a": 1}"#, "E", "T:x"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>"#,
        &["C:f", r#"A:{"a": }"#, "E:no JSON"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {'a': 1}}</tool_call>"#,
        &["C:f", "A:{'a': 1}", "E:no JSON"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {"a": [1}</tool_call>x"#,
        &["C:f", r#"A:{"a": [1}"#, "E:no JSON", "T:x"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": null}</tool_call>"#,
        &["C:f", "A:null", "E:no JSON"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": "{}"}</tool_call>"#,
        &["C:f", r#"A:"{}""#, "E:no JSON"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {}}}</tool_call>x"#,
        &["C:f", "A:{}", "E", "T:}x"],
    ),
    case(
        HERMES,
        r#"<tool_call>{"name": "f", "arguments": {}} rest"#,
        &["C:f", "A:{}", "E", "T: rest"],
    ),
    // JSON with nothing around it.
    case(
        LLAMA,
        r#"{"name": "f", "parameters": {"a": 1}}"#,
        &["C:f", r#"A:{"a": 1}"#, "E"],
    ),
    case(
        LLAMA,
        r#"{"name": "Bob", "age": 5}"#,
        &[r#"T:{"name": "Bob", "age": 5}"#],
    ),
    case(LLAMA, r#"{"a": {"b": 1}} text"#, &[r#"T:{"a": {"b": 1}} text"#]),
    case(
        LLAMA,
        r#"See {"name": "f", "parameters": {}}"#,
        &[r#"T:See {"name": "f", "parameters": {}}"#],
    ),
    case(
        LLAMA,
        "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"arguments\": {}}\nok",
        &["C:f", "A:{}", "E", "C:g", "A:{}", "E", "T:\nok"],
    ),
    case(LLAMA, "<|python_tag|>print(1)", &["T:<|python_tag|>print(1)"]),
    case(
        "xlam",
        r#"[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {}}]"#,
        &["C:f", "A:{}", "E", "C:g", "A:{}", "E"],
    ),
    case("xlam", "[1, 2]", &["T:[1, 2]"]),
    case(
        LISTED,
        "<tool_calls>[]</tool_calls>",
        &["T:<tool_calls>[]</tool_calls>"],
    ),
    case(
        LISTED,
        "<tool_calls>[\n {\"name\": \"f\", \"arguments\": {}},\n {\"name\": \"g\", \"arguments\": {}}\n]</tool_calls>",
        &["C:f", "A:{}", "E", "C:g", "A:{}", "E"],
    ),
    // Mistral, old and new.
    case(
        "mistral",
        r#"[TOOL_CALLS] [{"name": "f", "arguments": {"a": [1]}, "id": "abcdefghi"}]"#,
        &["C:f", r#"A:{"a": [1]}"#, "E"],
    ),
    case(
        "mistral",
        r#"[TOOL_CALLS]f{"a": "[TOOL_CALLS]"}"#,
        &["C:f", r#"A:{"a": "[TOOL_CALLS]"}"#, "E"],
    ),
    case(
        "mistral",
        r#"Hi[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}"#,
        &["T:Hi", "C:f#abcdefghi", r#"A:{"a": 1}"#, "E", "C:g", "A:{}", "E"],
    ),
    case(
        "mistral",
        r#"[TOOL_CALLS]f{"a": [TOOL_CALLS]g{}"#,
        &["C:f", r#"A:{"a": "#, "E:no JSON", "C:g", "A:{}", "E"],
    ),
    case(
        "mistral",
        "[TOOL_CALLS]what is this {",
        &["T:[TOOL_CALLS]what is this {"],
    ),
    case("mistral", "[TOOL_CALLS]f", &["T:[TOOL_CALLS]f"]),
    case("mistral", "[TOOL_CALLS", &["T:[TOOL_CALLS"]),
    // Names and JSON.
    case(
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b:3<|tool_call_argument_begin|>\
         {\"x\": \"<|tool_call_end|>\"}<|tool_call_end|><|tool_calls_section_end|>ok",
        &["C:a.b#functions.a.b:3", r#"A:{"x": "<|tool_call_end|>"}"#, "E", "T:ok"],
    ),
    case(
        "kimi_k2",
        "<|tool_call_begin|>f<|tool_call_argument_begin|><|tool_call_end|>",
        &["C:f", "A:{}", "E"],
    ),
    case(
        "kimi_k2",
        "<|tool_calls_section_begin|>nothing<|tool_calls_section_end|>",
        &["T:<|tool_calls_section_begin|>nothing<|tool_calls_section_end|>"],
    ),
    case(
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>f:0<|tool_call_argument_begin|>{\"a\": 1<|tool_call_end|>\
         <|tool_call_begin|>g:1<|tool_call_argument_begin|>{\"b\"",
        &[
            "C:f#f:0",
            r#"A:{"a": 1"#,
            "E:no JSON",
            "C:g#g:1",
            r#"A:{"b""#,
            "E:cut off",
        ],
    ),
    case(
        "kimi_k2",
        "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{} and more <|tool_calls_section_end|>",
        &["C:f#f:0", "A:{} and more", "E:no JSON"],
    ),
    case(
        "deepseek_v3",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": \"```\"}\n```\
         <｜tool▁call▁end｜>\n\
         <｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &["C:f", r#"A:{"a": "```"}"#, "E", "C:g", "A:{}", "E"],
    ),
    case(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>\n{\"a\":\n 1}\n<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        &["C:f", "A:{\"a\":\n 1}", "E"],
    ),
    case(
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>two words<｜tool▁sep｜>{}",
        &["T:<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>two words<｜tool▁sep｜>{}"],
    ),
    // Tags.
    case(
        XML,
        "<tool_call>\n<function=count>\n<parameter=n>\n5\n</parameter>\n<parameter=ok>\nTrue\n</parameter>\n\
         <parameter=ratio>\n2.50\n</parameter>\n<parameter=none>\nnull\n</parameter>\n</function>\n</tool_call>",
        &["C:count", r#"A:{"n": 5, "ok": true, "ratio": 2.5, "none": null}"#, "E"],
    ),
    case(
        XML,
        "<tool_call>\n<function=count>\n<parameter=n>\nfive\n</parameter>\n<parameter=list>[1, </parameter>\n\
         <parameter=object>{\"a\":  1}</parameter></function>\n</tool_call>",
        &[
            "C:count",
            r#"A:{"n": "five", "list": "[1, ", "object": {"a":  1}}"#,
            "E",
        ],
    ),
    case(
        XML,
        "<tool_call><function=unknown><parameter=n>5</parameter><parameter=s>\"q\"\n\n</parameter></function>\
         </tool_call>",
        &["C:unknown", r#"A:{"n": "5", "s": "\"q\"\n"}"#, "E"],
    ),
    case(
        XML,
        "<function=write>\n<parameter=text>\na\n<parameter=path>\nb\n</function>\n</tool_call> x",
        &["C:write", r#"A:{"text": "a", "path": "b"}"#, "E", "T: x"],
    ),
    case(
        XML,
        "<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        &["C:get_time", "A:{}", "E"],
    ),
    case(
        XML,
        r#"<tool_call>{"name": "f"}</tool_call>"#,
        &[r#"T:<tool_call>{"name": "f"}</tool_call>"#],
    ),
    case(
        XML,
        "<tool_call>\n<function=write>\n<parameter=text>\nab",
        &["C:write", r#"A:{"text": "ab"#, "E:cut off"],
    ),
    case(
        XML,
        "<tool_call>\n<function=write>\n<parameter=text>\nab\n</param",
        &["C:write", r#"A:{"text": "ab\n</param"#, "E:cut off"],
    ),
    case(XML, "<tool_call>\n<function=wri", &["T:<tool_call>\n<function=wri"]),
    case(XML, "<tool_call>\n<function=a b>", &["T:<tool_call>\n<function=a b>"]),
    case(
        XML,
        "<tool_call><function=write>hm<parameter=text>a</parameter></function></tool_call>",
        &["C:write", r#"A:{"text": "a"}"#, "E", "T:hm"],
    ),
    case(
        XML,
        "<tool_call><function=write><parameter=text>a</function> more",
        &["C:write", r#"A:{"text": "a"}"#, "E", "T: more"],
    ),
    case(
        "glm45 glm47",
        "<tool_call>get_time<arg_key>utc</arg_key><arg_value>false</arg_value><arg_key>zone</arg_key>\
         <arg_value> C </arg_value></tool_call><tool_call>get_time</tool_call>",
        &[
            "C:get_time",
            r#"A:{"utc": false, "zone": " C "}"#,
            "E",
            "C:get_time",
            "A:{}",
            "E",
        ],
    ),
    case(
        "glm45 glm47",
        "<tool_call>f<arg_key>a</arg_key>5",
        &["C:f", "E:no JSON", "T:<arg_key>a</arg_key>5"],
    ),
    case("glm45 glm47", "<tool_call>f\nwords", &["C:f", "E:cut off", "T:words"]),
    case(
        "glm45 glm47",
        "<tool_call>f\n<arg_ke",
        &["C:f", "E:cut off", "T:<arg_ke"],
    ),
    case(
        "glm45 glm47",
        "<tool_call>f\n<arg_key>k",
        &["C:f", "E:cut off", "T:<arg_key>k"],
    ),
    case(
        "minimax_m2",
        "<minimax:tool_call><invoke name=write><parameter name='text'>a</parameter></invoke></minimax:tool_call>",
        &["C:write", r#"A:{"text": "a"}"#, "E"],
    ),
    case(
        "deepseek_v32",
        "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">5\
         </｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" string=\"false\">5</｜DSML｜parameter>\n\
         <｜DSML｜parameter name=\"c\">x</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        &["C:f", r#"A:{"a": "5", "b": 5, "c": "x"}"#, "E"],
    ),
    // Python.
    case(
        PYTHON,
        r"[f(a=1, b='x\'y', c=[True, None], d={'k': (1, 2.0)}), g()]",
        &[
            "C:f",
            r#"A:{"a": 1, "b": "x'y", "c": [true, null], "d": {"k": [1, 2]}}"#,
            "E",
            "C:g",
            "A:{}",
            "E",
        ],
    ),
    case(
        PYTHON,
        r#"[f(a="\u00e9\x41\n\q\101", b='''it's''', c='', )]"#,
        &["C:f", r#"A:{"a": "\u00e9A\n\\qA", "b": "it's", "c": ""}"#, "E"],
    ),
    case(PYTHON, "[1] and [f](x)", &["T:[1] and [f](x)"]),
    case(PYTHON, "[f](http://x)", &["T:[f](http://x)"]),
    case(PYTHON, "[f(x) is fine]", &["T:[f(x) is fine]"]),
    case(PYTHON, "[f(a=1", &["C:f", r#"A:{"a": 1"#, "E:cut off"]),
    case(PYTHON, "[f(a=b)] x", &["C:f", r#"A:{"a": "#, "E:no JSON", "T:b)] x"]),
    case(
        PYTHON,
        "[f(a=1, x b=2)] y",
        &["C:f", r#"A:{"a": 1"#, "E:no JSON", "T:x b=2)] y"],
    ),
    case(
        PYTHON,
        "[ f( a=1 ) , g( ) ]",
        &["C:f", r#"A:{"a": 1}"#, "E", "C:g", "A:{}", "E"],
    ),
    case(PYTHON, "[f(x b=2)] y", &["T:[f(x b=2)] y"]),
    case(PYTHON, "[f( a = 1 , b = 2 )]", &["C:f", r#"A:{"a": 1, "b": 2}"#, "E"]),
    case(
        PYTHON,
        "[f(a=1), oops] x",
        &["C:f", r#"A:{"a": 1}"#, "E", "T:, oops] x"],
    ),
    case(
        PYTHON,
        "[f(a=-1_000, b=0x1F, c=1e3, d=007)]",
        &["C:f", r#"A:{"a": -1000, "b": 31, "c": 1000, "d": 7}"#, "E"],
    ),
    case(
        "llama4_pythonic",
        "Hi <|python_start|>[f()]<|python_end|> x",
        &["T:Hi ", "C:f", "A:{}", "E", "T: x"],
    ),
    case(
        "olmo3",
        "<function_calls>\nf(a=1)\ng()\n</function_calls>",
        &["C:f", r#"A:{"a": 1}"#, "E", "C:g", "A:{}", "E"],
    ),
    case(
        "olmo3",
        "<function_calls>none</function_calls>",
        &["T:<function_calls>none</function_calls>"],
    ),
    case(
        "olmo3",
        "<function_calls>\nf(a=b)\n</function_calls>!",
        &["C:f", r#"A:{"a": "#, "E:no JSON", "T:b)\n!"],
    ),
    // Gemma.
    case(
        "gemma4",
        "<|tool_call>call:f{a:<|\"|>x, {y}\"<|\"|>,b:[1,true,{c:null}],d:word}<tool_call|>",
        &[
            "C:f",
            r#"A:{"a": "x, {y}\"", "b": [1, true, {"c": null}], "d": "word"}"#,
            "E",
        ],
    ),
    case(
        "gemma4",
        "<|tool_call>call:count{n:5,ratio:x,}<tool_call|>",
        &["C:count", r#"A:{"n": 5, "ratio": "x"}"#, "E"],
    ),
    case(
        "gemma4",
        "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{}<tool_call|>ok",
        &["C:f", "A:{}", "E", "C:g", "A:{}", "E", "T:ok"],
    ),
    case(
        "gemma4",
        "<|tool_call>f{}<tool_call|>",
        &["T:<|tool_call>f{}<tool_call|>"],
    ),
    case(
        "gemma4",
        "<|tool_call>call:f{a:]}<tool_call|>x",
        &["C:f", r#"A:{"a": "#, "E:no JSON", "T:]}x"],
    ),
    case(
        "gemma4",
        "<|tool_call>call:f{a:<|\"|>x<|\"",
        &["C:f", r#"A:{"a": "x<|\""#, "E:cut off"],
    ),
    case(
        "gemma4",
        "<|tool_call>call:f{a:1}} <tool_call|>x",
        &["C:f", r#"A:{"a": 1}"#, "E", "T:} x"],
    ),
    // Harmony.
    thinks(
        "openai",
        "openai_gptoss",
        None,
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>hi<|return|>",
        &["R:hm", "T:hi"],
    ),
    case(
        "openai",
        " to=functions.f<|channel|>commentary json<|message|>{\"a\": 1}<|call|>",
        &["C:f", r#"A:{"a": 1}"#, "E"],
    ),
    thinks(
        "",
        "openai_gptoss",
        None,
        "<|channel|>final <|constrain|>json<|message|>{\"a\": 1}",
        &[r#"T:{"a": 1}"#],
    ),
    case("openai", "plain text", &["T:plain text"]),
    case("openai", "<|channel|>final", &["T:<|channel|>final"]),
    case("openai", "<|channel|>final<|end|>x", &["T:<|channel|>finalx"]),
    case(
        "openai",
        "<|channel|>commentary to=functions.f<|message|>{\"a\"",
        &["C:f", r#"A:{"a""#, "E:cut off"],
    ),
    case(
        "openai",
        "<|channel|>commentary to=functions.f<|message|>{\"a\": \"<|end|>\"}<|call|><|start|>assistant<|channel|>final\
         <|message|>x",
        &["C:f", r#"A:{"a": "<|end|>"}"#, "E", "T:x"],
    ),
    // Reasoning.
    thinks(
        "hermes",
        "qwen3",
        None,
        "<think>\na\n</think>\n\nb",
        &["R:\na\n", "T:\n\nb"],
    ),
    thinks("hermes", "qwen3", Some(true), "a</think>b", &["R:a", "T:b"]),
    thinks(
        "hermes",
        "qwen3",
        Some(true),
        "<think>a</think></think>b",
        &["R:a", "T:b"],
    ),
    thinks("hermes", "qwen3", Some(true), "never ends <", &["R:never ends <"]),
    thinks("hermes", "qwen3", None, "<think>\n\n</think>\n\n", &["T:\n\n"]),
    thinks(
        "hermes",
        "qwen3",
        None,
        "plain </think> <think>",
        &["T:plain </think> <think>"],
    ),
    thinks("hermes", "qwen3", Some(false), "</think>b", &["T:</think>b"]),
    thinks(
        "hermes",
        "qwen3",
        Some(true),
        "so <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<think>x</think>b",
        &["R:so ", "C:f", "A:{}", "E", "R:x", "T:b"],
    ),
    thinks(
        "hermes",
        "qwen3",
        Some(true),
        r#"maybe <tool_call> or <tool_call>{"a"</think>ok"#,
        &[r#"R:maybe <tool_call> or <tool_call>{"a""#, "T:ok"],
    ),
    thinks(
        "hermes",
        "deepseek_r1",
        None,
        "say <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call></think>\n\
         <tool_call>{\"name\": \"g\", \"arguments\": {}}",
        &[
            r#"R:say <tool_call>{"name": "f", "arguments": {}}</tool_call>"#,
            "C:g",
            "A:{}",
            "E",
        ],
    ),
    thinks("", "deepseek_r1", Some(false), "a<tool_call>", &["T:a<tool_call>"]),
    thinks("glm45", "glm45", None, "a<think>b</think>c", &["T:a", "R:b", "T:c"]),
    thinks(
        "gemma4",
        "gemma4",
        None,
        "<|channel>thought\na<channel|>b<|channel>c<channel|>",
        &["R:a", "T:b", "R:c"],
    ),
    thinks("mistral", "mistral", None, "[THINK]a[/THINK]b", &["R:a", "T:b"]),
    thinks(
        "",
        "granite",
        None,
        "Here is my thought process: a. Here's my response: b",
        &["R: a. ", "T: b"],
    ),
    thinks("", "granite", None, "Here is my answer.", &["T:Here is my answer."]),
    thinks("", "seed_oss", None, "<seed:think>a</seed:think>b", &["R:a", "T:b"]),
    thinks("", "minimax_m2", None, "a</think>b", &["R:a", "T:b"]),
    thinks(
        "minimax_m2",
        "minimax_m2_append_think",
        None,
        "a</think>b",
        &["T:<think>a</think>b"],
    ),
];
