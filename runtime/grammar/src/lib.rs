//! Structured output: what a generated text must be (a JSON schema, a regex, choices, a grammar, structural tags),
//! compiled once and then asked after each token which tokens may come next.
//!
//! Owns the grammar library (llguidance) and the rules of what is taken. It never touches a device, HTTP or the
//! environment. Everything that a client sends is measured before it is worked on ([`Limits`]), and is compiled on
//! threads of its own with a deadline ([`Grammars`]).
//!
//! Reading order: `constraint` (what is asked for), `grammars` (compiling and keeping), `matcher` (masks), `compile`,
//! then the translations into the library's Lark: `gbnf`, `structural_tag`.

mod check;
mod compile;
mod constraint;
mod error;
mod gbnf;
mod grammars;
mod lark;
mod matcher;
mod measure;
mod schema;
mod structural_tag;
mod tools;
mod vocabulary;

pub use check::Limits;
pub use constraint::{Constraint, StructuredOutputs};
pub use error::GrammarError;
pub use grammars::{Grammar, GrammarConfig, Grammars, mask_threads};
pub use matcher::Matcher;
pub use tools::{Function, named_call, required_calls};
