//! The OpenAPI document against the server that gives it: schemathesis asks every route for what the document says and
//! for what it forbids, and compares statuses, types and bodies of the answers. Skipped, with the reason, where the
//! package cannot be had.

use std::path::Path;
use std::process::Command;

use halyard_e2e::clients::{output, python_or_skip};
use halyard_e2e::{Server, TestFolder};

/// The tester.
const PACKAGE: &str = "schemathesis==4.32.5";
/// Runs, each with the fewest cases; they make 645, 1,014 and 290, the same on a slow machine. The first asks every
/// operation at random, the second goes through the bounds of each field; generation has too many of them for a test.
/// Pauses and sleep come last and alone: while one holds, a generation has no end.
const RUNS: [(u32, &str); 3] = [
    (500, "--phases fuzzing --exclude-tag pauses --max-examples 30"),
    (
        800,
        "--phases examples,coverage --exclude-tag generation --exclude-tag pauses",
    ),
    (
        200,
        "--phases examples,coverage,fuzzing --include-tag pauses --max-examples 8",
    ),
];
/// After them, while the server sleeps: what is not generation, without what would wake it.
const ASLEEP: (u32, &str) = (
    20,
    "--phases fuzzing --include-tag pauses --exclude-path /wake_up --max-examples 8",
);

/// A template, which the tiny model lacks.
const TEMPLATE: &str = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";

#[test]
fn answers_are_what_the_document_says() {
    let Some(python) = python_or_skip(Path::new(env!("CARGO_TARGET_TMPDIR")), &[PACKAGE]) else {
        return;
    };
    let folder = TestFolder::new("openapi");
    let template = folder.0.join("template.jinja");
    std::fs::write(&template, TEMPLATE).expect("writes");
    let server = Server::tiny(&[
        "--api-key",
        "sesame",
        "--chat-template",
        template.to_str().expect("UTF-8"),
        "--server-dev-mode",
        "--enable-sleep-mode",
        "--enable-responses-store",
        "--enable-tokenizer-info-endpoint",
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
        "--enable-lora",
        "--allow-runtime-lora-updating",
        "--log-level=warn",
    ]);
    for run in RUNS {
        check(&python, &server, &folder.0, run);
    }
    let client = reqwest::Client::new();
    let asleep = client
        .post(format!("{}/sleep", server.url))
        .bearer_auth("sesame")
        .send();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    assert_eq!(runtime.block_on(asleep).expect("answers").status(), 200);
    check(&python, &server, &folder.0, ASLEEP);
    // The server slept and woke: these routes gave more than refusals.
    let calls = std::fs::read_to_string(folder.0.join("calls")).expect("the hooks wrote");
    for done in ["/sleep 200", "/wake_up 200", "/pause 200", "/resume 200", "/resume 409"] {
        assert!(calls.lines().any(|call| call == done), "no {done}");
    }
}

/// Runs the tester with these flags: every case that it makes must pass, and it makes more than the fewest.
fn check(python: &Path, server: &Server, folder: &Path, (fewest, flags): (u32, &str)) {
    let clients = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients");
    let mut tester = Command::new(python.with_file_name("schemathesis"));
    tester
        .arg("--config-file")
        .arg(clients.join("openapi.toml"))
        .arg("run")
        .args(["--header", "Authorization: Bearer sesame"])
        .args(["--no-color", "--continue-on-failure", "--warnings", "off"])
        .args(flags.split(' '))
        .arg(format!("{}/openapi.json", server.url))
        .current_dir(folder)
        .env("PYTHONPATH", &clients)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("SCHEMATHESIS_HOOKS", "openapi_hooks");
    // It fails where an answer is not what the document says.
    let text = output(&mut tester, "schemathesis").unwrap_or_else(|error| panic!("{error}"));
    println!("{text}");
    assert_eq!(num_passed(&text), num_generated(&text), "{text}");
    assert!(num_passed(&text) > fewest, "{text}");
}

/// The number before a word of the line `246 generated, 246 passed, 18 skipped`.
fn number_before(text: &str, word: &str) -> u32 {
    let parts = text
        .lines()
        .filter(|line| line.contains(" generated,"))
        .flat_map(|line| line.split(','));
    let mut numbers = parts.filter_map(|part| part.trim().strip_suffix(word)?.trim().parse().ok());
    numbers.next().unwrap_or(0)
}

fn num_generated(text: &str) -> u32 {
    number_before(text, "generated")
}

fn num_passed(text: &str) -> u32 {
    number_before(text, "passed")
}
