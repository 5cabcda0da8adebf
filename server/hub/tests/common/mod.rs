//! A hub in this process, with the routes that hf-hub uses, and the settings that send the server to it through the
//! real `halyard-hub`.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, Response, StatusCode};
use axum::routing::{any, get};
use halyard_models::LoadFormat;
use halyard_server::source::{self, SourceError, SourceSettings};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Default)]
pub struct HubFiles {
    pub files: HashMap<String, Vec<u8>>,
    /// Sent in place of the right sha256.
    pub false_sum: bool,
    /// The first transfer of a large file ends after this many bytes.
    pub break_after: Option<usize>,
    pub requests: Vec<String>,
}

pub type Shared = Arc<Mutex<HubFiles>>;

pub struct FakeHub {
    pub shared: Shared,
    pub folder: PathBuf,
    pub settings: SourceSettings,
}

impl FakeHub {
    pub async fn start(files: &[(&str, &[u8])]) -> Self {
        let shared: Shared = Arc::default();
        let own = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
        shared.lock().expect("no panics").files = own.collect();
        let app = Router::new()
            .route("/api/models/{owner}/{repo}/tree/{revision}", get(tree))
            .route("/{owner}/{repo}/resolve/{revision}/{file}", any(resolve))
            .with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        let folder = std::env::temp_dir().join(format!("halyard-hub-{}", uuid::Uuid::new_v4().simple()));
        let settings = SourceSettings {
            cache_dir: folder.join("models"),
            hub_cache_dir: Some(folder.join("hub")),
            endpoint: Some(endpoint),
            token: Some("secret".to_owned()),
            revision: None,
            offline: false,
            hub_program: PathBuf::from(env!("CARGO_BIN_EXE_halyard-hub")),
            python: PathBuf::from("python3"),
        };
        FakeHub {
            shared,
            folder,
            settings,
        }
    }

    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().expect("no panics").requests)
    }
}

/// What a server does about `--model`.
pub async fn fetch(settings: &SourceSettings, asked: &str) -> Result<PathBuf, SourceError> {
    let model = source::resolve(Some(asked), LoadFormat::Auto, settings).await?;
    assert_eq!(model.name, asked);
    Ok(model.path)
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

async fn tree(
    State(shared): State<Shared>,
    Path((_, repo, revision)): Path<(String, String, String)>,
) -> Response<Body> {
    let mut hub = shared.lock().expect("no panics");
    hub.requests.push(format!("tree {revision}"));
    if repo == "missing" {
        let response = Response::builder()
            .status(StatusCode::NOT_FOUND)
            .header("x-error-code", "RepoNotFound");
        return response
            .body(Body::from("{\"error\": \"Repository not found\"}"))
            .expect("a response");
    }
    let entries = hub
        .files
        .iter()
        .map(|(name, bytes)| json!({"type": "file", "oid": "1", "size": bytes.len(), "path": name}));
    let folder = json!({"type": "directory", "oid": "2", "path": "original"});
    let list: Value = entries.chain([folder]).collect();
    Response::builder()
        .header("content-type", "application/json")
        .body(Body::from(list.to_string()))
        .expect("a response")
}

async fn resolve(
    State(shared): State<Shared>,
    method: Method,
    Path((_, _, revision, file)): Path<(String, String, String, String)>,
    headers: HeaderMap,
) -> Response<Body> {
    let mut hub = shared.lock().expect("no panics");
    let range = headers
        .get("range")
        .and_then(|value| value.to_str().ok())
        .unwrap_or("")
        .to_owned();
    hub.requests
        .push(format!("{method} {file} {revision} {range}").trim_end().to_owned());
    assert_eq!(headers["authorization"], "Bearer secret");
    let Some(bytes) = hub.files.get(&file).cloned() else {
        return Response::builder()
            .status(StatusCode::NOT_FOUND)
            .body(Body::empty())
            .expect("a response");
    };
    let mut sum: String = Sha256::digest(&bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if hub.false_sum {
        sum = "0".repeat(64);
    }
    let large = file.ends_with(".gguf") || file.ends_with(".safetensors");
    let etag = if large { sum } else { "a".repeat(40) };
    let start: usize = range
        .strip_prefix("bytes=")
        .and_then(|range| range.split('-').next()?.parse().ok())
        .unwrap_or(0);
    let part = bytes[start..].to_vec();
    let response = Response::builder()
        .status(if start > 0 {
            StatusCode::PARTIAL_CONTENT
        } else {
            StatusCode::OK
        })
        .header("x-repo-commit", COMMIT)
        .header("etag", format!("\"{etag}\""))
        .header("content-length", part.len());
    if method == Method::HEAD {
        return response.body(Body::empty()).expect("a response");
    }
    match hub.break_after.take_if(|_| large) {
        None => response.body(Body::from(part)).expect("a response"),
        Some(count) => {
            // The pause lets the first bytes leave before the connection breaks.
            let pieces = futures::stream::unfold(0, move |step| {
                let first = Bytes::copy_from_slice(&part[..count]);
                async move {
                    match step {
                        0 => Some((Ok(first), 1)),
                        _ => {
                            tokio::task::yield_now().await;
                            Some((Err(std::io::Error::other("broken off on purpose")), 2))
                        }
                    }
                }
            });
            response.body(Body::from_stream(pieces)).expect("a response")
        }
    }
}

pub fn weights(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 31 % 251) as u8).collect()
}
