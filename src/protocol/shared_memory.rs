//! The shared memory extensions as both protocols share them: what a client may order, which regions
//! there are, and which bytes of them are a tensor. What a region's bytes lie in is behind [`RegionMemory`];
//! nothing here touches it. Names and keys from the network are checked here, once. Texts are Triton's
//! (`shared_memory_manager.cc`). Bounded by [`SHARED_MEMORY_REGIONS_MAX`], and by a flag for the bytes
//! of one request.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Weak};

use bytes::Bytes;

use crate::error::{Code, Error};
use crate::limits::{NAME_SIZE_MAX, SHARED_MEMORY_REGIONS_MAX};
use crate::tensor::{AlignedBuffer, RangeError, Tensor, check_range};

/// The bytes of a region. What reads or writes them fails where they are gone, and never faults.
pub trait RegionMemory: Debug + Send + Sync {
    /// Fills `out` from an offset in the region on.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MemoryError>;

    /// Writes `bytes` from an offset in the region on.
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MemoryError>;
}

/// Why bytes of a region could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// They are there no more: its owner made the memory smaller.
    Shrunk,
    /// Another reason, in words.
    Other(Error),
}

/// Whose memory regions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// The host's.
    System,
    /// A GPU's.
    Cuda,
}

/// Where the bytes of a region lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionPlace {
    /// In POSIX shared memory.
    System {
        /// Its key, as the client spells it.
        key: String,
        /// Where the region begins in it.
        offset: u64,
    },
    /// In memory of a GPU.
    Cuda {
        /// The GPU's number.
        device: u64,
    },
}

/// What a client calls a region, how large it is and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionDescription {
    /// The name.
    pub name: String,
    /// Its bytes.
    pub size: u64,
    /// Where they lie.
    pub place: RegionPlace,
}

/// A region that a client has registered. It lives until it was unregistered and the last request that
/// uses it has ended.
#[derive(Debug)]
pub struct Region {
    description: RegionDescription,
    memory: Box<dyn RegionMemory>,
}

/// Bytes of a region that are a tensor, or are to be one. Holds the region.
#[derive(Clone, Debug)]
pub struct RegionSlice {
    region: Arc<Region>,
    offset: u64,
    size: usize,
}

/// What of a request lies in shared memory.
#[derive(Clone, Debug, Default)]
pub struct SharedTensors {
    /// Inputs, by their index among the model's.
    pub sources: Vec<(usize, RegionSlice)>,
    /// Outputs, by their index among the model's.
    pub destinations: Vec<(usize, RegionSlice)>,
}

/// The regions of a moment, as requests find them.
#[derive(Debug, Default)]
pub struct Regions {
    by_name: BTreeMap<String, Arc<Region>>,
    /// Bytes of inputs that one request may have in them.
    request_size_max: usize,
}

/// What a client orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionOrder {
    /// What there is: a region, or all of the kind where the name is empty.
    Status(RegionKind, String),
    /// That there be one.
    Register(RegionRegistration),
    /// That there be one no more, or none of the kind where the name is empty.
    Unregister(RegionKind, String),
}

/// A region that a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionRegistration {
    /// What it will be.
    pub description: RegionDescription,
    /// What opens memory of a GPU: a `cudaIpcMemHandle_t`. Empty for system memory.
    pub handle: Vec<u8>,
}

/// Bytes of a `cudaIpcMemHandle_t`.
pub const CUDA_HANDLE_SIZE: usize = 64;

/// How the Python backend of Triton begins the keys of its own memory.
const RESERVED_PREFIX: &str = "triton_python_backend_shm_region_";

/// Whether clients may name regions at all.
pub fn disabled() -> Error {
    Error::unsupported("Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")
}

impl RegionRegistration {
    /// A region of system memory.
    pub fn system(name: &str, key: String, offset: u64, size: u64) -> Result<Self, Error> {
        let name = region_name(name, RegionKind::System)?;
        key_name(&name, &key)?;
        let description = RegionDescription { name, size, place: RegionPlace::System { key, offset } };
        Self { description, handle: Vec::new() }.checked(offset)
    }

    /// A region of a GPU's memory.
    pub fn cuda(name: &str, handle: Vec<u8>, device: u64, size: u64) -> Result<Self, Error> {
        let name = region_name(name, RegionKind::Cuda)?;
        if handle.len() != CUDA_HANDLE_SIZE {
            return Err(Error::invalid("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"));
        }
        let description = RegionDescription { name, size, place: RegionPlace::Cuda { device } };
        Self { description, handle }.checked(0)
    }

    /// No region is empty, or ends beyond what a file can have.
    fn checked(self, offset: u64) -> Result<Self, Error> {
        let size = self.description.size;
        let is_well = size > 0 && check_range(offset, size, i64::MAX.unsigned_abs()).is_ok();
        if is_well { Ok(self) } else { Err(self.description.invalid()) }
    }
}

impl RegionDescription {
    /// Triton's refusal of a region that its memory does not hold.
    pub fn invalid(&self) -> Error {
        Error::invalid(format!("failed to register shared memory region '{}': invalid args", self.name))
    }

    /// Whose memory it is.
    pub const fn kind(&self) -> RegionKind {
        match self.place {
            RegionPlace::System { .. } => RegionKind::System,
            RegionPlace::Cuda { .. } => RegionKind::Cuda,
        }
    }
}

/// Triton's refusal of a region in a GPU's memory where there is none.
pub fn without_gpus(name: &str) -> Error {
    Error::invalid(format!("failed to register CUDA shared memory region: '{name}', GPUs not supported"))
}

/// The name of a region that may be registered.
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

/// The name of a file in the directory of shared memory that a key says: one slash may come first, and
/// nothing else in it leads anywhere.
pub fn key_name<'a>(region: &str, key: &'a str) -> Result<&'a str, Error> {
    let name = key.strip_prefix('/').unwrap_or(key);
    // POSIX has the slash before it; Triton would be led round its own rule by it.
    if name.starts_with(RESERVED_PREFIX) {
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
    /// A region whose memory is at hand.
    pub const fn new(description: RegionDescription, memory: Box<dyn RegionMemory>) -> Self {
        Self { description, memory }
    }

    /// What it is.
    pub const fn description(&self) -> &RegionDescription {
        &self.description
    }
}

impl RegionSlice {
    /// Its bytes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Whose memory they lie in.
    pub fn kind(&self) -> RegionKind {
        self.region.description.kind()
    }

    /// A copy of them. May wait for a GPU, where they lie there.
    pub fn read(&self) -> Result<Bytes, Error> {
        let mut buffer = AlignedBuffer::zeroed(self.size);
        let read = self.region.memory.read(self.offset, buffer.as_mut_slice());
        read.map_err(|error| self.failed(error))?;
        Ok(buffer.freeze())
    }

    /// Puts bytes at its beginning, no more than it has. May wait for a GPU, where they lie there.
    pub fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        let fitting = bytes.get(..self.size).unwrap_or(bytes);
        self.region.memory.write(self.offset, fitting).map_err(|error| self.failed(error))
    }

    fn failed(&self, error: MemoryError) -> Error {
        let name = &self.region.description.name;
        match error {
            MemoryError::Shrunk => Error::invalid(format!(
                "shared memory region '{name}' is smaller than when it was registered; its bytes from {} on are gone",
                self.offset
            )),
            MemoryError::Other(error) => error.with_prefix(&format!("shared memory region '{name}': ")),
        }
    }
}

impl SharedTensors {
    /// Whether an output goes to shared memory.
    pub fn has_output(&self, index: usize) -> bool {
        self.destinations.iter().any(|(output, _)| *output == index)
    }

    /// Whether a request of a stream may have them. A copy from a GPU is awaited, and requests that come
    /// later would pass by the one that waits.
    pub fn check_streamed(&self) -> Result<(), Error> {
        if self.sources.iter().chain(&self.destinations).any(|(_, slice)| slice.kind() == RegionKind::Cuda) {
            return Err(Error::unsupported("CUDA shared memory is not supported in ModelStreamInfer, use ModelInfer"));
        }
        Ok(())
    }

    /// Whether the outputs of a request fit where they are to go; Triton's text where one does not.
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
    /// None, of which one request may use so many bytes for its inputs.
    pub const fn new(request_size_max: usize) -> Self {
        Self { by_name: BTreeMap::new(), request_size_max }
    }

    /// The bytes of a region that a request names.
    pub fn find(&self, name: &str, offset: u64, size: u64) -> Result<RegionSlice, Error> {
        let region = self
            .by_name
            .get(name)
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
        range.map(|size| RegionSlice { region: Arc::clone(region), offset, size })
    }

    /// Whether the inputs of one request are few enough bytes to be copied.
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

/// The regions over time: who is registered, who leaves. Owned by the one thread that changes them.
#[derive(Debug)]
pub struct RegionRegistry {
    regions: Arc<Regions>,
    /// Unregistered, and perhaps still used.
    leaving: Vec<Weak<Region>>,
}

impl RegionRegistry {
    /// No regions; one request may use so many bytes for its inputs.
    pub fn new(request_size_max: usize) -> Self {
        Self { regions: Arc::new(Regions::new(request_size_max)), leaving: Vec::new() }
    }

    /// What requests shall see from now on.
    pub const fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Whether a region may be registered: nobody has its name, and there are not too many.
    pub fn check(&mut self, name: &str) -> Result<(), Error> {
        self.leaving.retain(|region| region.strong_count() > 0);
        let is_taken = self.all().any(|region| region.description.name == name);
        if is_taken {
            return Err(Error::new(Code::AlreadyExists, format!("shared memory region '{name}' already in manager")));
        }
        // Those that leave hold their descriptors, too.
        if self.all().count() >= SHARED_MEMORY_REGIONS_MAX {
            let text =
                format!("{SHARED_MEMORY_REGIONS_MAX} shared memory regions are registered, the most there may be");
            return Err(Error::unavailable(text));
        }
        Ok(())
    }

    /// Adds a region that was found to be free.
    pub fn insert(&mut self, region: Region) {
        self.change(|regions| {
            regions.insert(region.description.name.clone(), Arc::new(region));
        });
    }

    /// Takes out a region of a kind, or all of them where the name is empty; what there is not, is out
    /// already.
    pub fn remove(&mut self, kind: RegionKind, name: &str) {
        let goes =
            |region: &Region| region.description.kind() == kind && (name.is_empty() || region.description.name == name);
        let gone: Vec<_> = self.regions.by_name.values().filter(|region| goes(region)).map(Arc::downgrade).collect();
        if gone.is_empty() {
            return;
        }
        self.leaving.extend(gone);
        self.change(|regions| regions.retain(|_, region| !goes(region)));
    }

    /// What there is of a kind, or one of it where it is named; those that leave among them.
    pub fn status(&mut self, kind: RegionKind, name: &str) -> Result<Vec<RegionDescription>, Error> {
        self.leaving.retain(|region| region.strong_count() > 0);
        let mut found: Vec<_> = self
            .all()
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

    fn all(&self) -> impl Iterator<Item = Arc<Region>> {
        self.regions.by_name.values().cloned().chain(self.leaving.iter().filter_map(Weak::upgrade))
    }

    fn change(&mut self, change: impl FnOnce(&mut BTreeMap<String, Arc<Region>>)) {
        let mut by_name = self.regions.by_name.clone();
        change(&mut by_name);
        self.regions = Arc::new(Regions { by_name, request_size_max: self.regions.request_size_max });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{Sevens, regions};
    use crate::tensor::{Datatype, Shape};

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
        for reserved in ["triton_python_backend_shm_region_1", "/triton_python_backend_shm_region_"] {
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
        assert!(registry.regions().find("r", 0, 4).is_err(), "and by nobody else any more");
        assert_eq!(registry.check("r").unwrap_err().text(), "shared memory region 'r' already in manager");
        assert_eq!(registry.check("r").unwrap_err().code(), Code::AlreadyExists);
        assert_eq!(registry.check("s"), Ok(()));
        assert_eq!(slice.read().unwrap()[..], [7; 4]);
        drop(slice);
        assert_eq!(names(&mut registry, RegionKind::System), "");
        assert_eq!((registry.check("r"), names(&mut registry, RegionKind::Cuda)), (Ok(()), "g".into()));
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
        assert_eq!(error.text(), "256 shared memory regions are registered, the most there may be");
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
