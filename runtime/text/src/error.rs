//! What can go wrong with text, with the values that were found. Never holds a whole prompt.

use std::path::PathBuf;

/// Every error of this crate; each names what was found, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: std::io::Error,
    },
    /// A JSON file is not what its name says.
    #[error("{origin} is not a valid {expected}: {reason}")]
    ParseFile {
        /// The file, or where the text came from.
        origin: String,
        /// What it should be.
        expected: &'static str,
        /// The parser's reason.
        reason: String,
    },
    /// No parser of answers has this name.
    #[error("no {kind} parser is called '{name}'; known: {known}")]
    UnknownParser {
        /// What it should read: "tool call" or "reasoning".
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A model's response template cannot be used.
    #[error("the response_template of tokenizer_config.json cannot be used: {reason}")]
    ResponseTemplate {
        /// What is missing, unknown, or beyond a limit.
        reason: String,
    },
    /// The GGUF names a tokenizer kind that is not built here.
    #[error(
        "tokenizer.ggml.model is '{model}', which is not supported; known: {known}. Use a model folder with a \
         tokenizer.json"
    )]
    UnknownTokenizerModel {
        /// The name found.
        model: String,
        /// The names that work.
        known: &'static str,
    },
    /// The GGUF names a pre-tokenizer that is not built here.
    #[error(
        "tokenizer.ggml.pre is '{pre}', which is not known; known: {known}. Use a model folder with a tokenizer.json"
    )]
    UnknownPreTokenizer {
        /// The name found.
        pre: String,
        /// The names that work, separated by commas.
        known: String,
    },
    /// A metadata array that the tokenizer needs is empty.
    #[error("the GGUF tokenizer of kind '{model}' has no {field}; the file is incomplete")]
    MissingMetadata {
        /// The tokenizer kind.
        model: String,
        /// The array.
        field: &'static str,
    },
    /// Two arrays that run over the vocabulary differ in length.
    #[error("{field} has {found} entries, but the vocabulary has {expected} tokens; the file is damaged")]
    LengthMismatch {
        /// The array.
        field: &'static str,
        /// Its length.
        found: usize,
        /// The length of the vocabulary.
        expected: usize,
    },
    /// A special token's id is not in the vocabulary.
    #[error("{field} is {id}, but the vocabulary has {vocab_size} tokens; the file is damaged")]
    SpecialTokenOutOfRange {
        /// The metadata field.
        field: &'static str,
        /// The id found.
        id: u32,
        /// The number of tokens.
        vocab_size: usize,
    },
    /// A merge rule is malformed or names a token that does not exist.
    #[error("merge {index} ('{merge}') {reason}; the file is damaged")]
    BadMerge {
        /// Position in the list of merges.
        index: usize,
        /// The rule.
        merge: String,
        /// The fault.
        reason: &'static str,
    },
    /// The vocabulary cannot be turned into a tokenizer.
    #[error("cannot build the tokenizer: {reason}")]
    BuildTokenizer {
        /// The tokenizer library's reason.
        reason: String,
    },
    /// A text cannot be encoded.
    #[error("cannot encode a text of {text_bytes} bytes: {reason}")]
    Encode {
        /// Length of the text.
        text_bytes: usize,
        /// The tokenizer library's reason.
        reason: String,
    },
    /// A text has more tokens than its reader takes; found out without encoding all of it.
    #[error("the text has at least {at_least} tokens, the limit is {max_tokens}; send a shorter text")]
    TooManyTokens {
        /// The limit, special tokens included.
        max_tokens: usize,
        /// Tokens that the text has at least.
        at_least: usize,
    },
    /// A text that must be encoded at once is too long for that.
    #[error(
        "{bytes} bytes of the text have no certain end of a word for this tokenizer (a letter before a space or \
         a line break); at most {max_bytes} bytes are encoded at once: send a shorter text, or token ids"
    )]
    Uncuttable {
        /// Bytes that would have to be encoded at once.
        bytes: usize,
        /// The limit.
        max_bytes: usize,
    },
    /// The result is no longer wanted.
    #[error("the request was given up before its text was ready")]
    Cancelled,
    /// The tokenizer library panicked; the tokenizer itself can still be used.
    #[error("the tokenizer library failed on a text of {text_bytes} bytes: {reason}")]
    TokenizerPanicked {
        /// Length of the text; 0 for ids that were decoded.
        text_bytes: usize,
        /// The panic's message.
        reason: String,
    },
    /// A token id has no token.
    #[error("token id {id} is outside the vocabulary: ids run from 0 to {}", vocab_size.saturating_sub(1))]
    TokenOutOfVocabulary {
        /// The id given.
        id: u32,
        /// One more than the largest id.
        vocab_size: usize,
    },
    /// Ids cannot be decoded.
    #[error("cannot decode {num_tokens} tokens: {reason}")]
    Decode {
        /// How many ids were given.
        num_tokens: usize,
        /// The tokenizer library's reason.
        reason: String,
    },
    /// The model has no chat template.
    #[error(
        "the model has no chat template, so a chat request cannot become a prompt; give a template or use the \
         completions endpoint"
    )]
    NoChatTemplate,
    /// The chat template does not parse.
    #[error("the chat template does not parse, line {line}: {reason}")]
    TemplateSyntax {
        /// Line in the template, from 1.
        line: usize,
        /// The parser's message.
        reason: String,
    },
    /// The chat template fails on these messages.
    #[error("the chat template fails at line {line}: {reason}")]
    TemplateRender {
        /// Line in the template, from 1.
        line: usize,
        /// The template engine's message.
        reason: String,
    },
    /// The chat template itself refuses these messages, with `raise_exception`.
    #[error("the chat template refuses these messages (its line {line}): {message}")]
    TemplateRaised {
        /// Line in the template, from 1.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// The chat template takes more than it may: length, instructions, output, memory, stack or time.
    #[error("the chat template breaks a bound of this server: {reason}")]
    TemplateBound {
        /// Which bound, and its value.
        reason: String,
    },
    /// The chat template cannot run, which says nothing about it.
    #[error("the chat template cannot run: {reason}")]
    TemplateUnavailable {
        /// Why.
        reason: String,
    },
    /// A message is not an object, or a field of it has the wrong type.
    #[error("messages[{index}]{field} must be {expected}, found {found}")]
    InvalidMessage {
        /// Which message, from 0.
        index: usize,
        /// Path inside the message, empty for the message itself.
        field: String,
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A content part that is not text.
    #[error("messages[{index}].content[{part}] has type '{kind}', but this model takes text parts only")]
    UnsupportedContentPart {
        /// Which message, from 0.
        index: usize,
        /// Which part, from 0.
        part: usize,
        /// The part's type.
        kind: String,
    },
    /// A stop string is empty, which would stop before the first token.
    #[error("stop[{index}] is empty; leave it out or give at least one character")]
    EmptyStopString {
        /// Which stop string, from 0.
        index: usize,
    },
}
