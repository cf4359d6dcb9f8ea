//! The objects that backends hold by pointers, and the arguments of the functions that they call.
//! Every pointer that comes from a backend is checked here and nowhere else: it must not be null,
//! and must point to a live object of the right kind.
//!
//! An object begins with a tag. The memory of one that is gone is kept for a while
//! ([`HOSTED_SHELLS_KEPT`]), so that a second release of it finds a dead tag and is an error, where
//! tritonserver would free memory twice. A pointer that was never ours, or that outlived its object
//! by long, cannot be told from a good one: such a backend crashes the server, as it does
//! tritonserver.

#![expect(unsafe_code, reason = "pointers of a C interface")]
#![expect(clippy::disallowed_types, reason = "the shells of objects, held for an exchange of a pointer")]

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::limits::{HOSTED_SHELLS_KEPT, HOSTED_SHELLS_MAX};
use base::error::Error;

/// The tag of memory whose object is gone.
const GONE: u64 = 0x6465_7465_726f_6e00;

/// An object that a backend holds a pointer to.
pub(super) trait HostedObject: Sized + Send + Sync + 'static {
    /// Its name in errors (`request`).
    const NAME: &'static str;
    /// Distinguishes it from other kinds.
    const TAG: u64;

    /// The memory of objects that are gone.
    fn shells() -> &'static Shells;
}

/// The memory of objects of one kind that are gone, the oldest first.
pub(super) struct Shells(Mutex<VecDeque<usize>>);

impl Shells {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(VecDeque::new()))
    }

    /// Memory for a new object; `None` while few are kept, so that recently released memory stays
    /// dead for a while.
    fn take<T>(&self) -> Option<NonNull<Shell<T>>> {
        let mut shells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = if shells.len() > HOSTED_SHELLS_KEPT { shells.pop_front() } else { None };
        NonNull::new(oldest? as *mut Shell<T>)
    }

    fn keep<T>(&self, shell: NonNull<Shell<T>>) {
        let mut shells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shells.push_back(shell.as_ptr() as usize);
        let surplus = if shells.len() > HOSTED_SHELLS_MAX { shells.pop_front() } else { None };
        drop(shells);
        if let Some(surplus) = surplus {
            // SAFETY: it came from a `Box` in `Owned::new`, its object is gone, and it is no longer
            // in a list.
            drop(unsafe { Box::from_raw(surplus as *mut Shell<T>) });
        }
    }
}

/// The number of live objects, of all kinds: tests compare it.
#[cfg(test)]
pub(super) fn alive() -> usize {
    usize::try_from(ALIVE.load(Ordering::Relaxed)).unwrap_or(0)
}

#[cfg(test)]
static ALIVE: std::sync::atomic::AtomicI64 = std::sync::atomic::AtomicI64::new(0);

/// Declares an object that a backend may hold a pointer to: the type, its name in errors, and a
/// number of its own.
macro_rules! hosted_object {
    ($type:ty, $name:literal, $number:literal) => {
        impl $crate::triton::object::HostedObject for $type {
            const NAME: &'static str = $name;
            const TAG: u64 = 0x6465_7574_6572_6f00 + $number;

            fn shells() -> &'static $crate::triton::object::Shells {
                static SHELLS: $crate::triton::object::Shells = $crate::triton::object::Shells::new();
                &SHELLS
            }
        }
    };
}
pub(super) use hosted_object;

/// An object after its tag.
#[repr(C)]
pub(super) struct Shell<T> {
    tag: AtomicU64,
    value: MaybeUninit<T>,
}

/// An object that we own and that a backend may have pointers to. Dropped, it is gone for the backend too.
pub(super) struct Owned<T: HostedObject>(NonNull<Shell<T>>);

// SAFETY: it is a box of a `T`, which may be sent and shared.
unsafe impl<T: HostedObject> Send for Owned<T> {}
// SAFETY: as above; only `&T` is handed out.
unsafe impl<T: HostedObject> Sync for Owned<T> {}

impl<T: HostedObject> Owned<T> {
    pub(super) fn new(value: T) -> Self {
        let shell = T::shells().take::<T>().unwrap_or_else(|| {
            NonNull::from(Box::leak(Box::new(Shell { tag: AtomicU64::new(GONE), value: MaybeUninit::uninit() })))
        });
        // SAFETY: the shell is from the list of this type or new, so it is memory for a `T` without
        // another writer.
        unsafe { (&raw mut (*shell.as_ptr()).value).cast::<T>().write(value) };
        // SAFETY: the shell is alive; a tag may be read by a backend that kept an old pointer, hence the atomic.
        unsafe { (*shell.as_ptr()).tag.store(T::TAG, Ordering::Release) };
        #[cfg(test)]
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Self(shell)
    }

    /// The pointer for a backend.
    pub(super) const fn handle(&self) -> Handle<T> {
        Handle(self.0.as_ptr())
    }

    /// Gives it to the backend, which releases it in a call.
    pub(super) fn into_handle(self) -> Handle<T> {
        let handle = self.handle();
        std::mem::forget(self);
        handle
    }
}

impl<T: HostedObject> Deref for Owned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value was written in `new` and is taken only by the code that sets the tag to
        // `GONE`, which for an owned object is its own drop, or a release that took the ownership
        // by `Handle::take`.
        unsafe { (*self.0.as_ptr()).value.assume_init_ref() }
    }
}

impl<T: HostedObject> Drop for Owned<T> {
    fn drop(&mut self) {
        drop(self.handle().take());
    }
}

/// A pointer to an object as a backend passes it.
#[repr(transparent)]
pub(super) struct Handle<T>(*mut Shell<T>);

/// A pointer whose kind is known elsewhere: for a function of a backend.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct AnyHandle(*mut std::ffi::c_void);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> Handle<T> {
    pub(super) const fn null() -> Self {
        Self(null_mut())
    }

    pub(super) const fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(super) const fn any(self) -> AnyHandle {
        AnyHandle(self.0.cast())
    }

    /// The pointer of an address that [`Self::address`] gave.
    pub(super) const fn of_address(address: usize) -> Self {
        Self(address as *mut Shell<T>)
    }

    /// The address, to compare or to keep.
    pub(super) fn address(self) -> usize {
        self.0 as usize
    }
}

impl<T: HostedObject> Handle<T> {
    /// The object.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such object.
    pub(super) fn get<'a>(self) -> Result<&'a T, Error> {
        if self.tag() == Some(T::TAG) {
            // SAFETY: the tag says that a `T` is alive here. That it stays so for the length of the call is the
            // backend's part of the interface: it does not release an object that another of its threads uses.
            return Ok(unsafe { (*self.0).value.assume_init_ref() });
        }
        Err(self.refusal())
    }

    /// The object; `None` for a null pointer.
    pub(super) fn get_if_given<'a>(self) -> Result<Option<&'a T>, Error> {
        if self.is_null() { Ok(None) } else { self.get().map(Some) }
    }

    /// Takes the object away from the backend: from now on the pointer is dead.
    ///
    /// # Errors
    /// `InvalidArgument` if there is no such object, or another thread took it.
    pub(super) fn take(self) -> Result<T, Error> {
        if self.tag() != Some(T::TAG) {
            return Err(self.refusal());
        }
        let shell = NonNull::new(self.0).ok_or_else(|| self.refusal())?;
        // SAFETY: `tag` found the memory of a shell, which is kept after its object.
        let tag = unsafe { &(*self.0).tag };
        if tag.compare_exchange(T::TAG, GONE, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return Err(self.refusal());
        }
        // SAFETY: the exchange succeeds for one caller, so the value is read once, and it was written in `Owned::new`.
        let value = unsafe { (*self.0).value.assume_init_read() };
        T::shells().keep(shell);
        #[cfg(test)]
        ALIVE.fetch_sub(1, Ordering::Relaxed);
        Ok(value)
    }

    /// Ends the object. A null pointer is ignored and not a mistake: `delete` of C++ takes it, and
    /// backends rely on that.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub(super) fn delete(self) -> Result<(), Error> {
        if self.is_null() { Ok(()) } else { self.take().map(drop) }
    }

    /// Takes ownership of the object again without ending it.
    pub(super) fn own(self) -> Result<Owned<T>, Error> {
        self.get()?;
        NonNull::new(self.0).map(Owned).ok_or_else(|| self.refusal())
    }

    fn tag(self) -> Option<u64> {
        if self.0.is_null() || !self.0.is_aligned() {
            return None;
        }
        // SAFETY: a pointer that is not null came from `Owned::handle`, by the interface; its shell begins with a tag
        // and is kept after the object is gone.
        Some(unsafe { (*self.0).tag.load(Ordering::Acquire) })
    }

    #[cold]
    fn refusal(self) -> Error {
        let name = T::NAME;
        if self.is_null() {
            return Error::invalid(format!("the {name} is a null pointer"));
        }
        Error::invalid(format!("invalid {name} handle: it was released already, or is another object"))
    }
}

/// A place for a value that a function returns.
#[repr(transparent)]
pub(super) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Writes the value.
    ///
    /// # Errors
    /// `InvalidArgument` for a null pointer.
    pub(super) fn set(self, value: T) -> Result<(), Error> {
        if self.0.is_null() {
            return Err(Error::invalid("the place for a result is a null pointer"));
        }
        self.set_if_asked(value);
        Ok(())
    }

    /// Writes the value if there is a place.
    pub(super) fn set_if_asked(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: by the interface the caller passes memory for a `T` that it owns.
            unsafe { self.0.write(value) };
        }
    }
}

/// A string of C.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct Text(*const c_char);

impl Text {
    pub(super) const fn null() -> Self {
        Self(std::ptr::null())
    }

    /// The string that a pointer without a type leads to.
    pub(super) const fn of_pointer(pointer: *const std::ffi::c_void) -> Self {
        Self(pointer.cast())
    }

    /// A string that lives as long as the object that the function is asked about.
    pub(super) const fn of(text: &CStr) -> Self {
        Self(text.as_ptr())
    }

    /// The bytes, which are UTF-8 or made so.
    ///
    /// # Errors
    /// `InvalidArgument` for a null pointer.
    pub(super) fn get<'a>(self, what: &str) -> Result<Cow<'a, str>, Error> {
        self.get_if_given().ok_or_else(|| Error::invalid(format!("the {what} is a null pointer")))
    }

    pub(super) fn get_if_given<'a>(self) -> Option<Cow<'a, str>> {
        // SAFETY: by the interface it is null or a string that ends with a zero, and lives as long as the call.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) }.to_string_lossy())
    }

    /// The bytes as they are.
    pub(super) fn bytes<'a>(self) -> Option<&'a [u8]> {
        // SAFETY: as for `get_if_given`.
        (!self.0.is_null()).then(|| unsafe { CStr::from_ptr(self.0) }.to_bytes())
    }
}

/// A list whose length is another argument.
#[repr(transparent)]
pub(super) struct Items<T>(*const T);

impl<T> Clone for Items<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Items<T> {}

impl<T> Items<T> {
    pub(super) const fn of(items: &[T]) -> Self {
        Self(items.as_ptr())
    }

    #[cfg(test)]
    pub(super) const fn null() -> Self {
        Self(std::ptr::null())
    }

    /// The items.
    ///
    /// # Errors
    /// `InvalidArgument` for a null pointer with a length, and for a length that no memory has.
    pub(super) fn get<'a>(self, count: u64, what: &str) -> Result<&'a [T], Error> {
        if count == 0 {
            return Ok(&[]);
        }
        let size_max = (isize::MAX as usize).checked_div(size_of::<T>()).unwrap_or(usize::MAX);
        let count = usize::try_from(count).ok().filter(|count| *count <= size_max);
        let count = count.ok_or_else(|| Error::invalid(format!("the {what} are more than there is memory")))?;
        if self.0.is_null() || !self.0.is_aligned() {
            return Err(Error::invalid(format!("the {what} are {count}, and a null pointer")));
        }
        // SAFETY: by the interface the caller passes `count` items, which live as long as the call.
        Ok(unsafe { std::slice::from_raw_parts(self.0, count) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(u32);
    hosted_object!(Thing, "thing", 0xf0);

    struct OtherThing;
    hosted_object!(OtherThing, "other thing", 0xf1);

    #[test]
    fn an_object_is_found_until_it_is_taken_and_a_second_release_is_an_error() {
        let handle = Owned::new(Thing(7)).into_handle();
        assert_eq!(handle.get().map(|thing| thing.0), Ok(7));
        assert_eq!(handle.take().map(|thing| thing.0), Ok(7));
        let error = handle.take().map(|thing| thing.0).unwrap_err();
        assert_eq!(error.text(), "invalid thing handle: it was released already, or is another object");
        assert!(handle.get().is_err());
        // Objects that are made afterwards have other addresses, for a while.
        let others: Vec<_> = (0..HOSTED_SHELLS_KEPT).map(|_| Owned::new(Thing(8)).into_handle()).collect();
        assert!(handle.get().is_err() && others.iter().all(|other| other.get().is_ok()));
        others.into_iter().for_each(|other| drop(other.take()));
    }

    #[test]
    fn a_null_pointer_and_an_object_of_another_kind_are_refused_by_name() {
        let error = Handle::<Thing>::null().get().map(|thing| thing.0).unwrap_err();
        assert_eq!(error.text(), "the thing is a null pointer");
        let other = Owned::new(OtherThing);
        let wrong = Handle::<Thing>(other.handle().0.cast());
        assert!(wrong.get().is_err() && wrong.take().is_err());
        assert!(other.handle().get().is_ok());
        assert!(Out::<u32>(null_mut()).set(1).is_err());
        assert!(Text::null().get("name").is_err());
        assert!(Items::<i64>::null().get(1, "dims").is_err() && Items::<i64>::null().get(0, "dims").is_ok());
        assert!(Items::of(&[1_i64]).get(u64::MAX, "dims").is_err());
    }

    #[test]
    fn of_many_threads_that_release_an_object_one_gets_it() {
        for _ in 0..200 {
            let address = Owned::new(Thing(1)).into_handle().address();
            let take = move || Handle::<Thing>(address as *mut Shell<Thing>).take().is_ok();
            let threads = [std::thread::spawn(take), std::thread::spawn(take)];
            let won = threads.into_iter().filter(|_| true).map(|thread| thread.join().unwrap()).filter(|won| *won);
            assert_eq!(won.count(), 1);
        }
    }
}
