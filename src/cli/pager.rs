//! Shows a long text through the user's pager, as `git` and `man` do: `PAGER`, or `less` if it is there. Called by `main`,
//! and only if standard output is a terminal.

use std::ffi::OsString;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::flags::Variables;

/// Shows a text and waits until the pager ends. Returns false without a pager, or if it cannot be started: the caller
/// prints the text then.
pub fn show(text: &str, variables: Variables) -> bool {
    let Some(line) = command_line(variables) else { return false };
    let started = Command::new("sh").arg("-c").arg(&line).stdin(Stdio::piped()).spawn();
    let Ok(mut pager) = started else { return false };
    if let Some(mut input) = pager.stdin.take() {
        // A pager that is left early closes its input, which is no failure.
        let _ = input.write_all(text.as_bytes());
    }
    // 127: the shell has found no such program.
    pager.wait().is_ok_and(|status| status.code() != Some(127))
}

/// Returns the line of the shell that starts the pager; `None` for no pager.
fn command_line(variables: Variables) -> Option<OsString> {
    match variables("PAGER") {
        Some(pager) if pager.is_empty() || pager == "cat" => None,
        Some(pager) => Some(pager),
        None => {
            let path = variables("PATH")?;
            let has_less = std::env::split_paths(&path).any(|directory| directory.join("less").is_file());
            // Quit if it fits on the screen, keep colours, leave the text there.
            has_less.then(|| "less -FRX".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_goes_through_the_pager_that_is_set_or_less() {
        let folder = std::env::temp_dir().join(format!("deuteron-pager-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("shown");
        let pager = format!("cat > '{}'", file.display());
        assert!(show("a text\n", &|name| (name == "PAGER").then(|| pager.clone().into())));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "a text\n");
        assert!(!show("", &|name| (name == "PAGER").then(|| "/nowhere/pager 2> /dev/null".into())), "not there");
        assert!(!show("", &|name| (name == "PAGER").then(OsString::new)), "switched off");
        std::fs::write(folder.join("less"), "").unwrap();
        let path = folder.clone().into_os_string();
        assert_eq!(command_line(&|name| (name == "PATH").then(|| path.clone())), Some("less -FRX".into()));
        assert_eq!(command_line(&|name| (name == "PATH").then(|| "/nowhere".into())), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
