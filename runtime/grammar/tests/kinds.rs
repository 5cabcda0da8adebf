//! Each kind of constraint allows its texts token by token, and no others.

mod common;

use common::{Walk, accepts, grammar, grammars, json, refuses, regex, tag};
use halyard_grammar::{Constraint, Function, GrammarConfig, StructuredOutputs, named_call, required_calls};
use serde_json::json;

fn person() -> Constraint {
    json(
        json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"], "additionalProperties": false}),
    )
}

#[test]
fn json_fits_its_schema() {
    accepts(person(), r#"{"name": "Zoë \n", "age": 31}"#);
    accepts(person(), "{\n  \"name\": \"\",\n  \"age\": 0\n}");
    for wrong in [
        r#"{"name": "x"}"#,
        r#"{"name": "x", "age": -1}"#,
        r#"{"name": "x", "age": "1"}"#,
        r#"{"name": "x", "age": 1, "more": 2}"#,
        r#"{"name": "x", "age": 1"#,
        "",
        "[]",
    ] {
        refuses(person(), wrong);
    }
    accepts(json(json!(true)), r#"[1, {"a": null}]"#);
    let tree = json!({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["children"],
        "additionalProperties": false}}});
    accepts(json(tree.clone()), r#"{"children": [{"children": []}]}"#);
    refuses(json(tree), r#"{"children": [{}]}"#);
}

/// Dates and times are those of the calendar, and other formats hold as well.
#[test]
fn formats_of_texts_hold() {
    let format = |name: &str| json(json!({"type": "string", "format": name}));
    accepts(format("date"), "\"2024-02-29\"");
    accepts(format("date"), "\"2000-02-29\"");
    for wrong in ["\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\""] {
        refuses(format("date"), wrong);
    }
    accepts(format("date-time"), "\"2024-12-31T23:59:59.25+01:00\"");
    refuses(format("date-time"), "\"2024-12-31T23:59:60Z\"");
    accepts(format("time"), "\"23:59:59Z\"");
    let both = json(json!({"type": ["string", "null"], "format": "date", "pattern": "^2024"}));
    accepts(both.clone(), "\"2024-01-31\"");
    accepts(both.clone(), "null");
    refuses(both, "\"2023-01-31\"");
    accepts(format("email"), "\"a.b@c.org\"");
    refuses(format("ipv4"), "\"1.2.3.256\"");
    accepts(format("none known"), "\"anything\"");
}

#[test]
fn any_object_is_an_object() {
    accepts(Constraint::JsonObject, r#"{"a": [1.5e3, true, {"b": "c"}]}"#);
    refuses(Constraint::JsonObject, "[1]");
    refuses(Constraint::JsonObject, "{a: 1}");
}

#[test]
fn multiples_are_counted_in_decimals() {
    let number = |multiple: f64| json(json!({"type": "number", "multipleOf": multiple, "minimum": 0, "maximum": 10}));
    accepts(number(0.25), "1.75");
    refuses(number(0.25), "1.7");
    accepts(number(0.000001), "0.000003");
    accepts(number(1e-7), "0.0000003");
}

#[test]
fn options_of_white_space_and_of_properties_hold() {
    let compact = StructuredOutputs {
        disable_any_whitespace: true,
        ..person().into()
    };
    accepts(compact.clone(), r#"{"name":"a b","age":1}"#);
    refuses(compact, r#"{"name": "a b","age":1}"#);
    let one_blank = StructuredOutputs {
        whitespace_pattern: Some("[ ]?".to_string()),
        ..person().into()
    };
    accepts(one_blank.clone(), r#"{"name": "a", "age":1}"#);
    refuses(one_blank, r#"{"name":  "a", "age":1}"#);
    let open = json(json!({"type": "object", "properties": {"a": {"type": "integer"}}}));
    accepts(open.clone(), r#"{"a": 1, "b": 2}"#);
    let closed = StructuredOutputs {
        disable_additional_properties: true,
        ..open.into()
    };
    accepts(closed.clone(), r#"{"a": 1}"#);
    refuses(closed, r#"{"a": 1, "b": 2}"#);
}

#[test]
fn a_regex_matches_the_whole_text() {
    accepts(regex(r"[a-z]+@[a-z]+\.com"), "ab@cd.com");
    refuses(regex(r"[a-z]+@[a-z]+\.com"), "ab@cd.org");
    refuses(regex(r"[a-z]+@[a-z]+\.com"), "ab@cd.comx");
    accepts(regex("^(yes|no)$"), "no");
    accepts(regex("a/b"), "a/b");
    accepts(regex("(a|ab)(c|bcd)"), "abcd");
    accepts(regex("\n"), "\n");
    accepts(regex(""), "");
    refuses(regex(""), "a");
}

#[test]
fn a_choice_is_one_of_its_texts() {
    let choice = |texts: &[&str]| Constraint::Choice(texts.iter().map(|text| text.to_string()).collect());
    let both = choice(&["a", "ab", "\"q\\\n\u{7f}é\"", "a|b", ""]);
    for text in ["a", "ab", "\"q\\\n\u{7f}é\"", "a|b", ""] {
        accepts(both.clone(), text);
    }
    refuses(both.clone(), "b");
    refuses(both, "a|");
}

#[test]
fn grammars_in_lark_and_in_gbnf() {
    let sum = "start: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/\n";
    accepts(grammar(sum), "1+22+3");
    refuses(grammar(sum), "1+");
    accepts(grammar("start: \"x\" %json {\"type\": \"integer\"}"), "x12");
    let arithmetic = r#"
        # llama.cpp's example
        root  ::= (expr "=" ws term "\n")+
        expr  ::= term ([-+*/] term)*
        term  ::= ident | num | "(" ws expr ")" ws
        ident ::= [a-z] [a-z0-9_]* ws
        num   ::= [0-9]+ ws
        ws    ::= [ \t]*
    "#;
    accepts(grammar(arithmetic), "(x +2)*y = 10\n");
    accepts(grammar(arithmetic), "a=1\nb=2\n");
    refuses(grammar(arithmetic), "(x +2*y = 10\n");
    refuses(grammar(arithmetic), "x=1");
    // Without recursion it is matched as a regular expression, where the longest part is not always the right one.
    let split = "root ::= \"a\" (\"b\" | \"bc\") \"c\"";
    accepts(grammar(split), "abc");
    accepts(grammar(split), "abcc");
    accepts(grammar("root ::= [^\"\\\\\\x00-\\x1f]{2,3} | .\n"), "é世");
    accepts(grammar("root ::= [^\"\\\\\\x00-\\x1f]{2,3} | .\n"), "\n");
    refuses(grammar("root ::= [^\"\\\\\\x00-\\x1f]{2,3}\n"), "a\"");
    accepts(
        grammar("root ::= \"\\u00e9\\\"\" list?\nlist ::= \"[\" (list (\",\" list)*)? \"]\""),
        "é\"[[],[[]]]",
    );
    refuses(
        grammar("root ::= list\nlist ::= \"[\" (list (\",\" list)*)? \"]\""),
        "[[],]",
    );
    accepts(
        grammar("root ::= a{2} | b{2,}\na ::= \"x\"\nb ::= \"(\" b? \")\""),
        "(())()",
    );
    refuses(
        grammar("root ::= a{2} | b{2,}\na ::= \"x\"\nb ::= \"(\" b? \")\""),
        "(())",
    );
}

#[test]
fn json_by_gbnf_is_json() {
    let json = r#"
        root   ::= object
        value  ::= object | array | string | number | ("true" | "false" | "null") ws
        object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
        array  ::= "[" ws ( value ("," ws value)* )? "]" ws
        string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
        number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
        ws     ::= | " " | "\n" [ \t]{0,20}
    "#;
    accepts(grammar(json), r#"{"a": [1, -2.5e3, {"b\u00e9": null}], "c":"d"}"#);
    refuses(grammar(json), r#"{"a": 01}"#);
    refuses(grammar(json), r#"{"a" 1}"#);
}

#[test]
fn tags_stand_in_free_text() {
    let legacy = tag(json!({"structures": [
        {"begin": "<f=a>", "schema": {"type": "object", "properties": {"x": {"type": "integer"}},
            "required": ["x"]}, "end": "</f>"},
        {"begin": "<f=b>", "schema": null, "end": "</f>"}], "triggers": ["<f="]}));
    accepts(legacy.clone(), "no call");
    accepts(legacy.clone(), "");
    accepts(legacy.clone(), "hm <f=a>{\"x\": 1}</f> and <f=b>[]</f> < done");
    refuses(legacy.clone(), "hm <f=a>{\"y\": 1}</f>");
    refuses(legacy.clone(), "hm <f=c>");
    refuses(legacy, "hm <f=a>{\"x\": 1}");
    let triggered = |at_least_one: bool, stop: bool| {
        tag(
            json!({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<t>"],
            "tags": [{"begin": "<t>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</t>"}],
            "at_least_one": at_least_one, "stop_after_first": stop}}),
        )
    };
    accepts(triggered(false, false), "a<t>1</t>b<t>2</t>c");
    accepts(triggered(false, false), "");
    accepts(triggered(true, false), "<t>1</t>b<t>2</t>c");
    refuses(triggered(true, false), "b");
    accepts(triggered(true, true), "<t>1</t>");
    refuses(triggered(true, true), "<t>1</t>b");
    accepts(triggered(false, true), "a<t>1</t>");
    accepts(triggered(false, true), "a");
    refuses(triggered(false, true), "a<t>1</t>b");
}

#[test]
fn formats_are_put_together() {
    let format = |format: serde_json::Value| tag(json!({"type": "structural_tag", "format": format}));
    let reasons = format(json!({"type": "sequence", "elements": [
        {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": ["</think>", "</end>"]},
        {"type": "json_schema", "json_schema": {"type": "array", "items": {"type": "integer"}}}]}));
    accepts(reasons.clone(), "<think>a < b\n</think>[1, 2]");
    accepts(reasons.clone(), "<think></end>[]");
    refuses(reasons.clone(), "<think>a</think>{}");
    refuses(reasons, "a</think>[]");
    let separated = format(
        json!({"type": "tags_with_separator", "separator": ",", "at_least_one": true, "tags": [
        {"begin": "(", "content": {"type": "const_string", "value": "a"}, "end": ")"},
        {"type": "tag", "begin": "[", "content": {"type": "grammar", "grammar": "root ::= \"b\" root?"}, "end": "]"}]}),
    );
    accepts(separated.clone(), "(a),[bbb],(a)");
    refuses(separated.clone(), "(a),");
    refuses(separated, "");
    let more = format(json!({"type": "or", "elements": [
        {"type": "plus", "content": {"type": "const_string", "value": "x"}},
        {"type": "sequence", "elements": [{"type": "optional", "content": {"type": "const_string", "value": "y"}},
            {"type": "repeat", "min": 1, "max": 2, "content": {"type": "regex", "pattern": "[0-9]"}},
            {"type": "star", "content": {"type": "const_string", "value": "z"}}]},
        {"type": "sequence", "elements": [{"type": "const_string", "value": "free:"},
            {"type": "any_text", "excludes": ["bad"]}, {"type": "const_string", "value": "!"}]}]}));
    for text in ["xxx", "y12zz", "1", "free:\n a!", "free:!"] {
        accepts(more.clone(), text);
    }
    for text in ["", "y", "123", "free:", "free:a bad!", "free:a!b"] {
        refuses(more.clone(), text);
    }
}

/// A special token that a tag spells may come as itself; in free text it never does.
#[test]
fn special_tokens_come_where_a_tag_spells_them() {
    let (tokenizer, grammars) = grammars("llama", GrammarConfig::default());
    let call = |begin: serde_json::Value| {
        tag(
            json!({"type": "structural_tag", "format": {"type": "tag", "begin": begin,
            "content": {"type": "any_text"}, "end": "<|im_end|>"}}),
        )
    };
    let start = tokenizer.token_to_id("<|im_start|>").expect("a special token");
    for begin in [
        json!("<|im_start|>"),
        json!({"type": "token", "token": "<|im_start|>"}),
        json!({"type": "token", "token": start}),
    ] {
        let grammar = grammars.compile(&call(begin).into()).expect("a tag");
        let mut walk = Walk::new(grammar.matcher(), 448);
        assert!(walk.take(start));
        assert!(!walk.allows(start), "in free text");
        for id in tokenizer.encode("some text", false).expect("tokens") {
            assert!(walk.take(id));
        }
        assert!(walk.take(2), "the end of the tag, which also ends the model's text");
    }
}

#[test]
fn forced_calls_are_json() {
    let functions = [
        Function {
            name: "weather".to_string(),
            parameters: Some(
                json!({"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}},
                "required": ["city"], "additionalProperties": false, "$defs": {"city": {"type": "string"}}}),
            ),
        },
        Function {
            name: "now".to_string(),
            parameters: None,
        },
    ];
    let both = required_calls(&functions, true).expect("a constraint");
    accepts(
        both.clone(),
        r#"[{"name": "weather", "parameters": {"city": "Rom"}}, {"name": "now", "parameters": {}}]"#,
    );
    refuses(both.clone(), "[]");
    refuses(both.clone(), r#"[{"name": "other", "parameters": {}}]"#);
    refuses(both, r#"[{"name": "weather", "parameters": {}}]"#);
    let one = required_calls(&functions, false).expect("a constraint");
    accepts(one.clone(), r#"[{"name": "now", "parameters": {}}]"#);
    refuses(
        one,
        r#"[{"name": "now", "parameters": {}}, {"name": "now", "parameters": {}}]"#,
    );
    accepts(named_call(&functions[0]), r#"{"city": "Rom"}"#);
    accepts(named_call(&functions[1]), "{}");
    let other = Function {
        name: "more".to_string(),
        parameters: Some(json!({"$defs": {"city": {"type": "integer"}}})),
    };
    let error = required_calls(&[functions[0].clone(), other], true).expect_err("two meanings");
    assert!(error.to_string().contains("`city`"), "{error}");
    required_calls(&[], true).expect_err("none");
}

/// What ends a text may come where it may end, and nowhere else; special tokens and ids without a token never come.
#[test]
fn ends_come_at_the_end_only() {
    let (tokenizer, grammars) = grammars("gemma3", GrammarConfig::default());
    let grammar = grammars.compile(&regex("(.|\n){2}").into()).expect("a regex");
    let stop = tokenizer.token_to_id("<start_of_turn>").expect("a special token");
    let mut walk = Walk::new(grammar.with_stops(&[stop]).expect("ends").matcher(), 632);
    for _ in 0..2 {
        let allowed = walk.allowed();
        assert!(!allowed.is_empty());
        assert!(
            allowed.iter().all(|id| *id < 562 && !tokenizer.is_special(*id)),
            "{allowed:?}"
        );
        let letter = tokenizer.encode("a", false).expect("tokens")[0];
        assert!(walk.take(letter));
    }
    assert_eq!(
        walk.allowed(),
        [1, stop, 5]
            .into_iter()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect::<Vec<_>>()
    );
    // Where an end does not stop the sequence (ignore_eos), ends go on.
    assert!(walk.take(1));
    assert!(walk.take(5));
    assert!(walk.allows(1));
}
