//! Steps against PyTorch and torchvision, which Debian has for the CPU alone: `.ci/run steps` installs them, with PyPI's Pillow, as
//! Debian's release 9.4 resizes to other pixels.

use std::path::Path;
use std::process::Command;

use crate::support::folder::Folder;

#[test]
fn torch_and_torchvision_give_the_same() {
    let Some(python) = std::env::var_os("TORCH_PYTHON").filter(|_| crate::is_whole()) else { return };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exact/torch_functions.py");
    for part in ["pictures", "tensors", "scores", "pool", "boxes", "class_maps"] {
        let folder = Folder::new("torch");
        let output = Command::new(&python).arg("-B").arg(&script).arg(folder.path()).arg(part).output();
        let output = output.expect("the interpreter is there");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        crate::cases::compare_files(&format!("torch {part}"), &folder);
    }
}
