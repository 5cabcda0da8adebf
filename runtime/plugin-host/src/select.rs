//! Choosing a platform: exactly the one named, or the best usable one by declared priority.

use std::sync::Arc;

use halyard_platform_api::{DeviceInfo, Platform};

use crate::catalog::{Candidate, Catalog};
use crate::error::{PluginError, Rejection};
use crate::load::{self, Plugin};
use crate::manifest::Kind;

/// The platform to run on.
pub struct Selected {
    /// Its plugin.
    pub plugin: Plugin,
    /// The platform.
    pub platform: Arc<dyn Platform>,
    /// Its devices, at least one.
    pub devices: Vec<DeviceInfo>,
    /// The platforms not chosen, and why.
    pub rejected: Vec<Rejection>,
}

/// Chooses a platform. A `name` loads exactly that one; another is never taken instead. Without a name the candidates
/// are tried from the highest declared priority down (ties by name) until one has a device; negative priorities only
/// run by name.
///
/// # Errors
/// [`PluginError::Stage`] when the named one, or a library that was asked for by itself, does not load;
/// [`PluginError::UnknownName`]; [`PluginError::NoPlatform`] with each one's reason.
pub fn select_platform(catalog: &Catalog, name: Option<&str>) -> Result<Selected, PluginError> {
    if let Some(failure) = catalog.explicit_failure() {
        return Err(failure.clone().into());
    }
    match name {
        Some(name) => {
            let candidate = catalog.find(Kind::Platform, name)?;
            start(catalog, candidate)
        }
        None => best(catalog),
    }
}

fn best(catalog: &Catalog) -> Result<Selected, PluginError> {
    let mut candidates: Vec<&Candidate> = catalog.usable(Kind::Platform).collect();
    candidates.sort_by_key(|c| (std::cmp::Reverse(c.manifest.priority), &c.manifest.name));
    let mut rejected = Vec::new();
    let mut chosen: Option<Selected> = None;
    for candidate in candidates {
        let mut reject = |reason: String| {
            rejected.push(Rejection {
                name: candidate.manifest.name.clone(),
                path: Some(candidate.path.clone()),
                reason,
            });
        };
        let priority = candidate.manifest.priority;
        if let Some(chosen) = &chosen {
            reject(format!(
                "not tried: priority {priority} is not above that of `{}`",
                chosen.plugin.manifest().name
            ));
        } else if priority < 0 {
            reject(format!("priority {priority}: runs only when named"));
        } else {
            match start(catalog, candidate) {
                Ok(selected) => chosen = Some(selected),
                Err(error) => reject(error.to_string()),
            }
        }
    }
    match chosen {
        Some(selected) => Ok(Selected { rejected, ..selected }),
        None => Err(PluginError::NoPlatform {
            rejected,
            searched: catalog.searched().to_vec(),
        }),
    }
}

fn start(catalog: &Catalog, candidate: &Candidate) -> Result<Selected, PluginError> {
    let plugin = catalog.load(candidate)?;
    let platform = plugin.platform()?;
    let devices = load::devices(&plugin, &*platform)?;
    Ok(Selected {
        plugin,
        platform,
        devices,
        rejected: Vec::new(),
    })
}
