//! `deuteron key`: makes an API key and prints it, once, with the entry for the file of keys.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::control::outside::api_keys::make_key;
use crate::settings::NewKey;

/// Makes the key. It goes to standard error and the entry to standard output, so that `deuteron key
/// NAME >> FILE` works as meant. Returns the exit code for `main`.
pub fn run(new: &NewKey) -> ExitCode {
    let outcome = make_key(new).and_then(|(key, entry)| {
        // The key first: an entry without its key would be of no use.
        writeln!(io::stderr(), "# The key, which is shown this once:\n{key}\n# Its entry for --api-keys-file:")
            .and_then(|()| writeln!(io::stdout(), "{entry}"))
            .map_err(|error| format!("cannot be written: {error}"))
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            let _ = writeln!(io::stderr(), "error: {why}");
            ExitCode::FAILURE
        }
    }
}
