use std::os::unix::fs::PermissionsExt;

use super::testing::{found, stand_in, stand_in_shim, write, write_headers};
use super::*;

/// Returns the variables of a process that has only these.
fn only<'a>(variables: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
    |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
}

fn cache(path: &Path) -> PytorchConfig {
    PytorchConfig { cache: Some(path.to_owned()), ..PytorchConfig::default() }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn torch_is_found_with_its_headers_by_the_environment_or_by_the_flag() {
    let torch = found();
    let packages = stand_in().canonicalize().unwrap().join("lib/python3.12/site-packages");
    assert_eq!((torch.version.as_str(), torch.source, torch.standard), ("9.8.7", "VIRTUAL_ENV", "-std=gnu++17"));
    assert_eq!(torch.folder, packages.join("torch/lib"));
    assert!(torch.has_new_strings);
    for named in [stand_in(), &packages, &packages.join("torch"), &packages.join("torch/lib/libtorch_cpu.so")] {
        let config = PytorchConfig { library: Some(named.to_owned()), ..PytorchConfig::default() };
        let found = candidates(&config, &LibrarySearch::nowhere(&TORCH));
        let found: Vec<_> = found.iter().map(|candidate| FoundTorch::of(candidate).unwrap().folder).collect();
        assert_eq!(found, [packages.join("torch/lib")], "{}", named.display());
    }
}

#[test]
fn what_is_missing_beside_the_library_is_named_with_what_to_install() {
    let root = env::temp_dir().join(format!("deuteron-torch-parts-{}", std::process::id()));
    let library = root.join("lib/libtorch_cpu.so.1.13");
    write(&library, "no library");
    let of = || FoundTorch::of(&LibraryCandidate { path: library.clone(), source: "here" });
    assert!(of().unwrap_err().contains("headers are not there (Debian has them in libtorch-dev"));
    write_headers(&root.join("include"));
    assert_eq!(of().unwrap_err(), "libc10.so is not beside it");
    write(&root.join("lib/libc10.so.1.13"), "names of an older C++");
    let found = of().unwrap();
    assert!(!found.has_new_strings && found.core_library.ends_with("libc10.so.1.13"), "{found:?}");
    write(&root.join("include/ATen/ATen.h"), "#error C++20 or later compatible compiler is required to use ATen.");
    assert_eq!(of().unwrap().standard, "-std=gnu++20");
    write(&root.join("include/torch/csrc/api/include/torch/version.h"), "#define TORCH_VERSION_MAJOR nine");
    assert_eq!(of().unwrap_err(), "its headers do not say a version");
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_shim_is_compiled_once_and_kept_by_what_it_is_made_of() {
    let shim = stand_in_shim();
    let name = shim.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("torch-9.8.7-") && name.ends_with(".so"), "{name}");
    let folder = shim.parent().unwrap();
    assert_eq!(fs::metadata(folder).unwrap().mode() & 0o777, 0o700);
    let compiled = fs::metadata(shim).unwrap().mtime_nsec();
    // Works without a compiler, since the shim is kept.
    let again = found().shim(&cache(folder), &only(&[])).unwrap();
    assert_eq!((again.as_path(), fs::metadata(&again).unwrap().mtime_nsec()), (shim, compiled));
    let left: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [name], "nothing is left of the compilation");
    // Another torch of the same version gets another shim.
    let mut other = found();
    other.has_new_strings = false;
    assert_ne!(other.shim_name(), found().shim_name());
}

#[test]
fn without_a_compiler_or_where_it_fails_nothing_is_kept_and_the_reason_is_told() {
    let root = env::temp_dir().join(format!("deuteron-torch-fails-{}", std::process::id()));
    let config = cache(&root.join("cache"));
    let refused = |torch: &FoundTorch, variables: &[(&str, &str)]| {
        let why = torch.shim(&config, &only(variables)).unwrap_err();
        let left = fs::read_dir(root.join("cache")).unwrap().count();
        assert_eq!(left, 0, "{why}");
        why
    };
    assert_eq!(refused(&found(), &[("PATH", "/nowhere:relative")]), NO_COMPILER);
    assert_eq!(refused(&found(), &[("CXX", "/nowhere/c++"), ("PATH", "/usr/bin")]), NO_COMPILER);
    let broken = "'/usr/bin/false' cannot compile the shim (exit status: 1): it does not say why";
    assert_eq!(refused(&found(), &[("CXX", "/usr/bin/false")]), broken);
    // The headers of a release with another interface.
    let mut other = found();
    other.include = root.join("include");
    write_headers(&other.include);
    write(&other.include.join(MODULE_HEADER), "#error \"another interface\"\n");
    let why = refused(&other, &[("PATH", "/usr/local/bin:/usr/bin")]);
    assert!(why.contains("cannot compile the shim") && why.contains("another interface"), "{why}");
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn a_compiler_that_does_not_end_is_ended_with_what_it_started() {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "sleep 60 & sleep 60"]).process_group(0).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let began = clock::now();
    assert!(wait(child, Duration::from_millis(50)).unwrap().is_none());
    // A process that it started would hold the other end while it lives.
    output.read_to_end(&mut Vec::new()).unwrap();
    assert!(clock::now().since(began) < Duration::from_secs(30), "all have ended");
    let child = Command::new("/bin/sh").args(["-c", "exit 3"]).process_group(0).spawn().unwrap();
    assert_eq!(wait(child, Duration::from_secs(60)).unwrap().and_then(|status| status.code()), Some(3));
}

#[test]
fn a_folder_or_file_that_others_can_write_is_refused() {
    let root = env::temp_dir().join(format!("deuteron-torch-cache-{}", std::process::id()));
    let folder = root.join("above/cache");
    let refused = || cache_folder(&cache(&folder), &only(&[])).unwrap_err();
    assert!(cache_folder(&cache(&folder), &only(&[])).is_ok());
    set_mode(&folder, 0o777);
    assert!(
        refused().contains("others can write to '") && refused().contains("name another folder by"),
        "{}",
        refused()
    );
    set_mode(&folder, 0o700);
    set_mode(&root.join("above"), 0o777);
    assert!(refused().contains("others can rename what is in '"), "{}", refused());
    set_mode(&root.join("above"), 0o1777);
    assert!(cache_folder(&cache(&folder), &only(&[])).is_ok(), "as in /tmp");
    // A kept shim that another user could have written.
    let shim = found().shim_name();
    write(&folder.join(&shim), "not a library");
    set_mode(&folder.join(&shim), 0o666);
    let why = found().shim(&cache(&folder), &only(&[])).unwrap_err();
    assert!(why.starts_with("others can write to '"), "{why}");
    fs::remove_file(folder.join(&shim)).unwrap();
    std::os::unix::fs::symlink("/bin/true", folder.join(&shim)).unwrap();
    let why = found().shim(&cache(&folder), &only(&[])).unwrap_err();
    assert!(why.ends_with("is not a file"), "{why}");
    fs::remove_dir_all(&root).unwrap();
}

#[test]
fn the_folder_is_that_of_the_users_caches_unless_the_flag_names_one() {
    let root = env::temp_dir().join(format!("deuteron-torch-home-{}", std::process::id()));
    fs::create_dir_all(&root).unwrap();
    let home = root.canonicalize().unwrap();
    let folder = |variables: &[(&str, &str)]| cache_folder(&PytorchConfig::default(), &only(variables));
    let text = home.to_str().unwrap();
    assert_eq!(folder(&[("HOME", text)]), Ok(home.join(".cache/deuteron/pytorch")));
    assert_eq!(folder(&[("HOME", "/nowhere"), ("XDG_CACHE_HOME", text)]), Ok(home.join("deuteron/pytorch")));
    assert!(folder(&[]).unwrap_err().contains("HOME is not set; name one by --backend-config=pytorch,cache=DIR"));
    assert!(folder(&[("HOME", "/proc/nowhere")]).unwrap_err().contains("cannot keep a compiled shim"));
    fs::remove_dir_all(&root).unwrap();
}
