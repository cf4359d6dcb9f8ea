//! The shared memory extensions, for both protocols: the operations a client can request, the registry of
//! regions, and the slices of them that are tensors. The memory itself is behind [`RegionMemory`]; this module never
//! touches it. Names and keys from the network are checked here, once. Texts are Triton's
//! (`shared_memory_manager.cc`). Bounded by `SHARED_MEMORY_REGIONS_MAX`, and by `--client-shm-bytes-max` for the
//! inputs of one request.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use base::error::{Code, Error};
use base::limits::NAME_SIZE_MAX;
use base::tensor::{AlignedBuffer, RangeError, Tensor, check_range};

/// Regions of shared memory that clients register: each takes a file descriptor, of which a process often has only
/// 1,024, and connections need theirs.
const SHARED_MEMORY_REGIONS_MAX: usize = 256;

/// The memory of a region. A client may shrink it at any time: access then returns an error and never faults.
pub trait RegionMemory: Debug + Send + Sync {
    /// Copies the region's bytes from `offset` on into `out`.
    ///
    /// # Errors
    ///
    /// Any [`MemoryError`] if not all bytes can be read.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryError>;

    /// Copies `bytes` into the region from `offset` on.
    ///
    /// # Errors
    ///
    /// Any [`MemoryError`] if not all bytes can be written.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MemoryError>;

    /// Returns itself, for callers that know other ways to copy.
    fn as_any(&self) -> &dyn Any;
}

/// The reason why bytes of a region could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// The client shrank the memory after it was registered.
    Shrunk,
    /// Any other reason.
    Other(Error),
}

/// The kind of device that a region's memory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// The host.
    System,
    /// A GPU.
    Cuda,
}

/// Location of a region's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionPlace {
    /// In POSIX shared memory.
    System {
        /// Its key, as the client spells it; it names a file in `/dev/shm`.
        key: String,
        /// Bytes before the region in that file.
        offset: u64,
    },
    /// In GPU memory.
    Cuda {
        /// CUDA device number.
        device: u64,
    },
}

/// Name, size and location of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionDescription {
    /// The name that the client gave it.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// The location of its memory.
    pub place: RegionPlace,
}

/// A region that a client has registered. Freed when it is unregistered and no request uses it.
#[derive(Debug)]
pub struct Region {
    description: RegionDescription,
    memory: Box<dyn RegionMemory>,
}

/// A range of a region that an input is read from or an output is written to. Keeps the region alive.
#[derive(Clone, Debug)]
pub struct RegionSlice {
    region: Arc<Region>,
    offset: u64,
    size: usize,
}

/// The tensors of a request that are in shared memory.
#[derive(Clone, Debug, Default)]
pub struct SharedTensors {
    /// The slices to read inputs from, with their index among the model's inputs.
    pub sources: Vec<(usize, RegionSlice)>,
    /// The slices to write outputs to, with their index among the model's outputs.
    pub destinations: Vec<(usize, RegionSlice)>,
}

/// A snapshot of the registered regions, in which requests look up names. Immutable: each change makes a new one.
#[derive(Debug, Default)]
pub struct Regions {
    by_name: BTreeMap<String, Arc<Region>>,
    /// Regions that were unregistered while requests used them: as in Triton, other requests find
    /// them until the last such request has ended.
    leaving: BTreeMap<String, Weak<Region>>,
    /// Bytes of inputs that one request may have in shared memory (`--client-shm-bytes-max`).
    request_size_max: usize,
}

/// An operation on regions that a client requests. The thread of `control::outside::shared_memory` carries it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionOrder {
    /// List one region, or all of the kind if the name is empty.
    Status(RegionKind, String),
    /// Register a region.
    Register(RegionRegistration),
    /// Unregister one region, or all of the kind if the name is empty.
    Unregister(RegionKind, String),
}

/// A region to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionRegistration {
    /// Its name, size and location.
    pub description: RegionDescription,
    /// The `cudaIpcMemHandle_t` that opens GPU memory. Empty for system memory.
    pub handle: Vec<u8>,
}

/// Bytes of a `cudaIpcMemHandle_t`.
pub const CUDA_HANDLE_SIZE: usize = 64;

/// Prefix of the keys that Triton's Python backend uses for its own memory.
const RESERVED_PREFIX: &str = "triton_python_backend_shm_region_";

/// The answer of a server without client shared memory, which is the default: there are no regions,
/// as later Tritons say too, and none is registered.
///
/// # Errors
///
/// `NotFound` for the status of one region, `Unsupported` for anything but a status.
pub fn without_regions(order: &RegionOrder) -> Result<Vec<RegionDescription>, Error> {
    match order {
        RegionOrder::Status(kind, name) => RegionRegistry::new(0).status(*kind, name),
        RegionOrder::Register(_) | RegionOrder::Unregister(..) => Err(disabled()),
    }
}

/// Refusal of every region while client shared memory is disabled.
pub fn disabled() -> Error {
    Error::unsupported("Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")
}

impl RegionRegistration {
    /// A region of system memory; `offset` and `size` are in bytes.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the name, the key or the range is invalid.
    pub fn system(name: &str, key: String, offset: u64, size: u64) -> Result<Self, Error> {
        let name = region_name(name, RegionKind::System)?;
        key_name(&name, &key)?;
        let description = RegionDescription { name, size, place: RegionPlace::System { key, offset } };
        // An empty one is refused where the key is opened: a missing key is reported first, as in
        // Triton.
        let is_range = check_range(offset, size.max(1), i64::MAX.unsigned_abs()).is_ok();
        if is_range { Ok(Self { description, handle: Vec::new() }) } else { Err(description.invalid()) }
    }

    /// A region of GPU memory; `size` is in bytes.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the name, the handle or the size is invalid.
    pub fn cuda(name: &str, handle: Vec<u8>, device: u64, size: u64) -> Result<Self, Error> {
        let name = region_name(name, RegionKind::Cuda)?;
        if handle.len() != CUDA_HANDLE_SIZE {
            return Err(Error::invalid("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"));
        }
        let description = RegionDescription { name, size, place: RegionPlace::Cuda { device } };
        let is_valid = size > 0 && check_range(0, size, i64::MAX.unsigned_abs()).is_ok();
        if is_valid { Ok(Self { description, handle }) } else { Err(description.invalid()) }
    }
}

impl RegionDescription {
    /// Triton's refusal of a region whose range is not in its memory.
    pub fn invalid(&self) -> Error {
        Error::invalid(format!("failed to register shared memory region '{}': invalid args", self.name))
    }

    /// The kind of device that its memory belongs to.
    pub const fn kind(&self) -> RegionKind {
        match self.place {
            RegionPlace::System { .. } => RegionKind::System,
            RegionPlace::Cuda { .. } => RegionKind::Cuda,
        }
    }
}

/// Triton's refusal of a GPU region on a server without GPUs.
pub fn without_gpus(name: &str) -> Error {
    Error::invalid(format!("failed to register CUDA shared memory region: '{name}', GPUs not supported"))
}

/// Checks the name of a region to register.
fn region_name(name: &str, kind: RegionKind) -> Result<String, Error> {
    match name.len() {
        0 => Err(Error::invalid(format!(
            "'region name' is necessary to register {} shared memory region",
            if kind == RegionKind::System { "system" } else { "cuda" }
        ))),
        1..=NAME_SIZE_MAX => Ok(name.to_owned()),
        _ => Err(Error::invalid(format!("the name of a shared memory region has at most {NAME_SIZE_MAX} bytes"))),
    }
}

/// The file name in `/dev/shm` of a key: the key without its leading slash. Any other slash, `.`
/// and `..` are refused, so that a key cannot name a file elsewhere.
///
/// # Errors
///
/// `InvalidArgument` if the key is not a plain file name, or has the prefix reserved for Triton's Python backend.
pub fn key_name<'a>(region: &str, key: &'a str) -> Result<&'a str, Error> {
    let name = key.strip_prefix('/').unwrap_or(key);
    // Checked without the leading slashes of POSIX names, with which Triton's own check can be bypassed.
    if key.trim_start_matches('/').starts_with(RESERVED_PREFIX) {
        return Err(Error::invalid(format!(
            "cannot register shared memory region '{region}' with key '{key}' as the key contains the reserved prefix \
             '{RESERVED_PREFIX}'"
        )));
    }
    let is_plain = (1..=NAME_SIZE_MAX).contains(&name.len()) && !name.contains(['/', '\0']);
    if is_plain && name != "." && name != ".." {
        return Ok(name);
    }
    Err(Error::invalid(format!("cannot register shared memory region '{region}' - invalid shm key '{key}'")))
}

impl Region {
    /// A region whose memory is open.
    pub const fn new(description: RegionDescription, memory: Box<dyn RegionMemory>) -> Self {
        Self { description, memory }
    }

    /// Its name, size and location.
    pub const fn description(&self) -> &RegionDescription {
        &self.description
    }
}

impl RegionSlice {
    /// Size in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The kind of device that the memory belongs to.
    pub fn kind(&self) -> RegionKind {
        self.region.description.kind()
    }

    /// The device of the memory, if it is in that of a GPU.
    pub fn device(&self) -> Option<u64> {
        match self.region.description.place {
            RegionPlace::System { .. } => None,
            RegionPlace::Cuda { device } => Some(device),
        }
    }

    /// Copies in another way than by bytes of the host: `copy` gets the memory and the offset of
    /// the slice.
    ///
    /// # Errors
    ///
    /// The error of the copy, with the region's name.
    pub fn copy_by(&self, copy: impl FnOnce(&dyn Any, u64) -> Result<(), MemoryError>) -> Result<(), Error> {
        copy(self.region.memory.as_any(), self.offset).map_err(|error| self.access_error(error))
    }

    /// Copies the bytes out. Blocks on the GPU if the region is there.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the client shrank the region, else the error of the copy.
    pub fn read(&self) -> Result<Bytes, Error> {
        let mut buffer = AlignedBuffer::zeroed(self.size);
        let read = self.region.memory.read(self.offset, buffer.as_mut_slice());
        read.map_err(|error| self.access_error(error))?;
        Ok(buffer.freeze())
    }

    /// Copies `bytes` to the beginning, up to its own size. Blocks on the GPU if the region is there.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the client shrank the region, else the error of the copy.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        let fitting = bytes.get(..self.size).unwrap_or(bytes);
        self.region.memory.write(self.offset, fitting).map_err(|error| self.access_error(error))
    }

    fn access_error(&self, error: MemoryError) -> Error {
        let name = &self.region.description.name;
        match error {
            MemoryError::Shrunk => Error::invalid(format!(
                "shared memory region '{name}' is smaller than when it was registered; its bytes from {} on do not exist",
                self.offset
            )),
            MemoryError::Other(error) => error.with_prefix(&format!("shared memory region '{name}': ")),
        }
    }
}

impl SharedTensors {
    /// Returns true if an output goes to shared memory.
    pub fn has_output(&self, index: usize) -> bool {
        self.destinations.iter().any(|(output, _)| *output == index)
    }

    /// Checks that a request of a `ModelStreamInfer` may use them. A copy from or to a GPU is
    /// awaited, and later requests of the stream would overtake this one meanwhile.
    ///
    /// # Errors
    ///
    /// `Unsupported` if any of them is in GPU memory.
    pub fn check_streamed(&self) -> Result<(), Error> {
        if self.sources.iter().chain(&self.destinations).any(|(_, slice)| slice.kind() == RegionKind::Cuda) {
            return Err(Error::unsupported("CUDA shared memory is not supported in ModelStreamInfer, use ModelInfer"));
        }
        Ok(())
    }

    /// Checks that every output fits into its slice. `name` maps an output's index to its name, for Triton's text.
    ///
    /// # Errors
    ///
    /// `Internal` if an output is larger than its slice.
    pub fn check_room<'a>(&self, outputs: &[Tensor], name: impl Fn(usize) -> Option<&'a str>) -> Result<(), Error> {
        for (index, slice) in &self.destinations {
            let size = outputs.get(*index).map_or(0, |output| output.contents.len());
            if size > slice.size {
                return Err(Error::internal(format!(
                    "shared memory size specified with the request for output '{}' ({} bytes) should be at least {size} \
                     bytes to hold the results",
                    name(*index).unwrap_or_default(),
                    slice.size
                )));
            }
        }
        Ok(())
    }
}

impl Regions {
    /// No regions. The inputs of one request may be `request_size_max` bytes.
    pub const fn new(request_size_max: usize) -> Self {
        Self { by_name: BTreeMap::new(), leaving: BTreeMap::new(), request_size_max }
    }

    /// Looks up the slice of a region that a request names; `offset` and `size` are in bytes.
    ///
    /// # Errors
    ///
    /// `NotFound` for an unknown region, `InvalidArgument` for a range outside of it.
    pub fn find(&self, name: &str, offset: u64, size: u64) -> Result<RegionSlice, Error> {
        let leaving = || self.leaving.get(name).and_then(Weak::upgrade);
        let region = self
            .by_name
            .get(name)
            .cloned()
            .or_else(leaving)
            .ok_or_else(|| Error::not_found(format!("Unable to find shared memory region: '{name}'")))?;
        let range = check_range(offset, size, region.description.size).map_err(|error| {
            Error::invalid(match error {
                RangeError::Offset => format!("Invalid offset for shared memory region: '{name}'"),
                RangeError::Overflow => format!(
                    "Integer overflow detected: byte_size ({size}) + offset ({offset}) exceeds maximum value ({}) for \
                     region '{name}'",
                    u64::MAX
                ),
                RangeError::End => format!("Invalid offset + byte size for shared memory region: '{name}'"),
            })
        });
        range.map(|size| RegionSlice { region, offset, size })
    }

    /// Checks the total size of one request's inputs. They are copied, so that without a bound few small requests
    /// could use up the server's memory.
    ///
    /// # Errors
    ///
    /// `TooLarge` if they are larger than `--client-shm-bytes-max`.
    pub fn check_inputs(&self, sources: &[(usize, RegionSlice)]) -> Result<(), Error> {
        let most = self.request_size_max;
        let size = sources.iter().map(|(_, slice)| slice.size).fold(0, usize::saturating_add);
        if size <= most {
            return Ok(());
        }
        Err(Error::too_large(format!(
            "the inputs of this request in shared memory are {size} bytes, more than the maximum of {most} bytes. Use \
             --client-shm-bytes-max to increase the limit."
        )))
    }
}

/// The registry: current regions, and unregistered ones that requests still use. Owned by the thread of
/// `control::outside::shared_memory`, the only one that changes it; shards see snapshots ([`Regions`]).
#[derive(Debug)]
pub struct RegionRegistry {
    regions: Arc<Regions>,
    /// Unregistered regions that requests may still use. Weak, so that the last of them frees the region.
    leaving: Vec<Weak<Region>>,
}

impl RegionRegistry {
    /// No regions. The inputs of one request may be `request_size_max` bytes.
    pub fn new(request_size_max: usize) -> Self {
        Self { regions: Arc::new(Regions::new(request_size_max)), leaving: Vec::new() }
    }

    /// The current snapshot, for the shards.
    pub const fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Checks that a name is free and the limit on regions is not reached.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the name is taken, `Unavailable` if there are `SHARED_MEMORY_REGIONS_MAX` regions.
    pub fn check(&mut self, name: &str) -> Result<(), Error> {
        self.leaving.retain(|region| region.strong_count() > 0);
        let is_taken = self.in_use().any(|region| region.description.name == name);
        if is_taken {
            return Err(Error::new(Code::AlreadyExists, format!("shared memory region '{name}' already in manager")));
        }
        // Unregistered regions in use count too: each still has a file descriptor.
        if self.in_use().count() >= SHARED_MEMORY_REGIONS_MAX {
            let text =
                format!("{SHARED_MEMORY_REGIONS_MAX} shared memory regions are registered, which is the maximum");
            return Err(Error::unavailable(text));
        }
        Ok(())
    }

    /// Adds a region whose name [`Self::check`] has accepted.
    pub fn insert(&mut self, region: Region) {
        self.change(|regions| {
            regions.insert(region.description.name.clone(), Arc::new(region));
        });
    }

    /// Removes a region of a kind, or all of the kind if the name is empty. Removing an unknown one succeeds.
    pub fn remove(&mut self, kind: RegionKind, name: &str) {
        let is_removed =
            |region: &Region| region.description.kind() == kind && (name.is_empty() || region.description.name == name);
        let removed: Vec<_> =
            self.regions.by_name.values().filter(|region| is_removed(region)).map(Arc::downgrade).collect();
        if removed.is_empty() {
            return;
        }
        self.leaving.extend(removed);
        self.change(|regions| regions.retain(|_, region| !is_removed(region)));
    }

    /// Describes one region, or all of a kind if the name is empty, unregistered ones still in use included.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no region of this name, or one of the other kind.
    pub fn status(&mut self, kind: RegionKind, name: &str) -> Result<Vec<RegionDescription>, Error> {
        self.leaving.retain(|region| region.strong_count() > 0);
        let mut found: Vec<_> = self
            .in_use()
            .filter(|region| name.is_empty() || region.description.name == name)
            .map(|region| region.description.clone())
            .collect();
        if name.is_empty() {
            found.retain(|region| region.kind() == kind);
            found.sort_by(|one, other| one.name.cmp(&other.name));
            return Ok(found);
        }
        let words = |kind| if kind == RegionKind::System { ("system", "system") } else { ("cuda", "CUDA") };
        let (lower, wanted) = words(kind);
        match found.first() {
            None => Err(Error::not_found(format!("Unable to find {lower} shared memory region: '{name}'"))),
            Some(other) if other.kind() != kind => Err(Error::not_found(format!(
                "The region named '{name}' is registered as {} shared memory, not {wanted} shared memory",
                words(other.kind()).1
            ))),
            Some(_) => Ok(found),
        }
    }

    fn in_use(&self) -> impl Iterator<Item = Arc<Region>> {
        self.regions.by_name.values().cloned().chain(self.leaving.iter().filter_map(Weak::upgrade))
    }

    fn change(&mut self, change: impl FnOnce(&mut BTreeMap<String, Arc<Region>>)) {
        // A new map instead of a change in place: shards still read the old one, without a lock. Changes are rare.
        let mut by_name = self.regions.by_name.clone();
        change(&mut by_name);
        let used = self.leaving.iter().filter_map(Weak::upgrade);
        let leaving = used.map(|region| (region.description.name.clone(), Arc::downgrade(&region))).collect();
        self.regions = Arc::new(Regions { by_name, leaving, request_size_max: self.regions.request_size_max });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Sevens, regions};
    use base::tensor::{Datatype, Shape};

    fn description(name: &str) -> RegionDescription {
        RegionDescription {
            name: name.to_owned(),
            size: 64,
            place: RegionPlace::System { key: "/k".to_owned(), offset: 0 },
        }
    }

    fn region(name: &str) -> Region {
        Region::new(description(name), Box::new(Sevens))
    }

    #[test]
    fn a_key_is_a_plain_name_behind_at_most_one_slash() {
        let name = |key: &str| key_name("r", key).map(str::to_owned).map_err(|error| error.text().to_owned());
        assert_eq!((name("/a.b-c_1"), name("a")), (Ok("a.b-c_1".to_owned()), Ok("a".to_owned())));
        assert!(name(&"k".repeat(255)).is_ok());
        for bad in ["", "/", "//a", "a/b", "/a/", ".", "..", "/..", "/../etc/passwd", "a\0b", &"k".repeat(256)] {
            assert_eq!(name(bad), Err(format!("cannot register shared memory region 'r' - invalid shm key '{bad}'")));
        }
        for reserved in [
            "triton_python_backend_shm_region_1",
            "/triton_python_backend_shm_region_",
            "///triton_python_backend_shm_region_x",
        ] {
            assert!(name(reserved).unwrap_err().ends_with("reserved prefix 'triton_python_backend_shm_region_'"));
        }
        assert!(name("my_triton_python_backend_shm_region_1").is_ok());
    }

    #[test]
    fn bytes_of_a_region_are_found_or_refused_in_tritons_words() {
        let registry = regions();
        let check = |name: &str, offset, size, want: &str| {
            let got = match registry.regions().find(name, offset, size) {
                Ok(slice) => format!("{} {} {:?}", slice.offset, slice.size(), slice.kind()),
                Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
            };
            assert_eq!(got, want, "{name} {offset} {size}");
        };
        check("r", 0, 64, "0 64 System");
        check("g", 48, 16, "48 16 Cuda");
        check("r", 63, 0, "63 0 System");
        check("x", 0, 1, "404 Unable to find shared memory region: 'x'");
        check("r", 64, 0, "400 Invalid offset for shared memory region: 'r'");
        check("r", 1, 64, "400 Invalid offset + byte size for shared memory region: 'r'");
        check(
            "r",
            32,
            u64::MAX - 31,
            "400 Integer overflow detected: byte_size (18446744073709551584) + offset (32) exceeds maximum value \
             (18446744073709551615) for region 'r'",
        );
    }

    #[test]
    fn a_region_leaves_when_its_last_user_has() {
        let mut registry = regions();
        let names = |registry: &mut RegionRegistry, kind| {
            let found = registry.status(kind, "").unwrap();
            found.into_iter().map(|region| region.name).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            (names(&mut registry, RegionKind::System), names(&mut registry, RegionKind::Cuda)),
            ("r s".into(), "g".into())
        );
        let slice = registry.regions().find("r", 0, 4).unwrap();
        registry.remove(RegionKind::Cuda, "r");
        registry.remove(RegionKind::System, "x");
        assert_eq!(names(&mut registry, RegionKind::System), "r s", "of another kind, or unknown");
        registry.remove(RegionKind::System, "");
        assert_eq!(names(&mut registry, RegionKind::System), "r", "it is used");
        let another = registry.regions().find("r", 0, 4).unwrap();
        drop(another);
        assert!(registry.regions().find("s", 0, 4).is_err(), "nobody uses this one");
        assert_eq!(registry.check("r").unwrap_err().text(), "shared memory region 'r' already in manager");
        assert_eq!(registry.check("r").unwrap_err().code(), Code::AlreadyExists);
        assert_eq!(registry.check("s"), Ok(()));
        assert_eq!(slice.read().unwrap()[..], [7; 4]);
        drop(slice);
        assert!(registry.regions().find("r", 0, 4).is_err(), "the last user has ended");
        assert_eq!(names(&mut registry, RegionKind::System), "");
        assert_eq!((registry.check("r"), names(&mut registry, RegionKind::Cuda)), (Ok(()), "g".into()));
    }

    #[test]
    fn without_shared_memory_there_are_no_regions() {
        let status = |name: &str| without_regions(&RegionOrder::Status(RegionKind::System, name.to_owned()));
        assert_eq!(status(""), Ok(Vec::new()));
        assert_eq!(status("r").unwrap_err().text(), "Unable to find system shared memory region: 'r'");
        let unregister = without_regions(&RegionOrder::Unregister(RegionKind::Cuda, String::new()));
        assert_eq!(unregister, Err(disabled()));
    }

    #[test]
    fn what_there_is_not_is_told_with_its_kind() {
        let mut registry = regions();
        let mut text = |kind, name: &str| registry.status(kind, name).unwrap_err().text().to_owned();
        assert_eq!(text(RegionKind::System, "x"), "Unable to find system shared memory region: 'x'");
        assert_eq!(text(RegionKind::Cuda, "x"), "Unable to find cuda shared memory region: 'x'");
        let want = "The region named 'r' is registered as system shared memory, not CUDA shared memory";
        assert_eq!(text(RegionKind::Cuda, "r"), want);
        let want = "The region named 'g' is registered as CUDA shared memory, not system shared memory";
        assert_eq!(text(RegionKind::System, "g"), want);
    }

    #[test]
    fn regions_are_bounded_and_those_that_leave_count() {
        let mut registry = RegionRegistry::new(8);
        for index in 0..SHARED_MEMORY_REGIONS_MAX {
            let name = format!("r{index}");
            assert_eq!(registry.check(&name), Ok(()));
            registry.insert(region(&name));
        }
        let slice = registry.regions().find("r0", 0, 1).unwrap();
        registry.remove(RegionKind::System, "r0");
        let error = registry.check("more").unwrap_err();
        assert_eq!(error.text(), "256 shared memory regions are registered, which is the maximum");
        drop(slice);
        assert_eq!(registry.check("more"), Ok(()));
    }

    #[test]
    fn inputs_of_one_request_are_bounded_and_outputs_have_room_or_are_refused() {
        let registry = regions();
        let slice = |size| registry.regions().find("r", 0, size).unwrap();
        let regions = registry.regions();
        assert_eq!(regions.check_inputs(&[(0, slice(48)), (1, slice(48))]), Ok(()));
        let error = regions.check_inputs(&[(0, slice(48)), (1, slice(49))]).unwrap_err();
        assert_eq!(error.code(), Code::TooLarge);
        assert!(error.text().contains("are 97 bytes, more than the maximum of 96 bytes"), "{error}");
        let shared = SharedTensors { sources: Vec::new(), destinations: vec![(1, slice(16))] };
        let tensor = |size| Tensor {
            datatype: Datatype::Uint8,
            shape: Shape::from_slice(&[1]),
            contents: Bytes::from(vec![0; size]),
        };
        let room = |size| shared.check_room(&[tensor(99), tensor(size)], |_| Some("OUT"));
        assert_eq!((room(16), room(0), shared.has_output(1), shared.has_output(0)), (Ok(()), Ok(()), true, false));
        assert_eq!(shared.check_streamed(), Ok(()));
        let of_gpu = vec![(0, regions.find("g", 0, 4).unwrap())];
        for shared in [
            SharedTensors { sources: of_gpu.clone(), ..shared.clone() },
            SharedTensors { destinations: of_gpu, ..shared.clone() },
        ] {
            assert_eq!(shared.check_streamed().unwrap_err().code(), Code::Unsupported);
        }
        let want = "shared memory size specified with the request for output 'OUT' (16 bytes) should be at least 17 \
                    bytes to hold the results";
        assert_eq!(room(17), Err(Error::internal(want)));
    }
}
