//! `TRITONSERVER_Error*`.

use crate::triton::abi::{ExportedFunction, values};
use crate::triton::error::{CODE_NAMES, ErrorHandle, ErrorObject, c_text};
use crate::triton::object::{Owned, Text};

values! {
    TRITONSERVER_ErrorNew(code: u32, text: Text) -> ErrorHandle, or ErrorHandle::null() => {
        let text = c_text(&text.get_if_given().unwrap_or_default());
        // A code that is not known is the first, as in Triton.
        let code = if (code as usize) < CODE_NAMES.len() { code } else { 0 };
        Owned::new(ErrorObject { code, text }).into_handle()
    }

    // Most calls have no error: backends delete the result of a call without checking it.
    TRITONSERVER_ErrorDelete(error: ErrorHandle) -> (), or () => {
        if !error.is_null() {
            drop(error.take());
        }
    }

    TRITONSERVER_ErrorCode(error: ErrorHandle) -> u32, or 0 => { error.get().map_or(0, |error| error.code) }

    TRITONSERVER_ErrorCodeString(error: ErrorHandle) -> Text, or Text::null() => {
        let index = error.get().map_or(0, |error| error.code as usize);
        Text::of(CODE_NAMES.get(index).copied().unwrap_or(c"<invalid code>"))
    }

    TRITONSERVER_ErrorMessage(error: ErrorHandle) -> Text, or Text::null() => {
        error.get().map_or_else(|_| Text::of(c"<no error>"), |error| Text::of(&error.text))
    }
}

pub(super) fn exports() -> Vec<ExportedFunction> {
    values()
}
