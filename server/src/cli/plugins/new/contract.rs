//! The contract in Rust, which every new cargo project brings along.

use std::borrow::Cow;

use include_dir::{Dir, include_dir};

use super::Names;

/// The contract's sources as they were when this program was built.
static CONTRACT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/../platform-api/src");
/// The contract's manifest without the workspace that it stands in; a test holds it to the real one.
const CONTRACT_MANIFEST: &str = include_str!("../template/contract.toml.in");

/// It, as a package of its own in `folder`: paths and contents, which need not be text.
pub(super) fn files(names: &Names<'_>, folder: &str) -> Vec<(String, Cow<'static, [u8]>)> {
    let manifest = names.fill(CONTRACT_MANIFEST).into_bytes();
    let mut files = vec![(format!("{folder}/Cargo.toml"), Cow::Owned(manifest))];
    let mut folders = vec![&CONTRACT];
    while let Some(next) = folders.pop() {
        folders.extend(next.dirs());
        files.extend(next.files().map(|file| {
            let path = format!("{folder}/src/{}", file.path().display());
            (path, Cow::Borrowed(file.contents()))
        }));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::CONTRACT_MANIFEST;

    #[test]
    fn the_written_contract_is_built_as_the_real_one() {
        let edition = |manifest: &str| {
            manifest
                .lines()
                .find(|line| line.starts_with("edition"))
                .map(str::to_owned)
        };
        assert_eq!(
            edition(CONTRACT_MANIFEST),
            edition(include_str!("../../../../../Cargo.toml"))
        );
        for manifest in [
            CONTRACT_MANIFEST,
            include_str!("../../../../../platform-api/Cargo.toml"),
        ] {
            let depends = manifest
                .lines()
                .any(|line| line.trim() == "[dependencies]" || line.contains("build ="));
            assert!(
                !depends,
                "the contract builds from its sources alone; write what it needs into new projects too:\n{manifest}"
            );
        }
    }
}
