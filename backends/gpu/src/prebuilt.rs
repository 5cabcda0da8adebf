//! Kernels that were compiled ahead, in a file beside a platform's library. A start takes from it what it has, without
//! a compiler; `server/packaging/kernels` makes it.
//!
//! The file, numbers little-endian: [`MAGIC`]; the number of images (u32); for each, by ascending key, its key (32
//! bytes), where it begins in the file (u64), and its bytes there and unpacked (u32 each); then the images as zlib
//! streams, which carry a checksum. The key is a hash of all that an image depends on but the compiler
//! ([`kernel_key`]), so a file of another version has nothing that this one asks for.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use halyard_platform_api::log;
use sha2::{Digest, Sha256};

use crate::driver::KernelText;

/// First bytes of the file; the number changes with the layout.
const MAGIC: &[u8; 18] = b"halyard kernels 1\n";
const COUNT_BYTES: usize = 4;
const ENTRY_BYTES: usize = KEY_BYTES + 16;
/// Most images that a file has. One for each model and device that is known would be some thousand.
const MAX_IMAGES: usize = 1 << 17;
/// Largest image. Ours have 300 KB at most.
const MAX_IMAGE_BYTES: u32 = 64 << 20;

const KEY_BYTES: usize = 32;
/// The hash that names a kernel file under one set of definitions, for one architecture.
pub type KernelKey = [u8; KEY_BYTES];

/// Hashes the name, the text, its headers, the definitions and the architecture.
pub fn kernel_key(name: &str, text: KernelText, options: &[String], arch: &str) -> KernelKey {
    let mut hash = Sha256::new();
    let mut part = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    part(name);
    part(text.text);
    for (name, text) in text.headers {
        part(name);
        part(text);
    }
    for option in options {
        part(option);
    }
    part(arch);
    hash.finalize().into()
}

/// Where an image lies.
struct Entry {
    key: KernelKey,
    begin: u64,
    packed_bytes: u32,
    bytes: u32,
}

/// An open file of kernels. Holds its list; images are read when they are asked for.
pub struct PrebuiltKernels {
    file: File,
    entries: Vec<Entry>,
}

fn broken(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

impl PrebuiltKernels {
    /// Opens the file; `None` where there is none, or where it is not whole: the log says so, and kernels are compiled.
    pub fn open(path: &Path) -> Option<PrebuiltKernels> {
        let file = File::open(path).ok()?;
        PrebuiltKernels::read(file)
            .inspect_err(|error| {
                let text = format!(
                    "{}: {error}; kernels are compiled instead: install the package again",
                    path.display()
                );
                log::warn("gpu", &text);
            })
            .ok()
    }

    fn read(file: File) -> io::Result<PrebuiltKernels> {
        let length = file.metadata()?.len();
        let mut head = [0; MAGIC.len() + COUNT_BYTES];
        file.read_exact_at(&mut head, 0)?;
        let count = head
            .strip_prefix(MAGIC)
            .and_then(|count| count.try_into().ok())
            .map(u32::from_le_bytes)
            .ok_or_else(|| broken("does not begin as a file of kernels"))?;
        let list_bytes = count as usize * ENTRY_BYTES;
        if count as usize > MAX_IMAGES || (head.len() + list_bytes) as u64 > length {
            return Err(broken(format!("names {count} images in {length} bytes")));
        }
        let mut list = vec![0; list_bytes];
        file.read_exact_at(&mut list, head.len() as u64)?;
        let entries: Vec<Entry> = list.chunks_exact(ENTRY_BYTES).filter_map(entry).collect();
        let fits = |entry: &Entry| {
            let end = entry.begin.checked_add(entry.packed_bytes.into());
            end.is_some_and(|end| end <= length) && entry.bytes <= MAX_IMAGE_BYTES
        };
        if !entries.iter().all(fits) || !entries.is_sorted_by(|a, b| a.key < b.key) {
            return Err(broken("its list is damaged"));
        }
        Ok(PrebuiltKernels { file, entries })
    }

    /// The image of this key; `None` where the file has none.
    ///
    /// # Errors
    /// What reading says; an image that is damaged.
    pub fn image(&self, key: &KernelKey) -> io::Result<Option<Vec<u8>>> {
        let Ok(place) = self.entries.binary_search_by(|entry| entry.key.cmp(key)) else {
            return Ok(None);
        };
        let entry = &self.entries[place];
        let mut packed = vec![0; entry.packed_bytes as usize];
        self.file.read_exact_at(&mut packed, entry.begin)?;
        let mut image = Vec::with_capacity(entry.bytes as usize);
        // One byte more than it may have shows that it has more.
        ZlibDecoder::new(&packed[..])
            .take(u64::from(entry.bytes) + 1)
            .read_to_end(&mut image)?;
        match image.len() == entry.bytes as usize {
            true => Ok(Some(image)),
            false => Err(broken(format!("an image of {} bytes has {}", entry.bytes, image.len()))),
        }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn entry(bytes: &[u8]) -> Option<Entry> {
    let (key, rest) = bytes.split_first_chunk()?;
    let (begin, rest) = rest.split_first_chunk()?;
    let (packed_bytes, rest) = rest.split_first_chunk()?;
    Some(Entry {
        key: *key,
        begin: u64::from_le_bytes(*begin),
        packed_bytes: u32::from_le_bytes(*packed_bytes),
        bytes: u32::from_le_bytes(rest.try_into().ok()?),
    })
}

/// The bytes of a file of these images. Equal images give equal bytes.
///
/// # Errors
/// More images, or a larger one, than a reader takes.
pub fn prebuilt_file(images: &BTreeMap<KernelKey, Vec<u8>>) -> io::Result<Vec<u8>> {
    if images.len() > MAX_IMAGES {
        return Err(broken(format!("{} images; {MAX_IMAGES} at most", images.len())));
    }
    let mut file = MAGIC.to_vec();
    file.extend_from_slice(&(images.len() as u32).to_le_bytes());
    let mut begin = (file.len() + images.len() * ENTRY_BYTES) as u64;
    let mut all_packed = Vec::new();
    for (key, image) in images {
        if image.len() > MAX_IMAGE_BYTES as usize {
            return Err(broken(format!(
                "an image of {} bytes; {MAX_IMAGE_BYTES} at most",
                image.len()
            )));
        }
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::best());
        packer.write_all(image)?;
        let packed = packer.finish()?;
        file.extend_from_slice(key);
        file.extend_from_slice(&begin.to_le_bytes());
        file.extend_from_slice(&(packed.len() as u32).to_le_bytes());
        file.extend_from_slice(&(image.len() as u32).to_le_bytes());
        begin += packed.len() as u64;
        all_packed.extend_from_slice(&packed);
    }
    file.extend_from_slice(&all_packed);
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: KernelText = KernelText {
        text: "kernel",
        headers: &[("a.cuh", "one")],
    };

    fn images() -> BTreeMap<KernelKey, Vec<u8>> {
        let image = |at: u32| (0..300 + at).map(|i| (i * 7 + at) as u8).collect();
        (0..5).map(|at| ([at as u8 * 40; 32], image(at))).collect()
    }

    /// A file of these bytes, gone when the test ends.
    struct Written(std::path::PathBuf);

    impl Written {
        fn new(name: &str, bytes: &[u8]) -> Written {
            let path = std::env::temp_dir().join(format!("halyard-kernels-{}-{name}", std::process::id()));
            std::fs::write(&path, bytes).expect("a temporary file");
            Written(path)
        }
    }

    impl Drop for Written {
        fn drop(&mut self) {
            // Best effort: it lies in the system's temporary folder.
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn images_come_back_by_their_keys() {
        let file = Written::new("whole", &prebuilt_file(&images()).expect("small"));
        let kernels = PrebuiltKernels::open(&file.0).expect("whole");
        assert_eq!((kernels.len(), kernels.is_empty()), (5, false));
        for (key, image) in images() {
            assert_eq!(kernels.image(&key).expect("whole"), Some(image));
        }
        assert_eq!(kernels.image(&[1; 32]).expect("whole"), None);
        assert!(PrebuiltKernels::open(Path::new("no/such/file")).is_none());
        let none = Written::new("none", &prebuilt_file(&BTreeMap::new()).expect("small"));
        assert!(PrebuiltKernels::open(&none.0).expect("whole").is_empty());
    }

    /// Whatever byte is wrong and wherever it is cut off: no image comes that is not the one written.
    #[test]
    fn a_damaged_file_gives_no_wrong_image() {
        let whole = prebuilt_file(&images()).expect("small");
        let mut refused = 0;
        let mut look = |bytes: &[u8], what: &str| {
            let file = Written::new("damaged", bytes);
            let Some(kernels) = PrebuiltKernels::open(&file.0) else {
                refused += 1;
                return;
            };
            for (key, image) in images() {
                // A key that is damaged is not found, and an image that is damaged is an error.
                if let Ok(Some(found)) = kernels.image(&key) {
                    assert_eq!(found, image, "{what}");
                }
            }
        };
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x41;
            look(&damaged, &format!("byte {at} is another"));
            look(&whole[..at], &format!("cut at {at}"));
        }
        assert!(refused > whole.len(), "{refused} files of {} refused", 2 * whole.len());
    }

    #[test]
    fn a_file_that_promises_much_takes_no_memory() {
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&u32::MAX.to_le_bytes());
        let error = Written::new("count", &file);
        assert!(PrebuiltKernels::open(&error.0).is_none());
        // An image that unpacks to more than its entry says.
        let many = BTreeMap::from([([1; 32], vec![0; 1 << 20])]);
        let mut file = prebuilt_file(&many).expect("small");
        let size = MAGIC.len() + COUNT_BYTES + ENTRY_BYTES - 4;
        file[size..size + 4].copy_from_slice(&1000u32.to_le_bytes());
        let file = Written::new("size", &file);
        let kernels = PrebuiltKernels::open(&file.0).expect("its list is right");
        let error = kernels.image(&[1; 32]).expect_err("longer than its entry says");
        assert_eq!(error.to_string(), "an image of 1000 bytes has 1001");
    }

    #[test]
    fn a_key_changes_with_all_that_an_image_depends_on() {
        let options = ["-DACT=bf16".to_string()];
        let key = kernel_key("sample", TEXT, &options, "sm_90a");
        let header = KernelText {
            headers: &[("a.cuh", "two")],
            ..TEXT
        };
        let text = KernelText { text: "other", ..TEXT };
        for other in [
            kernel_key("logits", TEXT, &options, "sm_90a"),
            kernel_key("sample", text, &options, "sm_90a"),
            kernel_key("sample", header, &options, "sm_90a"),
            kernel_key("sample", TEXT, &[], "sm_90a"),
            kernel_key("sample", TEXT, &options, "sm_80"),
        ] {
            assert_ne!(key, other);
        }
        assert_eq!(key, kernel_key("sample", TEXT, &options, "sm_90a"));
    }
}
