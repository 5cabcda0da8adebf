//! Files of options: their words, what goes before them, and what is refused with its line.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

use clap::CommandFactory as _;

use super::*;
use crate::cli::Cli;

/// A file that is there as long as this lives.
struct File(PathBuf);

impl File {
    fn new(text: &[u8]) -> File {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let next = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("halyard-config-{}-{next}.yaml", std::process::id()));
        std::fs::write(&path, text).expect("writes");
        File(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn root() -> Command {
    let mut root = Cli::command();
    root.build();
    root
}

fn applied(text: &str, words: &[&str], variables: &[(&str, &str)]) -> Result<(Line, Source), String> {
    let (file, root) = (File::new(text.as_bytes()), root());
    let variables: HashMap<&str, &str> = variables.iter().copied().collect();
    let config = format!("--config={}", file.0.display());
    let line = ["halyard", "serve", &config]
        .into_iter()
        .chain(words.iter().copied())
        .map(OsString::from);
    let line = command_line::read(line.collect(), &root).expect("a line");
    let variable = |name: &OsStr| variables.get(name.to_str()?).map(OsString::from);
    apply(line, &root, variable).map_err(|error| error.to_string())
}

/// The words that a file brings.
fn words_of(text: &str, words: &[&str], variables: &[(&str, &str)]) -> Vec<String> {
    let (line, _) = applied(text, words, variables).unwrap_or_else(|error| panic!("{text}: {error}"));
    let words = line
        .args
        .into_iter()
        .skip(2)
        .map(|word| word.into_string().expect("UTF-8"));
    words.take_while(|word| !word.starts_with("--config=")).collect()
}

fn refused(text: &str) -> String {
    applied(text, &[], &[]).expect_err(text)
}

#[test]
fn keys_are_flags_in_every_spelling() {
    assert_eq!(
        words_of(
            "model: org/repo\nport: 81\n--max_model_len: 8k\nenable-prefix-caching: false\nenforce_eager: true\n\
             tensor-parallel-size: 2\nlog-prompts: true\nno-ui: false\n",
            &[],
            &[]
        ),
        [
            "--model=org/repo",
            "--port=81",
            "--max-model-len=8k",
            "--no-enable-prefix-caching=true",
            "--enforce-eager=true",
            "--tensor-parallel-size=2",
            "--log-prompts",
        ]
    );
    assert_eq!(
        words_of(
            "served-model-name: [a, b]\nenable-lora: true\nlora-modules:\n  - a=/x\n  - {name: b, path: /y}\n\
             allowed-origins: ['*']\nhf-overrides:\n  rope_scaling: {factor: 2.0}\n\
             lora-target-modules: [q_proj, v_proj]\n\
             structured-outputs-config.backend: auto\n",
            &[],
            &[]
        ),
        [
            "--served-model-name=a",
            "--served-model-name=b",
            "--enable-lora=true",
            "--lora-modules=a=/x",
            r#"--lora-modules={"name":"b","path":"/y"}"#,
            r#"--allowed-origins=["*"]"#,
            r#"--hf-overrides={"rope_scaling":{"factor":2.0}}"#,
            "--lora-target-modules=q_proj,v_proj",
            r#"--structured-outputs-config={"backend":"auto"}"#,
        ]
    );
}

#[test]
fn the_command_line_goes_first_then_variables_then_the_file() {
    let text = "model: a\nport: 1\nserved-model-name: [x, y]\napi-key: k\nenforce-eager: true\n";
    assert_eq!(
        words_of(
            text,
            &["b", "--port", "2", "--served-model-name", "z", "--no-enforce-eager"],
            &[]
        ),
        ["--api-key=k"]
    );
    let variables = [("HALYARD_MODEL", "c"), ("HALYARD_PORT", "3"), ("VLLM_API_KEY", "v")];
    assert_eq!(
        words_of(text, &[], &variables),
        ["--served-model-name=x", "--served-model-name=y", "--enforce-eager=true"]
    );
    let (_, source) = applied(text, &["--port=2"], &[]).expect("a file");
    assert_eq!(source.lines.get("model"), Some(&1));
    assert_eq!(source.lines.get("api_keys"), Some(&4));
    assert_eq!(source.lines.get("port"), None);
}

#[test]
fn flags_of_vllm_that_need_nothing_are_taken_and_told() {
    let (line, _) = applied("swap-space: 4\nasync-scheduling: true\n", &["--swap-space", "4"], &[]).expect("a file");
    let names: Vec<&str> = line.accepted.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["--swap-space", "--async-scheduling"]);
    assert_eq!(words_of("swap-space: 4\n", &[], &[]), [""; 0]);
}

#[test]
fn what_is_wrong_is_told_with_key_line_and_remedy() {
    for (text, words) in [
        ("port: 1\nprot: 2\n", vec!["line 2", "`prot`", "did you mean --port?"]),
        ("port: many\n", vec!["line 1", "`port`", "invalid value 'many'"]),
        ("port: [1, 2]\n", vec!["line 1", "`port`", "[1,2]"]),
        ("\nport: {a: 1}\n", vec!["line 2", "`port`", "invalid value"]),
        ("port: true\n", vec!["line 1", "invalid value 'true'"]),
        ("port:\n", vec!["line 1", "`port`", "no value"]),
        (
            "enforce-eager: maybe\n",
            vec!["line 1", "`enforce-eager`", "true or false", "`maybe`"],
        ),
        ("no-ui: 1\n", vec!["line 1", "`no-ui`", "true or false"]),
        ("enable-prefix-caching: []\n", vec!["true or false", "a list"]),
        ("port: 1\nport: 2\n", vec!["line 2", "line 1"]),
        ("max-model-len: 10\nmax_model_len: 20\n", vec!["line 2", "line 1"]),
        (
            "enable-prefix-caching: true\nno-enable-prefix-caching: true\n",
            vec!["line 2", "line 1"],
        ),
        (
            "speculative-config: {}\n",
            vec!["line 1", "speculative decoding is not built yet"],
        ),
        ("config: other.yaml\n", vec!["line 1", "cannot name another"]),
        ("print-config: true\n", vec!["belongs on the command line"]),
        ("'port=1 x': 2\n", vec!["line 1", "no flag"]),
        ("port: *x\n", vec!["line 1", "aliases"]),
        ("port: [1\n", vec!["line 2", "not YAML"]),
        ("log-format: xml\n", vec!["line 1", "text", "json"]),
    ] {
        let error = refused(text);
        for word in words {
            assert!(error.contains(word), "{text:?}: {error:?} lacks {word}");
        }
        assert!(error.starts_with("--config /") && !error.contains('\n'), "{error}");
    }
    let large = "a".repeat((1 << 20) + 1);
    assert!(refused(&large).contains("larger than 1048576 bytes"));
    let file = File::new(b"port: 1\n\xff\n");
    let error = read_text(&file.0).expect_err("no text");
    assert!(error.contains("line 2 is not UTF-8"), "{error}");
    assert!(
        read_text(Path::new("/no/such/file"))
            .expect_err("none")
            .contains("No such file")
    );
}

#[test]
fn what_is_printed_is_a_file_that_means_the_same() {
    let text = "port: 81\nserved-model-name: [a, 'b: c']\napi-key: secret-word\nmax-model-len: 4096\n\
                hf-overrides: {rope_scaling: {factor: 2.0}}\nlog-prompts: true\n";
    let root = root();
    let serve = root.find_subcommand("serve").expect("a command");
    let printed = |text: &str, words: &[&str]| {
        let (line, source) = applied(text, words, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
        let matches = Cli::command().try_get_matches_from(&line.args).expect("parses");
        print(
            serve,
            matches.subcommand_matches("serve").expect("serve"),
            &source,
            &line.accepted,
        )
    };
    let first = printed(text, &["org/repo", "--host", "::1", "--swap-space", "4"]);
    for line in [
        "port: 81  # file, line 1",
        r#"served-model-name: ["a","b: c"]  # file, line 2"#,
        "# api-key: a secret  # file, line 3",
        "model: \"org/repo\"  # command line",
        "max-body-bytes: \"16MiB\"  # default",
        "log-prompts: true  # file, line 6",
        "# hf-token: not set",
        "# Accepted, needs nothing here",
    ] {
        assert!(first.lines().any(|printed| printed == line), "{line}\n{first}");
    }
    assert!(!first.contains("secret-word"));
    let values = |text: &str| {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let values: Vec<String> = lines
            .map(|line| line.split("  # ").next().unwrap_or_default().to_owned())
            .collect();
        values
    };
    assert_eq!(values(&printed(&first, &[])), values(&first));
}
