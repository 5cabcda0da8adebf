//! A test server whose model's words are written down.

#[path = "../../../tests/e2e/src/scripted.rs"]
pub mod scripted;

use halyard_platform_api::{OpenOptions, Platform};
use halyard_script::ScriptPlatform;
use halyard_server::openai::policy::ServingDefaults;
use scripted::ScriptedModel;

use crate::common::{Options, TestServer, fixture};

/// A thought, then a call.
pub const THINKING: &str = "<think>\nRain?\n</think>\n\n\
                        <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}\n</tool_call>\
                        <|im_end|>";

/// A server and the model that it serves, which must stay as long.
pub struct Scripted {
    pub server: TestServer,
    pub model: ScriptedModel,
}

impl Scripted {
    pub fn of(model: ScriptedModel, parsers: (Option<&'static str>, Option<&'static str>)) -> Scripted {
        Scripted::serving(model, parsers, ServingDefaults::default())
    }

    pub fn serving(
        model: ScriptedModel,
        parsers: (Option<&'static str>, Option<&'static str>),
        serving: ServingDefaults,
    ) -> Scripted {
        let options = Options {
            parsers,
            serving,
            ..Options::default()
        };
        Scripted::with(model, options)
    }

    pub fn with(model: ScriptedModel, options: Options) -> Scripted {
        let text = |path: std::path::PathBuf| path.to_str().expect("UTF-8").to_owned();
        let device = OpenOptions::of(0).with("script", &text(model.script()));
        let device = device.and_then(|device| device.with("tokenizer", &text(model.tokenizer())));
        let server = TestServer::with(Options {
            device: Some(ScriptPlatform.open_with(&device.expect("options")).expect("opens")),
            model: Some(model.folder().to_path_buf()),
            dummy_weights: true,
            ..options
        });
        Scripted { server, model }
    }

    pub fn new(template: &str, parsers: (Option<&'static str>, Option<&'static str>), say: &str) -> Scripted {
        let model = ScriptedModel::with_template_of(&fixture(".."), template, &[("", say)]);
        Scripted::of(model, parsers)
    }

    pub fn qwen(reasoning: Option<&'static str>, say: &str) -> Scripted {
        Scripted::new("qwen3", (Some("hermes"), reasoning), say)
    }
}
