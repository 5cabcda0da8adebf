//! Writes calls as a model does, one writer a format, from what the formats' templates and descriptions say.

use serde_json::{Map, Value, json};

type Calls<'a> = &'a [(&'static str, Value)];

/// How one format is written.
pub struct Writer {
    /// Writes calls.
    pub calls: fn(Calls) -> String,
    /// Puts together reasoning (or none), text, calls and text.
    pub answer: fn(&str, &str, &str, &str) -> String,
    /// The format of reasoning that goes with it.
    pub reasoning: &'static str,
    /// Whether calls stand at the start of the text.
    pub bare: bool,
    /// Whether nothing comes after calls.
    pub last: bool,
    /// Whether arguments are the model's bytes.
    pub exact: bool,
    /// Whether white space around a string is lost.
    pub trims: bool,
}

/// Tools with a parameter of each type.
pub fn tools() -> Vec<Value> {
    let function = |name: &str, properties: Value| {
        let parameters = json!({"type": "object", "properties": properties});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    vec![
        function("get_weather", json!({"city": {"type": "string"}})),
        function(
            "get_time",
            json!({"zone": {"type": "string"}, "utc": {"type": "boolean"}}),
        ),
        function("write", json!({"text": {"type": "string"}, "path": {"type": "string"}})),
        function(
            "count",
            json!({"n": {"type": "integer"}, "ratio": {"type": "number"}, "ok": {"type": "boolean"},
                "none": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "list": {"type": "array"},
                "object": {"type": "object"}}),
        ),
    ]
}

const JSON: Writer = Writer {
    calls: |calls| {
        each(calls, "\n", |name, args| {
            format!("<tool_call>\n{}\n</tool_call>", object(name, args))
        })
    },
    answer: think("<think>", "</think>"),
    reasoning: "qwen3",
    bare: false,
    last: false,
    exact: true,
    trims: false,
};

const CONVERTED: Writer = Writer { exact: false, ..JSON };

const fn think(open: &'static str, _: &'static str) -> fn(&str, &str, &str, &str) -> String {
    match open.as_bytes()[1] {
        b's' => |thought, before, calls, after| {
            let thought = if thought.is_empty() {
                String::new()
            } else {
                format!("<seed:think>{thought}</seed:think>")
            };
            format!("{thought}{before}{calls}{after}")
        },
        b'T' => |thought, before, calls, after| {
            let thought = if thought.is_empty() {
                String::new()
            } else {
                format!("[THINK]{thought}[/THINK]")
            };
            format!("{thought}{before}{calls}{after}")
        },
        b'|' => |thought, before, calls, after| {
            let thought = if thought.is_empty() {
                String::new()
            } else {
                format!("<|channel>thought\n{thought}<channel|>")
            };
            format!("{thought}{before}{calls}{after}")
        },
        _ => |thought, before, calls, after| {
            let thought = if thought.is_empty() {
                String::new()
            } else {
                format!("<think>{thought}</think>")
            };
            format!("{thought}{before}{calls}{after}")
        },
    }
}

/// The writer of a format; all formats have one.
pub fn writer(tools: &str) -> Writer {
    match tools {
        "hermes" | "qwen3_json" | "granite4" | "ernie45" => JSON,
        "longcat" => Writer {
            calls: |calls| {
                each(calls, "", |n, a| {
                    format!("<longcat_tool_call>{}</longcat_tool_call>", object(n, a))
                })
            },
            ..JSON
        },
        "internlm" => Writer {
            calls: |calls| {
                each(calls, "\n", |n, a| {
                    format!("<|action_start|><|plugin|>{{\"name\":\"{n}\",\"parameters\":{a}}}<|action_end|>")
                })
            },
            ..JSON
        },
        "granite" => Writer {
            calls: |calls| format!("<|tool_call|> {}", list(calls)),
            ..JSON
        },
        "granite-20b-fc" => Writer {
            calls: |calls| each(calls, "\n", |n, a| format!("<function_call> {}", object(n, a))),
            ..JSON
        },
        "apertus" => Writer {
            calls: |calls| {
                let calls = each(calls, ", ", |n, a| format!("{{\"{n}\": {a}}}"));
                format!("<|tools_prefix|>[{calls}]<|tools_suffix|>")
            },
            ..JSON
        },
        "cohere_command3" | "cohere_command4" => Writer {
            calls: |calls| {
                let calls = each(calls, ",\n    ", |n, a| {
                    format!("{{\"tool_name\": \"{n}\", \"parameters\": {a}}}")
                });
                format!("<|START_ACTION|>[\n    {calls}\n]<|END_ACTION|>")
            },
            answer: |thought, before, calls, after| {
                let thought = match thought.is_empty() {
                    true => String::new(),
                    false => format!("<|START_THINKING|>{thought}<|END_THINKING|>"),
                };
                format!("{thought}{before}{calls}{after}")
            },
            reasoning: "cohere_command3",
            ..JSON
        },
        "gigachat3" => Writer {
            calls: |calls| {
                each(calls, "\n", |n, a| {
                    format!("function call<|role_sep|>\n{}", object(n, a))
                })
            },
            ..JSON
        },
        "plamo3" => Writer {
            calls: |calls| {
                let calls = each(calls, "", |n, a| {
                    format!(
                        "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>{n}\
                         <|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:constrain|>json\
                         <|plamo:msg|>{a}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>"
                    )
                });
                format!("<|plamo:begin_tool_requests:plamo|>{calls}<|plamo:end_tool_requests:plamo|>")
            },
            answer: |thought, before, calls, after| {
                let thought = match thought.is_empty() {
                    true => String::new(),
                    false => format!("<|plamo:begin_think:plamo|>{thought}<|plamo:end_think:plamo|>"),
                };
                format!("{thought}{before}{calls}{after}")
            },
            reasoning: "plamo3",
            ..JSON
        },
        "hy_v3" => Writer {
            calls: |calls| {
                let calls = each(calls, "\n", |n, a| {
                    let parameters = parameters(a, |key, value| {
                        format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", bare(value))
                    });
                    format!("<tool_call>{n}<tool_sep>\n{parameters}</tool_call>")
                });
                format!("<tool_calls>\n{calls}\n</tool_calls>")
            },
            reasoning: "hy_v3",
            ..CONVERTED
        },
        "minicpm5" => Writer {
            calls: |calls| {
                each(calls, "\n", |n, a| {
                    let parameters =
                        parameters(a, |key, value| format!("<param name=\"{key}\">{}</param>", bare(value)));
                    format!("<function name=\"{n}\">{parameters}</function>")
                })
            },
            ..CONVERTED
        },
        "kimi_k3" => Writer {
            calls: |calls| {
                let calls = each(calls, "\n", |n, a| {
                    let parameters = parameters(a, |key, value| {
                        let kind = if value.is_string() { "string" } else { "object" };
                        let value = bare(value);
                        format!(
                            "<|open|>argument key=\"{key}\" type=\"{kind}\"<|sep|>{value}<|close|>argument<|sep|>\n"
                        )
                    });
                    format!("<|open|>call tool=\"{n}\" index=\"1\"<|sep|>\n{parameters}<|close|>call<|sep|>")
                });
                format!("<|open|>tools<|sep|>\n{calls}\n<|close|>tools<|sep|>")
            },
            answer: |thought, before, calls, after| {
                let part = |text: &str, name: &str| match text.is_empty() {
                    true => String::new(),
                    false => format!("<|open|>{name}<|sep|>{text}<|close|>{name}<|sep|>"),
                };
                let (thought, before) = (part(thought, "think"), part(before, "response"));
                let after = part(after, "response");
                format!("{thought}{before}{calls}{after}<|close|>message<|sep|>")
            },
            reasoning: "kimi_k3",
            ..CONVERTED
        },
        "jamba" | "hunyuan_a13b" => Writer {
            calls: |calls| format!("<tool_calls>{}</tool_calls>", list(calls)),
            ..JSON
        },
        "phi4_mini_json" => Writer {
            calls: |calls| format!("functools{}", list(calls)),
            ..JSON
        },
        "xlam" => Writer {
            calls: list,
            bare: true,
            ..JSON
        },
        "llama3_json" | "llama4_json" => Writer {
            calls: |calls| {
                each(calls, "; ", |n, a| {
                    format!("{{\"name\": \"{n}\", \"parameters\": {a}}}")
                })
            },
            bare: true,
            ..JSON
        },
        "mistral" => Writer {
            calls: |calls| {
                if calls.len() == 1 {
                    format!("[TOOL_CALLS] {}", list(calls))
                } else {
                    each(calls, "", |n, a| format!("[TOOL_CALLS]{n}[ARGS]{a}"))
                }
            },
            answer: think("[THINK]", "[/THINK]"),
            reasoning: "mistral",
            ..JSON
        },
        "deepseek_v3" => Writer {
            calls: |calls| {
                let calls = each(calls, "\n", |n, a| {
                    format!("<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{a}\n```<｜tool▁call▁end｜>")
                });
                format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
            },
            reasoning: "deepseek_v3",
            ..JSON
        },
        "deepseek_v31" => Writer {
            calls: |calls| {
                let calls = each(calls, "", |n, a| {
                    format!("<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{a}<｜tool▁call▁end｜>")
                });
                format!("<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>")
            },
            reasoning: "deepseek_v3",
            ..JSON
        },
        "kimi_k2" => Writer {
            calls: |calls| {
                let calls = each(calls, "", |n, a| {
                    format!("<|tool_call_begin|>functions.{n}:0<|tool_call_argument_begin|>{a}<|tool_call_end|>")
                });
                format!("<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>")
            },
            reasoning: "kimi_k2",
            ..JSON
        },
        "qwen3_coder" | "qwen3_xml" | "mimo" | "step3p5" | "step5" => Writer {
            calls: |calls| qwen(calls, "<tool_call>", "</tool_call>"),
            ..CONVERTED
        },
        "seed_oss" => Writer {
            calls: |calls| qwen(calls, "<seed:tool_call>", "</seed:tool_call>"),
            answer: think("<seed:think>", "</seed:think>"),
            reasoning: "seed_oss",
            ..CONVERTED
        },
        "glm45" | "glm47" | "ling3" | "poolside_v1" => Writer {
            calls: |calls| {
                each(calls, "\n", |n, a| {
                    let parameters = parameters(a, |key, value| {
                        format!("<arg_key>{key}</arg_key>\n<arg_value>{}</arg_value>\n", bare(value))
                    });
                    format!("<tool_call>{n}\n{parameters}</tool_call>")
                })
            },
            reasoning: "glm45",
            ..CONVERTED
        },
        "minimax_m2" => Writer {
            calls: |calls| {
                let calls = each(calls, "\n", |n, a| {
                    let parameters = parameters(a, |key, value| {
                        format!("<parameter name=\"{key}\">{}</parameter>\n", bare(value))
                    });
                    format!("<invoke name=\"{n}\">\n{parameters}</invoke>")
                });
                format!("<minimax:tool_call>\n{calls}\n</minimax:tool_call>")
            },
            reasoning: "minimax_m2",
            ..CONVERTED
        },
        "dots" => Writer {
            calls: |calls| {
                let minimax = (writer("minimax_m2").calls)(calls);
                minimax.replace("minimax:tool_call", "dots_function_call")
            },
            ..CONVERTED
        },
        "deepseek_v41" => Writer {
            calls: |calls| dsml(calls, "calls").replace("｜DSML｜", "｜DSML｜ "),
            ..CONVERTED
        },
        "deepseek_v32" => Writer {
            calls: |calls| dsml(calls, "function_calls"),
            ..CONVERTED
        },
        "deepseek_v4" => Writer {
            calls: |calls| dsml(calls, "tool_calls"),
            ..CONVERTED
        },
        "step3" => Writer {
            calls: |calls| {
                let calls = each(calls, "\n", |n, a| {
                    let parameters = parameters(a, |key, value| {
                        format!(
                            "<steptml:parameter name=\"{key}\">{}</steptml:parameter>\n",
                            bare(value)
                        )
                    });
                    format!(
                        "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"{n}\">\n{parameters}\
                         </steptml:invoke><｜tool_call_end｜>"
                    )
                });
                format!("<｜tool_calls_begin｜>\n{calls}\n<｜tool_calls_end｜>")
            },
            reasoning: "step3",
            trims: true,
            ..CONVERTED
        },
        "pythonic" => Writer {
            calls: |calls| format!("[{}]", python(calls, ", ")),
            bare: true,
            ..CONVERTED
        },
        "llama4_pythonic" => Writer {
            calls: |calls| format!("<|python_start|>[{}]<|python_end|>", python(calls, ", ")),
            ..CONVERTED
        },
        "lfm2" => Writer {
            calls: |calls| format!("<|tool_call_start|>[{}]<|tool_call_end|>", python(calls, ", ")),
            ..CONVERTED
        },
        "olmo3" => Writer {
            calls: |calls| format!("<function_calls>\n{}\n</function_calls>", python(calls, "\n")),
            ..CONVERTED
        },
        "gemma4" => Writer {
            calls: |calls| {
                each(calls, "", |n, a| {
                    format!("<|tool_call>call:{n}{}<tool_call|>", literal(a, "<|\"|>"))
                })
            },
            answer: think("<|channel>", "<channel|>"),
            reasoning: "gemma4",
            ..CONVERTED
        },
        "functiongemma" => Writer {
            calls: |calls| {
                each(calls, "", |n, a| {
                    format!(
                        "<start_function_call>call:{n}{}<end_function_call>",
                        literal(a, "<escape>")
                    )
                })
            },
            ..CONVERTED
        },
        "hy_v4" => Writer {
            calls: |calls| {
                let calls = each(calls, "", |n, a| {
                    let parameters = parameters(a, |key, value| {
                        format!("<arg_key>{key}</arg_key><arg_value>{}</arg_value>", bare(value))
                    });
                    format!("<tool_call>{n}{parameters}</tool_call>")
                });
                format!("<tool_calls>{calls}</tool_calls>")
            },
            reasoning: "hy_v4",
            ..CONVERTED
        },
        "k2_horizon" => Writer {
            calls: |calls| {
                let calls = each(calls, "\n", |n, a| {
                    let parameters = parameters(a, |key, value| {
                        let value = bare(value);
                        format!("<ifm|arg_key>{key}</ifm|arg_key>\n<ifm|arg_value>{value}</ifm|arg_value>\n")
                    });
                    format!("<ifm|tool_call>{n}\n{parameters}</ifm|tool_call>")
                });
                format!("<ifm|tool_calls>\n{calls}\n</ifm|tool_calls>")
            },
            answer: |thought, before, calls, after| {
                let thought = match thought.is_empty() {
                    true => String::new(),
                    false => format!("<ifm|think>{thought}</ifm|think>"),
                };
                format!("{thought}{before}{calls}{after}")
            },
            reasoning: "k2_horizon",
            ..CONVERTED
        },
        "minimax_m3" => Writer {
            calls: |calls| {
                let calls = each(calls, "", |n, a| {
                    let parameters = parameters(a, elements);
                    format!("{M3}<invoke name=\"{n}\">{parameters}\n{M3}</invoke>\n")
                });
                format!("{M3}<tool_call>\n{calls}{M3}</tool_call>")
            },
            answer: |thought, before, calls, after| {
                let thought = match thought.is_empty() {
                    true => String::new(),
                    false => format!("<mm:think>{thought}</mm:think>"),
                };
                format!("{thought}{before}{calls}{after}")
            },
            reasoning: "minimax_m3",
            ..CONVERTED
        },
        "inkling" => Writer {
            calls: |calls| {
                each(calls, "<|message_model|>", |n, a| {
                    format!("{n}<|content_invoke_tool_json|>{{\"args\":{a},\"name\":\"{n}\"}}<|end_message|>")
                })
            },
            answer: |thought, before, calls, after| {
                let part = |text: &str, kind: &str| match text.is_empty() {
                    true => String::new(),
                    false => format!("<|content_{kind}|>{text}<|end_message|>"),
                };
                let parts = [
                    part(thought, "thinking"),
                    part(before, "text"),
                    calls.to_owned(),
                    part(after, "text"),
                ];
                let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
                parts.join("<|message_model|>") + "<|content_model_end_sampling|>"
            },
            reasoning: "inkling",
            ..JSON
        },
        "muse" | "musespark1x" | "muse_glimmer" => Writer {
            calls: |calls| {
                each(calls, "<|eom|><|start|>assistant", |n, a| {
                    let parameters = parameters(a, |key, value| {
                        format!("<atem:parameter name=\"{key}\">{}</atem:parameter>\n", bare(value))
                    });
                    format!(
                        " to={n}<|message|><atem:function_calls>\n<atem:invoke name=\"{n}\">\n{parameters}\
                         </atem:invoke>\n</atem:function_calls>"
                    )
                })
            },
            answer: |thought, before, calls, after| {
                let part = |text: &str, to: &str| match text.is_empty() {
                    true => String::new(),
                    false => format!(" to={to}<|message|>{text}"),
                };
                let parts = [
                    part(thought, "self"),
                    part(before, "user"),
                    calls.to_owned(),
                    part(after, "user"),
                ];
                let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
                parts.join("<|eom|><|start|>assistant") + "<|eot|>"
            },
            reasoning: if tools == "muse_glimmer" {
                "muse_glimmer"
            } else {
                "muse"
            },
            ..CONVERTED
        },
        "openai" => Writer {
            calls: |calls| {
                each(calls, "<|start|>assistant", |n, a| {
                    format!("<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{a}<|call|>")
                })
            },
            answer: |thought, before, calls, after| {
                let start = "<|start|>assistant";
                let mut parts = Vec::new();
                if !thought.is_empty() {
                    parts.push(format!("<|channel|>analysis<|message|>{thought}<|end|>"));
                }
                if !before.is_empty() {
                    parts.push(format!("<|channel|>commentary<|message|>{before}<|end|>"));
                }
                parts.push(calls.to_owned());
                if !after.is_empty() {
                    parts.push(format!("<|channel|>final<|message|>{after}<|return|>"));
                }
                parts.join(start)
            },
            reasoning: "openai_gptoss",
            ..JSON
        },
        other => panic!("no writer for {other}"),
    }
}

/// What MiniMax M3 writes before each tag.
const M3: &str = "]<]minimax[>[";

/// What is read back of a value in elements whose schema does not say what is in it.
pub fn as_elements(value: &Value) -> Value {
    match value {
        Value::Array(items) if !items.is_empty() => {
            let mut items: Vec<_> = items.iter().map(as_elements).collect();
            json!({"item": if items.len() == 1 { items.remove(0) } else { Value::from(items) }})
        }
        Value::Object(fields) if !fields.is_empty() => fields
            .iter()
            .map(|(key, value)| (key.clone(), as_elements(value)))
            .collect(),
        Value::Array(_) | Value::Object(_) => Value::from(""),
        other => Value::from(bare(other)),
    }
}

fn elements(name: &str, value: &Value) -> String {
    let inside: String = match value {
        Value::Array(items) => items.iter().map(|item| elements("item", item)).collect(),
        Value::Object(fields) => fields.iter().map(|(key, value)| elements(key, value)).collect(),
        other => bare(other),
    };
    format!("{M3}<{name}>{inside}{M3}</{name}>")
}

fn each(calls: Calls, separator: &str, write: impl Fn(&str, &Value) -> String) -> String {
    calls
        .iter()
        .map(|(name, arguments)| write(name, arguments))
        .collect::<Vec<_>>()
        .join(separator)
}

fn object(name: &str, arguments: &Value) -> String {
    format!("{{\"name\": \"{name}\", \"arguments\": {arguments}}}")
}

fn list(calls: Calls) -> String {
    format!("[{}]", each(calls, ", ", object))
}

fn fields(arguments: &Value) -> &Map<String, Value> {
    arguments.as_object().expect("arguments are an object")
}

fn parameters(arguments: &Value, write: impl Fn(&str, &Value) -> String) -> String {
    fields(arguments).iter().map(|(key, value)| write(key, value)).collect()
}

/// Strings as they are, other values as JSON.
fn bare(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn qwen(calls: Calls, open: &str, close: &str) -> String {
    each(calls, "\n", |name, arguments| {
        let parameters = parameters(arguments, |key, value| {
            format!("<parameter={key}>\n{}\n</parameter>\n", bare(value))
        });
        format!("{open}\n<function={name}>\n{parameters}</function>\n{close}")
    })
}

fn dsml(calls: Calls, section: &str) -> String {
    let calls = each(calls, "\n", |name, arguments| {
        let parameters = parameters(arguments, |key, value| {
            let (is_string, value) = (value.is_string(), bare(value));
            format!("<｜DSML｜parameter name=\"{key}\" string=\"{is_string}\">{value}</｜DSML｜parameter>\n")
        });
        format!("<｜DSML｜invoke name=\"{name}\">\n{parameters}</｜DSML｜invoke>")
    });
    format!("<｜DSML｜{section}>\n{calls}\n</｜DSML｜{section}>")
}

fn python(calls: Calls, separator: &str) -> String {
    each(calls, separator, |name, arguments| {
        let parameters: Vec<_> = fields(arguments)
            .iter()
            .map(|(key, value)| format!("{key}={}", python_value(value)))
            .collect();
        format!("{name}({})", parameters.join(", "))
    })
}

fn python_value(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => {
            let text = text
                .replace('\\', "\\\\")
                .replace('\'', "\\'")
                .replace('\n', "\\n")
                .replace('\t', "\\t");
            format!("'{text}'")
        }
        Value::Array(items) => format!("[{}]", items.iter().map(python_value).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|(key, value)| format!("'{key}': {}", python_value(value)))
                .collect();
            format!("{{{}}}", fields.join(", "))
        }
    }
}

fn literal(value: &Value, quote: &str) -> String {
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(items) => format!(
            "[{}]",
            items
                .iter()
                .map(|item| literal(item, quote))
                .collect::<Vec<_>>()
                .join(",")
        ),
        Value::Object(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|(key, value)| format!("{key}:{}", literal(value, quote)))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        other => other.to_string(),
    }
}
