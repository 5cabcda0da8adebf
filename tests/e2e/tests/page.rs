//! The page at `/ui` in a headless Chromium, against a running server whose model's words are written down, and the
//! page of routes at `/docs`. Skipped, with the reason, where there is no Chromium or no Node.

use std::path::{Path, PathBuf};
use std::process::Command;

use halyard_e2e::clients::{node_with, output};
use halyard_e2e::scripted::ScriptedModel;
use halyard_e2e::{Server, fixture, installed};

/// The driver of the browser; it brings none.
const DRIVER: &str = "playwright-core@1.65.1";

/// A model that thinks, tells a story with markup in it, calls a tool and never stops.
fn storyteller() -> ScriptedModel {
    let story = "Once upon a time there was a <img src=x onerror=alert(1)> in a tale. ".repeat(6);
    let story = format!("<think>\nA story is wanted.\n</think>\n\n{story}<|im_end|>");
    let call = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call><|im_end|>";
    let endless = "again ".repeat(1000);
    let lines = [
        ("Tell me a story.", story.as_str()),
        ("Rain in Bern?", call),
        ("<tool_response>\n4 mm\n</tool_response>", "Yes: 4 mm.<|im_end|>"),
        ("Never stop.", &endless),
    ];
    ScriptedModel::with_template_of(&fixture("../"), "qwen3", &lines)
}

/// A Chromium of this machine.
fn chromium() -> Result<PathBuf, String> {
    let found = installed("HALYARD_CHROMIUM", &["chromium", "chromium-browser", "google-chrome"]);
    found.ok_or_else(|| "no Chromium is installed: `tests/setup chromium` installs it".to_owned())
}

/// Runs a script of clients/ on a server's page in a browser, with the server's key: it agrees with what it finds. The
/// server is started only where there is a browser.
fn in_a_browser(script: &str, server: impl FnOnce() -> Server) {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let found = chromium().and_then(|browser| Ok((browser, node_with(temporary, &[DRIVER])?)));
    let (browser, driver) = match found {
        Ok(found) => found,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let screenshots = temporary.join("screenshots");
    std::fs::create_dir_all(&screenshots).expect("a folder");
    let server = server();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(script);
    let mut node = Command::new("node");
    node.arg(script)
        .args([&server.url, "sesame"])
        .arg(&screenshots)
        .current_dir(driver)
        .env("HALYARD_CHROMIUM", browser);
    let text = output(&mut node, "the browser").unwrap_or_else(|error| panic!("{error}"));
    assert!(text.contains("the page agrees"), "{text}");
}

#[test]
fn the_page_works_in_a_browser() {
    let model = storyteller();
    let flags = [
        "--api-key",
        "sesame",
        "--enable-auto-tool-choice",
        "--reasoning-parser",
        "qwen3",
        "--tool-call-parser=hermes",
    ];
    in_a_browser("page.mjs", || Server::scripted(&model, &flags));
}

#[test]
fn the_page_of_routes_works_in_a_browser() {
    let flags = ["--api-key", "sesame", "--server-dev-mode"];
    in_a_browser("docs_page.mjs", || Server::tiny(&flags));
}
