//! `grpc.reflection`: what services there are, and the files that describe them, read out of the
//! descriptors of `proto/` when they are asked for. Nothing is kept, and nothing is done at start.
//! v1 and v1alpha have the same messages. The descriptors are ours; only names come from clients.

use bytes::Bytes;

use crate::error::{Code, Error};
use crate::protocol::grpc::service::{framed, read};
use crate::wire::proto::DESCRIPTORS;
use crate::wire::proto::reflection::server_reflection_request::MessageRequest;
use crate::wire::proto::reflection::server_reflection_response::MessageResponse;
use crate::wire::proto::reflection::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
    ServerReflectionResponse, ServiceResponse,
};
use crate::wire::protobuf::{Wire, fields};

/// Answers one `ServerReflectionRequest` with a framed `ServerReflectionResponse`.
pub fn answer(message: &[u8]) -> Result<Bytes, Error> {
    let request: ServerReflectionRequest = read(message)?;
    let response = respond(request.message_request.as_ref()).unwrap_or_else(|error| {
        let (error_code, error_message) = (i32::from(error.code().on_wire().1), error.text().to_owned());
        MessageResponse::ErrorResponse(ErrorResponse { error_code, error_message })
    });
    framed(&ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(response),
    })
}

fn respond(request: Option<&MessageRequest>) -> Result<MessageResponse, Error> {
    match request {
        Some(MessageRequest::FileByFilename(name)) => {
            let file = files().find(|file| file.name() == name);
            file.map(with_dependencies).ok_or_else(|| Error::not_found(format!("no file is named '{name}'")))
        }
        Some(MessageRequest::FileContainingSymbol(symbol)) => {
            let file = files().find(|file| file.has_symbol(symbol));
            file.map(with_dependencies).ok_or_else(|| Error::not_found(format!("no symbol is named '{symbol}'")))
        }
        Some(MessageRequest::FileContainingExtension(wanted)) => Err(Error::not_found(format!(
            "'{}' has no extension {}: there are none here",
            wanted.containing_type, wanted.extension_number
        ))),
        Some(MessageRequest::AllExtensionNumbersOfType(name)) => {
            let is_known = files().any(|file| file.has_message(name));
            let numbers = ExtensionNumberResponse { base_type_name: name.clone(), extension_number: Vec::new() };
            is_known
                .then_some(MessageResponse::AllExtensionNumbersResponse(numbers))
                .ok_or_else(|| Error::not_found(format!("no message is named '{name}'")))
        }
        Some(MessageRequest::ListServices(_)) => Ok(list_services()),
        None => Err(Error::new(Code::InvalidArgument, "the request asks for nothing")),
    }
}

fn list_services() -> MessageResponse {
    let services = files().flat_map(|file| file.scope(FILE_SERVICE)).map(|(name, _)| ServiceResponse { name });
    MessageResponse::ListServicesResponse(ListServiceResponse { service: services.collect() })
}

/// A file, then all that it imports, each once.
fn with_dependencies(file: File) -> MessageResponse {
    let mut wanted = vec![file];
    let mut index = 0;
    while let Some(file) = wanted.get(index).copied() {
        for name in file.texts(FILE_DEPENDENCY) {
            if !wanted.iter().any(|have| have.name() == name) {
                wanted.extend(files().find(|file| file.name() == name));
            }
        }
        index += 1;
    }
    let file_descriptor_proto = wanted.into_iter().map(|file| file.0.to_vec()).collect();
    MessageResponse::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto })
}

/// An encoded `FileDescriptorProto`.
#[derive(Clone, Copy)]
struct File(&'static [u8]);

// Numbers of descriptor.proto.
const SET_FILE: u32 = 1;
const FILE_NAME: u32 = 1;
const FILE_PACKAGE: u32 = 2;
const FILE_DEPENDENCY: u32 = 3;
const FILE_MESSAGE: u32 = 4;
const FILE_ENUM: u32 = 5;
const FILE_SERVICE: u32 = 6;
const MESSAGE_FIELD: u32 = 2;
const MESSAGE_MESSAGE: u32 = 3;
const MESSAGE_ENUM: u32 = 4;
const MESSAGE_ONEOF: u32 = 8;
const ENUM_VALUE: u32 = 2;
const SERVICE_METHOD: u32 = 2;
const NAME: u32 = 1;

fn files() -> impl Iterator<Item = File> {
    parts(DESCRIPTORS, SET_FILE).map(File)
}

impl File {
    fn name(self) -> &'static str {
        text(self.0, FILE_NAME)
    }

    fn texts(self, number: u32) -> impl Iterator<Item = &'static str> {
        parts(self.0, number).filter_map(|bytes| str::from_utf8(bytes).ok())
    }

    /// The full names and descriptors of what the file itself declares of one kind.
    fn scope(self, number: u32) -> impl Iterator<Item = (String, &'static [u8])> {
        let package = text(self.0, FILE_PACKAGE);
        parts(self.0, number).map(move |part| (join(package, text(part, NAME)), part))
    }

    /// Whether it declares a message of this name.
    fn has_message(self, name: &str) -> bool {
        self.scope(FILE_MESSAGE).any(|(scope, message)| message_has(&scope, message, name, true))
    }

    /// Whether it declares a symbol: a message, field, oneof, enum, value, service or method.
    fn has_symbol(self, symbol: &str) -> bool {
        let package = text(self.0, FILE_PACKAGE);
        self.scope(FILE_MESSAGE).any(|(scope, message)| message_has(&scope, message, symbol, false))
            || self.scope(FILE_ENUM).any(|(scope, an_enum)| enum_has(package, &scope, an_enum, symbol))
            || self
                .scope(FILE_SERVICE)
                .any(|(scope, service)| scope == symbol || has_part(&scope, service, SERVICE_METHOD, symbol))
    }
}

/// Whether a message is the symbol or declares it; `is_message` looks for messages only.
fn message_has(scope: &str, message: &'static [u8], symbol: &str, is_message: bool) -> bool {
    if !symbol.starts_with(scope) {
        // Enum values are named beside their enum, and so still inside their message.
        return false;
    }
    let inner = |number| parts(message, number).map(|part| (join(scope, text(part, NAME)), part));
    scope == symbol
        || inner(MESSAGE_MESSAGE).any(|(scope, message)| message_has(&scope, message, symbol, is_message))
        || !is_message
            && (has_part(scope, message, MESSAGE_FIELD, symbol)
                || has_part(scope, message, MESSAGE_ONEOF, symbol)
                || inner(MESSAGE_ENUM).any(|(name, an_enum)| enum_has(scope, &name, an_enum, symbol)))
}

/// Whether an enum is the symbol or has it as a value; values are named beside their enum.
fn enum_has(around: &str, name: &str, an_enum: &'static [u8], symbol: &str) -> bool {
    name == symbol || has_part(around, an_enum, ENUM_VALUE, symbol)
}

fn has_part(scope: &str, whole: &'static [u8], number: u32, symbol: &str) -> bool {
    parts(whole, number).any(|part| join(scope, text(part, NAME)) == symbol)
}

fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

/// The length-delimited fields of a number. The descriptors are our own and whole.
fn parts(bytes: &'static [u8], number: u32) -> impl Iterator<Item = &'static [u8]> {
    fields(bytes).flatten().filter_map(move |(have, wire)| match wire {
        Wire::Bytes(bytes) if have == number => Some(bytes),
        _ => None,
    })
}

fn text(bytes: &'static [u8], number: u32) -> &'static str {
    parts(bytes, number).last().and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default()
}
