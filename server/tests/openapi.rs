//! The OpenAPI document and its page on the real router: every route with its methods and nothing else, the key, the
//! switch. That the document has the fields of bodies is tested beside their readers (`openai/fields_read_tests.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::{Answer, Options, TestServer};
use axum::body::Body;
use axum::http::{Method, Request};
use halyard_server::openai::apis::APIS;
use halyard_server::openapi::page;
use serde_json::Value;

/// Paths with their methods.
type Routes = BTreeMap<String, BTreeSet<String>>;

fn whole() -> TestServer {
    TestServer::with(Options {
        dev_mode: true,
        ..Options::default()
    })
}

async fn ask(server: &TestServer, method: &str, path: &str, key: Option<&str>) -> Answer {
    let method = Method::from_bytes(method.as_bytes()).expect("a method");
    let mut request = Request::builder().method(method).uri(path);
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    server.send(request.body(Body::empty()).expect("a request")).await
}

/// The paths in the calls of `route` of a file.
fn paths_in(text: &str) -> Vec<String> {
    let calls = text.split(".route(").skip(1);
    let literals = calls.filter_map(|call| call.trim_start().strip_prefix('"')?.split_once('"'));
    literals.map(|(path, _)| path.to_owned()).collect()
}

/// Every path of the router as its source has it.
fn routed_paths() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http");
    let mut paths: BTreeSet<String> = APIS.iter().map(|api| api.path.to_owned()).collect();
    for entry in std::fs::read_dir(source).expect("the folder") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a file");
        let own = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        if !path.to_string_lossy().ends_with("_tests.rs") {
            paths.extend(paths_in(own));
        }
    }
    paths
}

/// The path of the document for a path of the router.
fn documented(path: &str) -> String {
    path.replace("{*", "{")
}

/// The document's routes.
fn said(document: &Value) -> Routes {
    let methods = |route: &Value| -> BTreeSet<String> {
        let names = route.as_object().expect("a route").keys();
        names
            .filter(|name| *name != "parameters")
            .map(|name| name.to_uppercase())
            .collect()
    };
    let paths = document["paths"].as_object().expect("paths");
    paths
        .iter()
        .map(|(path, route)| (path.clone(), methods(route)))
        .collect()
}

#[tokio::test]
async fn the_document_has_every_route_and_no_other() {
    let server = whole();
    let document = server.get("/openapi.json").await.ok();
    assert_eq!(document["openapi"], "3.1.0");
    let said = said(&document);
    let mut served = Routes::new();
    for path in routed_paths() {
        // A method that nobody takes: the answer lists those that are taken.
        let address = path.replace(['{', '}', '*'], "");
        let answer = ask(&server, "PROBE", &address, None).await;
        assert_eq!(answer.status, 405, "{path}: {}", answer.text);
        let allowed = answer.headers["allow"].to_str().expect("text").split(',');
        // A GET is also a HEAD.
        let allowed = allowed
            .map(|method| method.trim().to_owned())
            .filter(|method| method != "HEAD");
        served.insert(documented(&path), allowed.collect());
    }
    assert!(served.len() > 25, "{served:?}");
    let missing: Vec<_> = served
        .iter()
        .filter(|(path, methods)| said.get(*path) != Some(methods))
        .collect();
    assert!(
        missing.is_empty(),
        "server/openapi/paths.json lacks these routes or methods: {missing:?}"
    );
    let unknown: Vec<_> = said.keys().filter(|path| !served.contains_key(*path)).collect();
    assert!(
        unknown.is_empty(),
        "server/openapi/paths.json has routes that the server lacks: {unknown:?}"
    );
}

#[tokio::test]
async fn what_is_off_is_not_in_the_document() {
    let off = TestServer::with(Options {
        no_ui: true,
        ..Options::default()
    });
    let said = said(&off.get("/openapi.json").await.ok());
    assert!(
        said.keys()
            .all(|path| !path.starts_with("/ui") && path != "/abort_requests")
    );
    assert!(said.contains_key("/v1/chat/completions") && said.contains_key("/docs/"));
}

#[tokio::test]
async fn path_parameters_are_described() {
    let document = whole().get("/openapi.json").await.ok();
    for (path, route) in document["paths"].as_object().expect("paths") {
        let asked: BTreeSet<&str> = path
            .split('{')
            .skip(1)
            .filter_map(|rest| Some(rest.split_once('}')?.0))
            .collect();
        for (method, operation) in route
            .as_object()
            .expect("a route")
            .iter()
            .filter(|(name, _)| *name != "parameters")
        {
            let lists = [&route["parameters"], &operation["parameters"]];
            let all = lists.into_iter().filter_map(Value::as_array).flatten();
            let resolved = all.map(|one| match one["$ref"].as_str() {
                Some(reference) => document.pointer(&reference[1..]).expect("a parameter"),
                None => one,
            });
            let said: BTreeSet<&str> = resolved
                .filter(|one| one["in"] == "path")
                .filter_map(|one| one["name"].as_str())
                .collect();
            assert_eq!(said, asked, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn operations_without_security_are_those_that_need_no_key() {
    let server = TestServer::with(Options {
        api_keys: vec!["sesame"],
        dev_mode: true,
        ..Options::default()
    });
    let refused = ask(&server, "GET", "/openapi.json", None).await;
    refused.error(401);
    let document = ask(&server, "GET", "/openapi.json", Some("sesame")).await.ok();
    let of_file = |path: &str| match path {
        "/docs/{file}" => "/docs/docs.js".to_owned(),
        "/ui/{file}" => "/ui/app.js".to_owned(),
        path => path.replace(['{', '}'], ""),
    };
    for (path, route) in document["paths"].as_object().expect("paths") {
        for (method, operation) in route
            .as_object()
            .expect("a route")
            .iter()
            .filter(|(name, _)| *name != "parameters")
        {
            let answer = ask(&server, &method.to_uppercase(), &of_file(path), None).await;
            let is_open = answer.status != 401;
            assert_eq!(is_open, !operation["security"].is_null(), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn the_page_is_in_the_program_and_both_can_be_off() {
    let server = TestServer::with(Options {
        api_keys: vec!["sesame"],
        ..Options::default()
    });
    let moved = server.get("/docs").await;
    assert_eq!(
        (moved.status.as_u16(), &moved.headers["location"]),
        (308, &"docs/".parse().expect("a value"))
    );
    let page_answer = server.get("/docs/").await;
    assert_eq!(page_answer.status, 200);
    assert!(
        page_answer.headers["content-security-policy"]
            .to_str()
            .expect("text")
            .starts_with("default-src 'self'")
    );
    for file in page::files() {
        let answer = server.get(&format!("/docs/{}", file.name)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.text.as_bytes()),
            (200, file.bytes),
            "{}",
            file.name
        );
    }
    ask(&server, "GET", "/docs/none.js", Some("sesame")).await.error(404);
    let off = TestServer::with(Options {
        no_docs: true,
        ..Options::default()
    });
    for path in ["/openapi.json", "/docs", "/docs/", "/docs/docs.js"] {
        assert_eq!(off.get(path).await.error(404)["code"], "unknown_route", "{path}");
    }
}
