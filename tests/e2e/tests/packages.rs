//! The packages as users get them, made by the script that makes releases, of what is built here: the wheel and the
//! tarball, installed into a clean environment and an empty folder, serve, and Python generates. The Debian package and
//! the SBOM are read. Installing the former needs root (server/packaging/try-deb).

use std::path::{Path, PathBuf};
use std::process::Command;

use halyard_e2e::{TestFolder, binary, build_with_binary};
use serde_json::Value;

/// What ships besides the server, as packages of the workspace.
const SHIPPED: &[&str] = &[
    "halyard-hub",
    "halyard-conformance",
    "halyard-python",
    "halyard-backend-cpu",
    "halyard-backend-cuda",
    "halyard-backend-reference",
    "halyard-backend-rocm",
    "halyard-backend-vulkan",
    "halyard-backend-xpu",
    "halyard-io-processor-redact",
    "halyard-logits-processor-thinking-budget",
    "halyard-lora-resolver-filesystem",
    "halyard-stat-logger-json-lines",
    "halyard-stat-logger-otlp",
];

/// Exit status of `build` where a registry does not give its tools.
const UNAVAILABLE: i32 = 69;

/// Runs a script of server/packaging; false, with the reason on standard output, where its tools cannot be fetched.
///
/// # Panics
/// With its output, when it fails.
fn run(script: &str, args: &[&Path]) -> bool {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../server/packaging");
    let mut command = Command::new(packaging.join(script));
    let output = command.args(args).output().expect("the script starts");
    let words = [output.stdout, output.stderr].concat();
    let words = String::from_utf8_lossy(&words);
    if output.status.code() == Some(UNAVAILABLE) {
        println!("skipped: packages cannot be made: {words}");
        return false;
    }
    assert!(output.status.success(), "{script}: {}\n{words}", output.status);
    true
}

fn only(folder: &Path, end: &str) -> PathBuf {
    let files = std::fs::read_dir(folder).expect("a folder");
    let mut found = files.filter_map(|file| Some(file.ok()?.path()));
    let found = found.find(|path| path.to_string_lossy().ends_with(end));
    found.unwrap_or_else(|| panic!("no file {end} in {}", folder.display()))
}

#[test]
fn packages_are_reproducible_install_serve_and_generate() {
    build_with_binary(SHIPPED);
    let built = binary().parent().expect("a folder");
    let folder = TestFolder::new("packages");
    let [first, second] = ["first", "second"].map(|name| folder.0.join(name));
    let mut parts = vec![("wheel", ".whl"), ("tarball", ".tar.gz")];
    match Command::new("dpkg-deb").arg("--version").output() {
        Ok(_) => parts.push(("deb", ".deb")),
        Err(error) => println!("skipped: the Debian package is not made: dpkg-deb: {error}"),
    }
    // The SBOM depends on the lock file alone, and its schema takes long: once. server/packaging/release makes two.
    for (out, more) in [(&first, Some("sbom")), (&second, None)] {
        let names = parts.iter().map(|(name, _)| *name).chain(more);
        let flags = ["--fast", "--from", "--out"].map(Path::new);
        let flags = [flags[0], flags[1], built, flags[2], out.as_path()];
        if !run(
            "build",
            &flags.into_iter().chain(names.map(Path::new)).collect::<Vec<_>>(),
        ) {
            return;
        }
    }
    let read = |path: PathBuf| std::fs::read(path).expect("a package");
    for (_, end) in &parts {
        let equal = read(only(&first, end)) == read(only(&second, end));
        assert!(equal, "the {end} differs when it is made twice of the same build");
    }
    sbom_names_what_is_inside(&read(only(&first, ".cdx.json")));
    if parts.contains(&("deb", ".deb")) {
        the_debian_package_has_its_files(&only(&first, ".deb"));
    }
    run("try-wheel", &[&only(&first, ".whl")]);
    run("try-tarball", &[&only(&first, ".tar.gz")]);
}

/// CycloneDX's schema was asked when it was made (dependencies.py). Here: what ships is in it, crates of others by sum.
fn sbom_names_what_is_inside(text: &[u8]) {
    let sbom: Value = serde_json::from_slice(text).expect("JSON");
    assert_eq!(
        (&sbom["bomFormat"], &sbom["specVersion"]),
        (&"CycloneDX".into(), &"1.6".into())
    );
    let components = sbom["components"].as_array().expect("components");
    let names: Vec<&str> = components.iter().filter_map(|one| one["name"].as_str()).collect();
    for package in SHIPPED.iter().chain(&["halyard", "tokio", "tokenizers", "glslang-sys"]) {
        assert!(names.contains(package), "no {package} among {names:?}");
    }
    for component in components.iter().filter(|one| one["purl"].is_string()) {
        let (sum, licences) = (&component["hashes"][0]["content"], &component["licenses"]);
        assert_eq!(sum.as_str().map(str::len), Some(64), "{component}");
        assert!(licences.as_array().is_some_and(|all| !all.is_empty()), "{component}");
    }
    for package in ["pyo3-build-config", "serde_derive", "cc"] {
        assert!(!names.contains(&package), "{package} only builds others");
    }
}

/// Every file by its line of `dpkg-deb --contents`: mode, owner, size, date, time, path.
fn the_debian_package_has_its_files(file: &Path) {
    let ask = |flag: &str| {
        let asked = Command::new("dpkg-deb").arg(flag).arg(file).output().expect("it runs");
        assert!(
            asked.status.success(),
            "{flag}: {}",
            String::from_utf8_lossy(&asked.stderr)
        );
        String::from_utf8(asked.stdout).expect("text")
    };
    let contents = ask("--contents");
    let lines: Vec<Vec<&str>> = contents.lines().map(|line| line.split_whitespace().collect()).collect();
    let mut expected = vec![
        ("-rwxr-xr-x", "./usr/bin/halyard".to_owned()),
        ("-rwxr-xr-x", "./usr/bin/halyard-hub".to_owned()),
        ("-rwxr-xr-x", "./usr/bin/halyard-conformance".to_owned()),
        ("-rw-r-----", "./etc/halyard/halyard.env".to_owned()),
    ];
    let libraries = SHIPPED.iter().filter_map(|package| package.strip_prefix("halyard-"));
    let libraries = libraries.filter(|name| !["hub", "conformance", "python"].contains(name));
    expected.extend(libraries.map(|name| {
        let name = name.trim_start_matches("backend-").replace('-', "_");
        ("-rwxr-xr-x", format!("./usr/lib/halyard/libhalyard_{name}.so"))
    }));
    for path in [
        "include/halyard.h",
        "lib/systemd/system/halyard.service",
        "lib/systemd/system/halyard.socket",
        "share/bash-completion/completions/halyard",
        "share/doc/halyard/THIRD-PARTY-LICENSES.gz",
        "share/doc/halyard/changelog.gz",
        "share/doc/halyard/copyright",
        "share/fish/vendor_completions.d/halyard.fish",
        "share/man/man1/halyard-serve.1.gz",
        "share/man/man1/halyard.1.gz",
        "share/zsh/vendor-completions/_halyard",
    ] {
        expected.push(("-rw-r--r--", format!("./usr/{path}")));
    }
    for (mode, path) in expected {
        let line = lines.iter().find(|line| line.last() == Some(&path.as_str()));
        let line = line.unwrap_or_else(|| panic!("no {path} in\n{contents}"));
        assert_eq!((line[0], line[1]), (mode, "root/root"), "{path}");
        assert_ne!(line[2], "0", "{path} is empty");
    }
    let control = ask("--field");
    for field in [
        "Package: halyard\n",
        "Depends: libc6 (>= ",
        "Architecture: ",
        "Maintainer: ",
    ] {
        assert!(control.contains(field), "{control}");
    }
    let installed = ask("--info");
    for script in ["postinst", "postrm", "prerm", "conffiles", "md5sums"] {
        assert!(installed.contains(script), "no {script} in\n{installed}");
    }
}
