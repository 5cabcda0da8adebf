//! Calls as chat templates write them, read back; and the formats that are proposed for a template.

use std::path::PathBuf;
use std::sync::Arc;

use halyard_text::{
    AnswerEvent, AnswerFormat, ChatInput, ChatTemplate, SpecialTokens, propose_formats, reasoning_formats, tool_formats,
};
use serde_json::{Value, json};

use super::{Subject, noted, parse_all_cuts, writers};

fn source(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures/text/templates")
        .join(name);
    std::fs::read_to_string(path).expect("the template is committed")
}

/// What a template writes for an assistant's turn, after the prompt that asks for it.
fn turn(template: &ChatTemplate, calls: &[(&str, Value)], content: &str) -> (String, String) {
    let calls: Vec<Value> = calls
        .iter()
        .map(|(name, arguments)| {
            json!({"id": "abcdefghi", "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    let user = json!({"role": "user", "content": "Where?"});
    let assistant = json!({"role": "assistant", "content": content, "tool_calls": calls});
    let tools = Value::from(writers::tools());
    let render = |messages: &[Value], add_generation_prompt| {
        let input = ChatInput {
            messages,
            tools: Some(&tools),
            add_generation_prompt,
            ..ChatInput::default()
        };
        template.render(&input).expect("the template writes calls")
    };
    let prompt = render(std::slice::from_ref(&user), true);
    let whole = render(&[user, assistant], false);
    let answer = whole
        .strip_prefix(&prompt)
        .expect("the answer comes after the prompt")
        .to_owned();
    (prompt, answer)
}

#[test]
fn what_a_chat_template_writes_is_read_back() {
    let mut seed = 3;
    let weather = ("get_weather", json!({"city": "Paris \"é\"\n"}));
    let count = ("count", json!({"n": 5, "list": [1, {"a": "}"}], "object": {}}));
    for (file, specials, tools, content) in [
        ("qwen3.jinja", vec!["<|im_end|>", "<|im_start|>"], "hermes", ""),
        (
            "qwen3.jinja",
            vec!["<|im_end|>", "<|im_start|>"],
            "hermes",
            "Let me see.",
        ),
        ("mistral.jinja", vec!["</s>"], "mistral", ""),
        ("llama3.jinja", vec!["<|eot_id|>"], "llama3_json", ""),
    ] {
        let tokens = SpecialTokens {
            bos_token: Some("<s>".to_owned()),
            eos_token: Some("</s>".to_owned()),
            ..SpecialTokens::default()
        };
        let template = ChatTemplate::new(&source(file), &tokens).expect("a template");
        let proposed = propose_formats(&source(file));
        assert_eq!(proposed.0, Some(tools), "{file}");
        let both = [weather.clone(), count.clone()];
        let calls = if tools == "llama3_json" { &both[..1] } else { &both[..] };
        let (prompt, mut answer) = turn(&template, calls, content);
        let format = AnswerFormat::new(proposed.0, proposed.1).expect("known");
        // What the caller does with the text of special tokens.
        for special in specials {
            assert!(!format.reads_special(special), "{special} says nothing");
            answer = answer.replace(special, "");
        }
        let in_reasoning = format.opened_by(&prompt);
        let subject = Subject {
            format,
            types: Arc::default(),
            in_reasoning,
        };
        let (events, num_cuts) = parse_all_cuts(&subject, &answer, &mut seed);
        println!("{file}: {num_cuts} cuts of {answer:?}");
        let mut called = Vec::new();
        for (index, event) in events.iter().enumerate() {
            if let (AnswerEvent::CallStart { name, .. }, Some(AnswerEvent::Arguments(arguments))) =
                (event, events.get(index + 1))
            {
                called.push((name.as_str(), serde_json::from_str(arguments).expect("JSON")));
            }
        }
        assert_eq!(called, calls, "{file}: {events:?}");
        let text: Vec<_> = noted(&events)
            .into_iter()
            .filter(|note| note.starts_with("T:"))
            .collect();
        let want: Vec<String> = if content.is_empty() {
            vec![]
        } else {
            vec![format!("T:\n\n{content}\n")]
        };
        assert_eq!(text, want, "{file}");
    }
}

#[test]
fn formats_are_proposed_by_markers_and_not_by_names() {
    for (template, tools, reasoning) in [
        (source("chatml.jinja").as_str(), None, None),
        (&source("gemma3.jinja"), None, None),
        (&source("qwen3.jinja"), Some("hermes"), Some("qwen3")),
        ("qwen3_coder tools", None, None),
        (
            "{{ tools }} <tool_call>\n<function=f>\n<parameter=a>",
            Some("qwen3_coder"),
            None,
        ),
        (
            "{{ tools }} <tool_call>{{ f }}\n<arg_key>k</arg_key>\n<arg_value> </think>",
            Some("glm45"),
            Some("glm45"),
        ),
        ("{{ tools }} <|tool_calls_section_begin|>", Some("kimi_k2"), None),
        (
            "{{ tools }} <function_call> {\"name\": \"parameters\": ",
            Some("granite-20b-fc"),
            None,
        ),
        ("{{ tools }} 'function call' <|role_sep|>", Some("gigachat3"), None),
        (
            "{{ tools }} <|channel|>analysis<|message|> to= functions.",
            Some("openai"),
            Some("openai_gptoss"),
        ),
        // Markers that look like another format's.
        ("{{ tools }} ]<]minimax[>[<tool_call>", Some("minimax_m3"), None),
        (
            "{{ tools }} <atem:function_calls> {\"name\": \"parameters\": to=self",
            Some("muse_glimmer"),
            Some("muse_glimmer"),
        ),
        (
            "{{ tools }} <atem:function_calls> to=self to=commentary",
            Some("muse"),
            Some("muse"),
        ),
        (
            "{{ tools }} <tool_calls> <tool_call>f<arg_key><arg_value> </think>",
            Some("hy_v4"),
            Some("hy_v4"),
        ),
        (
            "{{ tools }} <｜tool▁calls▁begin｜>function\n```json\n <｜Assistant｜></think>",
            Some("deepseek_v3"),
            Some("deepseek_r1"),
        ),
        (
            "{{ tools }} <｜tool▁calls▁begin｜> <｜Assistant｜></think>",
            Some("deepseek_v31"),
            Some("deepseek_v3"),
        ),
        (
            "{{ tools }} <|channel|>analysis<|message|> to=functions.",
            Some("openai"),
            Some("openai_gptoss"),
        ),
        (
            "{{ tools }} <|tool_call>call:f<tool_call|> <|channel>thought<channel|>",
            Some("gemma4"),
            Some("gemma4"),
        ),
        (
            "{{ tools }} [TOOL_CALLS][ARGS] [THINK]",
            Some("mistral"),
            Some("mistral"),
        ),
    ] {
        assert_eq!(propose_formats(template), (tools, reasoning), "{template}");
    }
    // What a format writes proposes that format, or one that writes the same.
    let alike = |name: &str| match name {
        "qwen3_json" | "granite4" | "ernie45" => "hermes",
        "qwen3_xml" | "mimo" | "step3p5" | "step5" => "qwen3_coder",
        "cohere_command4" => "cohere_command3",
        "glm47" | "ling3" | "poolside_v1" => "glm45",
        "hunyuan_a13b" => "jamba",
        "muse" | "musespark1x" => "muse_glimmer",
        "llama4_json" => "llama3_json",
        _ => "",
    };
    for name in
        tool_formats().filter(|&name| !["pythonic", "llama4_pythonic", "xlam", "granite-20b-fc"].contains(&name))
    {
        let written = (writers::writer(name).calls)(&[("f", json!({"a": 1}))]);
        let proposed = propose_formats(&format!("{{{{ tools }}}} {written}")).0;
        assert!(
            proposed == Some(name) || proposed == Some(alike(name)),
            "{name}: {proposed:?}"
        );
    }
}

#[test]
fn the_end_of_the_prompt_says_whether_reasoning_is_open() {
    let format = AnswerFormat::new(None, Some("qwen3")).expect("known");
    for (prompt, open) in [
        ("<|im_start|>assistant\n<think>\n", Some(true)),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Some(false)),
        ("a <think> b </think> c<|im_start|>assistant\n", None),
        ("", None),
    ] {
        assert_eq!(format.opened_by(prompt), open, "{prompt:?}");
    }
}

#[test]
fn only_special_tokens_that_are_markers_are_read() {
    let format = AnswerFormat::new(Some("internlm"), Some("qwen3")).expect("known");
    for (special, read) in [
        ("<|plugin|>", true),
        ("<|action_end|>", true),
        ("</think>", true),
        ("<|im_end|>", false),
        ("", false),
    ] {
        assert_eq!(format.reads_special(special), read, "{special}");
    }
    let harmony = AnswerFormat::new(None, Some("openai_gptoss")).expect("known");
    assert!(harmony.reads_special("<|channel|>") && !harmony.reads_special("<|endoftext|>"));
}

#[test]
fn every_format_is_in_the_documentation() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/tool-calling.md");
    let text = std::fs::read_to_string(path).expect("the page is committed");
    for name in tool_formats().chain(reasoning_formats()) {
        assert!(
            text.contains(&format!("`{name}`")),
            "{name} is not in docs/tool-calling.md"
        );
    }
}
