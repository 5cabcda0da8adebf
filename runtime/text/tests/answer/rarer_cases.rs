//! Answers of formats that few models have: the names of keys, and what stands around text.

use super::cases::{Case, case, thinks};

const COHERE: &str = "cohere_command3 cohere_command4";

/// The table.
pub const CASES: &[Case] = &[
    thinks(
        COHERE,
        "cohere_command3",
        None,
        "<|START_THINKING|>I call.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \
         \"tool_name\": \"f\", \
         \"parameters\": {\"n\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]\
         <|END_ACTION|>",
        &["R:I call.", "C:f", "A:{\"n\": 1}", "E", "C:g", "A:{}", "E"],
    ),
    case(
        COHERE,
        "a <|START_ACTION|>[{\"name\": \"f\", \"parameters\": {}}]<|END_ACTION|>",
        &["T:a <|START_ACTION|>[{\"name\": \"f\", \"parameters\": {}}]<|END_ACTION|>"],
    ),
    case(
        "apertus",
        r#"I check. <|tools_prefix|>[{"f": {"city": "Paris"}}, {"g": {}}]<|tools_suffix|>"#,
        &["T:I check. ", "C:f", r#"A:{"city": "Paris"}"#, "E", "C:g", "A:{}", "E"],
    ),
    case(
        "apertus",
        r#"<|tools_prefix|>[{"f": {"a": [1"#,
        &["C:f", r#"A:{"a": [1"#, "E:cut off"],
    ),
    case(
        "apertus",
        r#"<|tools_prefix|>[{"f": 5}]<|tools_suffix|>"#,
        &["C:f", "A:5", "E:no JSON"],
    ),
    case(
        "apertus",
        r#"<|tools_prefix|>[{"": {}}]"#,
        &[r#"T:<|tools_prefix|>[{"": {}}]"#],
    ),
    case(
        "gigachat3",
        "Look.\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}",
        &["T:Look.\n\n", "C:f", "A:{\"n\": 1}", "E"],
    ),
    case(
        "gigachat3",
        "a function call<|function_call|>{\"name\": \"f\", \"arguments\": {}}",
        &["T:a function call", "C:f", "A:{}", "E"],
    ),
    case("gigachat3", "a function call to f", &["T:a function call to f"]),
    case(
        "hy_v3",
        "<tool_calls>\n<tool_call>count<tool_sep>\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n\
         <arg_key>x</arg_key><arg_value>6</arg_value></tool_call>\n</tool_calls>",
        &["C:count", "A:{\"n\": 5, \"x\": \"6\"}", "E"],
    ),
    thinks(
        "hy_v3",
        "hy_v3",
        Some(true),
        "hm <tool_call>f<tool_sep></tool_call></think>x",
        &["R:hm <tool_call>f<tool_sep></tool_call>", "T:x"],
    ),
    case(
        "minicpm5",
        "<function name=\"write\"><param name=\"text\">5</param><param name='o'>[1]</param></function>",
        &["C:write", "A:{\"text\": \"5\", \"o\": [1]}", "E"],
    ),
    case("minicpm5", "a <functional> b", &["T:a <functional> b"]),
    thinks(
        "kimi_k3",
        "kimi_k3",
        Some(true),
        "hm<|close|>think<|sep|><|open|>response<|sep|>Look.<|close|>response<|sep|><|open|>tools<|sep|>\n\
         <|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"a\" type=\"string\"<|sep|>5\
         <|close|>argument<|sep|><|open|>argument key=\"b\" type=\"number\"<|sep|>5<|close|>argument<|sep|>\
         <|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        &["R:hm", "T:Look.", "C:f", "A:{\"a\": \"5\", \"b\": 5}", "E"],
    ),
    thinks(
        "",
        "kimi_k3",
        Some(false),
        "<|open|>response<|sep|>a <|open|>b<|close|>response<|sep|>",
        &["T:a <|open|>b"],
    ),
    thinks(
        "hunyuan_a13b",
        "hunyuan_a13b",
        None,
        "<think>\nhm\n</think>\n<answer>\nHello.\n</answer>",
        &["R:\nhm\n", "T:\nHello."],
    ),
    thinks(
        "plamo3",
        "plamo3",
        None,
        "hm<|plamo:begin_tool_requests:plamo|><|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>f\
         <|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json<|plamo:msg|>\
         {\"a\": 1",
        &["R:hm", "C:f", "A:{\"a\": 1", "E:cut off"],
    ),
    thinks(
        "step5",
        "step5",
        None,
        "hm <tool_call></think> x",
        &["R:hm <tool_call>", "T: x"],
    ),
];
