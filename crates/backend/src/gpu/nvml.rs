//! NVML, loaded by name if the driver installed it: a device's utilisation, memory use and power,
//! for `/metrics`. The available figures depend on the device and the driver; a machine without
//! NVML has none. Called by one thread, a few times a minute.

#![expect(unsafe_code, reason = "the interface of NVML")]

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr::null_mut;

use libloading::Library as SharedObject;

/// The figures of a device at one moment; `None` for each that NVML does not report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmlSample {
    /// Percent of the recent time in which a kernel ran.
    pub utilization: Option<u64>,
    /// The device's memory in bytes.
    pub memory_total: Option<u64>,
    /// Bytes of memory in use by any process.
    pub memory_used: Option<u64>,
    /// Power draw in milliwatts.
    pub power_usage: Option<u64>,
    /// Power limit in milliwatts.
    pub power_limit: Option<u64>,
    /// Energy in millijoules since the driver was loaded.
    pub energy: Option<u64>,
}

/// `nvmlReturn_t`; 0 is success.
type NvmlStatus = c_int;
/// `nvmlDevice_t`.
type NvmlHandle = *mut c_void;

/// `nvmlUtilization_t`.
#[derive(Default)]
#[repr(C)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlMemory_t`.
#[derive(Default)]
#[repr(C)]
struct NvmlMemory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

type Init = unsafe extern "C" fn() -> NvmlStatus;
type FindDevice = unsafe extern "C" fn(*const c_char, *mut NvmlHandle) -> NvmlStatus;
type Ask<T> = unsafe extern "C" fn(NvmlHandle, *mut T) -> NvmlStatus;

/// NVML, initialised.
pub struct Nvml {
    find_device: FindDevice,
    utilization: Option<Ask<Utilization>>,
    memory: Option<Ask<NvmlMemory>>,
    power_usage: Option<Ask<c_uint>>,
    power_limit: Option<Ask<c_uint>>,
    energy: Option<Ask<c_ulonglong>>,
    /// Declared last, so that it is unloaded after the functions are gone.
    _object: SharedObject,
}

/// A device as NVML names it.
#[derive(Clone, Copy)]
pub struct NvmlDevice(NvmlHandle);

// SAFETY: NVML's handles may be used by any thread, as its documentation says.
unsafe impl Send for NvmlDevice {}

impl Nvml {
    /// Loads and initialises it.
    ///
    /// # Errors
    ///
    /// The reason why it cannot be used, as a text.
    pub fn find() -> Result<Self, String> {
        // SAFETY: loading NVML runs its own initialisers alone.
        let object = unsafe { SharedObject::new("libnvidia-ml.so.1") };
        let object = object.map_err(|_| "NVML (libnvidia-ml.so.1) is not installed".to_owned())?;
        let lacks = |name: &str| format!("NVML has no '{name}'");
        // SAFETY: the types are those of `nvml.h`.
        let (init, find_device) = unsafe {
            let init: Init = symbol(&object, "nvmlInit_v2").ok_or_else(|| lacks("nvmlInit_v2"))?;
            let find = symbol(&object, "nvmlDeviceGetHandleByUUID");
            (init, find.ok_or_else(|| lacks("nvmlDeviceGetHandleByUUID"))?)
        };
        // SAFETY: it takes nothing.
        match unsafe { init() } {
            0 => {}
            status => return Err(format!("NVML does not start (status {status})")),
        }
        // SAFETY: the types are those of `nvml.h`.
        unsafe {
            Ok(Self {
                find_device,
                utilization: symbol(&object, "nvmlDeviceGetUtilizationRates"),
                memory: symbol(&object, "nvmlDeviceGetMemoryInfo"),
                power_usage: symbol(&object, "nvmlDeviceGetPowerUsage"),
                power_limit: symbol(&object, "nvmlDeviceGetPowerManagementLimit"),
                energy: symbol(&object, "nvmlDeviceGetTotalEnergyConsumption"),
                _object: object,
            })
        }
    }

    /// A device by its UUID.
    pub fn device(&self, uuid: &str) -> Option<NvmlDevice> {
        let (uuid, mut handle) = (CString::new(uuid).ok()?, null_mut());
        // SAFETY: the text ends with a zero; it writes one pointer if it succeeds.
        let status = unsafe { (self.find_device)(uuid.as_ptr(), &raw mut handle) };
        (status == 0).then_some(NvmlDevice(handle))
    }

    /// Reads the figures of a device now.
    pub fn sample(&self, device: NvmlDevice) -> NvmlSample {
        let memory = query(self.memory, device);
        NvmlSample {
            utilization: query(self.utilization, device).map(|rates: Utilization| rates.gpu.into()),
            memory_total: memory.as_ref().map(|memory: &NvmlMemory| memory.total),
            memory_used: memory.as_ref().map(|memory| memory.used),
            power_usage: query(self.power_usage, device).map(u64::from),
            power_limit: query(self.power_limit, device).map(u64::from),
            energy: query(self.energy, device),
        }
    }
}

/// A function of the library.
///
/// # Safety
/// The type is that of the function.
unsafe fn symbol<T: Copy>(object: &SharedObject, name: &str) -> Option<T> {
    // SAFETY: the caller knows the type.
    unsafe { object.get::<T>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}

fn query<T: Default>(function: Option<Ask<T>>, device: NvmlDevice) -> Option<T> {
    let mut value = T::default();
    // SAFETY: the handle came from NVML, and the value is of the type that the function writes.
    let status = unsafe { function?(device.0, &raw mut value) };
    (status == 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_nvml_is_told_so_and_one_with_it_knows_no_device_of_another_name() {
        match Nvml::find() {
            Ok(nvml) => assert!(nvml.device("GPU-none").is_none()),
            Err(why) => assert!(why.contains("NVML"), "{why}"),
        }
    }
}
