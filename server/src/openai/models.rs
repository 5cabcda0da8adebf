//! The answers of `/v1/models`: OpenAI's list with vLLM's fields.

use std::path::Path;

use serde::Serialize;

/// All models.
#[derive(Serialize)]
pub struct ModelList<'a> {
    object: &'static str,
    data: Vec<ModelCard<'a>>,
}

impl<'a> ModelList<'a> {
    /// A list of these.
    pub fn new(data: Vec<ModelCard<'a>>) -> Self {
        ModelList { object: "list", data }
    }
}

/// A name under which something is served.
#[derive(Serialize)]
pub struct ModelCard<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    root: Option<&'a Path>,
    parent: Option<&'a str>,
    max_model_len: u32,
}

impl<'a> ModelCard<'a> {
    /// The model `id`, served from `root` since `created` (seconds since 1970). An adapter's `parent` is its base
    /// model.
    pub fn new(id: &'a str, root: Option<&'a Path>, parent: Option<&'a str>, created: u64, max_model_len: u32) -> Self {
        ModelCard {
            id,
            object: "model",
            created,
            owned_by: "halyard",
            root,
            parent,
            max_model_len,
        }
    }
}
