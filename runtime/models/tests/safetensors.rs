//! Reading safetensors files: what another writer wrote is found, and no damage makes the reader panic.

mod support;

use halyard_models::ModelError;
use halyard_models::safetensors::SafetensorsFiles;
use halyard_platform_api::WeightFormat;
use safetensors::tensor::{Dtype, TensorView};
use support::{TempFolder, f32_bytes};

fn two_tensors() -> Vec<u8> {
    let a = f32_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let b = [0x80, 0x3f, 0x00, 0xc0];
    let views = [
        ("a", TensorView::new(Dtype::F32, vec![2, 3], &a).unwrap()),
        ("b", TensorView::new(Dtype::BF16, vec![2], &b).unwrap()),
    ];
    safetensors::serialize(views, None).unwrap()
}

fn with_header(header: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data_len, 0);
    bytes
}

fn open(bytes: &[u8]) -> Result<SafetensorsFiles, ModelError> {
    let folder = TempFolder::new();
    folder.write("model.safetensors", bytes);
    SafetensorsFiles::open_folder(folder.path())
}

#[test]
fn reads_what_the_safetensors_library_wrote() {
    let files = open(&two_tensors()).unwrap();
    let a = files.tensor("a").unwrap();
    assert_eq!(
        (a.shape.as_slice(), a.format),
        ([2, 3].as_slice(), Some(WeightFormat::F32))
    );
    assert_eq!(files.tensor_bytes(a), f32_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let b = files.tensor("b").unwrap();
    assert_eq!((b.dtype.as_str(), b.format), ("BF16", Some(WeightFormat::BF16)));
    assert_eq!(files.tensor_bytes(b), [0x80, 0x3f, 0x00, 0xc0]);
    assert!(files.tensor("c").is_none());
}

#[test]
fn truncation_at_any_byte_is_an_error_and_no_panic() {
    let bytes = two_tensors();
    for len in 0..bytes.len() {
        match open(&bytes[..len]) {
            Err(ModelError::Truncated { needed, available, .. }) => assert!(needed > available, "at {len}"),
            Err(other) => panic!("truncated at {len}: {other}"),
            Ok(_) => panic!("accepted when truncated at {len}"),
        }
    }
}

#[test]
fn damage_to_any_header_byte_never_panics() {
    let bytes = two_tensors();
    let header_len = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut refused = 0;
    for at in 0..header_len {
        for flip in [0x01, 0x10, 0x80] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            match open(&damaged) {
                Ok(files) => {
                    for name in files.names() {
                        let _ = files.tensor_bytes(files.tensor(name).unwrap());
                    }
                }
                Err(ModelError::Truncated { .. } | ModelError::Malformed { .. }) => refused += 1,
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
    }
    assert!(refused > header_len, "only {refused} damages were seen");
}

#[test]
fn refuses_headers_that_contradict_themselves() {
    let cases = [
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
            "span shape times element size",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#,
            "span shape times element size",
        ),
        (
            r#"{"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}}"#,
            "a `dtype` of the safetensors format",
        ),
        (
            r#"{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#,
            "a `shape` of integers",
        ),
        (r#"{"a":{"dtype":"F32","shape":[2]}}"#, "`data_offsets` of two integers"),
        (
            r#"{"a":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,8]}}"#,
            "span shape",
        ),
        (r#"{"a":7}"#, "a `dtype` name"),
        (r#"[1]"#, "a JSON object"),
        (
            r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
            "an offset of at least 8",
        ),
    ];
    for (header, expected) in cases {
        let error = open(&with_header(header, 16)).map(|_| ()).unwrap_err();
        assert!(matches!(error, ModelError::Malformed { .. }), "{header}: {error}");
        assert!(error.to_string().contains(expected), "{header}: {error}");
    }
    let error = open(&u64::MAX.to_le_bytes()).map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("header length") && error.contains("100000000"),
        "{error}"
    );
}

#[test]
fn opens_shards_by_index_and_checks_that_each_holds_what_the_index_says() {
    let shard = |name: &str| {
        let data = f32_bytes(&[name.len() as f32]);
        safetensors::serialize([(name, TensorView::new(Dtype::F32, vec![1], &data).unwrap())], None).unwrap()
    };
    let folder = TempFolder::new();
    folder.write("x-1.safetensors", shard("first"));
    folder.write("x-2.safetensors", shard("other"));
    let index = |second: &str, file: &str| {
        let map = format!(r#"{{"weight_map":{{"first":"x-1.safetensors","{second}":"{file}"}}}}"#);
        folder.write("model.safetensors.index.json", map);
        SafetensorsFiles::open_folder(folder.path())
    };
    let files = index("other", "x-2.safetensors").unwrap();
    assert_eq!(files.tensor_bytes(files.tensor("other").unwrap()), f32_bytes(&[5.0]));
    assert_eq!(files.names().count(), 2);

    let error = index("othet", "x-2.safetensors").map(|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("`othet` is missing") && error.contains("other"),
        "{error}"
    );
    let error = index("other", "x-3.safetensors").map(|_| ()).unwrap_err();
    assert!(
        matches!(&error, ModelError::Io { path, .. } if path.ends_with("x-3.safetensors")),
        "{error}"
    );
    for outside in ["../x-2.safetensors", "/etc/passwd", "..", ""] {
        let error = index("other", outside).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("a file in the same folder"), "{outside}: {error}");
    }
}

#[test]
fn several_files_without_an_index_are_refused() {
    let folder = TempFolder::new();
    let error = SafetensorsFiles::open_folder(folder.path()).map(|_| ()).unwrap_err();
    assert!(matches!(error, ModelError::NoModel { .. }), "{error}");
    folder.write("a.safetensors", two_tensors());
    assert!(SafetensorsFiles::open_folder(folder.path()).is_ok());
    folder.write("b.safetensors", two_tensors());
    let error = SafetensorsFiles::open_folder(folder.path())
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(error.contains("2 .safetensors files without"), "{error}");
}
