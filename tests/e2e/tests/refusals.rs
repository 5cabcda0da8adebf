//! Mistakes of an operator on the command line or on disk: each ends with status 2 and an error that names what was
//! asked, what was found and what to do. Nothing hangs and nothing panics.

use std::net::TcpListener;
use std::path::Path;
use std::process::Output;

use halyard_e2e::{TestFolder, fixture, halyard, library, run, stderr};

fn assert_refused(output: &Output, words: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(!text.contains("panicked"), "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

fn serve(model: &Path) -> Output {
    run(&[
        "serve",
        "--platform",
        "cpu",
        "--port",
        "0",
        "--model",
        model.to_str().expect("a UTF-8 path"),
    ])
}

#[test]
fn a_misspelt_platform_names_the_nearest() {
    assert_refused(&run(&["serve", "--platform", "cpuu"]), &["cpuu", "did you mean `cpu`"]);
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let model = fixture("llama");
    let output = run(&[
        "serve",
        "--platform",
        "cpu",
        "--device",
        "7",
        "--model",
        model.to_str().expect("a UTF-8 path"),
    ]);
    assert_refused(&output, &["--device", "7", "halyard platforms"]);
}

#[test]
fn settings_that_a_platform_cannot_take_are_named_with_those_that_it_can() {
    let model = fixture("llama");
    let model = model.to_str().expect("a UTF-8 path");
    let start = ["serve", "--platform", "cpu", "--port", "0", "--model", model];
    for (options, words) in [
        (&["colour=red"][..], &["option colour", "isa, threads"][..]),
        (&["threads=none"], &["threads=none", "1 to 1024"]),
        (&["isa=avx3"], &["isa=avx3", "portable"]),
        (&["threads"], &["--platform-option", "KEY=VALUE"]),
        (&["threads=1", "threads=2"], &["--platform-option", "given twice"]),
    ] {
        let flags: Vec<&str> = options
            .iter()
            .flat_map(|option| ["--platform-option", option])
            .collect();
        assert_refused(&run(&[&start[..], &flags].concat()), words);
    }
    let unnamed = ["--platform-cache-dir", ""];
    let words = ["--platform-cache-dir", "HALYARD_CACHE_DIR"];
    assert_refused(&run(&[&start[..], &unnamed].concat()), &words);
    // The empty variable keeps nothing: the start goes on to the next mistake.
    let mut command = halyard(&[&start[..6], &["/no/such/model"]].concat());
    let output = command.env("HALYARD_CACHE_DIR", "").output().expect("it starts");
    assert_refused(&output, &["/no/such/model"]);
}

#[test]
fn more_ranks_than_devices_are_refused_with_the_number_found() {
    let model = fixture("llama");
    let output = run(&[
        "serve",
        "--platform",
        "cpu",
        "--tensor-parallel-size",
        "2",
        "--model",
        model.to_str().expect("a UTF-8 path"),
    ]);
    assert_refused(
        &output,
        &["--tensor-parallel-size", "2", "1 device(s)", "halyard platforms"],
    );
}

#[test]
fn a_port_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port().to_string();
    assert_refused(
        &run(&["serve", "--platform", "cpu", "--port", &port]),
        &[&port, "in use", "--port"],
    );
}

#[test]
fn a_model_that_is_not_there_is_named() {
    assert_refused(&serve(Path::new("/no/such/model")), &["/no/such/model", "org/repo"]);
    let folder = TestFolder::new("empty");
    assert_refused(&serve(&folder.0), &["no model here"]);
}

#[test]
fn an_unknown_architecture_lists_the_known_ones() {
    let folder = TestFolder::with_model("arch", "llama");
    let config = folder.0.join("config.json");
    let text = std::fs::read_to_string(&config)
        .expect("a file")
        .replace("LlamaForCausalLM", "MambaForCausalLM");
    std::fs::write(&config, text).expect("writes");
    assert_refused(&serve(&folder.0), &["MambaForCausalLM", "Llama", "Qwen3", "Gemma3"]);
}

#[test]
fn truncated_weights_are_told_apart_from_bad_ones() {
    let folder = TestFolder::with_model("safetensors", "llama");
    let weights = folder.0.join("model.safetensors");
    let bytes = std::fs::read(&weights).expect("a file");
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).expect("writes");
    assert_refused(&serve(&folder.0), &["model.safetensors", "truncated"]);
    let gguf = folder.0.join("short.gguf");
    let bytes = std::fs::read(fixture("gguf/llama-gguf.gguf")).expect("a file");
    for length in [0, 3, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&gguf, &bytes[..length]).expect("writes");
        assert_refused(&serve(&gguf), &["short.gguf"]);
    }
}

#[test]
fn a_missing_tokenizer_says_where_it_belongs() {
    let folder = TestFolder::with_model("tokenizer", "llama");
    std::fs::remove_file(folder.0.join("tokenizer.json")).expect("was there");
    assert_refused(&serve(&folder.0), &["tokenizer.json"]);
}

#[test]
fn a_context_that_does_not_fit_shows_the_arithmetic() {
    let model = fixture("llama");
    let model = model.to_str().expect("a UTF-8 path");
    let output = run(&[
        "serve",
        "--platform",
        "cpu",
        "--port",
        "0",
        "--model",
        model,
        "--kv-cache-memory-bytes",
        "4KiB",
    ]);
    assert_refused(&output, &["KV"]);
}

#[test]
fn plugins_that_are_none_are_refused_before_they_run() {
    let folder = TestFolder::new("plugins");
    let text = folder.0.join("libtext.so");
    std::fs::write(&text, "not a library").expect("writes");
    let good = std::fs::read(library("cpu")).expect("the CPU platform");
    let other = folder.0.join("libother.so");
    let mut bytes = good.clone();
    // e_machine of the ELF header: 8 is MIPS.
    bytes[18..20].copy_from_slice(&[8, 0]);
    std::fs::write(&other, &bytes).expect("writes");
    let newer = folder.0.join("libnewer.so");
    std::fs::write(&newer, replaced(&good, b"\"abi\":\"0.2\"", b"\"abi\":\"9.2\"")).expect("writes");
    for (path, words) in [
        (&text, ["libtext.so", "found"]),
        (&other, ["libother.so", "architecture"]),
        (&newer, ["libnewer.so", "9.2"]),
    ] {
        let path = path.to_str().expect("a UTF-8 path");
        assert_refused(&run(&["serve", "--platform", "cpu", "--plugin", path]), &words);
        // An inventory shows the reason too, whether as an error or in its list.
        let listed = run(&["platforms", "--plugin", path]);
        let shown = format!("{}{}", String::from_utf8_lossy(&listed.stdout), stderr(&listed));
        assert!(words.iter().all(|word| shown.contains(word)), "{words:?} in {shown}");
    }
}

fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let places: Vec<usize> = bytes
        .windows(from.len())
        .enumerate()
        .filter(|(_, window)| *window == from)
        .map(|(start, _)| start)
        .collect();
    assert!(!places.is_empty(), "the manifest states its ABI");
    for start in places {
        bytes[start..start + to.len()].copy_from_slice(to);
    }
    bytes
}

#[test]
fn values_of_flags_are_checked() {
    for (args, word) in [
        (["--gpu-memory-utilization", "1.5"], "at most 1"),
        (["--kv-cache-memory-bytes", "much"], "much"),
        (["--dtype", "int3"], "int3"),
        (["--load-format", "pickle"], "pickle"),
        (["--quantization", "aqlm"], "known are: fp8, int8 and int4"),
        (["--port", "70000"], "70000"),
        (["--max-num-seqs", "0"], "0"),
        (["--log-level", "a=b=c"], "a=b=c"),
        (["--host", "192.0.2.1"], "192.0.2.1"),
        (["--api-key", ""], "--api-key"),
    ] {
        let output = run(&[&["serve", "--platform", "cpu"], &args[..]].concat());
        assert_refused(&output, &[word]);
    }
}

#[test]
fn offline_mode_opens_no_connection() {
    let hub = TcpListener::bind("127.0.0.1:0").expect("a free port");
    hub.set_nonblocking(true).expect("can");
    let cache = TestFolder::new("offline");
    for model in [&["--model", "org/model"][..], &[]] {
        let mut command = halyard(&[&["serve", "--platform", "cpu", "--port", "0"], model].concat());
        command.env("HF_HUB_OFFLINE", "1").env("XDG_CACHE_HOME", &cache.0);
        command.env("HF_ENDPOINT", format!("http://{}", hub.local_addr().expect("bound")));
        assert_refused(&command.output().expect("starts"), &["HF_HUB_OFFLINE", "--model PATH"]);
    }
    assert_eq!(
        hub.accept().expect_err("no connection came").kind(),
        std::io::ErrorKind::WouldBlock
    );
}

#[test]
fn without_any_source_every_attempt_is_named() {
    let cache = TestFolder::new("sources");
    let mut command = halyard(&["serve", "--platform", "cpu", "--port", "0"]);
    command
        .env("XDG_CACHE_HOME", &cache.0)
        .env("HALYARD_PYTHON", "no-such-python")
        .env("HF_ENDPOINT", "http://127.0.0.1:9");
    let output = command.output().expect("starts");
    assert_refused(
        &output,
        &["cache:", "pip package", "no-such-python", "hub ", "--model PATH"],
    );
}

#[test]
fn a_server_that_does_not_answer_is_not_replaced() {
    let output = run(&["chat", "--url", "http://127.0.0.1:9", "hello"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("http://127.0.0.1:9"), "{}", stderr(&output));
}
