//! The shared memory extensions over gRPC: messages to [`RegionOrder`]s, and the list of regions to a message. The
//! texts are those of Triton's `grpc_server.cc`.

use bytes::Bytes;

use crate::framing::{framed, read};
use crate::route::RegionAction;
use crate::shared_memory::{RegionDescription, RegionKind, RegionOrder, RegionPlace, RegionRegistration};
use base::error::Error;
use wire::proto::inference as proto;
use wire::proto::inference::cuda_shared_memory_status_response::RegionStatus as CudaStatus;
use wire::proto::inference::system_shared_memory_status_response::RegionStatus as SystemStatus;

/// The operation that a message requests.
///
/// # Errors
///
/// `InvalidArgument` for a bad name, key, handle or range, `Internal` for bytes that are not the message.
pub fn order(kind: RegionKind, action: RegionAction, message: &[u8]) -> Result<RegionOrder, Error> {
    Ok(match (action, kind) {
        (RegionAction::Status, RegionKind::System) => {
            RegionOrder::Status(kind, read::<proto::SystemSharedMemoryStatusRequest>(message)?.name)
        }
        (RegionAction::Status, RegionKind::Cuda) => {
            RegionOrder::Status(kind, read::<proto::CudaSharedMemoryStatusRequest>(message)?.name)
        }
        (RegionAction::Unregister, RegionKind::System) => {
            RegionOrder::Unregister(kind, read::<proto::SystemSharedMemoryUnregisterRequest>(message)?.name)
        }
        (RegionAction::Unregister, RegionKind::Cuda) => {
            RegionOrder::Unregister(kind, read::<proto::CudaSharedMemoryUnregisterRequest>(message)?.name)
        }
        (RegionAction::Register, RegionKind::System) => {
            let request: proto::SystemSharedMemoryRegisterRequest = read(message)?;
            if request.name.is_empty() {
                // Triton detects it only when it checks the range.
                let place = RegionPlace::System { key: request.key, offset: request.offset };
                let size = request.byte_size;
                return Err(RegionDescription { name: request.name, size, place }.invalid());
            }
            let registration =
                RegionRegistration::system(&request.name, request.key, request.offset, request.byte_size);
            RegionOrder::Register(registration?)
        }
        (RegionAction::Register, RegionKind::Cuda) => {
            let request: proto::CudaSharedMemoryRegisterRequest = read(message)?;
            // A negative number becomes one so large that no such device exists.
            let device = request.device_id.cast_unsigned();
            RegionOrder::Register(RegionRegistration::cuda(
                &request.name,
                request.raw_handle,
                device,
                request.byte_size,
            )?)
        }
    })
}

/// The framed response once the operation has succeeded. `regions` is empty except for the status.
///
/// # Errors
///
/// `Internal` if the message is larger than 4 GiB.
pub fn answer(kind: RegionKind, action: RegionAction, regions: Vec<RegionDescription>) -> Result<Bytes, Error> {
    match (action, kind) {
        (RegionAction::Register, RegionKind::System) => framed(&proto::SystemSharedMemoryRegisterResponse {}),
        (RegionAction::Register, RegionKind::Cuda) => framed(&proto::CudaSharedMemoryRegisterResponse {}),
        (RegionAction::Unregister, RegionKind::System) => framed(&proto::SystemSharedMemoryUnregisterResponse {}),
        (RegionAction::Unregister, RegionKind::Cuda) => framed(&proto::CudaSharedMemoryUnregisterResponse {}),
        (RegionAction::Status, RegionKind::System) => {
            let regions = regions.into_iter().filter_map(system_status).collect();
            framed(&proto::SystemSharedMemoryStatusResponse { regions })
        }
        (RegionAction::Status, RegionKind::Cuda) => {
            let regions = regions.into_iter().filter_map(cuda_status).collect();
            framed(&proto::CudaSharedMemoryStatusResponse { regions })
        }
    }
}

fn system_status(region: RegionDescription) -> Option<(String, SystemStatus)> {
    let RegionDescription { name, size: byte_size, place } = region;
    let RegionPlace::System { key, offset } = place else { return None };
    Some((name.clone(), SystemStatus { name, key, offset, byte_size }))
}

fn cuda_status(region: RegionDescription) -> Option<(String, CudaStatus)> {
    let RegionDescription { name, size: byte_size, place } = region;
    let RegionPlace::Cuda { device: device_id } = place else { return None };
    Some((name.clone(), CudaStatus { name, device_id, byte_size }))
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use wire::grpc::PREFIX_SIZE;

    fn text(order: Result<RegionOrder, Error>) -> String {
        match order {
            Ok(RegionOrder::Register(RegionRegistration { description, handle })) => {
                format!("{:?} {} {} {}", description.place, description.name, description.size, handle.len())
            }
            Ok(other) => format!("{other:?}"),
            Err(error) => format!("{} {}", error.code().on_wire().1, error.text()),
        }
    }

    #[test]
    fn messages_become_orders() {
        let register = |name: &str, byte_size| {
            let (name, key) = (name.to_owned(), "/k".to_owned());
            let request = proto::SystemSharedMemoryRegisterRequest { name, key, offset: 8, byte_size };
            text(order(RegionKind::System, RegionAction::Register, &request.encode_to_vec()))
        };
        assert_eq!(register("a", 64), r#"System { key: "/k", offset: 8 } a 64 0"#);
        assert_eq!(register("", 64), "3 failed to register shared memory region '': invalid args");
        assert_eq!(register("a", u64::MAX), "3 failed to register shared memory region 'a': invalid args");
        let cuda = |size| {
            let (name, raw_handle) = ("g".to_owned(), vec![7; size]);
            let request = proto::CudaSharedMemoryRegisterRequest { name, raw_handle, device_id: 1, byte_size: 4 };
            text(order(RegionKind::Cuda, RegionAction::Register, &request.encode_to_vec()))
        };
        assert_eq!(cuda(64), "Cuda { device: 1 } g 4 64");
        assert_eq!(cuda(63), "3 'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t");
        let name = proto::SystemSharedMemoryStatusRequest { name: "a".to_owned() }.encode_to_vec();
        for kind in [RegionKind::System, RegionKind::Cuda] {
            assert_eq!(text(order(kind, RegionAction::Status, &name)), format!("Status({kind:?}, \"a\")"));
            assert_eq!(text(order(kind, RegionAction::Unregister, &[])), format!("Unregister({kind:?}, \"\")"));
            assert!(order(kind, RegionAction::Register, &[0xff]).is_err());
        }
    }

    #[test]
    fn the_status_is_a_map_by_name() {
        let system = RegionPlace::System { key: "/k".to_owned(), offset: 8 };
        let regions = vec![
            RegionDescription { name: "a".to_owned(), size: 64, place: system },
            RegionDescription { name: "g".to_owned(), size: 4, place: RegionPlace::Cuda { device: 1 } },
        ];
        let framed = answer(RegionKind::System, RegionAction::Status, regions.clone()).unwrap();
        let status = proto::SystemSharedMemoryStatusResponse::decode(&framed[PREFIX_SIZE..]).unwrap();
        let want = SystemStatus { name: "a".to_owned(), key: "/k".to_owned(), offset: 8, byte_size: 64 };
        assert_eq!(status.regions, [("a".to_owned(), want)].into());
        let framed = answer(RegionKind::Cuda, RegionAction::Status, regions).unwrap();
        let status = proto::CudaSharedMemoryStatusResponse::decode(&framed[PREFIX_SIZE..]).unwrap();
        assert_eq!(status.regions["g"], CudaStatus { name: "g".to_owned(), device_id: 1, byte_size: 4 });
        assert_eq!(answer(RegionKind::Cuda, RegionAction::Unregister, Vec::new()).unwrap().len(), PREFIX_SIZE);
    }
}
