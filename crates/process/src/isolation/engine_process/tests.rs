//! Both sides in one process: the real worker on a thread, or one that sends arbitrary replies.
//! `/bin/sh` stands for the process.

use std::path::PathBuf;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};

use super::*;
use crate::isolation::EngineOrder;
use crate::isolation::message::encode_outcome;
use crate::isolation::worker;
use crate::python::environment::{Interpreter, InterpreterSource};
use crate::python::host::HostLog;
use backend::trial::{TrialAnswers, no_clock, spec, tensor};
use backend::{Batch, Instance, LoadedModel, Threads};
use base::tensor::Datatype;

const REGION_MAX: u64 = 8 * 1024 * 1024;

/// Answers each request with its input, except for a row of one element: that is refused.
struct Echo;

impl LoadedModel for Echo {
    fn new_instance(&self, threads: &Threads) -> Result<Box<dyn Instance>, Error> {
        if threads.count() == 3 { Err(Error::unavailable("no room")) } else { Ok(Box::new(Self)) }
    }

    fn may_run_inline(&self) -> bool {
        false
    }
}

impl Instance for Echo {
    fn run(&mut self, batch: Batch) {
        for request in batch.requests {
            let is_refused = request.inputs[0].contents.len() == 1;
            request.responder.send(if is_refused { Err(Error::invalid("too small")) } else { Ok(request.inputs) });
        }
    }
}

fn host() -> Arc<PythonHost> {
    let log = HostLog { line: |_, _| (), has_room: || true };
    PythonHost::start("engine-host", log, no_clock, Vec::new()).unwrap()
}

/// A process that does nothing, and both ends of a socket that it does not use.
fn idle(host: &PythonHost) -> (PythonProcess, EngineSocket, EngineSocket) {
    let (path, source) = (PathBuf::from("/bin/sh"), InterpreterSource::Path);
    let interpreter = Interpreter { path, source, environment: None, archive: None };
    let program = ProcessProgram::Python { interpreter, boot: "sleep 100", threads: 1, is_template: false };
    let (_, end) = EngineSocket::pair().unwrap();
    let (name, memory) = ("m".to_owned(), Arc::default());
    let process = host.spawn(ProcessCommand { name, program, main: end, cores: Vec::new(), memory }).unwrap();
    let (socket, end) = EngineSocket::pair().unwrap();
    (process, socket, EngineSocket::new(end))
}

fn load(process: PythonProcess, socket: EngineSocket) -> Result<EngineProcess, EngineFailure> {
    let order = EngineOrder {
        library: None,
        model: "m".to_owned(),
        run_memory_max: REGION_MAX,
        config: vec![7],
        derived: Vec::new(),
        directory: "/m/1".into(),
    };
    let (requests, responses) =
        (RequestRegion::new(ENGINE_REGION_SIZE).unwrap(), ResponseRegion::new(ENGINE_REGION_SIZE).unwrap());
    let order = EncodedOrder { bytes: &order.encode(), file: None };
    EngineProcess::load(NewEngine { process, socket, requests, responses }, &order, None, REGION_MAX)
}

fn refused<T>(outcome: Result<T, EngineFailure>) -> Error {
    match outcome {
        Err(EngineFailure::Refused(error)) => error,
        Err(EngineFailure::Lost(how)) => panic!("lost: {how}"),
        Ok(_) => panic!("it was done"),
    }
}

#[test]
fn a_worker_runs_what_it_is_sent_and_what_does_not_fit_is_refused() {
    let host = host();
    let (process, socket, end) = idle(&host);
    thread::scope(|scope| {
        let served = scope.spawn(|| {
            worker::serve(end, no_clock, |order, file| {
                assert!(order.config == [7] && file.is_none());
                Ok(Box::new(Echo))
            })
        });
        let mut process = load(process, socket).ok().unwrap();
        assert_eq!(refused(process.make_instance(3, None)), Error::unavailable("no room"));
        process.make_instance(1, None).unwrap();
        let spec = spec(8, &[("x", Datatype::Uint8, &[-1])], &[("y", Datatype::Uint8, &[-1])]);
        let answers = TrialAnswers::default();
        let mut run = |sizes: &[usize]| {
            let tensors: Vec<_> = sizes.iter().map(|size| tensor(&[1, *size as i64], &vec![7_u8; *size])).collect();
            let batch = answers.batch(tensors.iter().map(|tensor| (vec![tensor.clone()], 1)).collect());
            let outcome = process.run(&spec, &batch.requests, None);
            drop(batch);
            answers.take(sizes.len() as u32);
            outcome.map(|answered| {
                for (index, (answer, tensor)) in answered.into_iter().zip(&tensors).enumerate() {
                    assert_eq!((answer.batch_rows, answer.is_first), (sizes.len() as u32, index == 0));
                    match tensor.contents.len() {
                        1 => assert_eq!(answer.outputs, Err(Error::invalid("too small"))),
                        _ => assert_eq!(answer.outputs, Ok(vec![tensor.clone()])),
                    }
                }
            })
        };
        run(&[3, 1, 70_000, 0]).unwrap();
        // Both regions grow, and shrink to the size that is kept.
        run(&[3_000_000, 2_000_000]).unwrap();
        run(&[2]).unwrap();
        let error = refused(run(&[9_000_000]));
        let want = "that the server shares with the process of the model, at most 8388608 (--run-memory-bytes-max)";
        assert!(error.code() == Code::Exhausted && error.text().ends_with(want), "{error}");
        run(&[5]).unwrap();
        process.make_instance(2, None).unwrap();
        assert!(process.has_answered && process.has_ended().is_none());
        drop(process);
        assert_eq!(served.join().unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    });
}

#[test]
fn a_model_that_is_refused_is_told_and_the_worker_ends() {
    let host = host();
    let (process, socket, end) = idle(&host);
    thread::scope(|scope| {
        let served = scope.spawn(|| worker::serve(end, no_clock, |_, _| Err(Error::unsupported("no such operator"))));
        assert_eq!(refused(load(process, socket)), Error::unsupported("no such operator"));
        assert!(served.join().unwrap().is_ok());
    });
}

#[test]
fn a_process_that_says_what_it_may_not_is_killed() {
    let host = host();
    let spec = spec(8, &[("x", Datatype::Uint8, &[2])], &[("y", Datatype::Uint8, &[2])]);
    let answers = TrialAnswers::default();
    // The worker's reply to a batch: bytes at the start of the region, and a frame.
    let check = |bytes: &[u8], frame: EngineFrame, want: &str| {
        let (process, socket, end) = idle(&host);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (_, files) = end.receive(None).unwrap();
                let outcome = encode_outcome(Ok(()));
                rustix::io::pwrite(&files[1], &outcome, 0).unwrap();
                end.send(EngineFrame::Done(outcome.len() as u64), &[]).unwrap();
                end.receive(None).unwrap();
                rustix::io::pwrite(&files[1], bytes, 0).unwrap();
                end.send(frame, &[]).unwrap();
                // Until the server is done with it.
                let _ = end.receive(Some(Duration::from_secs(1)));
            });
            let mut process = load(process, socket).ok().unwrap();
            let batch = answers.batch(vec![(vec![tensor(&[1, 2], &[1_u8, 2])], 1)]);
            let outcome = process.run(&spec, &batch.requests, None);
            drop(batch);
            answers.take(1);
            let Err(EngineFailure::Lost(how)) = outcome else { panic!("{frame:?}: it was believed") };
            assert!(how.starts_with(want) && how.ends_with("and was killed"), "{frame:?}: {how}");
            assert!(process.process.wait_ended(Duration::from_secs(20)).is_some());
        });
    };
    let range = "sent an invalid message: a tensor lies outside the memory of its message";
    check(&[], EngineFrame::Done(u64::MAX), range);
    check(&[], EngineFrame::Done(ENGINE_REGION_SIZE as u64 + 1), range);
    check(&[], EngineFrame::Room(REGION_MAX + 1), "sent an invalid message: Room(8388609)");
    check(&[], EngineFrame::Run(0), "sent an invalid message: Run(0)");
    check(&[2, 0, 0, 0], EngineFrame::Done(4), "sent an invalid message: the message has more items");
    check(&[1, 0, 0, 0, 9], EngineFrame::Done(5), "sent an invalid message: the message ends too early");
    // One answer with one output: of another datatype, and beyond the region.
    let answer = |datatype: u8, offset: u64| {
        let head = [&[1, 0, 0, 0][..], &[1, 0, 0, 0], &[1], &[0; 16], &[0], &[1, 0], &[datatype, 1]].concat();
        [head, offset.to_le_bytes().to_vec(), 2_u64.to_le_bytes().to_vec(), 2_i64.to_le_bytes().to_vec()].concat()
    };
    let (other, beyond) = (answer(3, 0), answer(2, 1 << 40));
    check(&other, EngineFrame::Done(other.len() as u64), "sent an invalid message: an output of the message");
    check(&beyond, EngineFrame::Done(beyond.len() as u64), range);
}

#[test]
fn a_process_that_lives_without_its_socket_is_lost() {
    let host = host();
    // Its acts once it has loaded the model.
    let check = |act: fn(EngineSocket), want: &str| {
        let (process, socket, end) = idle(&host);
        thread::scope(|scope| {
            let served = scope.spawn(|| {
                let (_, files) = end.receive(None).unwrap();
                let outcome = encode_outcome(Ok(()));
                rustix::io::pwrite(&files[1], &outcome, 0).unwrap();
                end.send(EngineFrame::Done(outcome.len() as u64), &[]).unwrap();
                act(end);
            });
            let process = load(process, socket).ok().unwrap();
            served.join().unwrap();
            // Waits: another test may be starting a program, which has a copy of each descriptor until it runs.
            let mut readable = [PollFd::new(process.event_source(), PollFlags::IN)];
            poll(&mut readable, None).unwrap();
            assert_eq!(process.poll_lost().as_deref(), Some(want));
            assert_eq!(process.has_ended(), None, "it lives");
        });
    };
    check(drop, "its process closed its socket and is killed");
    let chatty = |end: EngineSocket| {
        end.send(EngineFrame::Done(0), &[]).unwrap();
        std::mem::forget(end);
    };
    check(chatty, "its process sent an unexpected message and is killed");
}

#[test]
fn a_process_that_does_not_answer_in_time_is_killed() {
    let host = host();
    let (process, socket, _end) = idle(&host);
    let mut requests = RequestRegion::new(ENGINE_REGION_SIZE).unwrap();
    requests.write(0, b"x").unwrap();
    let responses = ResponseRegion::new(ENGINE_REGION_SIZE).unwrap();
    let timeout = Some(Duration::from_millis(20));
    let engine = NewEngine { process, socket, requests, responses };
    let outcome = EngineProcess::load(engine, &EncodedOrder { bytes: b"x", file: None }, timeout, REGION_MAX);
    let Err(EngineFailure::Lost(how)) = outcome else { panic!("it was waited for") };
    assert_eq!(how, "took longer than 20ms (--load-timeout-secs) and was killed");
}
