//! Which formats fit a chat template, told by the markers that it writes and never by a model's name.

/// Markers that a template has all of, and the format of tool calls that they mean. The first row that fits counts.
const TOOLS: &[(&[&str], &str)] = &[
    (&["<|channel|>", "<|message|>", "functions."], "openai"),
    (&["<｜DSML｜ calls>"], "deepseek_v41"),
    (&["｜DSML｜", "tool_calls>"], "deepseek_v4"),
    (&["｜DSML｜", "function_calls>"], "deepseek_v32"),
    (&["<｜tool▁calls▁begin｜>", "```json"], "deepseek_v3"),
    (&["<｜tool▁calls▁begin｜>"], "deepseek_v31"),
    (&["<｜tool_calls_begin｜>"], "step3"),
    (&["<|tool_calls_section_begin|>"], "kimi_k2"),
    (&["<minimax:tool_call>"], "minimax_m2"),
    (&["]<]minimax[>["], "minimax_m3"),
    (&["<atem:function_calls>", "commentary"], "muse"),
    (&["<atem:function_calls>"], "muse_glimmer"),
    (&["<|content_invoke_tool_json|>"], "inkling"),
    (&["<ifm|tool_call>"], "k2_horizon"),
    (&["<dots_function_call>"], "dots"),
    (&["<seed:tool_call>"], "seed_oss"),
    (&["<|START_ACTION|>", "<|START_TEXT|>"], "cohere_command4"),
    (&["<|START_ACTION|>"], "cohere_command3"),
    (&["<|tools_prefix|>"], "apertus"),
    (&["<|plamo:begin_tool_requests:plamo|>"], "plamo3"),
    (&["<|open|>", "<|close|>", "<|sep|>"], "kimi_k3"),
    (&["function call<|role_sep|>"], "gigachat3"),
    (&["'function call'", "<|role_sep|>"], "gigachat3"),
    (&["<|function_call|>"], "gigachat3"),
    (&["<tool_sep>", "<arg_key>", "<arg_value>"], "hy_v3"),
    (&["<tool_calls>", "<arg_key>", "<arg_value>"], "hy_v4"),
    (&["<arg_key>", "<arg_value>"], "glm45"),
    (&["<function name=", "<param name="], "minicpm5"),
    (&["<function=", "<parameter="], "qwen3_coder"),
    (&["<|tool_call>", "<tool_call|>"], "gemma4"),
    (&["<start_function_call>"], "functiongemma"),
    (&["<longcat_tool_call>"], "longcat"),
    (&["<|action_start|>", "<|plugin|>"], "internlm"),
    (&["<|tool_call_start|>"], "lfm2"),
    (&["<|tool_call|>"], "granite"),
    (&["<function_calls>"], "olmo3"),
    (&["<tool_calls>"], "jamba"),
    (&["<function_call>"], "granite-20b-fc"),
    (&["functools["], "phi4_mini_json"),
    (&["<tool_call>"], "hermes"),
    (&["[TOOL_CALLS]"], "mistral"),
    (&["<|python_start|>", "func_name1("], "llama4_pythonic"),
    (&["func_name1("], "pythonic"),
    (&["{\"name\": ", "\"parameters\": "], "llama3_json"),
];

/// The same for reasoning. Where a format of tool calls is named, it has to be the one that was found.
const REASONING: &[(&[&str], Option<&str>, &str)] = &[
    (&["<|channel|>", "<|message|>", "analysis"], None, "openai_gptoss"),
    (&["<mm:think>"], None, "minimax_m3"),
    (&["to=self"], Some("muse"), "muse"),
    (&["to=self"], Some("muse_glimmer"), "muse_glimmer"),
    (&["<|content_thinking|>"], None, "inkling"),
    (&["<ifm|think"], None, "k2_horizon"),
    (&["[THINK]"], None, "mistral"),
    (&["<|channel>", "<channel|>"], None, "gemma4"),
    (&["<seed:think>"], None, "seed_oss"),
    (&["<|START_THINKING|>"], Some("cohere_command4"), "cohere_command4"),
    (&["<|START_THINKING|>"], None, "cohere_command3"),
    (&["<|plamo:begin_think:plamo|>"], None, "plamo3"),
    (&["<|open|>", "<|close|>", "<|sep|>"], None, "kimi_k3"),
    (&["Here is my thought process"], None, "granite"),
    (&["<think>\n", "<answer>\n"], None, "hunyuan_a13b"),
    (&["</think>"], Some("hy_v3"), "hy_v3"),
    (&["</think>"], Some("hy_v4"), "hy_v4"),
    (&["</think>"], Some("kimi_k2"), "kimi_k2"),
    (&["</think>"], Some("minimax_m2"), "minimax_m2"),
    (&["</think>"], Some("glm45"), "glm45"),
    (&["</think>"], Some("step3"), "step3"),
    (&["</think>"], Some("deepseek_v31"), "deepseek_v3"),
    (&["</think>"], Some("deepseek_v32"), "deepseek_v3"),
    (&["</think>"], Some("deepseek_v4"), "deepseek_v4"),
    (&["</think>"], Some("deepseek_v41"), "deepseek_v41"),
    (&["</think>", "<｜Assistant｜>"], None, "deepseek_r1"),
    (&["</think>"], None, "qwen3"),
];

/// The names of the formats of tool calls and of reasoning that fit a chat template; `None` where its source has no
/// markers of one.
pub fn propose_formats(template: &str) -> (Option<&'static str>, Option<&'static str>) {
    let has = |markers: &[&str]| markers.iter().all(|marker| template.contains(marker));
    let tools = TOOLS
        .iter()
        .find(|(markers, _)| template.contains("tool") && has(markers))
        .map(|&(_, name)| name);
    let reasoning = REASONING
        .iter()
        .find(|(markers, with, _)| has(markers) && (with.is_none() || *with == tools))
        .map(|&(_, _, name)| name);
    (tools, reasoning)
}
