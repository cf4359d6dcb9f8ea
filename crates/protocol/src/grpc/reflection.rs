//! `grpc.reflection`: lists the services, and serves the descriptor files that declare them. Each request searches
//! the encoded descriptors of `proto/`: they are small and reflection is rare, so nothing is indexed at start or
//! kept. v1 and v1alpha have the same messages. The descriptors are trusted; only names come from clients.

use bytes::Bytes;

use crate::framing::{framed, read};
use base::error::{Code, Error};
use wire::proto::DESCRIPTORS;
use wire::proto::reflection::server_reflection_request::MessageRequest;
use wire::proto::reflection::server_reflection_response::MessageResponse;
use wire::proto::reflection::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse, ServerReflectionRequest,
    ServerReflectionResponse, ServiceResponse,
};
use wire::protobuf::{WireType, fields};

/// Answers one `ServerReflectionRequest` with a framed `ServerReflectionResponse`. An unknown name is answered inside
/// of the response, so that the stream goes on.
///
/// # Errors
///
/// `Internal` if the bytes are not a request.
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
            "'{}' has no extension {}: no message here has any",
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
        None => Err(Error::new(Code::InvalidArgument, "the reflection request is empty")),
    }
}

fn list_services() -> MessageResponse {
    let services = files().flat_map(|file| file.scope(FILE_SERVICE)).map(|(name, _)| ServiceResponse { name });
    MessageResponse::ListServicesResponse(ListServiceResponse { service: services.collect() })
}

/// A file, then all files that it imports, directly or not, each once.
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

// Field numbers in descriptor.proto.
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

    /// Full names and descriptors of the file's top-level declarations of one kind (a field number).
    fn scope(self, number: u32) -> impl Iterator<Item = (String, &'static [u8])> {
        let package = text(self.0, FILE_PACKAGE);
        parts(self.0, number).map(move |part| (join(package, text(part, NAME)), part))
    }

    /// Returns true if it declares a message of this name.
    fn has_message(self, name: &str) -> bool {
        self.scope(FILE_MESSAGE).any(|(scope, message)| message_has(&scope, message, name, true))
    }

    /// Returns true if it declares a symbol: a message, field, oneof, enum, value, service or
    /// method.
    fn has_symbol(self, symbol: &str) -> bool {
        let package = text(self.0, FILE_PACKAGE);
        self.scope(FILE_MESSAGE).any(|(scope, message)| message_has(&scope, message, symbol, false))
            || self.scope(FILE_ENUM).any(|(scope, an_enum)| enum_has(package, &scope, an_enum, symbol))
            || self
                .scope(FILE_SERVICE)
                .any(|(scope, service)| scope == symbol || has_part(&scope, service, SERVICE_METHOD, symbol))
    }
}

/// Returns true if a message is the symbol or declares it; `is_message` looks for messages only.
fn message_has(scope: &str, message: &'static [u8], symbol: &str, is_message: bool) -> bool {
    if !symbol.starts_with(scope) {
        // All that a message declares has its name as prefix; enum values too, although they are siblings of
        // their enum.
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

/// Returns true if an enum is the symbol or has it as a value. The full name of a value has no part
/// for its enum.
fn enum_has(around: &str, name: &str, an_enum: &'static [u8], symbol: &str) -> bool {
    name == symbol || has_part(around, an_enum, ENUM_VALUE, symbol)
}

fn has_part(scope: &str, whole: &'static [u8], number: u32, symbol: &str) -> bool {
    parts(whole, number).any(|part| join(scope, text(part, NAME)) == symbol)
}

fn join(scope: &str, name: &str) -> String {
    if scope.is_empty() { name.to_owned() } else { format!("{scope}.{name}") }
}

/// The length-delimited fields with a number. Errors are skipped: the descriptors are our own.
fn parts(bytes: &'static [u8], number: u32) -> impl Iterator<Item = &'static [u8]> {
    fields(bytes).flatten().filter_map(move |(have, wire)| match wire {
        WireType::Bytes(bytes) if have == number => Some(bytes),
        _ => None,
    })
}

fn text(bytes: &'static [u8], number: u32) -> &'static str {
    parts(bytes, number).last().and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use prost_reflect::DescriptorPool;

    use super::*;
    use wire::grpc::PREFIX_SIZE;

    fn ask(request: MessageRequest) -> MessageResponse {
        let request = ServerReflectionRequest { host: "h".to_owned(), message_request: Some(request) };
        let answer = answer(&request.encode_to_vec()).unwrap();
        let response = ServerReflectionResponse::decode(&answer[PREFIX_SIZE..]).unwrap();
        assert_eq!((response.valid_host.as_str(), response.original_request), ("h", Some(request)));
        response.message_response.unwrap()
    }

    /// The name of the first file, after a check that the files make a complete pool.
    fn first_file(response: MessageResponse) -> String {
        let MessageResponse::FileDescriptorResponse(response) = response else { panic!("{response:?}") };
        let mut files = response.file_descriptor_proto.clone();
        files.reverse(); // imports first
        let mut set = Vec::new();
        for file in files {
            prost::encoding::bytes::encode(SET_FILE, &file, &mut set);
        }
        let pool = DescriptorPool::decode(&set[..]).unwrap();
        pool.files().last().map(|file| file.name().to_owned()).unwrap()
    }

    fn symbol(name: &str) -> MessageRequest {
        MessageRequest::FileContainingSymbol(name.to_owned())
    }

    #[test]
    fn every_symbol_is_found_in_its_file() {
        let pool = DescriptorPool::decode(DESCRIPTORS).unwrap();
        let mut symbols = Vec::new();
        for message in pool.all_messages() {
            let file = message.parent_file().name().to_owned();
            symbols.push((message.full_name().to_owned(), file.clone()));
            symbols.extend(message.fields().map(|field| (field.full_name().to_owned(), file.clone())));
            symbols.extend(message.oneofs().map(|oneof| (oneof.full_name().to_owned(), file.clone())));
        }
        for an_enum in pool.all_enums() {
            let file = an_enum.parent_file().name().to_owned();
            symbols.push((an_enum.full_name().to_owned(), file.clone()));
            symbols.extend(an_enum.values().map(|value| (value.full_name().to_owned(), file.clone())));
        }
        for service in pool.services() {
            let file = service.parent_file().name().to_owned();
            symbols.push((service.full_name().to_owned(), file.clone()));
            symbols.extend(service.methods().map(|method| (method.full_name().to_owned(), file.clone())));
        }
        assert!(symbols.len() > 300);
        for (name, file) in symbols {
            let found = files().find(|file| file.has_symbol(&name)).map(File::name);
            assert_eq!(found, Some(file.as_str()), "{name}");
        }
        assert_eq!(first_file(ask(symbol("inference.GRPCInferenceService.ModelInfer"))), "grpc_service.proto");
        assert_eq!(first_file(ask(symbol("inference.DataType"))), "model_config.proto");
        assert_eq!(first_file(ask(symbol("grpc.health.v1.Health"))), "health.proto");
    }

    #[test]
    fn services_and_files_are_told_by_name() {
        let MessageResponse::ListServicesResponse(list) = ask(MessageRequest::ListServices(String::new())) else {
            panic!("no list")
        };
        let mut names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
        names.sort_unstable();
        let want = [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
            "inference.GRPCInferenceService",
            "tei.v1.Embed",
            "tei.v1.Info",
            "tei.v1.Predict",
            "tei.v1.Rerank",
            "tei.v1.Tokenize",
        ];
        assert_eq!(names, want);
        let file = MessageRequest::FileByFilename("grpc_service.proto".to_owned());
        let MessageResponse::FileDescriptorResponse(response) = ask(file) else { panic!("no file") };
        assert_eq!(response.file_descriptor_proto.len(), 2); // with model_config.proto
    }

    #[test]
    fn what_there_is_not_is_not_found() {
        let check = |request: MessageRequest, code: i32, text: &str| {
            let want = ErrorResponse { error_code: code, error_message: text.to_owned() };
            assert_eq!(ask(request), MessageResponse::ErrorResponse(want));
        };
        check(MessageRequest::FileByFilename("x.proto".to_owned()), 5, "no file is named 'x.proto'");
        for name in ["", "inference", "inference.", "inference.ModelInfer", "inference.ModelInferRequest.nope"] {
            check(symbol(name), 5, &format!("no symbol is named '{name}'"));
        }
        let name = "inference.ModelInferRequest".to_owned();
        let MessageResponse::AllExtensionNumbersResponse(numbers) =
            ask(MessageRequest::AllExtensionNumbersOfType(name.clone()))
        else {
            panic!("no numbers")
        };
        assert_eq!((numbers.base_type_name, numbers.extension_number), (name, vec![]));
        let service = "inference.GRPCInferenceService".to_owned();
        let text = "no message is named 'inference.GRPCInferenceService'";
        check(MessageRequest::AllExtensionNumbersOfType(service), 5, text);
        let wanted = wire::proto::reflection::ExtensionRequest {
            containing_type: "inference.ModelConfig".to_owned(),
            extension_number: 7,
        };
        let text = "'inference.ModelConfig' has no extension 7: no message here has any";
        check(MessageRequest::FileContainingExtension(wanted), 5, text);
    }

    #[test]
    fn a_request_for_nothing_is_told_so_and_bytes_that_are_none_are_refused() {
        let answered = answer(&[]).unwrap();
        let response = ServerReflectionResponse::decode(&answered[PREFIX_SIZE..]).unwrap();
        let Some(MessageResponse::ErrorResponse(error)) = response.message_response else { panic!("{response:?}") };
        assert_eq!(error.error_code, 3);
        assert_eq!(answer(&[0xff]), Err(Error::internal("Unable to parse request")));
    }

    #[test]
    fn the_older_name_has_the_same_messages() {
        use v1alpha::server_reflection_request::MessageRequest as Older;
        use wire::proto::reflection_v1alpha as v1alpha;
        let message_request = Some(Older::FileContainingSymbol("grpc.health.v1.Health".to_owned()));
        let request = v1alpha::ServerReflectionRequest { host: String::new(), message_request };
        let answer = answer(&request.encode_to_vec()).unwrap();
        let response = v1alpha::ServerReflectionResponse::decode(&answer[PREFIX_SIZE..]).unwrap();
        assert_eq!(response.original_request, Some(request));
        let message = response.message_response;
        use v1alpha::server_reflection_response::MessageResponse as Response;
        assert!(matches!(message, Some(Response::FileDescriptorResponse(_))), "{message:?}");
    }
}
