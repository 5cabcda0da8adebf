//! Reads facts from an ELF library without running any of its code.

use std::fs::File;
use std::path::Path;

use halyard_platform_api::manifest::SECTION;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, ReadCache, ReadRef, elf};
use sha2::{Digest, Sha256};

/// Most bytes that a manifest section may have.
const MAX_SECTION_BYTES: u64 = 64 << 10;

/// Facts of a library file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElfFacts {
    /// The machine it was built for, as ELF numbers it.
    pub machine: u16,
    /// 64-bit.
    pub is_64: bool,
    /// Little-endian.
    pub is_little_endian: bool,
    /// A shared library.
    pub is_shared: bool,
    /// Libraries that it names as needed.
    pub needed: Vec<String>,
    /// The manifest section's bytes, if it has one.
    pub manifest_section: Option<Vec<u8>>,
}

/// Why a file could not be read as a library.
#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    /// The file could not be opened or read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Not ELF at all.
    #[error("not an ELF file: it starts with {0:?}")]
    NotElf(String),
    /// A folder, a pipe, a device.
    #[error("no regular file")]
    NotAFile,
    /// ELF, but broken.
    #[error("a broken or truncated ELF file: {0}")]
    Broken(String),
}

impl From<object::read::Error> for ElfError {
    fn from(error: object::read::Error) -> ElfError {
        ElfError::Broken(error.to_string())
    }
}

impl ElfFacts {
    /// Reads the facts of the file at `path`.
    ///
    /// # Errors
    /// [`ElfError`].
    pub fn read(path: &Path) -> Result<ElfFacts, ElfError> {
        // Before it is opened: opening a pipe waits for a writer, and opening a device may do anything.
        if !std::fs::metadata(path)?.is_file() {
            return Err(ElfError::NotAFile);
        }
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let cache = ReadCache::new(file);
        let data = &cache;
        let start_bytes = data.read_bytes_at(0, len.min(16)).unwrap_or_default();
        if !start_bytes.starts_with(&elf::ELFMAG) {
            return Err(ElfError::NotElf(String::from_utf8_lossy(start_bytes).into_owned()));
        }
        match start_bytes.get(4) {
            Some(&elf::ELFCLASS64) => read::<elf::FileHeader64<Endianness>, _>(data, len),
            Some(&elf::ELFCLASS32) => read::<elf::FileHeader32<Endianness>, _>(data, len),
            other => Err(ElfError::Broken(format!("ELF class {other:?}"))),
        }
    }

    /// The machine in words.
    pub fn architecture(&self) -> String {
        let name = match self.machine {
            elf::EM_X86_64 => "x86_64".to_string(),
            elf::EM_AARCH64 => "aarch64".to_string(),
            elf::EM_386 => "x86".to_string(),
            elf::EM_ARM => "arm".to_string(),
            elf::EM_RISCV => "riscv".to_string(),
            elf::EM_PPC64 => "powerpc64".to_string(),
            elf::EM_S390 => "s390x".to_string(),
            elf::EM_LOONGARCH => "loongarch".to_string(),
            other => format!("ELF machine {other}"),
        };
        format!(
            "{name}, {}-bit, {}-endian",
            if self.is_64 { 64 } else { 32 },
            if self.is_little_endian { "little" } else { "big" }
        )
    }

    /// The machine that this program runs on, in the same words.
    pub fn host_architecture() -> String {
        format!(
            "{}, {}-bit, {}-endian",
            match std::env::consts::ARCH {
                "riscv64" => "riscv",
                "loongarch64" => "loongarch",
                arch => arch,
            },
            usize::BITS,
            if cfg!(target_endian = "little") {
                "little"
            } else {
                "big"
            }
        )
    }
}

fn read<'data, H, R>(data: R, len: u64) -> Result<ElfFacts, ElfError>
where
    H: FileHeader<Endian = Endianness>,
    R: ReadRef<'data>,
{
    let header = H::parse(data)?;
    let endian = header.endian()?;
    for segment in header.program_headers(endian, data)? {
        let offset: u64 = segment.p_offset(endian).into();
        let bytes: u64 = segment.p_filesz(endian).into();
        let end = offset.saturating_add(bytes);
        // The system's loader maps such a file and dies on the missing pages.
        if segment.p_type(endian) == elf::PT_LOAD && end > len {
            return Err(ElfError::Broken(format!(
                "a segment ends at byte {end}, the file has {len}"
            )));
        }
    }
    let sections = header.sections(endian, data)?;
    let mut needed = Vec::new();
    if let Some((entries, strings)) = sections.dynamic(endian, data)? {
        let strings = sections.strings(endian, data, strings)?;
        for entry in entries {
            if entry.tag32(endian) == Some(elf::DT_NEEDED) {
                let offset: u64 = entry.d_val(endian).into();
                let name = u32::try_from(offset)
                    .ok()
                    .and_then(|offset| strings.get(offset).ok())
                    .ok_or_else(|| ElfError::Broken(format!("a needed library's name at {offset}")))?;
                needed.push(String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    let mut manifest_section = None;
    if let Some((_, section)) = sections.section_by_name(endian, SECTION.as_bytes()) {
        let bytes: u64 = section.sh_size(endian).into();
        if bytes > MAX_SECTION_BYTES {
            return Err(ElfError::Broken(format!(
                "the manifest section has {bytes} bytes, at most {MAX_SECTION_BYTES} are read"
            )));
        }
        manifest_section = Some(section.data(endian, data)?.to_vec());
    }
    Ok(ElfFacts {
        machine: header.e_machine(endian),
        is_64: header.is_class_64(),
        is_little_endian: header.is_little_endian(),
        is_shared: header.e_type(endian) == elf::ET_DYN,
        needed,
        manifest_section,
    })
}

/// The file's SHA-256 in hexadecimal.
///
/// # Errors
/// From reading.
pub fn sha256_of(path: &Path) -> std::io::Result<String> {
    let mut hasher = Sha256::new();
    std::io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().iter().map(|b| format!("{b:02x}")).collect())
}
