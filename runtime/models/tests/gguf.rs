//! Reading GGUF files: what is there is found, and no damage to any byte makes the reader panic.

mod support;

use std::path::PathBuf;

use halyard_models::gguf::{GgufArray, GgufFile, GgufValue};
use halyard_models::{GgufTokenizerData, ModelError};
use support::{GgufWriter, TempFolder, array_value, bool_value, f32_bytes, i32_value, string, string_value, u32_value};

fn open(bytes: &[u8]) -> Result<(TempFolder, GgufFile), ModelError> {
    let folder = TempFolder::new();
    open_in(&folder, bytes).map(|file| (folder, file))
}

/// As `open`, for tests that open thousands of files one after the other.
fn open_in(folder: &TempFolder, bytes: &[u8]) -> Result<GgufFile, ModelError> {
    let path: PathBuf = folder.write("model.gguf", bytes);
    GgufFile::open(&path)
}

fn malformed(bytes: &[u8]) -> (String, u64, String, String) {
    match open(bytes) {
        Err(ModelError::Malformed {
            part,
            offset,
            expected,
            found,
            path,
        }) => {
            assert!(path.ends_with("model.gguf"));
            (part, offset, expected, found)
        }
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("accepted"),
    }
}

#[test]
fn reads_metadata_and_tensors_of_versions_2_and_3() {
    for version in [2, 3] {
        let mut writer = GgufWriter::tiny_llama();
        writer.version = version;
        writer
            .set("test.i32", i32_value(-7))
            .set("test.u8", [0u32.to_le_bytes().as_slice(), &[200]].concat())
            .set(
                "test.f64",
                [12u32.to_le_bytes().as_slice(), &0.1f64.to_le_bytes()].concat(),
            )
            .set("test.i16s", array_value(3, &[vec![0xff, 0xff], vec![5, 0]]))
            .set(
                "test.nested",
                array_value(
                    9,
                    &[[4u32.to_le_bytes().as_slice(), &1u64.to_le_bytes(), &9u32.to_le_bytes()].concat()],
                ),
            );
        let (_folder, file) = open(&writer.bytes()).unwrap();
        assert_eq!(file.version(), version);
        assert_eq!(file.value("test.i32"), Some(&GgufValue::Signed(-7)));
        assert_eq!(file.value("test.u8"), Some(&GgufValue::Unsigned(200)));
        assert_eq!(file.value("test.f64"), Some(&GgufValue::Float(0.1)));
        assert_eq!(
            file.value("test.i16s"),
            Some(&GgufValue::Array(GgufArray::Signed(vec![-1, 5])))
        );
        let nested = GgufArray::Array(vec![GgufArray::Unsigned(vec![9])]);
        assert_eq!(file.value("test.nested"), Some(&GgufValue::Array(nested)));
        assert_eq!(file.string("general.name").unwrap(), Some("Tiny"));

        let (name, dims, _, data) = &writer.tensors[7];
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.shape, dims.iter().rev().map(|&d| d as usize).collect::<Vec<_>>());
        assert_eq!(file.tensor_bytes(tensor), data);
        assert_eq!(file.tensor_names().count(), writer.tensors.len());
    }
}

#[test]
fn exposes_the_tokenizer_arrays() {
    let mut writer = GgufWriter::tiny_llama();
    writer.set("tokenizer.ggml.padding_token_id", u32_value(u32::MAX)).set(
        "tokenizer.ggml.token_type",
        array_value(5, &[1, 1, 1, 3, 3, 3].map(|t: i32| t.to_le_bytes().to_vec())),
    );
    let (_folder, file) = open(&writer.bytes()).unwrap();
    let tokenizer = GgufTokenizerData::read(&file).unwrap();
    assert_eq!(
        (tokenizer.model.as_str(), tokenizer.pre.as_deref()),
        ("gpt2", Some("smollm"))
    );
    assert_eq!(tokenizer.tokens[2], "ab");
    assert_eq!(tokenizer.merges, ["a b"]);
    assert_eq!(tokenizer.token_types, [1, 1, 1, 3, 3, 3]);
    assert_eq!(
        (tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.unk),
        (Some(3), Some(4), None, None)
    );
    assert_eq!((tokenizer.add_bos, tokenizer.add_eos), (Some(true), None));
    assert_eq!(tokenizer.chat_template.as_deref(), Some("{{ messages }}"));

    writer.set("tokenizer.ggml.eos_token_id", u32_value(6));
    let (_folder, file) = open(&writer.bytes()).unwrap();
    let error = GgufTokenizerData::read(&file).unwrap_err().to_string();
    assert!(
        error.contains("eos_token_id") && error.contains('6') && error.contains("below 6"),
        "{error}"
    );

    writer
        .set("tokenizer.ggml.eos_token_id", u32_value(4))
        .set("tokenizer.ggml.scores", array_value(6, &[f32_bytes(&[0.5])]));
    let (_folder, file) = open(&writer.bytes()).unwrap();
    let error = GgufTokenizerData::read(&file).unwrap_err().to_string();
    assert!(
        error.contains("scores") && error.contains("array of 6 floats"),
        "{error}"
    );
}

#[test]
fn truncation_at_any_byte_is_an_error_and_no_panic() {
    let writer = GgufWriter::tiny_llama();
    let bytes = writer.bytes();
    let folder = TempFolder::new();
    // Every byte of the header, then steps through the data.
    let data = (writer.header_len()..bytes.len()).step_by(61);
    for len in (0..writer.header_len()).chain(data).chain([bytes.len() - 1]) {
        match open_in(&folder, &bytes[..len]) {
            Err(ModelError::Truncated { needed, available, .. }) => assert!(needed > available, "at {len}"),
            // A count or length that promises more than is left.
            Err(ModelError::Malformed { .. }) => {}
            Err(other) => panic!("truncated at {len}: {other}"),
            Ok(_) => panic!("accepted when truncated at {len} of {}", bytes.len()),
        }
    }
}

#[test]
fn damage_to_any_header_byte_never_panics() {
    let writer = GgufWriter::tiny_llama();
    let bytes = writer.bytes();
    let header_len = writer.header_len();
    let folder = TempFolder::new();
    let mut refused = 0;
    for at in 0..header_len {
        for flip in [0x01, 0x80] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            match open_in(&folder, &damaged) {
                Ok(file) => {
                    // What was accepted must be safe to use.
                    for name in file.tensor_names() {
                        let tensor = file.tensor(name).unwrap();
                        assert_eq!(file.tensor_bytes(tensor).len(), tensor.len);
                    }
                    let _ = GgufTokenizerData::read(&file);
                }
                Err(ModelError::Truncated { .. } | ModelError::Malformed { .. }) => refused += 1,
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
    }
    assert!(
        refused > header_len / 2,
        "only {refused} of {} damages were seen",
        2 * header_len
    );
}

#[test]
fn names_magic_and_version_that_are_wrong() {
    let mut bytes = GgufWriter::tiny_llama().bytes();
    bytes[..4].copy_from_slice(b"PK\x03\x04");
    let (part, offset, expected, _) = malformed(&bytes);
    assert_eq!((part.as_str(), offset), ("magic", 0));
    assert!(expected.contains("GGUF"));

    let mut writer = GgufWriter::tiny_llama();
    writer.version = 1;
    assert_eq!(malformed(&writer.bytes()).3, "1");
    writer.version = 3u32.swap_bytes();
    assert_eq!(malformed(&writer.bytes()).3, "version 3 in big endian");
}

#[test]
fn refuses_absurd_counts_without_allocating_for_them() {
    let bytes = GgufWriter::tiny_llama().bytes();
    for (offset, name) in [(8, "tensor count"), (16, "metadata count")] {
        let mut damaged = bytes.clone();
        damaged[offset..offset + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let (part, at, ..) = malformed(&damaged);
        assert_eq!((part.as_str(), at), (name, offset as u64));
    }
    let mut writer = GgufWriter::tiny_llama();
    let huge = [
        9u32.to_le_bytes().as_slice(),
        &4u32.to_le_bytes(),
        &(1u64 << 60).to_le_bytes(),
    ]
    .concat();
    writer.set("test.huge", huge);
    assert_eq!(malformed(&writer.bytes()).0, "test.huge");

    let mut deep = [4u32.to_le_bytes().as_slice(), &0u64.to_le_bytes()].concat();
    for _ in 0..100 {
        deep = [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes(), &deep].concat();
    }
    let mut writer = GgufWriter::tiny_llama();
    writer.set("test.deep", [9u32.to_le_bytes().as_slice(), &deep].concat());
    assert!(malformed(&writer.bytes()).2.contains("nesting"));
}

#[test]
fn refuses_bad_tensor_tables() {
    let refuse = |change: &dyn Fn(&mut GgufWriter), part: &str| {
        let mut writer = GgufWriter::tiny_llama();
        change(&mut writer);
        let found = malformed(&writer.bytes()).0;
        assert!(
            found.contains(part),
            "expected a complaint about {part}, got one about {found}"
        );
    };
    refuse(&|w| w.tensors[0].1 = vec![], "number of axes");
    refuse(&|w| w.tensors[0].1 = vec![1; 5], "number of axes");
    refuse(&|w| w.tensors[0].1 = vec![8, 0], "shape of tensor `token_embd.weight`");
    refuse(&|w| w.tensors[0].1 = vec![1 << 62, 1 << 62], "shape of tensor");
    refuse(&|w| w.tensors[0].2 = 2, "shape of tensor"); // Q4_0 needs a multiple of 32
    refuse(&|w| w.tensors[0].2 = 5, "type of tensor"); // a number that ggml retired
    refuse(&|w| w.tensors[1].0 = "token_embd.weight".into(), "tensor name");
    refuse(
        &|w| w.metadata.push(("general.name".into(), string_value("again"))),
        "metadata key",
    );
    refuse(
        &|w| w.metadata.push(("bad.bool".into(), bool_value(2))),
        "bool `bad.bool`",
    );
    refuse(
        &|w| w.metadata.push(("bad.type".into(), vec![13, 0, 0, 0])),
        "value type of `bad.type`",
    );
    refuse(
        &|w| w.metadata.push(("general.alignment".into(), u32_value(24))),
        "general.alignment",
    );
}

/// Numbers, names and sizes of ggml's types (`enum ggml_type` and the structs of ggml-common.h), for a row of one
/// block: values less than a block are refused, and so are bytes less than a block.
#[test]
fn a_row_of_every_quantised_type_is_whole_blocks() {
    let types = [
        (7, "Q5_1", 32, 24),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (13, "Q5_K", 256, 176),
        (16, "IQ2_XXS", 256, 66),
        (17, "IQ2_XS", 256, 74),
        (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18),
        (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82),
        (23, "IQ4_XS", 256, 136),
        (29, "IQ1_M", 256, 56),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
    ];
    for (code, name, values, bytes) in types {
        let file = |columns: u64, bytes: usize| {
            let mut writer = GgufWriter::tiny_llama();
            let last = writer.tensors.last_mut().unwrap();
            (last.1, last.2, last.3) = (vec![columns, 1], code, vec![7; bytes]);
            (last.0.clone(), writer.bytes())
        };
        let (tensor, whole) = file(values, bytes);
        let (_folder, opened) = open(&whole).unwrap();
        let found = opened.tensor(&tensor).unwrap();
        assert_eq!((found.tensor_type.name(), found.len), (name, bytes));
        assert!(found.tensor_type.weight_format().is_some(), "{name}");
        let (part, _, expected, _) = malformed(&file(values - 1, bytes).1);
        assert!(
            part.contains("shape") && expected.contains(&format!("{values} for {name}")),
            "{expected}"
        );
        let short = whole.len() - 1;
        let error = open(&whole[..short]).map(|_| ()).unwrap_err();
        assert!(matches!(error, ModelError::Truncated { .. }), "{name}: {error}");
    }
}

#[test]
fn refuses_overlapping_and_unaligned_tensor_data() {
    let writer = GgufWriter::tiny_llama();
    let bytes = writer.bytes();
    // The second entry's offset field is the last 8 bytes before the third entry's name.
    let third = string(&writer.tensors[2].0);
    let at = bytes.windows(third.len()).position(|w| w == third).unwrap() - 8;
    let with_offset = |offset: u64| {
        let mut damaged = bytes.clone();
        damaged[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        damaged
    };
    assert!(malformed(&with_offset(32)).0.contains("data of tensor"), "overlap");
    assert!(
        malformed(&with_offset(33))
            .0
            .contains("offset of tensor `output_norm.weight`"),
        "unaligned"
    );
    let far = open(&with_offset(u64::MAX - 31)).map(|_| ()).unwrap_err();
    assert!(matches!(far, ModelError::Truncated { .. }), "{far}");
}

#[test]
fn typed_lookups_name_key_value_and_limit() {
    let mut writer = GgufWriter::tiny_llama();
    writer
        .set("test.negative", i32_value(-1))
        .set("test.mixed", array_value(4, &[vec![1, 0, 0, 0], vec![2, 0, 0, 0]]));
    writer.set("test.same", array_value(4, &[vec![3, 0, 0, 0], vec![3, 0, 0, 0]]));
    let (_folder, file) = open(&writer.bytes()).unwrap();
    assert_eq!(file.unsigned("test.same").unwrap(), Some(3));
    assert_eq!(file.unsigned("test.absent").unwrap(), None);
    for key in ["test.negative", "test.mixed", "general.name"] {
        let error = file.unsigned(key).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains("an integer from 0 up"), "{error}");
    }
    assert!(file.string("llama.block_count").is_err());
    assert!(file.bool("llama.block_count").is_err());
    assert!(file.float("general.name").is_err());
}
