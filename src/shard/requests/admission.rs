//! The one point at which a shard admits requests: asks the policy, counts the result, and takes
//! the request's share of its key's bounds. A request of a client without bounds touches nothing
//! that other shards write.

use std::cell::RefCell;
use std::sync::Arc;

use crate::error::{Code, Error};
use crate::metrics::{KeyRefusal, MemoryLoss};
use crate::policy::{ApiCategory, KeyClass, PolicyProtocol};
use crate::pressure::MemoryStep;
use crate::protocol::keys::{KeyClient, KeyDigest, KeyGrant, KeyTable};
use crate::protocol::policy::{self, AccessRefusal, AccessRules, AdmittedClient, ApiPart, KEY_UNKNOWN};
use crate::runtime::clock;
use crate::shard::connections::{ConnectionRights, ReservedFor};
use crate::shard::server_context::ShardContext;

/// Admits the requests of one shard.
pub struct ShardAdmission {
    context: ShardContext,
    /// The clients with keys, as the shard has them now; `None` if no key is required.
    keys: RefCell<Option<Arc<KeyTable>>>,
}

/// A request that was admitted, until it ends.
#[derive(Default)]
pub struct AdmittedRequest {
    /// Held so that its drop gives back its place.
    _grant: KeyGrant,
    /// Its client, if the access log shows it.
    client: Option<Arc<KeyClient>>,
    /// Its client, if the tokens of its texts have a rate.
    payer: Option<Arc<KeyClient>>,
}

impl AdmittedRequest {
    /// The name of the client, if the access log shows it.
    pub fn client_name(&self) -> Option<&str> {
        self.client.as_ref().map(|client| client.name())
    }

    /// The client, if the tokens of its texts have a rate.
    pub const fn payer(&self) -> Option<&Arc<KeyClient>> {
        self.payer.as_ref()
    }
}

/// The client of a stream of requests: each of them is admitted by itself. `None` if no key is
/// required.
#[derive(Default)]
pub struct StreamClient(Option<(Arc<KeyClient>, Option<KeyDigest>)>);

impl ShardAdmission {
    /// Begins with the keys of the start.
    pub fn new(context: ShardContext) -> Self {
        Self { keys: RefCell::new(context.server.keys.initial.clone()), context }
    }

    /// Sets the clients from now on. Admitted requests go on.
    pub fn set_keys(&self, table: &Arc<KeyTable>) {
        *self.keys.borrow_mut() = Some(Arc::clone(table));
    }

    /// Returns true if clients need keys.
    pub fn needs_keys(&self) -> bool {
        self.keys.borrow().is_some()
    }

    /// The clients, if they need keys.
    pub fn keys(&self) -> Option<Arc<KeyTable>> {
        self.keys.borrow().clone()
    }

    /// Admits a request.
    ///
    /// # Errors
    /// Those of [`policy::admit`], `Unavailable` for inference in a reserved slot, and
    /// `RateLimited` if the client has reached a bound.
    pub fn admit<'a>(
        &self,
        protocol: PolicyProtocol,
        part: ApiPart,
        rights: ConnectionRights,
        field: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<AdmittedRequest, Error> {
        if rights.is_admin {
            return Ok(AdmittedRequest::default());
        }
        let table = self.keys.borrow();
        match self.ask_policy(protocol, table.as_deref(), part, rights, field)? {
            None => Ok(AdmittedRequest::default()),
            Some(admitted) => self.begin_of(admitted.client),
        }
    }

    /// Admits a stream of requests, without counting it as one.
    ///
    /// # Errors
    /// As [`Self::admit`], without `RateLimited`.
    pub fn admit_stream<'a>(
        &self,
        protocol: PolicyProtocol,
        part: ApiPart,
        rights: ConnectionRights,
        field: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<StreamClient, Error> {
        if rights.is_admin {
            return Ok(StreamClient::default());
        }
        let table = self.keys.borrow();
        let admitted = self.ask_policy(protocol, table.as_deref(), part, rights, field)?;
        Ok(StreamClient(admitted.map(|admitted| (Arc::clone(admitted.client), admitted.digest))))
    }

    /// Admits the next inference of a stream. The keys may have changed since the stream began.
    ///
    /// # Errors
    /// `RateLimited` if the client has reached a bound; `Unauthenticated` or `Forbidden` if its key
    /// is gone, or no longer gives access to inference.
    pub fn admit_next(&self, stream: &StreamClient) -> Result<AdmittedRequest, Error> {
        let StreamClient(Some((client, digest))) = stream else { return Ok(AdmittedRequest::default()) };
        let table = self.keys.borrow();
        let now_known = table.as_deref().and_then(|table| match digest {
            Some(digest) => table.find_digest(digest),
            None => table.anonymous(),
        });
        let refused = |reason, code, text: String| {
            let client = Some(Arc::clone(client));
            Err(self.count_refusal(AccessRefusal { reason, client, error: Error::new(code, text) }))
        };
        match now_known {
            None => refused(KeyRefusal::Unknown, Code::Unauthenticated, KEY_UNKNOWN.to_owned()),
            Some(client) if !client.has(KeyClass::Infer) => {
                refused(KeyRefusal::Class, Code::Forbidden, policy::lacks(client, KeyClass::Infer))
            }
            Some(client) => self.begin_of(client),
        }
    }

    /// Refuses requests that a reserved slot is not for, or that there is no memory for.
    pub fn check_capacity(
        &self,
        reserved_for: Option<ReservedFor>,
        category: Option<ApiCategory>,
    ) -> Result<(), Error> {
        if !matches!(category, Some(ApiCategory::Inference | ApiCategory::SharedMemory)) {
            return Ok(());
        }
        match reserved_for {
            None => self.check_memory(),
            Some(ReservedFor::Count) => {
                let most = self.context.server.connection_limits.connections_max;
                Err(Error::overloaded(format!(
                    "too many connections: each shard has --connections-max={most}, and none of them is idle"
                )))
            }
            Some(ReservedFor::Memory) => Err(self.memory_refusal()),
        }
    }

    /// Refuses an inference request that there is no memory for.
    pub fn check_memory(&self) -> Result<(), Error> {
        if self.context.server.memory.gives_up(MemoryStep::Requests) { Err(self.memory_refusal()) } else { Ok(()) }
    }

    fn memory_refusal(&self) -> Error {
        self.context.cells.count_memory_loss(MemoryLoss::Request);
        Error::new(Code::Exhausted, self.context.server.memory.board.refusal())
    }

    fn ask_policy<'r, 'a>(
        &self,
        protocol: PolicyProtocol,
        keys: Option<&'r KeyTable>,
        part: ApiPart,
        rights: ConnectionRights,
        field: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Result<Option<AdmittedClient<'r>>, Error> {
        let policy = &self.context.server.policy;
        let restrictions = match protocol {
            PolicyProtocol::Http => &policy.http.restrictions,
            PolicyProtocol::Grpc => &policy.grpc.restrictions,
        };
        let rules = AccessRules { protocol, restrictions, keys, is_admin_closed: policy.is_admin_closed };
        let admitted = policy::admit(&rules, part, field).map_err(|refusal| self.count_refusal(*refusal))?;
        self.check_capacity(rights.reserved_for, part.category)?;
        Ok(admitted)
    }

    fn begin_of(&self, client: &Arc<KeyClient>) -> Result<AdmittedRequest, Error> {
        let is_shown = self.context.server.service.access_log_per_million > 0;
        match client.begin(clock::turn()) {
            Ok(grant) => {
                if let Some(cells) = client.cells(self.context.index) {
                    cells.requests.add(1);
                }
                let payer = client.has_token_rate().then(|| Arc::clone(client));
                Ok(AdmittedRequest { _grant: grant, client: is_shown.then(|| Arc::clone(client)), payer })
            }
            Err(busy) => Err(self.count_refusal(policy::busy_refusal(client, busy))),
        }
    }

    /// Takes the tokens of a request from its client, by an estimate.
    ///
    /// # Errors
    /// `RateLimited` if the client has had too many.
    pub fn take_tokens(&self, client: &Arc<KeyClient>, estimate: u64) -> Result<(), Error> {
        let taken = client.take_tokens(estimate, clock::turn());
        taken.map_err(|wait| self.count_refusal(policy::tokens_refusal(client, wait)))
    }

    /// Corrects the estimate by the count of the request's tokens: 0 if it did not run.
    pub fn settle_tokens(&self, client: &KeyClient, estimate: u64, count: u64) {
        client.correct_tokens(estimate, count);
        if let Some(cells) = client.cells(self.context.index) {
            cells.tokens.add(count);
        }
    }

    /// Counts a refusal, and returns the client's error.
    fn count_refusal(&self, refusal: AccessRefusal) -> Error {
        let AccessRefusal { reason, client, error } = refusal;
        self.context.cells.access_refused.count(reason);
        if let Some(cells) = client.as_ref().and_then(|client| client.cells(self.context.index)) {
            cells.count_refusal(reason);
        }
        error
    }
}
