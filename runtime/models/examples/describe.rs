//! Prints what is read from a model's files: `cargo run -p halyard-models --example describe -- PATH`.

use std::path::Path;

use halyard_models::{DummyWeights, LoadFormat, ModelFiles, TokenizerSource};

fn main() {
    let path = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    match ModelFiles::open(Path::new(&path), LoadFormat::Auto, DummyWeights::default()) {
        Ok(model) => {
            println!(
                "name: {}\nfamily: {}\n{:#?}",
                model.name, model.family, model.description
            );
            println!(
                "weights: {} bytes\ngeneration: {:?}",
                model.weight_bytes, model.generation
            );
            println!("bos: {:?}, eos: {:?}", model.bos_token, model.eos_token);
            println!("chat template: {} bytes", model.chat_template.map_or(0, |t| t.len()));
            match model.tokenizer {
                TokenizerSource::Gguf(data) => {
                    println!(
                        "tokenizer: {} ({:?}), {} tokens",
                        data.model,
                        data.pre,
                        data.tokens.len()
                    );
                }
                other => println!("tokenizer: {other:?}"),
            }
        }
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    }
}
