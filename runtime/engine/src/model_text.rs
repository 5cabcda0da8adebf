//! The text half of a model's files: its tokenizer, special tokens and chat template.

use std::sync::Arc;

use halyard_models::{ModelFiles, TokenizerSource};
use halyard_text::{ChatTemplate, GgufTokenizer, SpecialTokens, Tekken, Tokenizer};

use crate::config::EngineConfig;
use crate::error::EngineError;

/// The model's tokenizer and chat template.
pub(crate) fn open_text(
    config: &EngineConfig,
    files: &ModelFiles,
) -> Result<(Tokenizer, Option<ChatTemplate>), EngineError> {
    let (tokenizer, special, own_template) = open_tokenizer(files)?;
    let chat_template = files
        .chat_template
        .as_deref()
        .or(own_template.as_deref())
        .map(|source| match &config.templates {
            Some(host) => ChatTemplate::on(Arc::clone(host), source, &special),
            None => ChatTemplate::new(source, &special),
        })
        .transpose()?;
    let overrides = &config.model.overrides;
    let chat_template = match overrides.content_parts {
        Some(parts) => chat_template.map(|template| template.with_contents_as(parts)),
        None => chat_template,
    };
    let (words, rows) = (tokenizer.vocab_size(), files.description.vocab_size);
    if overrides.tokenizer.is_some() && words > rows {
        let message = format!(
            "it has {words} tokens, the model {rows}: text would become tokens that the model does not know; give the \
             tokenizer that the model was trained with"
        );
        return Err(EngineError::Config {
            name: "--tokenizer",
            message,
        });
    }
    Ok((tokenizer, chat_template))
}

/// The tokenizer, the special tokens as text, and the chat template that belongs to the tokenizer's own format.
pub(crate) fn open_tokenizer(files: &ModelFiles) -> Result<(Tokenizer, SpecialTokens, Option<String>), EngineError> {
    let mut special = SpecialTokens {
        bos_token: files.bos_token.clone(),
        eos_token: files.eos_token.clone(),
        ..SpecialTokens::default()
    };
    let tokenizer = match &files.tokenizer {
        TokenizerSource::File(path) => Tokenizer::from_file(path)?,
        TokenizerSource::Tekken(path) => {
            let tekken = Tekken::open(path)?;
            let (bos, eos) = tekken.bos_and_eos();
            special.bos_token.get_or_insert_with(|| bos.to_owned());
            special.eos_token.get_or_insert_with(|| eos.to_owned());
            return Ok((tekken.tokenizer().clone(), special, tekken.chat_template()));
        }
        TokenizerSource::Gguf(data) => Tokenizer::from_gguf(&GgufTokenizer {
            model: data.model.clone(),
            pre: data.pre.clone(),
            tokens: data.tokens.clone(),
            scores: data.scores.clone(),
            token_types: data.token_types.clone(),
            merges: data.merges.clone(),
            bos_id: data.bos,
            eos_id: data.eos,
            pad_id: data.pad,
            unk_id: data.unk,
            add_bos: data.add_bos,
            add_eos: data.add_eos,
            add_space_prefix: data.add_space_prefix,
        })?,
        TokenizerSource::Absent => numbered_tokenizer(files.description.vocab_size)?,
    };
    Ok((tokenizer, special, None))
}

/// The tokenizer of dummy weights without one: token i is the word `ti`.
fn numbered_tokenizer(vocab_size: usize) -> Result<Tokenizer, halyard_text::TextError> {
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0..vocab_size).map(|i| (format!("t{i}"), i.into())).collect();
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": { "type": "Whitespace" },
        // Its words are plain letters, which byte-level encoding keeps: each token decodes alone, without the tokens
        // before it.
        "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false },
        "model": { "type": "WordLevel", "vocab": vocab, "unk_token": "t0" },
    });
    Tokenizer::from_json(json.to_string().as_bytes(), "the numbered tokenizer of dummy weights")
}
