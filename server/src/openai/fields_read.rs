//! What readers of bodies take, for tests: `Body` notes it here while one runs. `fields_read_tests.rs` compares it with
//! the OpenAPI document.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess, Visitor,
};
use serde::forward_to_deserialize_any;

/// What a reader takes under a name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shape {
    /// The JSON type; empty: the reader looks itself.
    pub(crate) kind: &'static str,
    /// null is an absent field.
    pub(crate) takes_null: bool,
    /// The values of an enumeration.
    pub(crate) values: Vec<&'static str>,
}

/// Shapes by path, `a.b` within `a`.
pub(crate) type Shapes = BTreeMap<String, Shape>;

thread_local! {
    static STRUCTS: RefCell<Vec<(&'static str, Shapes)>> = const { RefCell::new(Vec::new()) };
    static NAMES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// A reader takes a struct.
pub(crate) fn note<T: DeserializeOwned>() {
    STRUCTS.with_borrow_mut(|structs| structs.push(shapes::<T>()));
}

/// A reader looks at a field.
pub(crate) fn note_name(name: &str) {
    NAMES.with_borrow_mut(|names| names.push(name.to_owned()));
}

/// The structs, with their names, and the fields that were noted on this thread since the last call.
pub(crate) fn noted() -> (Vec<(&'static str, Shapes)>, Vec<String>) {
    (STRUCTS.take(), NAMES.take())
}

/// A struct's name and its fields, as serde tells them: each field is asked for in a run of its own.
pub(crate) fn shapes<T: DeserializeOwned>() -> (&'static str, Shapes) {
    let mut asked = Asked::default();
    let mut targets: Vec<Vec<&'static str>> = vec![Vec::new()];
    while let Some(target) = targets.pop() {
        let probe = Probe {
            asked: &mut asked,
            target: &target,
            depth: 0,
            takes_null: false,
        };
        // Always the error that ends a run.
        drop(T::deserialize(probe));
        targets.append(&mut asked.targets);
    }
    (asked.name, asked.shapes)
}

#[derive(Default)]
struct Asked {
    name: &'static str,
    shapes: Shapes,
    /// Paths to ask for.
    targets: Vec<Vec<&'static str>>,
}

/// Leads a type to the field `target`, and writes down what it asks for there.
struct Probe<'a> {
    asked: &'a mut Asked,
    target: &'a [&'static str],
    depth: usize,
    takes_null: bool,
}

impl Probe<'_> {
    fn note<T>(self, kind: &'static str, values: &[&'static str]) -> Result<T, serde_json::Error> {
        let shape = Shape {
            kind,
            takes_null: self.takes_null,
            values: values.to_vec(),
        };
        self.asked.shapes.insert(self.target.join("."), shape);
        Err(serde_json::Error::custom("told"))
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        let expected = (&visitor as &dyn Expected).to_string();
        let kind = match expected.as_str() {
            "an integer" => "integer",
            "a finite number" => "number",
            "true or false" => "boolean",
            "an object" => "object",
            "any valid JSON value" => "",
            other => panic!("{:?}: a reader wants {other}, which no rule here knows", self.target),
        };
        self.note(kind, &[])
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        if let Some(field) = self.target.get(self.depth) {
            return visitor.visit_map(Entry {
                field: Some(field),
                probe: Some(self),
            });
        }
        let children = fields.iter().map(|field| [self.target, &[*field]].concat());
        self.asked.targets.extend(children);
        if self.depth == 0 {
            self.asked.name = name;
            return Err(serde_json::Error::custom("told"));
        }
        self.note("object", &[])
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_some(Probe {
            takes_null: true,
            ..self
        })
    }

    fn deserialize_string<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        self.note("string", &[])
    }

    fn deserialize_seq<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        self.note("array", &[])
    }

    fn deserialize_map<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        self.note("object", &[])
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        self.note("string", variants)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str bytes byte_buf unit unit_struct newtype_struct
        tuple tuple_struct identifier ignored_any
    }
}

/// A map with one field.
struct Entry<'a> {
    field: Option<&'static str>,
    probe: Option<Probe<'a>>,
}

impl<'de> MapAccess<'de> for Entry<'_> {
    type Error = serde_json::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Self::Error> {
        let name: Option<StrDeserializer<'_, Self::Error>> = self.field.take().map(IntoDeserializer::into_deserializer);
        name.map(|name| seed.deserialize(name)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Self::Error> {
        let probe = self.probe.take().expect("one value");
        seed.deserialize(Probe {
            depth: probe.depth + 1,
            takes_null: false,
            ..probe
        })
    }
}
