//! The OpenAPI document. Its parts are written in `server/openapi/`, one entry a route and one line a field; here they
//! are put together for what this server serves. Adds to each operation what all have: an id and the errors of the
//! layers. What holds the parts to the routes and to the readers of bodies: `tests/openapi.rs` and
//! `openai/fields_read_tests.rs` (decision 0083).

pub mod page;

use serde_json::{Map, Value, json};

use crate::openai::messages;

const DOCUMENT: &str = include_str!("../openapi/document.json");
const PATHS: &str = include_str!("../openapi/paths.json");
const REQUESTS: &str = include_str!("../openapi/requests.json");
const ANSWERS: &str = include_str!("../openapi/answers.json");

/// Statuses of errors, with what they mean.
const ERRORS: [(u16, &str); 16] = [
    (400, "A field is wrong or not offered; the message names it."),
    (401, "No key, or a wrong one."),
    (403, "The operator has not allowed this."),
    (404, "There is no such model, route or thing."),
    (405, "The route does not take this method."),
    (408, "The body came too slowly."),
    (409, "It is not possible now."),
    (413, "The body is too large."),
    (415, "The body's type is not application/json."),
    (421, "The server does not answer for this host."),
    (422, "It cannot be done."),
    (429, "Too many requests."),
    (500, "The server failed; the log and the message say why."),
    (501, "The platform cannot do this."),
    (503, "The server is full or ends; Retry-After says when to ask again."),
    (504, "It did not come in time."),
];

/// Errors of the layers around every route.
const OF_ALL: [u16; 3] = [421, 500, 503];
/// Errors of the reading of a body.
const OF_BODIES: [u16; 4] = [400, 408, 413, 415];

/// What a document is made for.
#[derive(Clone, Copy, Debug)]
pub struct Served<'a> {
    /// The model's name.
    pub model: &'a str,
    /// Its context in tokens.
    pub max_model_len: u32,
    /// Its tokens' ids run from 0 to one less.
    pub vocab_size: u32,
    /// The path under which a proxy serves it; empty: none.
    pub root_path: &'a str,
    /// The page at `/ui` is served.
    pub has_ui: bool,
    /// Routes for development are served.
    pub dev_mode: bool,
}

/// A part of the document; the tests read each of them.
fn part(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

/// The document of a server.
pub fn document(served: &Served<'_>) -> Value {
    let mut document = Value::Object(part(DOCUMENT));
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    if !served.root_path.is_empty() {
        document["servers"] = json!([{"url": served.root_path}]);
    }
    let mut paths = part(PATHS);
    paths.retain(|_, routes| match routes["x-served-with"].as_str() {
        Some("ui") => served.has_ui,
        Some("dev-mode") => served.dev_mode,
        _ => true,
    });
    for (path, routes) in &mut paths {
        finish_route(path, routes);
    }
    document["paths"] = paths.into();
    let mut schemas = part(REQUESTS);
    schemas.extend(part(ANSWERS));
    document["components"]["schemas"] = schemas.into();
    document["components"]["responses"] = error_answers().into();
    fill(&mut document, served);
    document
}

/// Gives each operation of a route its id and its errors.
fn finish_route(path: &str, routes: &mut Value) {
    let Some(routes) = routes.as_object_mut() else { return };
    routes.remove("x-served-with");
    let prefix = match messages::API.has(path) {
        true => "MessagesError",
        false => "Error",
    };
    for (method, operation) in routes.iter_mut().filter(|(name, _)| *name != "parameters") {
        let own = operation.as_object_mut().and_then(|fields| fields.remove("x-errors"));
        let own = own.unwrap_or_default();
        let own = own.as_array().into_iter().flatten().filter_map(Value::as_u64);
        let mut statuses: Vec<u64> = own.chain(OF_ALL.map(u64::from)).collect();
        if !operation["requestBody"].is_null() {
            statuses.extend(OF_BODIES.map(u64::from));
        }
        if operation["security"].is_null() {
            statuses.push(401);
        }
        statuses.sort_unstable();
        for status in statuses {
            let reference = format!("#/components/responses/{prefix}{status}");
            operation["responses"][status.to_string()] = json!({"$ref": reference});
        }
        operation["operationId"] = operation_id(method, path).into();
    }
}

/// `get_v1_models` of `GET /v1/models`.
fn operation_id(method: &str, path: &str) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = path.split(|c: char| !is_word(c)).filter(|word| !word.is_empty());
    let mut id = words.fold(method.to_owned(), |id, word| format!("{id}_{word}"));
    if path.len() > 1 && path.ends_with('/') {
        id.push_str("_index");
    }
    id
}

/// Answers that are errors, in OpenAI's form and in Anthropic's.
fn error_answers() -> Map<String, Value> {
    let mut answers = Map::new();
    for (status, words) in ERRORS {
        for form in ["Error", "MessagesError"] {
            let schema = format!("#/components/schemas/{form}");
            let content = json!({"application/json": {"schema": {"$ref": schema}}});
            let mut answer = json!({"description": words, "content": content});
            if status == 503 {
                answer["headers"] = json!({"Retry-After": {"$ref": "#/components/headers/RetryAfter"}});
            }
            answers.insert(format!("{form}{status}"), answer);
        }
    }
    answers
}

/// Puts this server's name and bounds where the parts ask for them.
fn fill(node: &mut Value, served: &Served<'_>) {
    match node {
        Value::Array(entries) => entries.iter_mut().for_each(|entry| fill(entry, served)),
        Value::Object(fields) => {
            let limit = fields.remove("x-limit");
            let maximum = match limit.as_ref().and_then(Value::as_str) {
                Some("context") => Some(served.max_model_len),
                Some("vocabulary") => Some(served.vocab_size.saturating_sub(1)),
                _ => None,
            };
            if let Some(maximum) = maximum {
                fields.insert("maximum".to_owned(), maximum.into());
            }
            if fields.remove("x-is-model").is_some() {
                fields.insert("example".to_owned(), served.model.into());
            }
            fields.values_mut().for_each(|field| fill(field, served));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn whole() -> Value {
        document(&Served {
            model: "tiny",
            max_model_len: 64,
            vocab_size: 100,
            root_path: "/llm",
            has_ui: true,
            dev_mode: true,
        })
    }

    fn walk<'a>(node: &'a Value, see: &mut dyn FnMut(&'a str, &'a Value)) {
        match node {
            Value::Array(entries) => entries.iter().for_each(|entry| walk(entry, see)),
            Value::Object(fields) => fields.iter().for_each(|(name, field)| {
                see(name, field);
                walk(field, see);
            }),
            _ => {}
        }
    }

    #[test]
    fn every_part_is_json_and_every_reference_has_its_end() {
        for text in [DOCUMENT, PATHS, REQUESTS, ANSWERS] {
            serde_json::from_str::<Map<String, Value>>(text).expect("an object");
        }
        let names = |text| part(text).keys().cloned().collect::<BTreeSet<_>>();
        assert!(names(REQUESTS).is_disjoint(&names(ANSWERS)));
        let document = whole();
        let mut used = BTreeSet::new();
        walk(&document, &mut |name, field| match (name, field.as_str()) {
            ("$ref", Some(reference)) => {
                let end = reference
                    .strip_prefix('#')
                    .and_then(|pointer| document.pointer(pointer));
                assert!(end.is_some(), "{reference}");
                used.insert(reference.rsplit('/').next().unwrap_or_default());
            }
            _ => assert!(!name.starts_with("x-"), "{name} is left"),
        });
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        let unused: Vec<_> = schemas.keys().filter(|name| !used.contains(name.as_str())).collect();
        assert_eq!(unused, [""; 0], "schemas that nothing uses");
    }

    #[test]
    fn operations_have_ids_of_their_own_and_the_errors_of_their_layers() {
        let document = whole();
        let mut ids = BTreeSet::new();
        for (path, routes) in document["paths"].as_object().expect("paths") {
            let routes = routes.as_object().expect("routes");
            for (method, operation) in routes.iter().filter(|(name, _)| *name != "parameters") {
                let id = operation["operationId"].as_str().expect("an id");
                assert!(ids.insert(id.to_owned()), "{id} is there twice");
                for field in ["summary", "tags"] {
                    assert!(!operation[field].is_null(), "{method} {path} has no {field}");
                }
                let answers = &operation["responses"];
                // Names beside the files of a page need the key.
                let is_open = !operation["security"].is_null() && !path.ends_with("/{file}");
                assert_eq!(answers["401"].is_null(), is_open, "{path}");
                assert_eq!(answers["413"].is_null(), operation["requestBody"].is_null(), "{path}");
                assert!(!answers["503"].is_null(), "{path}");
            }
        }
        let of = |path: &str| document["paths"][path]["post"]["responses"]["400"]["$ref"].clone();
        assert_eq!(
            of("/v1/messages/count_tokens"),
            "#/components/responses/MessagesError400"
        );
        assert_eq!(of("/tokenize"), "#/components/responses/Error400");
    }

    #[test]
    fn bounds_and_names_are_the_server_s() {
        let schemas = &whole()["components"]["schemas"];
        assert_eq!(whole()["servers"][0]["url"], "/llm");
        assert_eq!(schemas["TokenId"]["maximum"], 99);
        assert_eq!(
            schemas["MessagesRequest"]["allOf"][0]["properties"]["max_tokens"]["maximum"],
            64
        );
        assert_eq!(schemas["Any"]["properties"]["model"]["example"], "tiny");
    }
}
