//! The resolver through its tables: adapters are found, and no name leads out of the root.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;

use halyard_lora_resolver_filesystem::plugin;
use halyard_platform_api::lora_resolver::{LoraQuery, LoraResolver};
use halyard_platform_api::{Result, Status};
use halyard_plugin_host::Plugin;

/// A root with adapters, and outside it an adapter that no request may get.
struct Folders {
    base: PathBuf,
    resolver: Arc<dyn LoraResolver>,
}

impl Folders {
    fn new(name: &str) -> Folders {
        let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&base);
        for adapter in ["root/summary", "root/team/translate", "outside/secret"] {
            adapter_at(&base.join(adapter));
        }
        let config = serde_json::json!({"root": base.join("root")}).to_string();
        let base = base.canonicalize().expect("it was made");
        Folders {
            resolver: create(&config).expect("it starts"),
            base,
        }
    }

    fn resolve(&self, name: &str) -> Result<Option<PathBuf>> {
        self.resolver.resolve(&LoraQuery {
            name,
            base_model: "base",
            timeout_ms: 1000,
        })
    }
}

fn create(config: &str) -> Result<Arc<dyn LoraResolver>> {
    let plugin = Plugin::from_linked(plugin()).expect("it loads");
    plugin.lora_resolver_factory().expect("its kind").create(config)
}

fn adapter_at(path: &PathBuf) {
    fs::create_dir_all(path).expect("a folder");
    fs::write(path.join("adapter_config.json"), "{}").expect("a file");
    fs::write(path.join("adapter_model.safetensors"), "").expect("a file");
}

#[test]
fn adapters_are_found_and_others_are_not_its_own() {
    let folders = Folders::new("found");
    for name in ["summary", "team/translate"] {
        let expected = folders.base.join("root").join(name);
        assert_eq!(folders.resolve(name).expect("answered"), Some(expected));
    }
    fs::create_dir_all(folders.base.join("root/empty")).expect("a folder");
    for name in [
        "absent",
        "empty",
        "team",
        "summary/adapter_config.json",
        "summary/adapter_config.json/x",
    ] {
        assert_eq!(folders.resolve(name).expect("answered"), None, "{name}");
    }
}

#[test]
fn no_name_leads_out_of_the_root() {
    let folders = Folders::new("names");
    let absolute = folders.base.join("outside/secret");
    let absolute = absolute.to_str().expect("UTF-8");
    let long = "x".repeat(256);
    let attempts = [
        "../outside/secret",
        "summary/../../outside/secret",
        "..",
        ".",
        "",
        "/",
        absolute,
        "./summary",
        "summary/",
        "//summary",
        "summary//x",
        "summary/..",
        "..\\outside\\secret",
        "summary\0",
        "a\nb",
        ".hidden",
        "a/b/c/d",
        &long,
    ];
    for name in attempts {
        let error = folders.resolve(name).expect_err(name);
        assert_eq!(error.status, Status::Denied, "{name:?}: {error}");
        assert!(!error.message.contains("outside/secret\" is"), "{error}");
    }
    // What an encoded attempt decodes to is the server's matter; as it stands it is a name like another.
    assert_eq!(folders.resolve("%2e%2e%2foutside").expect("answered"), None);
}

#[test]
fn no_link_leads_out_of_the_root() {
    let folders = Folders::new("links");
    let root = folders.base.join("root");
    symlink(folders.base.join("outside/secret"), root.join("absolute-link")).expect("a link");
    symlink("../outside", root.join("relative-link")).expect("a link");
    symlink("..", root.join("up")).expect("a link");
    symlink(".", root.join("itself")).expect("a link");
    adapter_at(&root.join("half"));
    fs::remove_file(root.join("half/adapter_model.safetensors")).expect("it was made");
    let weights = folders.base.join("outside/secret/adapter_model.safetensors");
    symlink(weights, root.join("half/adapter_model.safetensors")).expect("a link");
    for name in [
        "absolute-link",
        "relative-link/secret",
        "up",
        "up/outside/secret",
        "itself",
        "half",
    ] {
        let error = folders.resolve(name).expect_err(name);
        assert_eq!(error.status, Status::Denied, "{name}: {error}");
        assert!(error.message.contains("link"), "{name}: {error}");
    }
    symlink("nowhere", root.join("dangling")).expect("a link");
    assert_eq!(folders.resolve("dangling").expect("answered"), None);
    symlink("summary", root.join("alias")).expect("a link");
    assert_eq!(
        folders.resolve("alias").expect("within the root"),
        Some(root.join("summary"))
    );
}

#[test]
fn configurations_are_refused_by_key() {
    for (config, words) in [
        ("{}", "root"),
        (r#"{"root": "relative"}"#, "relative path"),
        (r#"{"root": "/nonexistent-folder"}"#, "/nonexistent-folder"),
        (r#"{"root": "/", "depth": 3}"#, "depth"),
    ] {
        let error = create(config).err().expect(config);
        assert_eq!(error.status, Status::InvalidArgument, "{error}");
        assert!(error.message.contains(words), "{config}: {error}");
    }
}
