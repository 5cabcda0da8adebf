//! All plugins: every candidate of the search path with its manifest. Runs no foreign code.

use std::path::{Path, PathBuf};

use crate::allow_list::AllowList;
use crate::elf::{ElfError, ElfFacts};
use crate::error::{PluginError, Stage, StageFailure, StageReport};
use crate::isolation::{IsolatedStatLoggerFactory, IsolationOptions};
use crate::load::{self, Plugin};
use crate::manifest::{Kind, Manifest};
use crate::search::{SearchPath, Source, libraries_in, open_to_all};

/// A plugin that could be loaded.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// What it says of itself.
    pub manifest: Manifest,
    /// Its library, absolute.
    pub path: PathBuf,
    /// Where it was found.
    pub source: Source,
    /// The library that came first with the same kind and name.
    pub shadowed_by: Option<PathBuf>,
    pub(crate) elf: ElfFacts,
}

/// Everything that a search found.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    candidates: Vec<Candidate>,
    // With whether the file or folder was asked for by itself.
    failures: Vec<(bool, StageFailure)>,
    searched: Vec<PathBuf>,
    allow_list: Option<AllowList>,
}

impl Catalog {
    /// Searches. Broken files are kept as failures; [`Catalog::explicit_failure`] tells about those that were asked
    /// for.
    pub fn discover(search: &SearchPath) -> Catalog {
        let mut catalog = Catalog {
            allow_list: search.allow_list.clone(),
            ..Catalog::default()
        };
        for path in &search.plugins {
            catalog.add_library(Source::Explicit, path);
        }
        let (folders, refused) = search.folders();
        for folder in refused {
            let failure = folder_failure(&folder, "a relative path", "write the folder's whole path");
            catalog.failures.push((true, failure));
        }
        for (source, folder) in folders {
            catalog.add_folder(source, folder);
        }
        catalog
    }

    /// Every candidate, shadowed ones included, in search order.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Files and folders that could not be used.
    pub fn failures(&self) -> impl Iterator<Item = &StageFailure> {
        self.failures.iter().map(|(_, failure)| failure)
    }

    /// The first failure of a file or folder that was asked for by itself: nothing should start then.
    pub fn explicit_failure(&self) -> Option<&StageFailure> {
        self.failures
            .iter()
            .find(|(asked_for, _)| *asked_for)
            .map(|(_, failure)| failure)
    }

    /// The folders that were searched.
    pub fn searched(&self) -> &[PathBuf] {
        &self.searched
    }

    /// The candidate that a name means.
    ///
    /// # Errors
    /// [`PluginError::UnknownName`] with the nearest known one.
    pub fn find(&self, kind: Kind, name: &str) -> Result<&Candidate, PluginError> {
        self.usable(kind)
            .find(|c| c.manifest.name == name)
            .ok_or_else(|| self.unknown(kind, name))
    }

    /// The candidates of a kind that are not shadowed.
    pub fn usable(&self, kind: Kind) -> impl Iterator<Item = &Candidate> {
        self.candidates
            .iter()
            .filter(move |c| c.manifest.kind == kind && c.shadowed_by.is_none())
    }

    /// Loads a candidate.
    ///
    /// # Errors
    /// [`PluginError::Stage`].
    pub fn load(&self, candidate: &Candidate) -> Result<Plugin, PluginError> {
        let mut trail = Vec::new();
        Ok(load::load(candidate, self.allow_list.as_ref(), &mut trail)?)
    }

    /// A stat-logger plugin whose loggers run in processes of their own. Its library is checked here as far as its file
    /// tells, and opened there only.
    ///
    /// # Errors
    /// [`PluginError::Stage`]; [`PluginError::WrongKind`].
    pub fn isolate(
        &self,
        candidate: &Candidate,
        options: IsolationOptions,
    ) -> Result<IsolatedStatLoggerFactory, PluginError> {
        self.check(candidate)?;
        if candidate.manifest.kind != Kind::StatLogger {
            return Err(PluginError::WrongKind {
                name: candidate.manifest.name.clone(),
                found: candidate.manifest.kind,
                wanted: Kind::StatLogger,
            });
        }
        Ok(IsolatedStatLoggerFactory::new(
            candidate.clone(),
            self.allow_list.clone(),
            options,
        ))
    }

    /// Loads a candidate again after its file was replaced; the old library stays loaded. The file must have been
    /// replaced by another (renamed into its place), not overwritten: the running code is read from it.
    ///
    /// # Errors
    /// [`PluginError::Stage`], also for a file that was overwritten in place.
    pub fn load_again(&self, candidate: &Candidate) -> Result<Plugin, PluginError> {
        let again = Candidate {
            path: load::next_spelling(&candidate.path),
            ..candidate.clone()
        };
        let mut trail = Vec::new();
        Ok(load::load(&again, self.allow_list.as_ref(), &mut trail)?)
    }

    /// Checks a candidate as far as its file tells, without running it.
    ///
    /// # Errors
    /// [`PluginError::Stage`].
    pub fn check(&self, candidate: &Candidate) -> Result<(), PluginError> {
        load::check(candidate, self.allow_list.as_ref(), &mut Vec::new())?;
        Ok(())
    }

    /// The stages of `candidate` that read its file only, up to the first failure. Runs none of its code.
    pub fn file_stages(&self, candidate: &Candidate) -> Vec<StageReport> {
        let mut trail = Vec::new();
        if let Err(failure) = load::check(candidate, self.allow_list.as_ref(), &mut trail) {
            trail.push((&*failure).into());
        }
        trail
    }

    /// Every stage that the plugin of `name` (of any kind) passes, up to its devices or its first failure. Loads it.
    /// A file that has no readable manifest answers to its file name.
    ///
    /// # Errors
    /// [`PluginError::UnknownPlugin`].
    pub fn why(&self, name: &str) -> Result<Vec<StageReport>, PluginError> {
        let candidate = Kind::ALL
            .into_iter()
            .find_map(|kind| self.usable(kind).find(|c| c.manifest.name == name));
        if let Some(candidate) = candidate {
            let mut trail = Vec::new();
            load::why(candidate, self.allow_list.as_ref(), &mut trail);
            return Ok(trail);
        }
        let named_so = |failure: &StageFailure| {
            let stem = failure.path.file_stem().unwrap_or_default().to_string_lossy();
            let file = failure.path.file_name().unwrap_or_default().to_string_lossy();
            [
                &*stem,
                &*file,
                stem.trim_start_matches("lib"),
                stem.trim_start_matches("libhalyard_"),
            ]
            .contains(&name)
        };
        match self.failures().find(|f| named_so(f)) {
            Some(failure) => Ok(vec![failure.into()]),
            None => Err(self.unknown_of_any_kind(name)),
        }
    }

    fn unknown_of_any_kind(&self, asked: &str) -> PluginError {
        let mut found: Vec<(String, String)> = Vec::new();
        for kind in Kind::ALL {
            let name = |c: &Candidate| (c.manifest.name.clone(), format!("{} ({kind})", c.manifest.name));
            found.extend(self.usable(kind).map(name));
        }
        found.extend(self.failures().map(|failure| {
            let file = failure.path.file_name().unwrap_or_default().to_string_lossy();
            (file.to_string(), format!("{file} (not usable)"))
        }));
        found.sort();
        PluginError::UnknownPlugin {
            asked: asked.to_string(),
            nearest: nearest(asked, found.iter().map(|(name, _)| name)),
            found: found.into_iter().map(|(_, line)| line).collect(),
            searched: self.searched.clone(),
        }
    }

    fn unknown(&self, kind: Kind, asked: &str) -> PluginError {
        let mut known: Vec<String> = self.usable(kind).map(|c| c.manifest.name.clone()).collect();
        known.sort();
        PluginError::UnknownName {
            kind,
            asked: asked.to_string(),
            nearest: nearest(asked, known.iter()),
            known,
            searched: self.searched.clone(),
        }
    }

    fn add_folder(&mut self, source: Source, folder: PathBuf) {
        match libraries_in(&folder) {
            Ok(libraries) => {
                if self.allow_list.is_none()
                    && let Some(open) = open_to_all(&libraries)
                {
                    tracing::warn!(
                        folder = %folder.display(),
                        open = %open.display(),
                        "every user of this machine can change plugins here: take the right away (chmod o-w), or pin \
                         them with --plugins-lock"
                    );
                }
                self.searched.push(folder);
                for library in libraries {
                    self.add_library(source, &library);
                }
            }
            // Only a folder that was asked for by a flag must be there.
            Err(error) if source == Source::PluginDir => {
                let found = error.to_string();
                let failure = folder_failure(&folder, &found, "correct --plugin-dir");
                self.failures.push((true, failure));
            }
            Err(_) => {}
        }
    }

    fn add_library(&mut self, source: Source, path: &Path) {
        match candidates_of(source, path) {
            Ok(found) => {
                for mut candidate in found {
                    let first = self.candidates.iter().find(|c| {
                        c.manifest.kind == candidate.manifest.kind && c.manifest.name == candidate.manifest.name
                    });
                    // The same file met again is not a second plugin.
                    if first.is_some_and(|c| c.path == candidate.path) {
                        continue;
                    }
                    candidate.shadowed_by = first.map(|c| c.path.clone());
                    self.candidates.push(candidate);
                }
            }
            Err(Some(failure)) => self.failures.push((source == Source::Explicit, *failure)),
            Err(None) => {}
        }
    }
}

/// The known name that is most like the one asked for, if it is like it at all.
fn nearest<'a>(asked: &str, known: impl Iterator<Item = &'a String>) -> Option<String> {
    known
        .map(|name| (strsim::damerau_levenshtein(name, asked), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 3)
        .min()
        .map(|(_, name)| name.clone())
}

fn folder_failure(folder: &Path, found: &str, remedy: &str) -> StageFailure {
    StageFailure {
        stage: Stage::Found,
        plugin: None,
        path: folder.to_path_buf(),
        expected: "an absolute path of a readable folder".to_string(),
        found: found.to_string(),
        remedy: remedy.to_string(),
    }
}

/// The candidates of a library. `Err(None)`: not a plugin at all, and it was not named as one.
fn candidates_of(source: Source, path: &Path) -> Result<Vec<Candidate>, Option<Box<StageFailure>>> {
    let explicit = source == Source::Explicit;
    let failure = |stage, expected: &str, found: String, remedy: &str| {
        Box::new(StageFailure {
            stage,
            plugin: None,
            path: path.to_path_buf(),
            expected: expected.to_string(),
            found,
            remedy: remedy.to_string(),
        })
    };
    let unreadable = |found: String| {
        let remedy = "check the path and its permissions";
        explicit.then(|| failure(Stage::Found, "a readable library file", found, remedy))
    };
    let absolute = std::fs::canonicalize(path).map_err(|e| unreadable(e.to_string()))?;
    if !absolute.is_file() {
        return Err(unreadable("not a file".to_string()));
    }
    let elf = match ElfFacts::read(&absolute) {
        Ok(elf) => elf,
        Err(ElfError::Io(e)) => return Err(unreadable(e.to_string())),
        Err(e) => {
            let remedy = "give a plugin's shared library (.so), and copy it whole";
            let failure = failure(Stage::Found, "an ELF shared library", e.to_string(), remedy);
            return Err(explicit.then_some(failure));
        }
    };
    let Some(section) = &elf.manifest_section else {
        let expected = "a section `.halyard.manifest`";
        let found = "a library without one".to_string();
        let remedy = "this is no Halyard plugin, or it was stripped of its sections; ask its vendor";
        return Err(explicit.then(|| failure(Stage::Manifest, expected, found, remedy)));
    };
    let manifests = Manifest::parse_section(section).map_err(|found| {
        let remedy = "the plugin is broken; ask its vendor";
        Some(failure(Stage::Manifest, "manifests as JSON objects", found, remedy))
    })?;
    Ok(manifests
        .into_iter()
        .map(|manifest| Candidate {
            manifest,
            path: absolute.clone(),
            source,
            shadowed_by: None,
            elf: elf.clone(),
        })
        .collect())
}
