//! A request's body: a JSON object from which structs take their fields, each field once. An error names the field.
//! Unknown fields are ignored, as in vLLM; a wrong type never is.

use axum::http::StatusCode;
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use crate::api_error::ApiError;

/// A body of which some fields may have been taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Body(Map<String, Value>);

impl Body {
    /// A body with all of its fields.
    ///
    /// # Errors
    /// 400 for what is no object.
    pub fn new(body: Value) -> Result<Body, ApiError> {
        match body {
            Value::Object(fields) => Ok(Body(fields)),
            _ => Err(ApiError::new(StatusCode::BAD_REQUEST, "the body must be a JSON object")),
        }
    }

    /// A field that is still there; null where it is not.
    pub fn get(&self, name: &str) -> &Value {
        #[cfg(test)]
        super::fields_read::note_name(name);
        self.0.get(name).unwrap_or(&Value::Null)
    }

    /// Takes the fields of a struct.
    ///
    /// # Errors
    /// 400 with the path of the field, what was found and what belongs there.
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<T, ApiError> {
        #[cfg(test)]
        super::fields_read::note::<T>();
        serde_path_to_error::deserialize(Fields(&mut self.0)).map_err(|error| {
            let path = error.path().to_string();
            let inner = error.into_inner();
            if path == "." {
                ApiError::new(StatusCode::BAD_REQUEST, inner.to_string())
            } else {
                ApiError::field(path.clone(), format!("{path}: {inner}"))
            }
        })
    }
}

/// Hands a struct the entries of a map that it names, and leaves the others.
struct Fields<'a>(&'a mut Map<String, Value>);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = serde_json::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        let all = std::mem::take(self.0).into_iter();
        let (own, rest): (Map<_, _>, Map<_, _>) = all.partition(|(name, _)| fields.contains(&name.as_str()));
        *self.0 = rest;
        Value::Object(own).deserialize_struct(name, fields, visitor)
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        Value::Object(std::mem::take(self.0)).deserialize_any(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Deserialize, Debug)]
    struct List {
        list: Vec<u32>,
    }

    fn body(value: Value) -> Body {
        Body::new(value).expect("an object")
    }

    #[test]
    fn a_wrong_type_names_its_path() {
        let error = body(json!({"list": [1, "two"]})).take::<List>();
        let error = error.expect_err("a string is no number");
        assert_eq!(error.param.as_deref(), Some("list[1]"));
        assert!(error.message.contains("two"), "{}", error.message);
        Body::new(json!([1])).expect_err("no object");
    }

    #[test]
    fn a_field_is_taken_once_and_the_others_stay() {
        let mut body = body(json!({"surprise": 1, "list": [], "more": null}));
        assert_eq!(body.take::<List>().expect("a list").list, [0; 0]);
        assert_eq!(
            body,
            Body::new(json!({"surprise": 1, "more": null})).expect("an object")
        );
        let error = body.take::<List>().expect_err("it is gone");
        assert!(error.message.contains("missing field `list`"), "{}", error.message);
        assert_eq!((body.get("surprise"), body.get("list")), (&json!(1), &Value::Null));
    }
}
