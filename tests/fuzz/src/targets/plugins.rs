//! Inputs from a plugin, in its file and through its tables: ELF file, manifest, descriptors of ops, programs, records.

use std::path::Path;

use halyard_models::program::{KvLayout, build_forward};
use halyard_models::{DummyWeights, LoadFormat, ModelFiles};

use halyard_platform_api::Program;
use halyard_platform_api::abi::tables::OpsTable;
use halyard_platform_api::abi::tables::{NodeWire, OpSpecWire, ProgramWire, TensorDeclWire};
use halyard_platform_api::abi::{ProgramBytes, Str, read_program, struct_from_bytes};
use halyard_platform_api::ops::OpSpec;
use halyard_plugin_host::elf::ElfFacts;
use halyard_plugin_host::isolation::{record_from_bytes, record_from_json, record_to_bytes, record_to_json};
use halyard_plugin_host::manifest::Manifest;
use serde_json::json;

use crate::target::{Case, Outcome, fixture, outcome, root};

pub fn manifest_seeds() -> Vec<Vec<u8>> {
    let manifest = |kind: &str, name: &str| {
        json!({"manifest": 1, "kind": kind, "name": name, "version": "0.1.0", "abi": "0.3", "entry": "halyard_entry",
            "priority": 5, "about": "a plugin", "cpu_features": "", "needs": {"x": [1, 2]}})
    };
    let kinds = [
        "platform",
        "stat-logger",
        "io-processor",
        "lora-resolver",
        "logits-processor",
    ];
    kinds
        .map(|kind| manifest(kind, "one").to_string().into_bytes())
        .to_vec()
}

/// The manifest section of a library.
pub fn manifest(_: &Path) -> Case {
    Box::new(|input| {
        let parsed = Manifest::parse_section(input);
        for manifest in parsed.iter().flatten() {
            let _ = manifest.abi_fits();
        }
        outcome(&parsed)
    })
}

pub fn elf_seeds() -> Vec<Vec<u8>> {
    let path = root().join("tests/fuzz/seeds/elf/plugin.so");
    vec![std::fs::read(path).expect("the committed library")]
}

/// A library's file, up to its manifests.
pub fn elf(folder: &Path) -> Case {
    let path = folder.join("plugin.so");
    Box::new(move |input| {
        std::fs::write(&path, input).expect("a file in the temporary folder");
        let facts = ElfFacts::read(&path);
        if let Ok(facts) = &facts {
            let _ = facts.architecture();
            if let Some(section) = &facts.manifest_section {
                return outcome(&Manifest::parse_section(section));
            }
        }
        outcome(&facts)
    })
}

/// The programs of two models.
fn programs() -> Vec<Program> {
    let program = |name: &str| {
        let files = ModelFiles::open(
            &fixture(&format!("models/{name}")),
            LoadFormat::Auto,
            DummyWeights::default(),
        );
        let files = files.expect("a fixture");
        let layout = KvLayout::of(&files.description);
        let format = |role| files.weights.format(role);
        build_forward(&files.description, &layout, &super::models::options(), &format)
            .expect("a program")
            .program
    };
    ["llama", "gemma3"].map(program).to_vec()
}

/// A code, a version and a descriptor.
pub fn op_seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = programs()
        .iter()
        .flat_map(|program| &program.nodes)
        .map(|node| spec_bytes(&node.spec))
        .collect();
    seeds.sort();
    seeds.dedup();
    seeds
}

fn spec_bytes(spec: &OpSpec) -> Vec<u8> {
    let mut bytes = spec.code().to_le_bytes().to_vec();
    bytes.extend(spec.version().to_le_bytes());
    bytes.extend(spec.wire_bytes());
    bytes
}

/// An op's descriptor. What is read says the same once it is written again.
pub fn op(_: &Path) -> Case {
    Box::new(|input| {
        let mut reader = Reader { bytes: input };
        let (code, version) = (reader.u32(), reader.u32());
        let read = OpSpec::from_wire(code, version, "fuzz.op", reader.bytes);
        if let Ok(spec) = &read {
            let again = OpSpec::from_wire(spec.code(), spec.version(), spec.name(), &spec.wire_bytes());
            assert_eq!(format!("{spec:?}"), format!("{:?}", again.expect("its own bytes")));
            let _ = spec.operands();
        }
        outcome(&read)
    })
}

/// Counts, then tensors, then nodes: what [`program`] lays out as the wire has it.
pub fn program_seeds() -> Vec<Vec<u8>> {
    programs().iter().map(program_bytes).collect()
}

fn program_bytes(program: &Program) -> Vec<u8> {
    let mut bytes = (program.tensors.len() as u16).to_le_bytes().to_vec();
    bytes.extend((program.nodes.len() as u16).to_le_bytes());
    for tensor in &program.tensors {
        for word in [
            tensor.dtype as u32,
            u32::from(tensor.internal),
            tensor.storage,
            tensor.first_column,
            tensor.num_columns,
        ] {
            bytes.extend(word.to_le_bytes());
        }
    }
    for node in &program.nodes {
        let spec = spec_bytes(&node.spec);
        bytes.extend((spec.len() as u16).to_le_bytes());
        bytes.extend(spec);
        bytes.extend((node.operands.len() as u16).to_le_bytes());
        bytes.extend(node.operands.iter().flat_map(|operand| operand.to_le_bytes()));
    }
    bytes
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(len.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    fn number(&mut self, len: usize) -> u32 {
        let mut word = [0; 4];
        let taken = self.take(len);
        word[..taken.len()].copy_from_slice(taken);
        u32::from_le_bytes(word)
    }

    fn u32(&mut self) -> u32 {
        self.number(4)
    }

    fn u16(&mut self) -> u16 {
        self.number(2) as u16
    }
}

/// Code, version and descriptor of a node's op; the node's operands and their access.
type NodeParts = (u32, u32, Vec<u8>, Vec<u16>, Vec<u8>);

/// A program over the tables, with true lengths and any contents.
pub fn program(_: &Path) -> Case {
    Box::new(|input| {
        let mut reader = Reader { bytes: input };
        let (num_tensors, num_nodes) = (reader.u16() % 2048, reader.u16() % 1024);
        let tensors: Vec<TensorDeclWire> = (0..num_tensors).map(|_| tensor(&mut reader)).collect();
        let parts: Vec<NodeParts> = (0..num_nodes)
            .map(|_| {
                let len = usize::from(reader.u16()).max(8);
                let (code, version) = (reader.u32(), reader.u32());
                let descriptor = reader.take(len - 8).to_vec();
                let operands: Vec<u16> = (0..reader.u16() % 64).map(|_| reader.u16()).collect();
                let access = operands.iter().map(|operand| (operand % 5) as u8).collect();
                (code, version, descriptor, operands, access)
            })
            .collect();
        let name = "fuzz.op".to_owned();
        let specs: Vec<OpSpecWire> = parts
            .iter()
            .map(|(code, version, descriptor, ..)| {
                let mut wire = OpSpecWire::zeroed();
                wire.code = *code;
                wire.version = *version;
                wire.name = Str::new(&name);
                wire.descriptor = descriptor.as_ptr();
                wire.descriptor_len = descriptor.len() as u64;
                wire
            })
            .collect();
        let nodes: Vec<NodeWire> = specs
            .iter()
            .zip(&parts)
            .map(|(spec, (.., operands, access))| {
                let mut wire = NodeWire::zeroed();
                wire.spec = spec;
                wire.operands = operands.as_ptr();
                wire.access = access.as_ptr();
                wire.num_operands = operands.len() as u32;
                wire
            })
            .collect();
        let mut wire = ProgramWire::zeroed();
        wire.num_nodes = nodes.len() as u32;
        wire.nodes = nodes.as_ptr();
        wire.node_stride = size_of::<NodeWire>() as u32;
        wire.num_tensors = tensors.len() as u32;
        wire.tensors = tensors.as_ptr();
        wire.tensor_stride = size_of::<TensorDeclWire>() as u32;
        // SAFETY: every pointer is to a vector of this function and every length is that vector's.
        let read = unsafe { read_program(&wire) };
        if let Ok(program) = &read {
            let _ = program.tensor_access();
            let half = program.nodes.len() / 2;
            let (region, _) = program.region(half, program.nodes.len() - half);
            region.validate().expect("a region of a valid program");
            let owner = ProgramBytes::new(program, OpsTable::VERSION.1);
            // SAFETY: valid while `owner` is.
            let again = unsafe { read_program(&owner.wire()) };
            // What made a node unknown, a tensor's type for one, is not written: it may be read as a known one then,
            // and be refused for its operands.
            if program
                .nodes
                .iter()
                .all(|node| !matches!(node.spec, OpSpec::Unknown(_)))
            {
                let again = again.expect("its own bytes");
                assert_eq!(format!("{program:?}"), format!("{again:?}"));
            }
        }
        outcome(&read)
    })
}

fn tensor(reader: &mut Reader<'_>) -> TensorDeclWire {
    let mut wire = TensorDeclWire::zeroed();
    wire.dtype = reader.u32();
    wire.internal = reader.u32();
    wire.storage = reader.u32();
    wire.first_column = reader.u32();
    wire.num_columns = reader.u32();
    wire
}

/// Records as the json-lines logger wrote them.
pub fn record_json_seeds() -> Vec<Vec<u8>> {
    let recorded = std::fs::read(root().join("server/src/cli/plugins/recording.jsonl")).expect("the recording");
    recorded
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(<[u8]>::to_vec)
        .collect()
}

/// A record of `halyard plugins test`'s recordings.
pub fn record_json(_: &Path) -> Case {
    Box::new(|input| {
        let Ok(value) = serde_json::from_slice(input) else {
            return Outcome::Refused;
        };
        let read = record_from_json(&value);
        if let Ok(record) = &read {
            let written = record_to_json(record).expect("what was read is written");
            let again = record_from_json(&written).map(|record| format!("{record:?}"));
            // A number that is none has no JSON.
            if !format!("{record:?}").contains("NaN") {
                assert_eq!(again.ok(), Some(format!("{record:?}")));
            }
        }
        outcome(&read)
    })
}

pub fn record_seeds() -> Vec<Vec<u8>> {
    let records = record_json_seeds();
    let record = |line: &Vec<u8>| {
        let value = serde_json::from_slice(line).expect("JSON");
        let mut bytes = Vec::new();
        record_to_bytes(&record_from_json(&value).expect("a record"), &mut bytes).expect("its form is known");
        bytes
    };
    records.iter().map(record).collect()
}

/// A record's frame, as a hook's process gets it over shared memory.
pub fn record(_: &Path) -> Case {
    Box::new(|input| {
        let _ = struct_from_bytes::<TensorDeclWire>(input);
        let read = record_from_bytes(input);
        if let Ok(record) = &read {
            let mut bytes = Vec::new();
            record_to_bytes(record, &mut bytes).expect("what was read is written");
            let again = record_from_bytes(&bytes).expect("its own bytes");
            assert_eq!(format!("{record:?}"), format!("{again:?}"));
        }
        outcome(&read)
    })
}
