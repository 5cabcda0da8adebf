//! Loading a plugin, stage by stage. A library that was opened is never closed: Rust's thread-locals and vendors'
//! drivers outlive it.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use halyard_platform_api::abi::logits_tables::LogitsProcessorTable;
use halyard_platform_api::abi::request_tables::{IoProcessorTable, LoraResolverTable};
use halyard_platform_api::abi::tables::{
    ABI_MAJOR, ABI_MINOR, ABI_MINOR_MIN, AttentionTable, CommunicatorTable, DeviceTable, EntryFn, InterfaceFn,
    OpsTable, PlatformTable, Plugin as PluginWire, StatLoggerTable,
};
use halyard_platform_api::abi::{AbiTable, ErrorOut, limits};
use halyard_platform_api::hooks::StatLoggerFactory;
use halyard_platform_api::io_processor::IoProcessorFactory;
use halyard_platform_api::logits_processor::LogitsProcessorFactory;
use halyard_platform_api::lora_resolver::LoraResolverFactory;
use halyard_platform_api::{Error, LinkedPlugin, Platform, Status};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::allow_list::AllowList;
use crate::catalog::Candidate;
use crate::elf::{ElfFacts, sha256_of};
use crate::error::{PluginError, Stage, StageFailure, StageReport};
use crate::host_table;
use crate::manifest::{Kind, Manifest, host_abi};
use crate::watch::Watch;
use crate::wire::{
    HostIoProcessorFactory, HostLogitsProcessorFactory, HostLoraResolverFactory, HostPlatform, HostStatLoggerFactory,
    PlatformTables,
};

/// A loaded plugin.
pub struct Plugin {
    manifest: Manifest,
    path: Option<PathBuf>,
    root: Root,
}

enum Root {
    Platform(Arc<HostPlatform>),
    StatLogger(Arc<HostStatLoggerFactory>),
    IoProcessor(Arc<HostIoProcessorFactory>),
    LoraResolver(Arc<HostLoraResolverFactory>),
    LogitsProcessor(Arc<HostLogitsProcessorFactory>),
}

impl Plugin {
    /// A plugin that this program links. It passes through the same entry, negotiation and tables as a loaded one.
    ///
    /// # Errors
    /// [`PluginError::Stage`].
    pub fn from_linked(linked: LinkedPlugin) -> Result<Plugin, PluginError> {
        let path = Path::new("(linked)");
        let manifest = Manifest::parse_section(linked.manifest.as_bytes())
            .map(|mut all| all.remove(0))
            .map_err(|found| StageFailure {
                stage: Stage::Manifest,
                plugin: None,
                path: path.to_path_buf(),
                expected: "a manifest".to_string(),
                found,
                remedy: "correct the plugin's export macro".to_string(),
            })?;
        Plugin::from_entry(linked.entry, manifest)
    }

    /// A plugin by its entry function and manifest.
    ///
    /// # Errors
    /// [`PluginError::Stage`].
    pub fn from_entry(entry: EntryFn, manifest: Manifest) -> Result<Plugin, PluginError> {
        let steps = Steps {
            name: manifest.name.clone(),
            path: PathBuf::from("(linked)"),
        };
        let root = steps.enter(entry, &manifest, &mut Vec::new())?;
        Ok(Plugin {
            manifest,
            path: None,
            root,
        })
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Its library; none for a linked plugin.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The platform.
    ///
    /// # Errors
    /// [`PluginError::WrongKind`].
    pub fn platform(&self) -> Result<Arc<dyn Platform>, PluginError> {
        match &self.root {
            Root::Platform(platform) => Ok(platform.clone()),
            _ => Err(self.wrong_kind(Kind::Platform)),
        }
    }

    /// The maker of stat loggers.
    ///
    /// # Errors
    /// [`PluginError::WrongKind`].
    pub fn stat_logger_factory(&self) -> Result<Arc<dyn StatLoggerFactory>, PluginError> {
        match &self.root {
            Root::StatLogger(factory) => Ok(factory.clone()),
            _ => Err(self.wrong_kind(Kind::StatLogger)),
        }
    }

    /// The maker of IO processors.
    ///
    /// # Errors
    /// [`PluginError::WrongKind`].
    pub fn io_processor_factory(&self) -> Result<Arc<dyn IoProcessorFactory>, PluginError> {
        match &self.root {
            Root::IoProcessor(factory) => Ok(factory.clone()),
            _ => Err(self.wrong_kind(Kind::IoProcessor)),
        }
    }

    /// The maker of LoRA resolvers.
    ///
    /// # Errors
    /// [`PluginError::WrongKind`].
    pub fn lora_resolver_factory(&self) -> Result<Arc<dyn LoraResolverFactory>, PluginError> {
        match &self.root {
            Root::LoraResolver(factory) => Ok(factory.clone()),
            _ => Err(self.wrong_kind(Kind::LoraResolver)),
        }
    }

    /// The maker of logits processors.
    ///
    /// # Errors
    /// [`PluginError::WrongKind`].
    pub fn logits_processor_factory(&self) -> Result<Arc<dyn LogitsProcessorFactory>, PluginError> {
        match &self.root {
            Root::LogitsProcessor(factory) => Ok(factory.clone()),
            _ => Err(self.wrong_kind(Kind::LogitsProcessor)),
        }
    }

    fn wrong_kind(&self, wanted: Kind) -> PluginError {
        PluginError::WrongKind {
            name: self.manifest.name.clone(),
            found: self.manifest.kind,
            wanted,
        }
    }
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("manifest", &self.manifest)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Device and inode.
type FileId = (u64, u64);
/// Modified, in seconds and nanoseconds; bytes.
type FileState = (i64, i64, u64);

/// Files that were opened, and how they were then.
static LOADED: Mutex<BTreeMap<FileId, FileState>> = Mutex::new(BTreeMap::new());

/// Another spelling of `path`. For a known path the system's loader returns the library that it loaded from there, even
/// if the file was replaced. A new spelling (`folder/./file`) makes it compare the inode.
pub(crate) fn next_spelling(path: &Path) -> PathBuf {
    static NUM_SPELLINGS: AtomicUsize = AtomicUsize::new(0);
    let dots = 1 + NUM_SPELLINGS.fetch_add(1, Ordering::Relaxed);
    let (Some(folder), Some(file)) = (path.parent(), path.file_name()) else {
        return path.to_path_buf();
    };
    let mut spelled = folder.as_os_str().to_owned();
    (0..dots).for_each(|_| spelled.push("/."));
    spelled.push("/");
    spelled.push(file);
    spelled.into()
}

/// Loads `candidate`, noting each passed stage in `trail`.
pub(crate) fn load(
    candidate: &Candidate,
    allow_list: Option<&AllowList>,
    trail: &mut Vec<StageReport>,
) -> Result<Plugin, Box<StageFailure>> {
    let manifest = &candidate.manifest;
    let steps = check(candidate, allow_list, trail)?;
    let _watch = Watch::over(&candidate.path);
    let library = steps.open(&candidate.elf, trail)?;
    let entry = steps.entry(library, manifest, trail)?;
    let root = steps.enter(entry, manifest, trail)?;
    Ok(Plugin {
        manifest: manifest.clone(),
        path: Some(candidate.path.clone()),
        root,
    })
}

/// The stages before any code of the library runs.
pub(crate) fn check(
    candidate: &Candidate,
    allow_list: Option<&AllowList>,
    trail: &mut Vec<StageReport>,
) -> Result<Steps, Box<StageFailure>> {
    let manifest = &candidate.manifest;
    let steps = Steps {
        name: manifest.name.clone(),
        path: candidate.path.clone(),
    };
    pass(trail, Stage::Found, candidate.path.display().to_string());
    steps.check_manifest(manifest, trail)?;
    steps.check_allowed(allow_list, trail)?;
    steps.check_architecture(&candidate.elf, manifest, trail)?;
    Ok(steps)
}

/// Fills `trail` with every stage of `candidate`, its devices included, up to the first failure.
pub(crate) fn why(candidate: &Candidate, allow_list: Option<&AllowList>, trail: &mut Vec<StageReport>) {
    match load(candidate, allow_list, trail) {
        Err(failure) => trail.push((&*failure).into()),
        Ok(plugin) => {
            if let Root::Platform(platform) = &plugin.root {
                match devices(&plugin, &**platform) {
                    Ok(devices) => {
                        let names: Vec<&str> = devices.iter().map(|d| d.name.as_str()).collect();
                        pass(trail, Stage::Devices, names.join(", "));
                    }
                    Err(failure) => trail.push((&*failure).into()),
                }
            }
        }
    }
}

/// The devices of a loaded platform, or the last stage's failure.
pub(crate) fn devices(
    plugin: &Plugin,
    platform: &dyn Platform,
) -> Result<Vec<halyard_platform_api::DeviceInfo>, Box<StageFailure>> {
    let _watch = plugin.path.as_deref().map(Watch::over);
    platform.devices().map_err(|error| {
        Box::new(StageFailure {
            stage: Stage::Devices,
            plugin: Some(plugin.manifest.name.clone()),
            path: plugin.path.clone().unwrap_or_else(|| PathBuf::from("(linked)")),
            expected: "a device".to_string(),
            found: error.to_string(),
            remedy: "check the device and its driver, or choose another platform".to_string(),
        })
    })
}

fn pass(trail: &mut Vec<StageReport>, stage: Stage, detail: String) {
    trail.push(StageReport {
        stage,
        passed: true,
        detail,
    });
}

/// The stages of one plugin.
pub(crate) struct Steps {
    name: String,
    path: PathBuf,
}

impl Steps {
    fn failure(
        &self,
        stage: Stage,
        expected: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Box<StageFailure> {
        Box::new(StageFailure {
            stage,
            plugin: Some(self.name.clone()),
            path: self.path.clone(),
            expected: expected.into(),
            found: found.into(),
            remedy: remedy.into(),
        })
    }

    fn check_manifest(&self, manifest: &Manifest, trail: &mut Vec<StageReport>) -> Result<(), Box<StageFailure>> {
        if !manifest.abi_fits() {
            return Err(self.failure(
                Stage::Manifest,
                host_abi(),
                format!("ABI {}", manifest.abi),
                "install a build of the plugin for this version of Halyard, or a Halyard for this plugin",
            ));
        }
        let detail = format!(
            "{} `{}` {}, ABI {}",
            manifest.kind, manifest.name, manifest.version, manifest.abi
        );
        pass(trail, Stage::Manifest, detail);
        Ok(())
    }

    fn check_allowed(
        &self,
        allow_list: Option<&AllowList>,
        trail: &mut Vec<StageReport>,
    ) -> Result<(), Box<StageFailure>> {
        let Some(list) = allow_list else {
            pass(trail, Stage::Allowed, "no allow-list is in force".to_string());
            return Ok(());
        };
        let expected = format!("an entry of {} with the file's sha256", list.path().display());
        let remedy = "add the sum to the list if you trust the file";
        let refused = |found: String| self.failure(Stage::Allowed, &*expected, found, remedy);
        let sum = sha256_of(&self.path).map_err(|e| refused(e.to_string()))?;
        list.check(&self.path, &self.name, &sum).map_err(refused)?;
        pass(trail, Stage::Allowed, format!("sha256 {sum} is listed"));
        Ok(())
    }

    fn check_architecture(
        &self,
        elf: &ElfFacts,
        manifest: &Manifest,
        trail: &mut Vec<StageReport>,
    ) -> Result<(), Box<StageFailure>> {
        let host = ElfFacts::host_architecture();
        let found = elf.architecture();
        if found != host || !elf.is_shared {
            let kind = if elf.is_shared { "" } else { ", not a shared library" };
            return Err(self.failure(
                Stage::Architecture,
                format!("a shared library for {host}"),
                format!("{found}{kind}"),
                "install the plugin's build for this machine",
            ));
        }
        let expected = format!("a processor with {}", manifest.cpu_features);
        let remedy = "install a build of the plugin for older processors, or choose another platform";
        let refused = |found: String| self.failure(Stage::Architecture, &*expected, found, remedy);
        let missing = crate::cpu_features::missing(&manifest.cpu_features).map_err(refused)?;
        if !missing.is_empty() {
            return Err(refused(format!("one without {}", missing.join(", "))));
        }
        pass(trail, Stage::Architecture, found);
        Ok(())
    }

    /// Refuses a file that changed while it is loaded: the kernel maps running code from it, so its old code is gone
    /// too.
    fn check_not_overwritten(&self) -> Result<(), Box<StageFailure>> {
        let Ok(meta) = std::fs::metadata(&self.path) else {
            return Ok(());
        };
        let now = (meta.mtime(), meta.mtime_nsec(), meta.size());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *loaded.entry((meta.dev(), meta.ino())).or_insert(now);
        if before == now {
            return Ok(());
        }
        Err(self.failure(
            Stage::Opened,
            "a file that has not changed since it was loaded, or a new file in its place",
            "one that was overwritten while it is in use",
            "write the new library under another name in the same folder, rename it to the old name (mv, install), and \
             restart the server soon",
        ))
    }

    /// Opens the library. The system's loader runs its constructors only after all needed libraries were found.
    fn open(&self, elf: &ElfFacts, trail: &mut Vec<StageReport>) -> Result<&'static Library, Box<StageFailure>> {
        self.check_not_overwritten()?;
        tracing::debug!(path = %self.path.display(), "loading a library");
        // SAFETY: the file was checked as far as a file can be; its code is trusted because the operator put it on the
        // search path.
        let opened = unsafe { Library::open(Some(&self.path), RTLD_NOW | RTLD_LOCAL) };
        let library = opened.map_err(|error| {
            let found = error_chain(&error);
            match elf.needed.iter().find(|needed| found.contains(needed.as_str())) {
                Some(needed) => self.failure(
                    Stage::Libraries,
                    format!("the library {needed}"),
                    found,
                    "install it, or add its folder to the system's loader path",
                ),
                None => self.failure(
                    Stage::Opened,
                    "a library that the system's loader takes",
                    found,
                    "install the plugin's build for this system (libc, symbols), or ask its vendor",
                ),
            }
        })?;
        let needed = if elf.needed.is_empty() {
            "none needed".to_string()
        } else {
            elf.needed.join(", ")
        };
        pass(trail, Stage::Libraries, needed);
        pass(trail, Stage::Opened, "now, local, for good".to_string());
        Ok(Box::leak(Box::new(library)))
    }

    fn entry(
        &self,
        library: &'static Library,
        manifest: &Manifest,
        trail: &mut Vec<StageReport>,
    ) -> Result<EntryFn, Box<StageFailure>> {
        // SAFETY: by the contract a symbol that a manifest names as entry has this type.
        let symbol = unsafe { library.get::<EntryFn>(manifest.entry.as_bytes()) };
        let entry = symbol.map_err(|error| {
            self.failure(
                Stage::Entry,
                format!("the symbol `{}`", manifest.entry),
                error_chain(&error),
                "the plugin is broken; ask its vendor",
            )
        })?;
        pass(trail, Stage::Entry, manifest.entry.clone());
        Ok(*entry)
    }

    /// Calls the entry, agrees on versions, takes the tables.
    fn enter(
        &self,
        entry: EntryFn,
        manifest: &Manifest,
        trail: &mut Vec<StageReport>,
    ) -> Result<Root, Box<StageFailure>> {
        let mut wire = PluginWire::zeroed();
        // SAFETY: the entry of a plugin, sized structs; the host table is for the process's life.
        called(|err| unsafe { entry(host_table::offer(), &mut wire, err) })
            .map_err(|error| self.refused_at_entry(&error))?;
        let interface = self.check_answer(&wire, manifest)?;
        let root = match manifest.kind {
            Kind::Platform => {
                let tables = self.platform_tables(interface, wire.instance)?;
                let platform = HostPlatform::new(self.name.clone(), tables, wire.instance);
                Root::Platform(Arc::new(platform))
            }
            Kind::StatLogger => {
                let table = self.required::<StatLoggerTable>(interface, wire.instance)?;
                let factory = HostStatLoggerFactory::new(self.name.clone(), table, wire.instance);
                Root::StatLogger(Arc::new(factory))
            }
            Kind::IoProcessor => {
                let table = self.required::<IoProcessorTable>(interface, wire.instance)?;
                let factory = HostIoProcessorFactory::new(self.name.clone(), table, wire.instance);
                Root::IoProcessor(Arc::new(factory))
            }
            Kind::LoraResolver => {
                let table = self.required::<LoraResolverTable>(interface, wire.instance)?;
                let factory = HostLoraResolverFactory::new(self.name.clone(), table, wire.instance);
                Root::LoraResolver(Arc::new(factory))
            }
            Kind::LogitsProcessor => {
                let table = self.required::<LogitsProcessorTable>(interface, wire.instance)?;
                let factory = HostLogitsProcessorFactory::new(self.name.clone(), table, wire.instance);
                Root::LogitsProcessor(Arc::new(factory))
            }
        };
        let agreed = format!("ABI {}.{}", wire.abi_major, wire.abi_minor);
        pass(trail, Stage::Negotiated, agreed);
        pass(trail, Stage::Started, "its instance runs".to_string());
        Ok(root)
    }

    fn refused_at_entry(&self, error: &Error) -> Box<StageFailure> {
        if error.status == Status::Incompatible {
            let remedy = "install a plugin and a Halyard whose ABI ranges overlap";
            self.failure(Stage::Negotiated, host_abi(), error.to_string(), remedy)
        } else {
            let remedy = "see what the plugin says, or ask its vendor";
            self.failure(Stage::Started, "a start without error", error.to_string(), remedy)
        }
    }

    /// The entry's answer must be what the manifest promised and within the host's range.
    fn check_answer(&self, wire: &PluginWire, manifest: &Manifest) -> Result<InterfaceFn, Box<StageFailure>> {
        let broken = "the plugin is broken; ask its vendor";
        let in_range = wire.abi_major == ABI_MAJOR && (ABI_MINOR_MIN..=ABI_MINOR).contains(&wire.abi_minor);
        if !in_range {
            let found = format!("the entry answered ABI {}.{}", wire.abi_major, wire.abi_minor);
            let remedy = "install a plugin and a Halyard whose ABI ranges overlap";
            return Err(self.failure(Stage::Negotiated, host_abi(), found, remedy));
        }
        // SAFETY: the plugin's texts are valid for the process's life.
        let name = unsafe { wire.name.to_text() };
        if wire.kind != manifest.kind.code() || name != manifest.name {
            return Err(self.failure(
                Stage::Negotiated,
                format!(
                    "kind {} and name `{}`, as in the manifest",
                    manifest.kind.code(),
                    manifest.name
                ),
                format!("kind {} and name `{name}`", wire.kind),
                broken,
            ));
        }
        wire.find_interface
            .ok_or_else(|| self.failure(Stage::Negotiated, "a function that finds interfaces", "null", broken))
    }

    fn platform_tables(
        &self,
        interface: InterfaceFn,
        instance: *mut c_void,
    ) -> Result<PlatformTables, Box<StageFailure>> {
        Ok(PlatformTables {
            platform: self.required::<PlatformTable>(interface, instance)?,
            device: self.required::<DeviceTable>(interface, instance)?,
            ops: self.required::<OpsTable>(interface, instance)?,
            attention: self.optional::<AttentionTable>(interface, instance)?,
            communicator: self.optional::<CommunicatorTable>(interface, instance)?,
        })
    }

    fn required<T: AbiTable>(&self, interface: InterfaceFn, instance: *mut c_void) -> Result<T, Box<StageFailure>> {
        self.table(interface, instance)?.ok_or_else(|| {
            let layout = T::table_layout();
            self.failure(
                Stage::Negotiated,
                format!("interface {} {}.x", layout.interface, layout.version.0),
                "a plugin without it",
                "install a newer plugin, or ask its vendor",
            )
        })
    }

    /// The table of an interface that a plugin may do without: one of another major version is none.
    fn optional<T: AbiTable>(
        &self,
        interface: InterfaceFn,
        instance: *mut c_void,
    ) -> Result<Option<T>, Box<StageFailure>> {
        match self.ask::<T>(interface, instance) {
            Err(error) if error.status == Status::Incompatible => {
                let layout = T::table_layout();
                tracing::warn!(
                    "plugin {}: its interface {} is not used: {}",
                    self.name,
                    layout.interface,
                    error.message
                );
                Ok(None)
            }
            asked => asked.map_err(|error| self.unfit::<T>(&error)),
        }
    }

    /// The table of an interface, copied in full size and checked; none where the plugin has no such interface.
    fn table<T: AbiTable>(
        &self,
        interface: InterfaceFn,
        instance: *mut c_void,
    ) -> Result<Option<T>, Box<StageFailure>> {
        self.ask(interface, instance).map_err(|error| self.unfit::<T>(&error))
    }

    fn unfit<T: AbiTable>(&self, error: &Error) -> Box<StageFailure> {
        let layout = T::table_layout();
        self.failure(
            Stage::Negotiated,
            format!(
                "interface {} {}.x with its required functions",
                layout.interface, layout.version.0
            ),
            error.to_string(),
            "install a plugin and a Halyard that fit together",
        )
    }

    fn ask<T: AbiTable>(&self, interface: InterfaceFn, instance: *mut c_void) -> Result<Option<T>, Error> {
        let (major, minor) = T::table_layout().version;
        let mut table = std::ptr::null();
        // SAFETY: the plugin's function and instance, valid output.
        match called(|err| unsafe { interface(instance, T::ID, major, minor, &mut table, err) }) {
            Err(error) if error.status == Status::Unsupported => Ok(None),
            Err(error) => Err(error),
            // SAFETY: null, or a table that starts with its size and is valid for the process's life.
            Ok(()) => unsafe { T::load(table.cast()) }.map(Some),
        }
    }
}

fn called(function: impl FnOnce(*mut ErrorOut) -> u32) -> Result<(), Error> {
    let mut text = [0; limits::ERROR_TEXT_BYTES as usize];
    let mut err = ErrorOut::over(&mut text);
    match function(&mut err) {
        0 => Ok(()),
        // SAFETY: the text is the buffer above.
        code => Err(unsafe { err.load(code) }),
    }
}

/// libloading's error with what the system said.
fn error_chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
