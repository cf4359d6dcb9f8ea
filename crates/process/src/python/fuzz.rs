//! The properties of any bytes that a Python process sends, as a function: called by the fuzz
//! target, and by a test that replays its corpus. The bytes are frames or refused, wherever they
//! are split; a frame is a message or refused; a tensor has the bytes of the region at its place,
//! or is refused.

use std::sync::{Arc, OnceLock};

use crate::python::message::{
    AuxMessage, ClaimedResponse, ClaimedTensor, Frame, FrameBuffer, MainMessage, MessageError, Span, decode_aux,
    decode_main,
};
use crate::python::region::{ReleasedSlots, ResponseRegion, TensorPolicy, take_tensor};
use base::limits::{BATCH_REQUESTS_MAX, RANK_MAX, REQUEST_TENSORS_MAX};
use base::tensor::strings::Strings;
use base::tensor::{Datatype, byte_size, element_count};

/// Panics if a property does not hold for these bytes. Each frame is read as one of both sockets.
pub fn check_any_messages(input: &[u8]) {
    let whole = frames(input, usize::MAX);
    assert_eq!(whole, frames(input, 1), "byte by byte as in one piece");
    assert_eq!(whole, frames(input, 7), "in pieces as in one");
    for (kind, body) in &whole.0 {
        let frame = Frame { kind: *kind, body };
        match decode_main(frame) {
            Ok(message) => check_main(&message),
            Err(error) => check_refusal(error, *kind),
        }
        match decode_aux(frame) {
            Ok(message) => check_aux(&message),
            Err(error) => check_refusal(error, *kind),
        }
    }
}

/// The frames of an input sent in pieces of this size, and the error that ended them, if any.
fn frames(input: &[u8], piece_size: usize) -> (Vec<(u8, Vec<u8>)>, Option<MessageError>) {
    let mut buffer = FrameBuffer::default();
    let mut frames = Vec::new();
    for piece in input.chunks(piece_size) {
        buffer.space(piece.len()).copy_from_slice(piece);
        buffer.commit(piece.len());
        loop {
            match buffer.poll_frame() {
                Ok(Some(frame)) => frames.push((frame.kind, frame.body.to_vec())),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

fn check_refusal(error: MessageError, kind: u8) {
    assert!(!error.to_string().is_empty());
    assert!(
        error != MessageError::Kind(kind) || !(1..=6).contains(&kind),
        "both sockets have a message of kind {kind}"
    );
}

fn check_main(message: &MainMessage) {
    match message {
        MainMessage::Responses { span, outcome: Ok(responses), .. } => {
            assert!(responses.len() <= BATCH_REQUESTS_MAX);
            responses.iter().for_each(|response| check_response(span, response));
        }
        MainMessage::Send { span, response, .. } => check_response(span, response),
        _ => {}
    }
}

fn check_aux(message: &AuxMessage) {
    if let AuxMessage::BlsCall(call) = message {
        assert!(call.inputs.len() <= REQUEST_TENSORS_MAX && call.outputs.len() <= REQUEST_TENSORS_MAX);
        call.inputs.iter().for_each(|(_, claim)| check_tensor(&call.span, claim));
    }
}

fn check_response(span: &Span, response: &ClaimedResponse) {
    if let ClaimedResponse::Outputs { tensors, .. } | ClaimedResponse::Rescheduled { tensors, .. } = response {
        assert!(tensors.len() <= REQUEST_TENSORS_MAX);
        tensors.iter().for_each(|(_, claim)| check_tensor(span, claim));
    }
}

/// A tensor that is taken has exactly the bytes at its place, in either way, and its slot is free afterwards.
fn check_tensor(span: &Span, claim: &ClaimedTensor) {
    let span = claim.own_span.as_ref().unwrap_or(span);
    let (region, bytes) = region();
    let released = Arc::new(ReleasedSlots::default());
    for policy in [TensorPolicy::Copy, TensorPolicy::View] {
        let lease = released.lease(span);
        let taken = take_tensor(region, span, &lease, claim, policy);
        drop(lease);
        if let Ok((tensor, is_view)) = taken {
            assert!(!is_view || policy == TensorPolicy::View && claim.datatype != Datatype::Bytes);
            assert_eq!(released.poll_released().is_some(), span.size > 0 && !is_view);
            assert!(claim.offset + claim.size <= span.size && tensor.contents.len() as u64 == claim.size);
            let [begin, end] = [0, claim.size].map(|size| span.offset + claim.offset + size);
            let place = usize::try_from(begin).ok().zip(usize::try_from(end).ok()).map(|(begin, end)| begin..end);
            assert_eq!(place.and_then(|place| bytes.get(place)), Some(&*tensor.contents), "the bytes at its place");
            assert!(tensor.shape.len() <= RANK_MAX);
            match byte_size(tensor.datatype, &tensor.shape) {
                Ok(Some(size)) => assert_eq!(size, tensor.contents.len()),
                _ => assert_eq!(element_count(&tensor.shape), Ok(Strings::new(&tensor.contents).flatten().count())),
            }
        }
        while released.poll_released().is_some() {}
    }
}

/// One region for all runs, and its contents: making one takes longer than checking a message.
fn region() -> &'static (Arc<ResponseRegion>, Vec<u8>) {
    static REGION: OnceLock<(Arc<ResponseRegion>, Vec<u8>)> = OnceLock::new();
    REGION.get_or_init(|| {
        let region = ResponseRegion::new(REGION_SIZE).expect("there is memory for a small region");
        // The first half is zeros, which are empty elements of BYTES.
        let number = |at: usize| if at < REGION_SIZE / 2 { 0 } else { (at % 251).to_le_bytes()[0] };
        let bytes: Vec<u8> = (0..REGION_SIZE).map(number).collect();
        assert_eq!(rustix::io::pwrite(region.fd(), &bytes, 0), Ok(REGION_SIZE));
        (region, bytes)
    })
}

/// Room for several views.
const REGION_SIZE: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_corpus_and_its_changes_hold() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/python_message");
        let seeds: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(seeds.len() >= 12, "the corpus is there");
        for seed in seeds {
            let input = std::fs::read(&seed).unwrap();
            check_any_messages(&input);
            // The first mutations of a fuzzer: one byte changed, one byte gone.
            for at in 0..input.len() {
                for byte in [0, 1, 2, 13, 0x40, 0x7f, 0x80, 0xff] {
                    let mut mutant = input.clone();
                    mutant[at] = byte;
                    check_any_messages(&mutant);
                }
                let mut mutant = input.clone();
                mutant.remove(at);
                check_any_messages(&mutant);
            }
        }
    }

    #[test]
    fn the_corpus_has_every_message_and_views() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/python_message");
        let inputs: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
        let all: Vec<_> = inputs.iter().flat_map(|input| frames(input, usize::MAX).0).collect();
        let kinds = |is_read: &dyn Fn(Frame<'_>) -> bool| {
            let is_there =
                |kind: &u8| all.iter().any(|(have, body)| have == kind && is_read(Frame { kind: *kind, body }));
            (1..=u8::MAX).filter(is_there).count()
        };
        assert_eq!(kinds(&|frame| decode_main(frame).is_ok()), 7);
        assert_eq!(kinds(&|frame| decode_aux(frame).is_ok()), 15);
        let released = Arc::new(ReleasedSlots::default());
        let views = |message: MainMessage| {
            let MainMessage::Responses { span, outcome: Ok(responses), .. } = message else { return 0 };
            let tensors = responses.iter().flat_map(|response| match response {
                ClaimedResponse::Outputs { tensors, .. } => &tensors[..],
                _ => &[],
            });
            let lease = released.lease(&span);
            let taken = tensors.map(|(_, claim)| take_tensor(&region().0, &span, &lease, claim, TensorPolicy::View));
            taken.filter(|taken| matches!(taken, Ok((_, true)))).count()
        };
        let messages = all.iter().filter_map(|(kind, body)| decode_main(Frame { kind: *kind, body }).ok());
        assert_eq!(messages.map(views).sum::<usize>(), 2);
    }
}
