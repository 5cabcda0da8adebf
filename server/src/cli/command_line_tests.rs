//! vLLM's command lines, and their translation for our parser.

use std::ffi::OsString;

use clap::{CommandFactory, Parser};

use super::{Line, LineError, read};
use crate::cli::Cli;
use crate::cli::vllm_flags::{FLAGS, State, Takes};

fn read_words(line: &str) -> Result<Line, LineError> {
    let mut root = Cli::command();
    root.build();
    let words = std::iter::once("halyard").chain(line.split_whitespace());
    read(words.map(OsString::from).collect(), &root)
}

fn after(line: &str) -> Vec<String> {
    let read = read_words(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    let words = read.args.into_iter().skip(2);
    words.map(|word| word.into_string().expect("UTF-8")).collect()
}

fn error(line: &str) -> String {
    read_words(line).expect_err(line).to_string()
}

#[test]
fn a_word_alone_is_the_model() {
    assert_eq!(after("serve org/repo"), ["--model=org/repo"]);
    assert_eq!(after("serve --port 1 org/repo"), ["--port=1", "--model=org/repo"]);
    assert_eq!(after("serve m --model m"), ["--model=m"]);
    assert_eq!(after("serve --model=m"), ["--model=m"]);
    for line in ["serve a b", "serve a --model b", "serve --model b a"] {
        let error = error(line);
        assert!(
            error.contains("--model") && error.contains("`a`") && error.contains("`b`"),
            "{error}"
        );
    }
    // A number is a value wherever one is expected, and no flag.
    assert_eq!(after("serve m --max-model-len -1"), ["--max-model-len=-1", "--model=m"]);
}

#[test]
fn names_are_read_in_every_spelling() {
    assert_eq!(after("serve -tp 2"), ["--tensor-parallel-size=2"]);
    assert_eq!(after("serve -tp=2"), ["--tensor-parallel-size=2"]);
    assert_eq!(after("serve --max_model_len 4k"), ["--max-model-len=4k"]);
    assert_eq!(
        after("serve --max_model_len=4_k"),
        ["--max-model-len=4_k"],
        "values keep their underscores"
    );
    assert_eq!(
        after("serve --device-memory-utilization 0.5"),
        ["--gpu-memory-utilization=0.5"]
    );
    assert_eq!(after("serve -q fp8"), ["--quantization=fp8"]);
    assert_eq!(after("serve --plugin_dir x"), ["--plugin-dir=x"], "ours as well");
    assert_eq!(after("serve --log-prompts"), ["--log-prompts"]);
    assert_eq!(after("serve --log-level WARNING"), ["--log-level=warn"]);
    assert_eq!(
        after("serve --allow-quantized-act m"),
        ["--allow-quantized-act", "--model=m"]
    );
    assert_eq!(
        after("serve --allow-quantized-act false m"),
        ["--allow-quantized-act=false", "--model=m"]
    );
}

#[test]
fn lists_follow_one_flag() {
    assert_eq!(
        after("serve m --served-model-name a b --api-key x y --port 1"),
        [
            "--served-model-name=a",
            "--served-model-name=b",
            "--api-key=x",
            "--api-key=y",
            "--port=1",
            "--model=m"
        ]
    );
    assert_eq!(
        after("serve --enable-lora --lora-modules a=x b=y"),
        ["--enable-lora=true", "--lora-modules=a=x", "--lora-modules=b=y"]
    );
    assert_eq!(
        after("serve --lora-target-modules q_proj v_proj"),
        ["--lora-target-modules=q_proj,v_proj"]
    );
    assert_eq!(
        error("serve --api-key --port 1"),
        "--api-key needs a value, found --port"
    );
    assert_eq!(error("serve --port"), "--port needs a value");
}

#[test]
fn switches_have_opposites_and_the_last_one_counts() {
    let caching = |line: &str| {
        let words = ["halyard", "serve"].map(str::to_owned).into_iter().chain(after(line));
        let cli = Cli::try_parse_from(words).expect("parses");
        let crate::cli::Command::Serve(args) = cli.command else {
            panic!("serve")
        };
        args.engine().cache.no_enable_prefix_caching
    };
    assert!(!caching("serve --enable-prefix-caching"));
    assert!(caching("serve --no-enable-prefix-caching"));
    assert!(caching("serve --disable-prefix-caching"));
    assert!(!caching("serve --no-enable-prefix-caching --enable-prefix-caching"));
    assert_eq!(after("serve --no-enforce-eager"), ["--enforce-eager=false"]);
    assert!(error("serve --enable-prefix-caching=maybe").contains("takes no value"));
}

#[test]
fn what_needs_nothing_is_taken_and_told() {
    let line = "serve m --swap-space 4 --trust-remote-code --enable-chunked-prefill --no-enable-chunked-prefill -O3 \
        -O 2 -O \
                -cc {} --disable-log-requests --pipeline-parallel-size 1 --task generate --device auto \
                --attention-backend FLASH_ATTN --limit-mm-per-prompt.image 0 --no-sleep-mode-offload-cudagraph \
                --quantization gguf";
    let read = read_words(line).expect("taken");
    assert_eq!(read.args[2..], ["--model=m"]);
    let names: Vec<&str> = read.accepted.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "--swap-space",
            "--trust-remote-code",
            "--enable-chunked-prefill",
            "--no-enable-chunked-prefill",
            "--optimization-level",
            "-cc",
            "--disable-log-requests",
            "--pipeline-parallel-size",
            "--task",
            "--device",
            "--attention-backend",
            "--no-sleep-mode-offload-cudagraph",
            "--quantization",
            "--limit-mm-per-prompt",
        ]
    );
    assert!(read.accepted.iter().all(|(_, why)| !why.is_empty()));
}

#[test]
fn what_does_not_exist_is_refused_with_the_reason() {
    assert_eq!(
        error("serve m --pipeline-parallel-size 2"),
        "--pipeline-parallel-size 2: layers are not distributed over devices; use --tensor-parallel-size"
    );
    for (line, part) in [
        ("serve m --tool-parser-plugin x", "docs/tool-calling.md"),
        ("serve m --speculative-config.model x", "speculative"),
        ("serve m --ssl-ciphers x", "TLS 1.3"),
        ("serve m --task embed", "embedding"),
        ("serve m --rope-scaling {}", "--hf-overrides"),
        ("bench latency --model m -pp 2", "--tensor-parallel-size"),
    ] {
        assert!(error(line).contains(part), "{line}: {}", error(line));
    }
}

#[test]
fn an_unknown_flag_gets_the_nearest_name() {
    assert_eq!(
        error("serve m --max-modle-len 5"),
        "--max-modle-len is no flag of `halyard serve`; did you mean --max-model-len?; `halyard serve --help` shows \
         them all"
    );
    assert!(error("serve m --enforce_eagr").contains("did you mean --enforce-eager?"));
    // Of earlier versions too.
    assert!(error("serve m --num-schedular-steps 8").contains("did you mean --num-scheduler-steps?"));
    assert!(!error("serve m --xyzzy").contains("did you mean"));
    assert!(error("serve m -z").contains("-z is no flag"));
}

#[test]
fn objects_are_given_key_by_key() {
    assert_eq!(
        after("serve m --hf-overrides.rope_scaling.factor 2 --hf_overrides.rope-theta=1e4 --hf-overrides.a+ x,y"),
        [
            r#"--hf-overrides={"rope_scaling":{"factor":2},"rope-theta":10000.0,"a":["x","y"]}"#,
            "--model=m"
        ]
    );
    assert!(error("serve m --hf-overrides.a 1 --hf-overrides.a.b 2").contains("no object"));
    assert!(error("serve m --no-such.a 1").contains("--no-such is no flag"));
}

#[test]
fn devices_of_old_are_platforms() {
    assert_eq!(after("serve --device cpu"), ["--platform=cpu"]);
    assert_eq!(after("serve --device 1"), ["--device=1"]);
    assert_eq!(after("serve --device=CPU"), ["--platform=cpu"]);
}

#[test]
fn a_bench_line_is_read_by_the_same_rules() {
    assert_eq!(
        after("bench serve --num_prompts 5 --goodput ttft:1 tpot:2 --ignore-eos --model m"),
        [
            "serve",
            "--num-prompts=5",
            "--goodput=ttft:1",
            "--goodput=tpot:2",
            "--ignore-eos",
            "--model=m"
        ]
    );
    // An alias of --random-input-len.
    assert_eq!(
        after("bench serve --input-len 64 --output-len 16"),
        ["serve", "--input-len=64", "--output-len=16"]
    );
    assert!(error("bench serve --num-prompt 5").contains("did you mean --num-prompts?"));
    assert!(error("bench serve --swap-space 5").contains("no flag of `halyard bench serve`"));
}

#[test]
fn other_commands_stay_as_they_are() {
    assert_eq!(after("chat --max_tokens 5"), ["--max_tokens", "5"]);
    assert_eq!(after("serve --help"), ["--help"]);
    assert_eq!(read_words("").expect("nothing").args, ["halyard"]);
}

#[test]
fn every_flag_called_the_same_is_a_flag_of_serve() {
    let mut root = Cli::command();
    root.build();
    let serve = root.find_subcommand("serve").expect("there");
    let own = |name: &str| {
        let long = name.trim_start_matches("--");
        serve.get_arguments().find(|arg| arg.get_long() == Some(long))
    };
    for flag in FLAGS {
        match flag.state {
            State::Same => {
                let arg = own(flag.name).unwrap_or_else(|| panic!("{} is no flag of serve", flag.name));
                let takes = arg.get_action().takes_values();
                assert_eq!(takes, flag.takes != Takes::Switch, "{} takes values", flag.name);
                if flag.takes == Takes::Bool {
                    let range = arg.get_num_args().expect("built");
                    assert_eq!((range.min_values(), range.max_values()), (0, 1), "{}=false", flag.name);
                }
            }
            State::Inverse(ours) => assert!(own(ours).is_some(), "{ours} is no flag of serve"),
            State::Accepted(_) | State::Only(..) | State::Refused(_) => {
                assert!(
                    own(flag.name).is_none(),
                    "{} is a flag of serve: its state is Same",
                    flag.name
                );
            }
        }
    }
}
