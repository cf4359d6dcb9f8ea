//! The shared memory extensions over REST: bodies to [`RegionOrder`]s, and the list of regions to a reply. Layout
//! and texts are those of Triton's `http_server.cc`.

use bytes::Bytes;

use crate::rest::encode::JSON;
use crate::rest::fault::json_error;
use crate::rest::misspelt;
use crate::rest::server::write_list;
use crate::route::RegionAction;
use crate::shared_memory::{RegionDescription, RegionKind, RegionOrder, RegionPlace, RegionRegistration};
use base::error::Error;
use wire::base64;
use wire::json::{Document, JsonValue, writer};
use wire::message::Reply;

/// The operation that a path and a body request.
///
/// # Errors
///
/// `InvalidArgument` for a registration with a bad body, name, key, handle or range.
pub fn order(kind: RegionKind, action: RegionAction, name: &str, body: &[u8]) -> Result<RegionOrder, Error> {
    Ok(match action {
        RegionAction::Status => RegionOrder::Status(kind, name.to_owned()),
        RegionAction::Register => RegionOrder::Register(registration(kind, name, body)?),
        RegionAction::Unregister => RegionOrder::Unregister(kind, name.to_owned()),
    })
}

/// The reply once the operation has succeeded. `regions` is empty except for the status.
pub fn reply(action: RegionAction, regions: &[RegionDescription]) -> Reply {
    if action != RegionAction::Status {
        return Reply::new(200, JSON, Bytes::new());
    }
    let mut json = Vec::new();
    write_list(regions.iter(), &mut json, |region, json| {
        json.extend_from_slice(b"{\"name\":");
        writer::string(&region.name, json);
        match &region.place {
            RegionPlace::System { key, offset } => {
                json.extend_from_slice(b",\"key\":");
                writer::string(key, json);
                json.extend_from_slice(b",\"offset\":");
                writer::integer(*offset, json);
            }
            RegionPlace::Cuda { device } => {
                json.extend_from_slice(b",\"device_id\":");
                writer::integer(*device, json);
            }
        }
        json.extend_from_slice(b",\"byte_size\":");
        writer::integer(region.size, json);
        json.push(b'}');
    });
    Reply::new(200, JSON, json)
}

fn registration(kind: RegionKind, name: &str, body: &[u8]) -> Result<RegionRegistration, Error> {
    if name.is_empty() {
        // Reports the missing name before any fault of the body.
        return match kind {
            RegionKind::System => RegionRegistration::system(name, String::new(), 0, 0),
            RegionKind::Cuda => RegionRegistration::cuda(name, Vec::new(), 0, 0),
        };
    }
    let document = Document::parse(body, &[]).map_err(json_error)?;
    let root = document.root();
    match kind {
        RegionKind::System => {
            let key = string(root.get("key").ok_or_else(|| missing("key"))?)?;
            misspelt::refuse_in(root, &["byte_size", "key", "offset"])?;
            let offset = root.given("offset").map_or(Ok(0), unsigned)?;
            let size = unsigned(root.get("byte_size").ok_or_else(|| missing("byte_size"))?)?;
            RegionRegistration::system(name, key.to_owned(), offset, size)
        }
        RegionKind::Cuda => {
            let handle = root.get("raw_handle").ok_or_else(|| missing("raw_handle"))?;
            let handle = string(member(handle, "b64")?)?;
            let size = unsigned(member(root, "byte_size")?)?;
            let device = unsigned(member(root, "device_id")?)?;
            RegionRegistration::cuda(name, base64::decode(handle).unwrap_or_default(), device, size)
        }
    }
}

fn missing(field: &str) -> Error {
    Error::invalid(format!("Shared memory register request has no '{field}' field"))
}

fn member<'d, 'a>(value: JsonValue<'d, 'a>, name: &str) -> Result<JsonValue<'d, 'a>, Error> {
    value
        .get(name)
        .ok_or_else(|| Error::malformed_json(format!("attempt to access non-existing object member '{name}'")))
}

fn string<'d>(value: JsonValue<'d, '_>) -> Result<&'d str, Error> {
    value.as_str().ok_or_else(|| Error::malformed_json("attempt to access JSON non-string as string"))
}

fn unsigned(value: JsonValue<'_, '_>) -> Result<u64, Error> {
    value
        .as_u64()
        .ok_or_else(|| Error::malformed_json("attempt to access JSON non-unsigned-integer as unsigned-integer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(kind: RegionKind, name: &str, body: &str) -> String {
        match order(kind, RegionAction::Register, name, body.as_bytes()) {
            Ok(RegionOrder::Register(RegionRegistration { description, handle })) => {
                format!("{:?} {} {} {}", description.place, description.name, description.size, handle.len())
            }
            Ok(other) => format!("{other:?}"),
            Err(error) => format!("{} {}", error.code().on_wire().0, error.text()),
        }
    }

    #[test]
    fn bodies_become_registrations_or_are_refused_in_tritons_words() {
        let check =
            |name: &str, body: &str, want: &str| assert_eq!(outcome(RegionKind::System, name, body), want, "{body}");
        check("a", r#"{"key":"/k","byte_size":64}"#, r#"System { key: "/k", offset: 0 } a 64 0"#);
        check("a", r#"{"key":"k","offset":7,"byte_size":64}"#, r#"System { key: "k", offset: 7 } a 64 0"#);
        check("a", r#"{"key":"k","offset":null,"byte_size":64,"own":1}"#, r#"System { key: "k", offset: 0 } a 64 0"#);
        let misspelt = "400 unknown member 'ofset': did you mean 'offset'?";
        check("a", r#"{"key":"k","ofset":7,"byte_size":64}"#, misspelt);
        check("", "{", "400 'region name' is necessary to register system shared memory region");
        check("a", r#"{"byte_size":64}"#, "400 Shared memory register request has no 'key' field");
        check("a", "[]", "400 Shared memory register request has no 'key' field");
        check("a", r#"{"key":"/k"}"#, "400 Shared memory register request has no 'byte_size' field");
        check("a", r#"{"key":1,"byte_size":64}"#, "400 attempt to access JSON non-string as string");
        let number = "400 attempt to access JSON non-unsigned-integer as unsigned-integer";
        check("a", r#"{"key":"/k","byte_size":-1}"#, number);
        check("a", r#"{"key":"/k","byte_size":64,"offset":"x"}"#, number);
        check("a", "{", "400 failed to parse the request JSON buffer: Missing a name for object member. at 1");
        check("a", "", "400 failed to parse the request JSON buffer: The document is empty. at 0");
        let invalid = "400 failed to register shared memory region 'a': invalid args";
        check("a", r#"{"key":"/k","byte_size":18446744073709551615,"offset":1}"#, invalid);
        check("a", r#"{"key":"/k","byte_size":1,"offset":18446744073709551615}"#, invalid);
        check("a", r#"{"key":"/k","byte_size":9223372036854775807,"offset":1}"#, invalid);
    }

    #[test]
    fn a_handle_is_64_bytes_in_base64() {
        let check =
            |name: &str, body: &str, want: &str| assert_eq!(outcome(RegionKind::Cuda, name, body), want, "{body}");
        let handle = format!("{}==", "A".repeat(86));
        let body = |handle: &str| format!(r#"{{"raw_handle":{{"b64":"{handle}"}},"device_id":1,"byte_size":4}}"#);
        check("g", &body(&handle), "Cuda { device: 1 } g 4 64");
        for wrong in ["AAAA", "", "?"] {
            check("g", &body(wrong), "400 'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t");
        }
        check("", "{}", "400 'region name' is necessary to register cuda shared memory region");
        check("g", "{}", "400 Shared memory register request has no 'raw_handle' field");
        check("g", r#"{"raw_handle":{}}"#, "400 attempt to access non-existing object member 'b64'");
        check("g", r#"{"raw_handle":{"b64":"AAAA"}}"#, "400 attempt to access non-existing object member 'byte_size'");
    }

    #[test]
    fn regions_are_listed_with_tritons_keys_in_its_order() {
        let system = RegionPlace::System { key: "/k\"".to_owned(), offset: 16 };
        let regions = [
            RegionDescription { name: "a".to_owned(), size: 64, place: system },
            RegionDescription { name: "g".to_owned(), size: 4, place: RegionPlace::Cuda { device: 1 } },
        ];
        let text = |action| String::from_utf8(reply(action, &regions).body.concat()).unwrap();
        assert_eq!(
            text(RegionAction::Status),
            r#"[{"name":"a","key":"/k\"","offset":16,"byte_size":64},{"name":"g","device_id":1,"byte_size":4}]"#
        );
        assert_eq!(text(RegionAction::Register), "");
    }
}
