//! Writes down what the program is made of, and of which commit.

#[path = "build/commit.rs"]
mod commit;
#[path = "build/dependencies.rs"]
mod dependencies;

use std::env;
use std::path::Path;

#[expect(clippy::disallowed_methods, reason = "cargo tells a build script by the environment alone")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    commit::tell()?;
    dependencies::write(Path::new(&env::var("OUT_DIR")?))
}
