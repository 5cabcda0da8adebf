//! Downloads through the real `halyard-hub` from a hub in this process: which files are chosen, resumed, checked and
//! kept, and that offline mode downloads nothing.

mod common;

use common::{COMMIT, FakeHub, fetch, weights};
use halyard_models::LoadFormat;
use halyard_server::source::{self, SourceError, SourceSettings};
use sha2::{Digest, Sha256};

#[tokio::test]
async fn a_folder_comes_whole_and_is_not_asked_for_again() {
    let weights = weights(100_000);
    let hub = FakeHub::start(&[
        ("config.json", b"{}"),
        ("model.safetensors", &weights),
        ("tokenizer.json", b"{ }"),
        ("README.md", b"x"),
    ])
    .await;
    let path = fetch(&hub.settings, "org/model").await.expect("comes");
    assert_eq!(std::fs::read(path.join("model.safetensors")).expect("there"), weights);
    assert!(path.join("tokenizer.json").exists());
    assert!(
        !path.join("README.md").exists(),
        "what a model does not need is not fetched"
    );
    assert!(
        hub.requests()
            .iter()
            .filter(|request| request.starts_with("GET"))
            .all(|request| request.contains(COMMIT)),
        "pinned"
    );
    assert_eq!(fetch(&hub.settings, "org/model").await.expect("still there"), path);
    assert_eq!(hub.requests(), Vec::<String>::new(), "a complete model asks nothing");
    for offline in [false, true] {
        let settings = SourceSettings {
            offline,
            hub_program: hub.folder.join("not-there"),
            ..hub.settings.clone()
        };
        let found = source::resolve(Some("org/model"), LoadFormat::Auto, &settings).await;
        assert_eq!(found.expect("a complete model starts no program").path, path);
    }
}

#[tokio::test]
async fn a_quantisation_names_one_file() {
    let (small, large) = (weights(1000), weights(2000));
    let hub = FakeHub::start(&[("m-Q4_K_M.gguf", &small), ("m-Q8_0.gguf", &large)]).await;
    let path = fetch(&hub.settings, "org/m-GGUF:Q8_0").await.expect("comes");
    assert_eq!(std::fs::read(&path).expect("there"), large);
    assert!(path.ends_with("m-Q8_0.gguf"));
    let error = fetch(&hub.settings, "org/m-GGUF:Q2_K")
        .await
        .expect_err("not there")
        .to_string();
    assert!(error.contains("Q2_K") && error.contains("m-Q4_K_M.gguf"), "{error}");
}

#[tokio::test]
async fn a_download_that_broke_off_is_resumed() {
    let weights = weights(3_000_000);
    let hub = FakeHub::start(&[("m.gguf", &weights)]).await;
    hub.shared.lock().expect("no panics").break_after = Some(1_000_000);
    let path = fetch(&hub.settings, "org/m").await.expect("comes in the end");
    assert_eq!(std::fs::read(&path).expect("there"), weights);
    let requests = hub.requests();
    let resumed = requests
        .iter()
        .filter(|request| request.contains("bytes=") && !request.contains("bytes=0-"))
        .count();
    assert_eq!(resumed, 1, "{requests:?}");
}

#[tokio::test]
async fn what_an_earlier_run_left_is_resumed() {
    let weights = weights(50_000);
    let hub = FakeHub::start(&[("m.gguf", &weights)]).await;
    let folder = hub.settings.cache_dir.join("org--m");
    std::fs::create_dir_all(&folder).expect("a folder");
    let sum: String = Sha256::digest(&weights)
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    std::fs::write(folder.join(format!(".m.gguf.{sum}.part")), &weights[..20_000]).expect("a part");
    let path = fetch(&hub.settings, "org/m").await.expect("comes");
    assert_eq!(std::fs::read(&path).expect("there"), weights);
    assert!(
        hub.requests()
            .iter()
            .any(|request| request.contains("bytes=20000-49999"))
    );
}

#[tokio::test]
async fn a_wrong_checksum_is_refused_and_leaves_nothing() {
    let weights = weights(1000);
    let hub = FakeHub::start(&[("m.gguf", &weights)]).await;
    hub.shared.lock().expect("no panics").false_sum = true;
    let error = fetch(&hub.settings, "org/m").await.expect_err("other bytes");
    assert!(
        matches!(error, SourceError::Mismatch { property: "sha256", .. }),
        "{error}"
    );
    assert!(!hub.settings.cache_dir.join("org--m").join("m.gguf").exists());
}

#[tokio::test]
async fn an_unknown_repository_says_what_to_check() {
    let hub = FakeHub::start(&[]).await;
    let error = fetch(&hub.settings, "org/missing")
        .await
        .expect_err("not there")
        .to_string();
    assert!(error.contains("org/missing") && error.contains("HF_TOKEN"), "{error}");
}

#[tokio::test]
async fn offline_opens_no_connection() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("can");
    let hub = FakeHub::start(&[]).await;
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    let settings = SourceSettings {
        offline: true,
        endpoint: Some(endpoint),
        ..hub.settings.clone()
    };
    let error = source::resolve(Some("org/m"), LoadFormat::Auto, &settings)
        .await
        .expect_err("not here")
        .to_string();
    let accepted = listener.accept().expect_err("no connection came");
    assert_eq!(accepted.kind(), std::io::ErrorKind::WouldBlock);
    assert!(error.contains("HF_HUB_OFFLINE") && error.contains("org--m"), "{error}");
    let demo = source::resolve(None, LoadFormat::Auto, &settings)
        .await
        .expect_err("not here")
        .to_string();
    assert!(demo.contains("HF_HUB_OFFLINE"), "{demo}");
    assert_eq!(
        listener.accept().expect_err("no connection came").kind(),
        std::io::ErrorKind::WouldBlock
    );
}

#[tokio::test]
async fn offline_finds_what_other_tools_cached() {
    let hub = FakeHub::start(&[]).await;
    let repo = hub.settings.hub_cache_dir.clone().expect("set").join("models--org--m");
    let snapshot = repo.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).expect("a folder");
    std::fs::create_dir_all(repo.join("refs")).expect("a folder");
    std::fs::write(repo.join("refs").join("main"), COMMIT).expect("a ref");
    for name in ["config.json", "model.safetensors"] {
        std::fs::write(snapshot.join(name), "{}").expect("a file");
    }
    let offline = SourceSettings {
        offline: true,
        ..hub.settings.clone()
    };
    let model = source::resolve(Some("org/m"), LoadFormat::Auto, &offline)
        .await
        .expect("there");
    assert_eq!(model.path, snapshot);
}

#[tokio::test]
async fn a_revision_is_asked_for_and_kept_apart() {
    let hub = FakeHub::start(&[("m.gguf", &weights(1000))]).await;
    let at = |revision: &str| SourceSettings {
        revision: Some(revision.to_owned()),
        ..hub.settings.clone()
    };
    let fetch = |settings: SourceSettings| async move {
        let model = source::resolve(Some("org/m"), LoadFormat::Auto, &settings).await;
        model.map(|model| model.path)
    };
    let main = fetch(hub.settings.clone()).await.expect("comes");
    assert!(hub.requests().contains(&"tree main".to_owned()));
    let branch = fetch(at("refs/pr/1")).await.expect("comes");
    let requests = hub.requests();
    assert!(
        requests.iter().any(|request| request.starts_with("tree refs")),
        "{requests:?}"
    );
    assert_ne!(main, branch);
    assert_eq!(fetch(at("refs/pr/1")).await.expect("still there"), branch);
    assert_eq!(
        hub.requests(),
        Vec::<String>::new(),
        "each revision is complete by itself"
    );
    for bad in ["../x", "", "a b", "a@b"] {
        let error = fetch(at(bad)).await.expect_err(bad).to_string();
        assert!(error.contains("--revision"), "{error}");
    }
}

#[tokio::test]
async fn a_tokenizer_comes_without_the_model() {
    let files: [(&str, &[u8]); 3] = [
        ("model.safetensors", b"large"),
        ("tokenizer.json", b"{}"),
        ("tokenizer_config.json", b"{}"),
    ];
    let hub = FakeHub::start(&files).await;
    let folder = source::resolve_tokenizer("org/t", &hub.settings).await.expect("comes");
    assert!(folder.join("tokenizer.json").exists() && folder.join("tokenizer_config.json").exists());
    assert!(!folder.join("model.safetensors").exists());
    let without = FakeHub::start(&[("config.json", b"{}")]).await;
    let error = source::resolve_tokenizer("org/t", &without.settings).await;
    assert!(error.expect_err("none").to_string().contains("tokenizer.json"));
    let error = source::resolve_tokenizer("no such", &hub.settings).await;
    assert!(error.expect_err("no name").to_string().contains("--tokenizer no such"));
}

#[tokio::test]
async fn offline_finds_the_revision_that_other_tools_cached() {
    let hub = FakeHub::start(&[]).await;
    let repo = hub.settings.hub_cache_dir.clone().expect("set").join("models--org--m");
    let snapshot = repo.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).expect("a folder");
    std::fs::create_dir_all(repo.join("refs")).expect("a folder");
    std::fs::write(repo.join("refs").join("v1"), COMMIT).expect("a ref");
    for name in ["config.json", "model.safetensors"] {
        std::fs::write(snapshot.join(name), "{}").expect("a file");
    }
    for (revision, there) in [
        (Some("v1"), true),
        (Some(COMMIT), true),
        (Some("v2"), false),
        (None, false),
    ] {
        let offline = SourceSettings {
            offline: true,
            revision: revision.map(str::to_owned),
            ..hub.settings.clone()
        };
        let found = source::resolve(Some("org/m"), LoadFormat::Auto, &offline).await;
        assert_eq!(found.is_ok(), there, "{revision:?}");
    }
}
