//! Typed reading of a JSON configuration: every wrong type or absurd number becomes an error with file,
//! field, value and limit. `null` counts as absent, as Hugging Face writes it for "default".

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

use crate::error::{ModelError, Result};

/// Longest JSON file that is read (tokenizer_config.json with a long template is far below it).
const MAX_JSON_BYTES: u64 = 64 << 20;

/// The fields of one JSON object of a file.
#[derive(Clone, Debug)]
pub struct JsonFields {
    path: PathBuf,
    prefix: String,
    fields: Map<String, Value>,
    /// The fields of this object that somebody has asked for, here or in a copy.
    asked: Arc<Mutex<BTreeSet<String>>>,
}

impl JsonFields {
    /// Reads a JSON file whose top level is an object.
    ///
    /// # Errors
    /// [`ModelError::Io`] or [`ModelError::Json`].
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| ModelError::Io {
            path: path.to_path_buf(),
            source,
        };
        let json = |reason: String| ModelError::Json {
            path: path.to_path_buf(),
            reason,
        };
        let len = std::fs::metadata(path).map_err(io)?.len();
        if len > MAX_JSON_BYTES {
            return Err(json(format!("{len} bytes, more than {MAX_JSON_BYTES}")));
        }
        let bytes = std::fs::read(path).map_err(io)?;
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(fields)) => Ok(Self {
                path: path.to_path_buf(),
                prefix: String::new(),
                fields,
                asked: Arc::default(),
            }),
            Ok(_) => Err(json("the top level is not an object".into())),
            Err(error) => Err(json(error.to_string())),
        }
    }

    /// As [`JsonFields::open`]; `None` if there is no such file.
    ///
    /// # Errors
    /// As [`JsonFields::open`].
    pub fn open_if_present(path: &Path) -> Result<Option<Self>> {
        if path.is_file() {
            Self::open(path).map(Some)
        } else {
            Ok(None)
        }
    }

    /// No fields at all; `path` is what errors name.
    #[must_use]
    pub(crate) fn empty(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            prefix: String::new(),
            fields: Map::new(),
            asked: Arc::default(),
        }
    }

    /// These fields with those of `over` put into them.
    #[must_use]
    pub(crate) fn with(mut self, over: &Map<String, Value>) -> Self {
        merge(&mut self.fields, over);
        self
    }

    /// These fields, each of `names` (own name, common name) under its common name, too. Errors name the common one.
    #[must_use]
    pub(crate) fn renamed(&self, names: &[(&str, &str)]) -> Self {
        let mut renamed = self.clone();
        for (own, common) in names {
            if let Some(value) = self.value(own) {
                renamed.fields.insert((*common).to_owned(), value.clone());
            }
        }
        renamed
    }

    /// The same fields; errors name `path`.
    #[must_use]
    pub(crate) fn blaming(mut self, path: &Path) -> Self {
        self.path = path.to_path_buf();
        self
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of `key`; `None` if absent or null.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.note(key);
        self.fields.get(key).filter(|v| !v.is_null())
    }

    /// Whether `key` is written at all, null included.
    #[must_use]
    pub fn is_written(&self, key: &str) -> bool {
        self.note(key);
        self.fields.contains_key(key)
    }

    fn note(&self, key: &str) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if !asked.contains(key) {
            asked.insert(key.to_owned());
        }
    }

    /// These fields, of which nobody has asked for any yet.
    #[must_use]
    pub(crate) fn unasked(&self) -> Self {
        Self {
            asked: Arc::default(),
            ..self.clone()
        }
    }

    /// The fields with a value other than null, false, 0 and empty that nobody has asked for.
    pub(crate) fn never_asked(&self) -> Vec<String> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let says_something = |value: &Value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Number(number) => number.as_f64() != Some(0.0),
            Value::String(text) => !text.is_empty(),
            Value::Array(list) => !list.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            Value::Bool(true) => true,
        };
        let written = self.fields.iter().filter(|(_, value)| says_something(value));
        written
            .map(|(key, _)| key)
            .filter(|key| !asked.contains(*key))
            .cloned()
            .collect()
    }

    /// The names of the fields that are written.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }

    /// The object at `key`; `None` if absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is something else.
    pub fn object(&self, key: &str) -> Result<Option<Self>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Self {
                path: self.path.clone(),
                prefix: format!("{}{key}.", self.prefix),
                fields: fields.clone(),
                asked: Arc::default(),
            })),
            Some(other) => Err(self.bad(key, other, "an object")),
        }
    }

    /// The non-negative integer at `key` (8192.0 counts as one); `None` if absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is something else.
    pub fn unsigned(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let whole = |f: f64| (f.fract() == 0.0 && (0.0..=2f64.powi(53)).contains(&f)).then_some(f as u64);
        let number = value.as_u64().or_else(|| value.as_f64().and_then(whole));
        let number = number.and_then(|n| usize::try_from(n).ok());
        number
            .map(Some)
            .ok_or_else(|| self.bad(key, value, "an integer from 0 up"))
    }

    /// As [`JsonFields::unsigned`], but the field must be there.
    ///
    /// # Errors
    /// Also [`ModelError::MissingField`].
    pub fn required_unsigned(&self, key: &str) -> Result<usize> {
        self.unsigned(key)?.ok_or_else(|| self.missing(key))
    }

    /// The number at `key`; `None` if absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is something else or not finite.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|f| f.is_finite());
        number.map(Some).ok_or_else(|| self.bad(key, value, "a finite number"))
    }

    /// As [`JsonFields::float`], but the field must be there.
    ///
    /// # Errors
    /// Also [`ModelError::MissingField`].
    pub fn required_float(&self, key: &str) -> Result<f64> {
        self.float(key)?.ok_or_else(|| self.missing(key))
    }

    /// The bool at `key`; `None` if absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is something else.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.bad(key, other, "true or false")),
        }
    }

    /// The string at `key`; `None` if absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is something else.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.bad(key, other, "a string")),
        }
    }

    /// The list of strings at `key`; `None` if absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is something else.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let list = value
            .as_array()
            .and_then(|list| list.iter().map(Value::as_str).collect());
        list.map(Some).ok_or_else(|| self.bad(key, value, "a list of strings"))
    }

    /// The list of numbers at `key`; `None` if absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is something else.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let list = value
            .as_array()
            .and_then(|list| list.iter().map(Value::as_f64).collect());
        list.map(Some).ok_or_else(|| self.bad(key, value, "a list of numbers"))
    }

    /// The list of non-negative integers at `key`; `None` if absent.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is something else.
    pub fn unsigned_list(&self, key: &str) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
        let list = value.as_array().and_then(|list| list.iter().map(number).collect());
        list.map(Some)
            .ok_or_else(|| self.bad(key, value, "a list of integers from 0 up"))
    }

    /// The token ids at `key`, written as one id or as a list; `None` if absent. Duplicates are dropped.
    ///
    /// # Errors
    /// [`ModelError::BadField`] if it is something else.
    pub fn token_ids(&self, key: &str) -> Result<Option<Vec<u32>>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let ids: Option<Vec<u32>> = match value {
            Value::Array(list) => list.iter().map(id).collect(),
            other => id(other).map(|id| vec![id]),
        };
        let mut ids = ids.ok_or_else(|| self.bad(key, value, "a token id from 0 up, or a list of them"))?;
        let mut seen = std::collections::HashSet::new();
        ids.retain(|id| seen.insert(*id));
        Ok(Some(ids))
    }

    /// The error for `key` having a wrong value.
    #[must_use]
    pub fn bad(&self, key: &str, value: &Value, limit: &str) -> ModelError {
        let mut shown = value.to_string();
        if shown.len() > 200 {
            shown = shown.chars().take(200).chain(['…']).collect();
        }
        ModelError::BadField {
            path: self.path.clone(),
            field: format!("{}{key}", self.prefix),
            value: shown,
            limit: limit.to_owned(),
        }
    }

    /// The error for `key` being absent.
    #[must_use]
    pub fn missing(&self, key: &str) -> ModelError {
        ModelError::MissingField {
            path: self.path.clone(),
            field: format!("{}{key}", self.prefix),
        }
    }

    /// The error for `key` asking for something that this engine does not have.
    #[must_use]
    pub fn unsupported(&self, key: &str, value: impl Into<String>, remedy: &str) -> ModelError {
        ModelError::Unsupported {
            path: self.path.clone(),
            field: format!("{}{key}", self.prefix),
            value: value.into(),
            remedy: remedy.to_owned(),
        }
    }
}

/// Puts the fields of `over` into `base`: objects are merged, other values replaced.
fn merge(base: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            _ => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
}
