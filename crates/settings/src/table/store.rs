//! The flags of model repositories in stores.

use std::path::PathBuf;

use crate::Settings;
use crate::value::{parse_timeout, set_count};
use flags::Fallback::{Text, Value};
use flags::Takes::One;
use flags::{Flag, parse, set};

pub(super) const FLAGS: &[Flag<Settings>] = &[
    Flag {
        names: &["model-store-cache"],
        takes: One("DIRECTORY"),
        default: Text("stores in $CACHE_DIRECTORY, or deuteron/stores where the user's caches are"),
        help: "Directory that caches what was fetched from model repositories in stores; servers may share it, and one \
               that cannot reach the store serves from it",
        apply: |settings, value| {
            settings.stores.cache = Some(PathBuf::from(value));
            Ok(())
        },
    },
    Flag {
        names: &["model-store-bytes-max"],
        takes: One("BYTES"),
        default: Value("274877906944"),
        help: "Bytes of one store that are kept; models beyond it fail to load",
        apply: |settings, value| set(&mut settings.stores.bytes_max, parse(value)),
    },
    Flag {
        names: &["model-store-connections"],
        takes: One("COUNT"),
        default: Value("8"),
        help: "Files and ranges of files that are fetched from one store at a time",
        apply: |settings, value| set_count(&mut settings.stores.connections, value),
    },
    Flag {
        names: &["model-store-timeout-secs"],
        takes: One("SECONDS"),
        default: Value("20"),
        help: "How long a store may send nothing; then the rest is requested again, a few times",
        apply: |settings, value| set(&mut settings.stores.silence_max, parse_timeout(value)),
    },
];
