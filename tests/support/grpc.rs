//! A gRPC client that sends and receives messages as bytes, on `tonic`: the contents of a message are the caller's
//! business.

use std::{net::SocketAddr, time::Duration};

use tonic::{
    Code, Request, Status,
    client::Grpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::http::uri::PathAndQuery,
    metadata::{MetadataMap, MetadataValue},
    transport::{Channel, Endpoint},
};

/// Time after which a call fails the test.
const CALL_MAX: Duration = Duration::from_secs(20);

/// One connection and its runtime; calls block.
pub struct Client {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Client {
    /// A client of the server at `address`; it connects with the first call.
    pub fn new(address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime needs nothing special");
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address makes a URI");
        let channel = runtime.block_on(async { endpoint.timeout(CALL_MAX).connect_lazy() });
        Self { runtime, channel }
    }

    /// One unary call of `/package.Service/Method`.
    pub fn call(&self, method: &str, message: &[u8]) -> Result<Vec<u8>, Status> {
        self.call_with(method, &[], message).map(|(_, answer)| answer)
    }

    /// The same with metadata. Returns the answer's metadata, head and trailers in one, with it.
    pub fn call_with(
        &self,
        method: &str,
        metadata: &[(&'static str, &'static str)],
        message: &[u8],
    ) -> Result<(MetadataMap, Vec<u8>), Status> {
        let path = PathAndQuery::try_from(method).expect("the tests name methods rightly");
        let mut request = Request::new(message.to_vec());
        for (name, value) in metadata {
            request.metadata_mut().insert(*name, MetadataValue::from_static(value));
        }
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX);
        self.runtime.block_on(async {
            grpc.ready().await.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
            let (metadata, answer, _) = grpc.unary(request, path, RawCodec).await?.into_parts();
            Ok((metadata, answer))
        })
    }
}

impl Client {
    /// Sends messages on one stream and then its end. Returns the answers, and the end of the stream.
    pub fn stream(
        &self,
        method: &str,
        metadata: &[(&'static str, &'static str)],
        messages: Vec<Vec<u8>>,
    ) -> (Vec<Vec<u8>>, Result<(), Status>) {
        let path = PathAndQuery::try_from(method).expect("the tests name methods rightly");
        let mut request = Request::new(futures_lite::stream::iter(messages));
        for (name, value) in metadata {
            request.metadata_mut().insert(*name, MetadataValue::from_static(value));
        }
        let mut grpc = Grpc::new(self.channel.clone());
        self.runtime.block_on(async {
            let mut came = Vec::new();
            let outcome = async {
                grpc.ready().await.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
                let mut answers = grpc.streaming(request, path, RawCodec).await?.into_inner();
                while let Some(answer) = answers.message().await? {
                    came.push(answer);
                }
                Ok(())
            };
            let outcome = outcome.await;
            (came, outcome)
        })
    }
}

/// A stream whose messages a test sends one by one, after looking at the answers.
pub struct OpenStream<'a> {
    client: &'a Client,
    sender: Option<tokio::sync::mpsc::Sender<Vec<u8>>>,
    answers: tonic::Streaming<Vec<u8>>,
}

impl Client {
    /// Opens a stream with its first message.
    pub fn open_stream(&self, method: &str, first: Vec<u8>) -> Result<OpenStream<'_>, Status> {
        self.open_stream_with(method, &[], first)
    }

    /// The same with metadata.
    pub fn open_stream_with(
        &self,
        method: &str,
        metadata: &[(&'static str, &'static str)],
        first: Vec<u8>,
    ) -> Result<OpenStream<'_>, Status> {
        let path = PathAndQuery::try_from(method).expect("the tests name methods rightly");
        let (sender, receiver) = tokio::sync::mpsc::channel(8);
        sender.try_send(first).expect("it has room");
        let mut request = Request::new(tokio_stream::wrappers::ReceiverStream::new(receiver));
        for (name, value) in metadata {
            request.metadata_mut().insert(*name, MetadataValue::from_static(value));
        }
        let mut grpc = Grpc::new(self.channel.clone());
        let answers = self.runtime.block_on(async {
            grpc.ready().await.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
            grpc.streaming(request, path, RawCodec).await
        })?;
        Ok(OpenStream { client: self, sender: Some(sender), answers: answers.into_inner() })
    }
}

impl OpenStream<'_> {
    /// Sends a message. Returns false if the stream has ended.
    pub fn send(&self, message: Vec<u8>) -> bool {
        self.sender.as_ref().is_some_and(|sender| self.client.runtime.block_on(sender.send(message)).is_ok())
    }

    /// The next answer; `None` at the end of the stream, or the reason of its failure.
    pub fn receive(&mut self) -> Result<Option<Vec<u8>>, Status> {
        self.client.runtime.block_on(self.answers.message())
    }
}

/// Calls one method over one connection, many at a time, inside a runtime of the caller's.
#[derive(Clone)]
pub struct Caller {
    channel: Channel,
    method: PathAndQuery,
}

impl Caller {
    /// Connects.
    pub async fn connect(address: SocketAddr, method: &'static str) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address makes a URI");
        let channel = endpoint.tcp_nodelay(true).connect().await.expect("the server listens");
        Self { channel, method: PathAndQuery::from_static(method) }
    }

    /// One unary call with a deadline, which is sent to the server.
    pub async fn call(&self, message: Vec<u8>, deadline: Duration) -> Result<Vec<u8>, Status> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::new(Code::Unavailable, error.to_string()))?;
        let mut request = Request::new(message);
        request.set_timeout(deadline);
        Ok(grpc.unary(request, self.method.clone(), RawCodec).await?.into_inner())
    }
}

#[derive(Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(out, &message);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, input: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let size = bytes::Buf::remaining(input);
        let mut message = vec![0; size];
        bytes::Buf::copy_to_slice(input, &mut message);
        Ok(Some(message))
    }
}
