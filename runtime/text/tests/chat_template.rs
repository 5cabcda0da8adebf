//! Prompts against transformers' own rendering of the same templates; see tests/fixtures/text.

use std::path::PathBuf;

use halyard_text::{ChatInput, ChatTemplate, LocalTime, SpecialTokens, TextError, TokenizerConfig};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// 2024-07-26 12:00 UTC, the time in the goldens.
const NOW: LocalTime = LocalTime {
    unix_seconds: 1_721_995_200,
    utc_offset_seconds: 0,
};

#[derive(Deserialize)]
struct Golden {
    templates: Vec<Template>,
}

#[derive(Deserialize)]
struct Template {
    name: String,
    source: String,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Vec<Value>,
    tools: Option<Value>,
    #[serde(default)]
    add_generation_prompt: bool,
    extra: Option<Map<String, Value>>,
    expected: Option<String>,
    raises: Option<String>,
}

fn golden() -> Golden {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat.json");
    let bytes = std::fs::read(path).expect("the golden is committed");
    serde_json::from_slice(&bytes).expect("the golden parses")
}

fn special_tokens() -> SpecialTokens {
    SpecialTokens {
        bos_token: Some("<s>".to_owned()),
        eos_token: Some("</s>".to_owned()),
        ..SpecialTokens::default()
    }
}

fn named(name: &str) -> ChatTemplate {
    let golden = golden();
    let template = golden
        .templates
        .iter()
        .find(|template| template.name == name)
        .expect("is in the goldens");
    ChatTemplate::new(&template.source, &special_tokens()).expect("parses")
}

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, &special_tokens()).expect("parses")
}

fn render(template: &ChatTemplate, messages: &[Value]) -> Result<String, TextError> {
    template.render(&ChatInput {
        messages,
        ..ChatInput::default()
    })
}

#[test]
fn prompts_equal_transformers_prompts() {
    let golden = golden();
    assert_eq!(golden.templates.len(), 7);
    for template in &golden.templates {
        let chat = ChatTemplate::new(&template.source, &special_tokens()).expect("parses");
        for case in &template.cases {
            let found = chat.render(&ChatInput {
                messages: &case.messages,
                tools: case.tools.as_ref(),
                add_generation_prompt: case.add_generation_prompt,
                extra: case.extra.as_ref(),
                now: Some(NOW),
                ..ChatInput::default()
            });
            let place = format!("{} {}", template.name, case.name);
            match (&case.expected, &case.raises) {
                (Some(expected), None) => assert_eq!(&found.expect(&place), expected, "{place}"),
                (None, Some(raises)) => match found {
                    Err(TextError::TemplateRaised { message, line }) => {
                        assert_eq!(&message, raises, "{place}");
                        assert!(line > 1, "{place}: line {line}");
                    }
                    other => panic!("{place}: expected {raises:?}, found {other:?}"),
                },
                _ => panic!("{place}: a golden has either a prompt or an error"),
            }
        }
    }
}

#[test]
fn parts_reach_a_string_template_as_one_string_and_a_string_a_parts_template_as_a_part() {
    let parts =
        [json!({"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]})];
    let chatml = named("chatml");
    assert!(!chatml.reads_parts());
    let joined = [json!({"role": "user", "content": "one\ntwo"})];
    assert_eq!(
        render(&chatml, &parts).expect("renders"),
        render(&chatml, &joined).expect("renders")
    );
    assert!(named("gemma3").reads_parts());
    let only = named("parts_only");
    assert!(only.reads_parts());
    assert_eq!(
        render(&only, &[json!({"role": "user", "content": "hi"})]).expect("renders"),
        "User: hi\n"
    );
    let printed = compile("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert!(!printed.reads_parts(), "a list printed as such is not read");
}

#[test]
fn tool_call_arguments_given_as_text_become_objects() {
    let golden = golden();
    for name in ["qwen3", "llama3", "mistral"] {
        let template = golden
            .templates
            .iter()
            .find(|template| template.name == name)
            .expect("is in the goldens");
        let case = template
            .cases
            .iter()
            .find(|case| case.name == "tool_answer")
            .expect("is in the goldens");
        let mut messages = case.messages.clone();
        let arguments = messages
            .iter_mut()
            .find_map(|message| message.pointer_mut("/tool_calls/0/function/arguments"))
            .expect("one message calls a tool");
        *arguments = Value::from(arguments.to_string());
        let input = ChatInput {
            messages: &messages,
            tools: case.tools.as_ref(),
            add_generation_prompt: true,
            now: Some(NOW),
            ..ChatInput::default()
        };
        assert_eq!(
            Some(named(name).render(&input).expect("renders")),
            case.expected,
            "{name}"
        );
    }
}

#[test]
fn null_content_is_an_empty_text() {
    let template = compile("{% for m in messages %}[{{ m.content }}]{% endfor %}");
    let messages = [json!({"role": "assistant", "content": null}), json!({"role": "user"})];
    assert_eq!(render(&template, &messages).expect("renders"), "[][]");
}

#[test]
fn strftime_now_is_undefined_without_a_time() {
    let template = compile("{{ strftime_now is defined }}");
    assert_eq!(render(&template, &[]).expect("renders"), "False");
    let input = ChatInput {
        now: Some(NOW),
        ..ChatInput::default()
    };
    assert_eq!(
        compile("{{ strftime_now('%d %b %Y') }}")
            .render(&input)
            .expect("renders"),
        "26 Jul 2024"
    );
}

#[test]
fn errors_name_the_line_and_the_reason() {
    let syntax = ChatTemplate::new("ok\n{% if %}", &special_tokens()).expect_err("does not parse");
    assert!(
        matches!(syntax, TextError::TemplateSyntax { line: 2, .. }),
        "{syntax:?}"
    );
    let failing = compile("a\nb\n{{ messages[0].role + 1 }}");
    let error = render(&failing, &[json!({"role": "user", "content": "x"})]).expect_err("adds text and a number");
    assert!(matches!(error, TextError::TemplateRender { line: 3, .. }), "{error:?}");
    assert!(error.to_string().contains("line 3"), "{error}");
    let raising = compile("\n{{ raise_exception('no ' ~ messages[0].role) }}");
    let error = render(&raising, &[json!({"role": "user", "content": "x"})]).expect_err("raises");
    assert_eq!(
        error.to_string(),
        "the chat template refuses these messages (its line 2): no user"
    );
    let raising = compile("{% macro m() %}\n{{ raise_exception('inside') }}{% endmacro %}{{ m() }}");
    assert!(matches!(
        render(&raising, &[]),
        Err(TextError::TemplateRaised { line: 2, .. })
    ));
}

#[test]
fn a_template_that_loops_too_long_ends_with_an_error() {
    let source =
        "{% for a in range(9999) %}{% for b in range(9999) %}{% if a == b %}{% endif %}{% endfor %}{% endfor %}";
    let error = ChatTemplate::new("{% if messages|length == 2 %}".to_owned().as_str(), &special_tokens());
    assert!(error.is_err(), "an open block does not parse");
    let template = compile(&format!("{{% if messages|length == 2 %}}{source}{{% endif %}}"));
    let message = json!({"role": "user", "content": "x"});
    let error = render(&template, &[message.clone(), message]).expect_err("runs out of instructions");
    assert!(matches!(error, TextError::TemplateBound { .. }), "{error:?}");
    assert!(error.to_string().contains("instructions"), "{error}");
}

#[test]
fn bad_messages_are_refused_with_their_place() {
    let template = named("chatml");
    let refuse = |message: Value| render(&template, &[message]).expect_err("is refused").to_string();
    assert_eq!(
        refuse(json!("hi")),
        "messages[0] must be an object with role and content, found a string"
    );
    assert_eq!(
        refuse(json!({"content": "x"})),
        "messages[0].role must be a string, found nothing"
    );
    assert_eq!(
        refuse(json!({"role": "user", "content": 5})),
        "messages[0].content must be a string or a list of parts, found a number"
    );
    assert_eq!(
        refuse(json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})),
        "messages[0].content[0] has type 'image_url', but this model takes text parts only"
    );
    assert_eq!(
        refuse(json!({"role": "user", "content": [{"type": "text", "text": 1}]})),
        "messages[0].content[0].text must be a string, found a number"
    );
    assert_eq!(
        refuse(json!({"role": "user", "content": ["one"]})),
        "messages[0].content[0] must be an object with type and text, found a string"
    );
    assert_eq!(
        refuse(json!({"role": "user", "content": [{"text": "one"}]})),
        "messages[0].content[0].type must be \"text\", found nothing"
    );
    assert_eq!(
        refuse(json!({"role": "user", "content": [{"type": "input_text", "text": "one"}]})),
        "messages[0].content[0] has type 'input_text', but this model takes text parts only"
    );
    let refuse_calls = |calls: Value| refuse(json!({"role": "assistant", "tool_calls": calls}));
    assert_eq!(
        refuse_calls(json!([{"function": {"name": "f", "arguments": 5}}])),
        "messages[0].tool_calls[0].function.arguments must be JSON text, found a number"
    );
    assert_eq!(
        refuse_calls(json!([{"type": "custom", "function": {"name": "f"}}])),
        "messages[0].tool_calls[0].type must be \"function\", found a string"
    );
    assert_eq!(
        refuse_calls(json!([{"id": "1"}])),
        "messages[0].tool_calls[0].function must be an object with name and arguments, found an object"
    );
    assert_eq!(
        refuse_calls(json!("f")),
        "messages[0].tool_calls must be a list, found a string"
    );
    assert_eq!(
        refuse(json!({"role": "assistant", "reasoning_content": 5})),
        "messages[0].reasoning must be a string, found a number"
    );
}

/// What a template sees of one message.
fn seen(message: Value) -> Value {
    let template = compile("{{ messages[0] | tojson }}").with_contents_as(false);
    let input = ChatInput {
        messages: &[message],
        ..ChatInput::default()
    };
    serde_json::from_str(&template.render(&input).expect("renders")).expect("JSON")
}

#[test]
fn calls_of_a_history_reach_the_template_as_the_model_wrote_them() {
    for (sent, expected) in [
        (json!("{\"a\": [1]}"), json!({"a": [1]})),
        (json!({"a": 1}), json!({"a": 1})),
        (json!(" "), json!({})),
        (json!(null), json!({})),
        // What was no object stays what it was.
        (json!("{\"a\": "), json!("{\"a\": ")),
        (json!("[1]"), json!("[1]")),
    ] {
        let calls = json!([{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": sent}}]);
        let message = seen(json!({"role": "assistant", "content": null, "tool_calls": calls}));
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], expected, "{sent}");
        assert_eq!(message["tool_calls"][0]["id"], "call_1");
        assert_eq!(message["content"], "");
    }
    for none in [json!(null), json!([])] {
        let message = seen(json!({"role": "assistant", "content": "a", "tool_calls": none}));
        assert_eq!(message, json!({"role": "assistant", "content": "a"}), "{none}");
    }
}

#[test]
fn reasoning_of_a_history_has_both_names() {
    for name in ["reasoning", "reasoning_content"] {
        let message = seen(json!({"role": "assistant", "content": "a", name: "because"}));
        assert_eq!(
            (&message["reasoning"], &message["reasoning_content"]),
            (&json!("because"), &json!("because"))
        );
    }
    let both = json!({"role": "assistant", "content": "a", "reasoning": "new", "reasoning_content": "old"});
    assert_eq!(seen(both)["reasoning_content"], "new");
    let others = json!({"role": "user", "content": "a", "reasoning": "b"});
    assert_eq!(seen(others.clone()), others);
}

#[test]
fn what_a_tool_returned_is_one_text_for_every_template() {
    let parts = json!([{"type": "text", "text": "4"}, {"type": "text", "text": "2"}]);
    let sent = json!({"role": "tool", "tool_call_id": "call_1", "content": parts});
    let expected = json!({"role": "tool", "tool_call_id": "call_1", "content": "4\n2"});
    assert_eq!(seen(sent.clone()), expected);
    let template = compile("{% for m in messages %}{{ m.content }}{% endfor %}").with_contents_as(true);
    let input = ChatInput {
        messages: &[sent],
        ..ChatInput::default()
    };
    assert_eq!(template.render(&input).expect("renders"), "4\n2");
}

#[test]
fn tokenizer_config_gives_templates_and_special_tokens() {
    let config = json!({
        "bos_token": {"content": "<s>", "special": true},
        "eos_token": "</s>",
        "add_bos_token": true,
        "model_max_length": 8192,
        "chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}],
    });
    let config = TokenizerConfig::from_json(config.to_string().as_bytes(), "a test").expect("parses");
    assert_eq!(config.special_tokens, special_tokens());
    assert_eq!(config.chat_template(false).expect("has one"), "A");
    assert_eq!(config.chat_template(true).expect("has one"), "B");
    assert_eq!(
        (config.add_bos_token, config.model_max_length),
        (Some(true), Some(8192))
    );

    let single =
        TokenizerConfig::from_json(br#"{"chat_template": "T", "model_max_length": 1e30}"#, "x").expect("parses");
    assert_eq!(single.chat_template(true).expect("has one"), "T");
    assert_eq!(single.model_max_length, None);
    let none = TokenizerConfig::from_json(b"{}", "x").expect("parses");
    assert!(matches!(none.chat_template(false), Err(TextError::NoChatTemplate)));
    let error = TokenizerConfig::from_json(b"{\"chat_template\": 5}", "here.json").expect_err("wrong type");
    assert!(
        error
            .to_string()
            .starts_with("here.json is not a valid tokenizer_config.json"),
        "{error}"
    );
}

#[test]
fn developer_messages_are_system_messages_where_the_template_does_not_know_them() {
    let user = json!({"role": "user", "content": "hi"});
    let chatml = named("chatml");
    assert!(!chatml.knows_developer());
    let as_role = |role: &str| [json!({"role": role, "content": "be brief"}), user.clone()];
    let developer = render(&chatml, &as_role("developer")).expect("renders");
    assert_eq!(developer, render(&chatml, &as_role("system")).expect("renders"));
    assert!(!developer.contains("developer"), "{developer}");

    // Together with a system message, or later, all of them become one at the front.
    let parts = json!([{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}]);
    let scattered = [
        json!({"role": "system", "content": "be brief"}),
        user.clone(),
        json!({"role": "developer", "content": parts}),
    ];
    let together = [
        json!({"role": "system", "content": "be brief\n\nbe\nkind"}),
        user.clone(),
    ];
    assert_eq!(
        render(&chatml, &scattered).expect("renders"),
        render(&chatml, &together).expect("renders")
    );
    let parts_only = named("parts_only");
    assert_eq!(
        render(&parts_only, &scattered).expect("renders"),
        render(&parts_only, &together).expect("renders")
    );

    let knows =
        compile("{% for m in messages %}{% if m.role == 'developer' %}D:{% endif %}{{ m.content }}{% endfor %}");
    assert!(knows.knows_developer());
    assert_eq!(render(&knows, &as_role("developer")).expect("renders"), "D:be briefhi");
}

#[test]
fn real_templates_render_ten_thousand_messages_within_the_bounds() {
    let mut rendered = 0;
    // One golden prints values and the time, and is no model's.
    let templates = golden().templates;
    for template in templates.iter().filter(|template| template.name != "python_values") {
        let compiled = ChatTemplate::new(&template.source, &special_tokens()).expect("parses");
        let messages: Vec<Value> = (0..10_000)
            .map(|index| {
                let role = if index % 2 == 0 { "user" } else { "assistant" };
                json!({"role": role, "content": "Hi."})
            })
            .collect();
        match render(&compiled, &messages) {
            Ok(text) => {
                rendered += 1;
                assert!(text.matches("Hi.").count() >= 5_000, "{}", template.name);
            }
            Err(TextError::TemplateRaised { .. }) => {}
            Err(error) => panic!("{}: {error}", template.name),
        }
    }
    assert!(rendered >= 5, "only {rendered} templates took the messages");
}

#[test]
fn what_multiplies_is_bounded_in_process_too() {
    for (template, reason) in [
        ("{{ [1]|batch(1000000000,'x') }}", "at most 10000"),
        ("{{ [1,2]|slice(1000000000) }}", "at most 10000"),
        ("{{ 'a\\nb'|indent(2000000000) }}", "at most 10000"),
        ("{{ ('a\\n' * 100000)|indent(9999) }}", "too much"),
        (
            "{% for a in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
            "writes more than",
        ),
    ] {
        let source = format!("{{% if messages|length == 2 %}}{template}{{% endif %}}");
        let message = json!({"role": "user", "content": "x"});
        let error = render(&compile(&source), &[message.clone(), message]).expect_err(template);
        assert!(error.to_string().contains(reason), "{template}: {error}");
    }
    let count = compile(
        "{{ 'abc'.count('') }} {{ 'banana'.count('an') }} {{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\n'|indent(1, true) }}|",
    );
    let text = render(&count, &[json!({"role": "user", "content": "x"})]).expect("renders");
    assert_eq!(text, "4 2 a\n  b\n\n  c| a|");
}

#[test]
fn contents_come_in_the_shape_that_was_asked_for() {
    let source = "{% for m in messages %}{% if m.content is string %}text{% else %}parts{% endif %}{% endfor %}";
    let template = ChatTemplate::new(source, &SpecialTokens::default()).expect("compiles");
    let messages = [
        json!({"role": "user", "content": "a"}),
        json!({"role": "user", "content": [{"type": "text", "text": "b"}]}),
    ];
    let input = ChatInput {
        messages: &messages,
        ..ChatInput::default()
    };
    for (parts, expected) in [(false, "texttext"), (true, "partsparts")] {
        let shaped = template.clone().with_contents_as(parts);
        assert_eq!(shaped.render(&input).expect("renders"), expected);
    }
}
