//! Constraints with judges of their own: what is generated under one must pass its judge, which knows nothing of the
//! grammar library.

use halyard_engine::{Constraint, StructuredOutputs};
use serde_json::{Value, json};

/// Says what is wrong with a text.
pub type Judge = Box<dyn Fn(&str) -> Result<(), String>>;

/// A constraint and its judge.
pub struct Case {
    pub asked: StructuredOutputs,
    pub judge: Judge,
}

fn parsed(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("no JSON: {error}"))
}

/// JSON under a schema.
pub fn schema(schema: Value) -> Case {
    let asked = Constraint::Json(schema.to_string()).into();
    let options = jsonschema::options()
        .should_validate_formats(true)
        .build(&schema)
        .expect("a schema");
    let judge = move |text: &str| options.validate(&parsed(text)?).map_err(|error| error.to_string());
    Case {
        asked,
        judge: Box::new(judge),
    }
}

fn compact(of: Value) -> Case {
    let Case { asked, judge } = schema(of);
    let judge = move |text: &str| {
        judge(text)?;
        let (mut in_string, mut is_escaped) = (false, false);
        for character in text.chars() {
            match character {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '"' => in_string = !in_string,
                _ if character.is_whitespace() && !in_string => return Err("white space between its parts".to_string()),
                _ => {}
            }
        }
        Ok(())
    };
    Case {
        asked: StructuredOutputs {
            disable_any_whitespace: true,
            ..asked
        },
        judge: Box::new(judge),
    }
}

fn full_match(pattern: &str) -> Judge {
    let judge = regex::Regex::new(&format!(r"\A(?:{pattern})\z")).expect("a regex");
    Box::new(move |text| match judge.is_match(text) {
        true => Ok(()),
        false => Err("no match".to_string()),
    })
}

/// A text that a regular expression matches.
pub fn regex(pattern: &str) -> Case {
    Case {
        asked: Constraint::Regex(pattern.to_string()).into(),
        judge: full_match(pattern),
    }
}

/// One of some texts.
pub fn choice(texts: &[&str]) -> Case {
    let texts: Vec<String> = texts.iter().map(|text| text.to_string()).collect();
    let judge = texts.clone();
    Case {
        asked: Constraint::Choice(texts).into(),
        judge: Box::new(move |text| match judge.iter().any(|choice| choice == text) {
            true => Ok(()),
            false => Err("none of the choices".to_string()),
        }),
    }
}

fn grammar(text: &str, judge: Judge) -> Case {
    let asked = Constraint::Grammar(text.to_string()).into();
    Case { asked, judge }
}

fn tag(tag: Value, judge: Judge) -> Case {
    let asked = Constraint::StructuralTag(tag.to_string()).into();
    Case { asked, judge }
}

/// Brackets that close in order.
fn balanced(text: &str) -> Result<(), String> {
    let mut open = Vec::new();
    for character in text.chars() {
        match character {
            '(' => open.push(')'),
            '[' => open.push(']'),
            close if open.pop() == Some(close) => {}
            other => return Err(format!("{other:?} where {open:?} are to close")),
        }
    }
    if open.is_empty() {
        Ok(())
    } else {
        Err(format!("{open:?} are open"))
    }
}

/// Schemas of many kinds, with bounds that let random tokens come to an end.
fn schemas() -> Vec<Value> {
    let short = json!({"type": "string", "maxLength": 6});
    vec![
        json!({"type": "object", "properties": {"name": short, "age": {"type": "integer", "minimum": 0,
            "maximum": 150}},
            "required": ["name", "age"], "additionalProperties": false}),
        json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"},
            "c": {"type": "boolean"}},
            "additionalProperties": false}),
        json!({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}),
        json!({"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "integer"}], "items": false,
            "minItems": 2}),
        json!({"type": "array", "items": {"enum": ["red", "green", 3, null, true]}, "maxItems": 4}),
        json!({"enum": ["a", "b\"c", "\u{e9}\n", 1.5, {"x": [1]}, [null]]}),
        json!({"const": {"kind": "fixed", "n": [1, 2]}}),
        json!({"type": "integer", "minimum": -12, "exclusiveMaximum": 400}),
        json!({"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000}),
        json!({"type": "number", "minimum": 0.5, "maximum": 2.25}),
        json!({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
        json!({"type": "string", "minLength": 2, "maxLength": 5}),
        json!({"type": "string", "pattern": "^[A-Z]{2,3}-[0-9]{4}$"}),
        json!({"type": "string", "pattern": "ab?c", "maxLength": 8}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"type": "string", "format": "ipv4"}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": ["string", "null"], "maxLength": 4}),
        json!({"anyOf": [{"type": "integer", "maximum": 9, "minimum": 0}, {"type": "string", "maxLength": 2},
            {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}]}),
        json!({"oneOf": [
            {"type": "object", "properties": {"kind": {"const": "circle"}, "r": {"type": "integer"}},
                "required": ["kind", "r"], "additionalProperties": false},
            {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "integer"}},
                "required": ["kind", "side"], "additionalProperties": false}]}),
        json!({"allOf": [{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
            {"type": "object", "properties": {"y": {"type": "boolean"}}, "required": ["y"],
                "additionalProperties": {"type": ["integer", "boolean"]}}], "maxProperties": 3}),
        json!({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2}),
        json!({"type": "object", "patternProperties": {"^x_": {"type": "boolean"}}, "additionalProperties": false,
            "maxProperties": 2}),
        json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/pos"}, "m": {"$ref": "#/$defs/pos"}},
            "required": ["n", "m"], "additionalProperties": false, "$defs": {"pos": {"type": "integer",
                "minimum": 1}}}),
        json!({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
            "v": {"type": "boolean"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
            "required": ["v"], "additionalProperties": false}}}),
        json!({"type": "object", "properties": {"deep": {"type": "object", "properties": {"deeper": {"type": "array",
            "items": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
                "additionalProperties": false}, "minItems": 1, "maxItems": 2}}, "required": ["deeper"],
            "additionalProperties": false}}, "required": ["deep"], "additionalProperties": false}),
    ]
}

/// More than 40 constraints of every kind.
pub fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = schemas().into_iter().map(schema).collect();
    cases.push(compact(
        json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"},
        "maxItems": 3}, "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": false}),
    ));
    cases.push(compact(
        json!({"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3}),
    ));
    let is_object = |text: &str| match parsed(text)?.is_object() {
        true => Ok(()),
        false => Err("no object".to_string()),
    };
    cases.push(Case {
        asked: Constraint::JsonObject.into(),
        judge: Box::new(is_object),
    });
    for pattern in [
        r"[a-z]{2,8}@[a-z]{2,5}\.(com|org)",
        r"\+?[0-9]{3}-[0-9]{4}",
        r"(yes|no|maybe)!{0,3}",
        r"[A-F0-9]{2}(:[A-F0-9]{2}){3}",
        r"(?i)hello( world)?",
        r"[^a-zA-Z]{1,5}",
        r"a*b+c?",
        r"(é|世|😀|ñ){1,4}",
        r"\d{4}/\d{2}",
        r"((a|b)c){2,4}d?",
        r"(.|\n){1,6}",
    ] {
        cases.push(regex(pattern));
    }
    cases.push(choice(&["positive", "negative", "neutral"]));
    cases.push(choice(&["a", "ab", "abc", "b", "\"quoted\"", "line\nbreak", "ünï", ""]));
    cases.push(grammar(
        "start: NUMBER (OP NUMBER){1,2}\nNUMBER: /[0-9]{1,3}/\nOP: \"+\" | \"-\"\n",
        full_match("[0-9]{1,3}([+-][0-9]{1,3}){1,2}"),
    ));
    cases.push(grammar(
        "root ::= \"<\" [a-z]{1,4} \">\" (\"x\" | \"yy\")* \"</>\"",
        full_match("<[a-z]{1,4}>(x|yy)*</>"),
    ));
    cases.push(grammar(
        "root ::= one root? \none ::= \"(\" root? \")\" | \"[\" root? \"]\"",
        Box::new(balanced),
    ));
    cases.push(grammar(
        "start: \"v=\" %json {\"type\": \"integer\", \"minimum\": 10, \"maximum\": 99}",
        full_match("v=[1-9][0-9]"),
    ));
    let call = regex::Regex::new(r"(?s)<call>(.*?)</call>").expect("a regex");
    let legacy = json!({"structures": [{"begin": "<call>", "schema": {"type": "array", "items": {"type": "boolean"},
        "maxItems": 2}, "end": "</call>"}], "triggers": ["<call>"]});
    cases.push(tag(
        legacy,
        Box::new(move |text| call.captures_iter(text).try_for_each(|call| parsed(&call[1]).map(drop))),
    ));
    let forced = json!({"type": "structural_tag", "format": {"type": "tag", "begin": "<call>", "end": "</call>",
        "content": {"type": "json_schema", "json_schema": {"type": "array", "items": {"type": "integer"},
            "maxItems": 2}}}});
    cases.push(tag(
        forced,
        Box::new(|text| {
            let inner = text
                .strip_prefix("<call>")
                .and_then(|text| text.strip_suffix("</call>"));
            match parsed(inner.ok_or("no tag")?)?.is_array() {
                true => Ok(()),
                false => Err("no list".to_string()),
            }
        }),
    ));
    cases
}
