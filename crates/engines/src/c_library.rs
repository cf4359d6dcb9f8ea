//! Libraries with a C interface that are opened when they are first needed: OpenVINO, TensorFlow. They start threads of
//! their own and so are never closed; the functions of one that was opened are valid until the process ends.

#![expect(unsafe_code, reason = "libraries that are opened by name")]

use std::ffi::CString;
use std::mem::ManuallyDrop;
use std::path::Path;

use libloading::os::unix::{Library as SharedObject, RTLD_LOCAL, RTLD_NOW};

/// An opened library.
pub(super) struct CLibrary {
    object: ManuallyDrop<SharedObject>,
}

impl CLibrary {
    /// Opens it. Its dependencies must be beside it or on the loader's path.
    ///
    /// # Errors
    /// The loader's reason.
    pub(super) fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: its initialisers run. The user named the library, or it lies where the user's programs find theirs.
        let opened = unsafe { SharedObject::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        match opened {
            Ok(object) => Ok(Self { object: ManuallyDrop::new(object) }),
            Err(error) => match std::error::Error::source(&error) {
                Some(cause) => Err(format!("it cannot be loaded: {cause}")),
                None => Err(format!("it cannot be loaded: {error}")),
            },
        }
    }

    /// A function of it.
    ///
    /// # Errors
    /// The name of the function that the library lacks.
    ///
    /// # Safety
    /// `F` is the function's type, as the library's header declares it.
    pub(super) unsafe fn function<F: Copy>(&self, name: &str) -> Result<F, String> {
        let lacks = || format!("it has no function '{name}': it is another library, or too old");
        let symbol = CString::new(name).map_err(|_| lacks())?;
        // SAFETY: the caller says so; the library is never closed, so what is copied out of the symbol stays valid.
        let found = unsafe { self.object.get::<F>(symbol.as_bytes_with_nul()) };
        found.map(|function| *function).map_err(|_| lacks())
    }
}

/// Declares a struct with one field for each of these functions, and its constructor from a
/// library.
macro_rules! c_functions {
    ($(#[$doc:meta])* $table:ident { $($name:ident: $function:ty),* $(,)? }) => {
        $(#[$doc])*
        pub(super) struct $table {
            $($name: $function,)*
        }

        impl $table {
            fn find(library: &$crate::c_library::CLibrary) -> Result<Self, String> {
                // SAFETY: the types are those of the library's header.
                unsafe { Ok(Self { $($name: library.function(stringify!($name))?,)* }) }
            }
        }
    };
}

pub(super) use c_functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_library_and_what_lacks_a_function_is_told() {
        let file = std::env::temp_dir().join(format!("deuteron-no-library-{}", std::process::id()));
        std::fs::write(&file, "text").unwrap();
        let why = CLibrary::open(&file).err().unwrap();
        assert!(why.starts_with("it cannot be loaded: ") && why.contains("file too short"), "{why}");
        std::fs::remove_file(&file).unwrap();
        let library = CLibrary::open(Path::new("libc.so.6")).unwrap();
        type Length = unsafe extern "C" fn(*const std::ffi::c_char) -> usize;
        // SAFETY: it is declared so in `string.h`.
        let (found, missing) =
            unsafe { (library.function::<Length>("strlen"), library.function::<Length>("no_such_function")) };
        // SAFETY: the text ends with a zero.
        assert_eq!(unsafe { (found.unwrap())(c"four".as_ptr()) }, 4);
        assert!(missing.unwrap_err().starts_with("it has no function 'no_such_function'"));
    }
}
