//! The OpenAPI document against the readers of bodies. A field that a reader knows and the document lacks fails here,
//! and one that no reader takes; so does another type, another list of values, or null where it is not read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use halyard_models::GenerationDefaults;
use halyard_text::{AnswerFormat, Tokenizer};
use serde_json::{Value, json};

use super::asked_chat::ReasoningEffort;
use super::body::Body;
use super::fields_read::{self, Shape, Shapes, noted};
use super::lenient::{Flag, Int};
use super::logits_args::LogitsFields;
use super::messages::count_tokens;
use super::model::ModelContext;
use super::parsers::Parsers;
use super::policy::{Limits, ServingDefaults};
use super::shared::SchedulingFields;
use super::tokenize::{detokenize, tokenize};
use super::{chat, completion, messages, responses};
use crate::openapi::{Served, document};

/// The requests of the document, by schema: what each reader takes.
fn taken() -> Vec<(&'static str, Shapes)> {
    let json = fixture("tokenizer.json");
    let tokenizer = Tokenizer::from_json(&json, "the fixture").expect("the fixture");
    let parsers = Parsers::new(&AnswerFormat::new(None, None).expect("none"), &tokenizer);
    let (defaults, serving) = (GenerationDefaults::default(), ServingDefaults::default());
    let context = ModelContext {
        tokenizer: &tokenizer,
        chat_template: None,
        defaults: &defaults,
        vocab_size: 100,
        max_model_len: 64,
        limits: Limits::default(),
        serving: &serving,
        parsers: &parsers,
        truncates: false,
        conversation: None,
        cancel: None,
    };
    // Bodies whose fields are all read before the first error; there is no template, so a chat ends in one.
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 1});
    let read = |run: &mut dyn FnMut(&mut Body), body: &Value| {
        noted();
        run(&mut Body::new(body.clone()).expect("an object"));
        let mut shapes = Shapes::new();
        let (structs, names) = noted();
        for (name, of_struct) in structs {
            // `/v1/messages` hands shared readers a body of its own making, with four of their fields.
            if !(body == &chat && OWN_BODY.contains(&name)) {
                shapes.extend(of_struct);
            }
        }
        // What is only looked at, in bodies and in the layers of routes.
        let looked = names.into_iter().chain(["model", "request_id"].map(str::to_owned));
        for name in looked {
            shapes.entry(name).or_default();
        }
        shapes
    };
    let mut all = Vec::new();
    for (schema, api, body) in [
        ("ChatRequest", &chat::API, json!({"messages": []})),
        ("CompletionRequest", &completion::API, json!({"prompt": "a"})),
        ("ResponsesRequest", &responses::API, json!({"input": "a"})),
        ("MessagesRequest", &messages::API, chat.clone()),
    ] {
        let mut shapes = read(&mut |body| drop((api.read)(body, context)), &body);
        shapes.extend(fields_read::shapes::<SchedulingFields>().1);
        shapes.extend(fields_read::shapes::<LogitsFields>().1);
        all.push((schema, shapes));
    }
    let count = &mut |body: &mut Body| drop(count_tokens(body, context));
    all.push(("CountTokensRequest", read(count, &chat)));
    let ids = &mut |body: &mut Body| drop(tokenize(body, context));
    all.push(("TokenizeRequest", read(ids, &json!({"prompt": "a"}))));
    let text = &mut |body: &mut Body| drop(detokenize(body, context));
    all.push(("DetokenizeRequest", read(text, &json!({"tokens": []}))));
    all
}

const OWN_BODY: [&str; 4] = ["StreamFields", "TruncationFields", "SamplingFields", "StructuredFields"];

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/llama");
    std::fs::read(folder.join(name)).expect("the fixture")
}

/// The properties of a schema and of those that it joins. Where two have a name the first counts, as on the page.
fn properties(document: &Value, schema: &Value) -> BTreeMap<String, Value> {
    let schema = resolved(document, schema);
    let mut found = BTreeMap::new();
    let own = schema["properties"].as_object().into_iter().flatten();
    found.extend(own.map(|(name, field)| (name.clone(), resolved(document, field).clone())));
    for part in schema["allOf"].as_array().into_iter().flatten() {
        for (name, field) in properties(document, part) {
            found.entry(name).or_insert(field);
        }
    }
    found
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    let pointer = schema["$ref"]
        .as_str()
        .and_then(|reference| reference.strip_prefix('#'));
    pointer.map_or(schema, |pointer| document.pointer(pointer).expect("a schema"))
}

/// The JSON types of a schema's values; none: any.
fn kinds(document: &Value, schema: &Value) -> BTreeSet<String> {
    let of_value = |value: &Value| {
        let kind = match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "integer",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        kind.to_owned()
    };
    let schema = resolved(document, schema);
    if let Some(choices) = schema["anyOf"].as_array() {
        return choices.iter().flat_map(|choice| kinds(document, choice)).collect();
    }
    match (&schema["type"], schema["enum"].as_array(), schema.get("const")) {
        (Value::String(kind), _, _) => BTreeSet::from([kind.clone()]),
        (Value::Array(kinds), _, _) => kinds.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        (_, Some(values), _) => values.iter().map(of_value).collect(),
        (_, None, Some(value)) => BTreeSet::from([of_value(value)]),
        _ => BTreeSet::new(),
    }
}

/// What the document says of a field that a reader takes with `shape`, where it says something else.
fn difference(document: &Value, schema: &Value, shape: &Shape) -> Option<String> {
    let kinds = kinds(document, schema);
    // A field that is only ever null is one that is refused.
    if shape.kind.is_empty() || kinds.iter().eq(["null"]) {
        return None;
    }
    let mut read = BTreeSet::from([shape.kind.to_owned()]);
    read.extend(shape.takes_null.then(|| "null".to_owned()));
    let values: Vec<&str> = resolved(document, schema)["enum"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let is_enumeration = !shape.values.is_empty();
    let is_same = kinds == read && (!is_enumeration || values == shape.values);
    (!is_same).then(|| format!("the document says {kinds:?} {values:?}, it is read as {shape:?}"))
}

/// The differences between a schema of the document and what a reader takes.
fn differences(document: &Value, schema: &Value, shapes: &Shapes, prefix: &str) -> Vec<String> {
    let said = properties(document, schema);
    let mut found = Vec::new();
    let own = |path: &str| {
        let rest = path.strip_prefix(prefix)?;
        (!rest.contains('.')).then(|| rest.to_owned())
    };
    let read: BTreeMap<String, &Shape> = shapes
        .iter()
        .filter_map(|(path, shape)| Some((own(path)?, shape)))
        .collect();
    for name in read.keys().filter(|name| !said.contains_key(*name)) {
        found.push(format!("{prefix}{name} is read, and the document does not have it"));
    }
    for (name, field) in &said {
        let Some(shape) = read.get(name) else {
            found.push(format!("{prefix}{name} is in the document, and no reader takes it"));
            continue;
        };
        found.extend(difference(document, field, shape).map(|words| format!("{prefix}{name}: {words}")));
        let below = format!("{prefix}{name}.");
        if shapes.keys().any(|path| path.starts_with(&below)) {
            found.extend(differences(document, field, shapes, &below));
        }
    }
    found
}

#[test]
fn the_document_has_the_fields_that_readers_take() {
    let document = document(&Served {
        model: "tiny",
        max_model_len: 64,
        vocab_size: 100,
        root_path: "",
        has_ui: true,
        dev_mode: true,
    });
    let mut found = Vec::new();
    for (schema, mut shapes) in taken() {
        // The struct behind `Object`, whose name serde does not tell.
        if shapes.contains_key("stream_options") {
            let options = crate::openai::usage::stream_option_shapes();
            shapes.extend(
                options
                    .into_iter()
                    .map(|(name, shape)| (format!("stream_options.{name}"), shape)),
            );
        }
        let said = json!({"$ref": format!("#/components/schemas/{schema}")});
        let differences = differences(&document, &said, &shapes, "");
        found.extend(differences.into_iter().map(|words| format!("{schema}: {words}")));
    }
    assert!(
        found.is_empty(),
        "server/openapi/requests.json and the readers of bodies differ:\n{}",
        found.join("\n")
    );
}

#[test]
fn a_struct_tells_its_fields_their_types_and_what_lies_within() {
    #[derive(serde::Deserialize)]
    #[expect(dead_code, reason = "only its shape is asked for")]
    struct Outer {
        number: Int,
        inner: Option<Inner>,
        any: Value,
        list: Vec<String>,
    }
    #[derive(serde::Deserialize)]
    #[expect(dead_code, reason = "only its shape is asked for")]
    struct Inner {
        effort: Option<ReasoningEffort>,
        flag: Flag,
    }
    let (name, shapes) = fields_read::shapes::<Outer>();
    assert_eq!(name, "Outer");
    let told: Vec<_> = shapes
        .iter()
        .map(|(path, shape)| (path.as_str(), shape.kind, shape.takes_null, shape.values.len()))
        .collect();
    let expected = [
        ("any", "", false, 0),
        ("inner", "object", true, 0),
        ("inner.effort", "string", true, 7),
        ("inner.flag", "boolean", false, 0),
        ("list", "array", false, 0),
        ("number", "integer", false, 0),
    ];
    assert_eq!(told, expected);
}
