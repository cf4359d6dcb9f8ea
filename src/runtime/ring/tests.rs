use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::backend::AnswerSink as _;
use crate::limits::READ_SIZE;
use crate::runtime::ring::pieces::PIECE_SIZE_MAX;
use crate::runtime::ring::stream::{NEW_TURNS, PIECES_TIME_MAX};

/// The rings that this kernel supports, one by io_uring and one by epoll.
fn rings(spin: Spin) -> Vec<Ring> {
    let uring = Ring::new(DriverKind::Uring, spin);
    if let Err(error) = &uring {
        eprintln!("skipped: this kernel has no io_uring for us: {error}");
    }
    uring.into_iter().chain([Ring::new(DriverKind::Epoll, spin).unwrap()]).collect()
}

/// Runs a test on a ring of each kind.
fn run<F: Future<Output = ()> + 'static>(test: impl Fn() -> F) {
    for ring in rings(Spin::Off) {
        ring.run(test()).unwrap();
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn listen_on_loopback() -> (RingAcceptor, SocketAddr) {
    let (listener, address) = listener();
    (RingAcceptor::new(current().unwrap(), OwnedFd::from(listener)), address)
}

async fn accept(acceptor: &mut RingAcceptor) -> RingStream {
    poll_fn(|context| acceptor.poll_accept(context)).await.unwrap()
}

async fn read(stream: &mut RingStream, size: usize) -> io::Result<Vec<u8>> {
    let mut space = vec![0; size];
    let count = poll_fn(|context| stream.poll_read(context, &mut space)).await?;
    space.truncate(count);
    Ok(space)
}

/// Returns the gains of a counter in each turn that has one, until it is at `count`.
async fn counted_by_turns(counter: &Cell<usize>, count: usize) -> Vec<usize> {
    let mut seen = Vec::new();
    while counter.get() < count {
        let before = counter.get();
        turns(1).await;
        seen.extend(Some(counter.get() - before).filter(|more| *more > 0));
    }
    seen
}

/// Reads until `size` bytes have come.
async fn read_all(stream: &mut RingStream, size: usize, step: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < size {
        let now = read(stream, step.min(size - all.len())).await.unwrap();
        assert!(!now.is_empty(), "closed after {} bytes", all.len());
        all.extend(now);
    }
    all
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index % 251) as u8).collect()
}

fn operations() -> usize {
    current().unwrap().driver.borrow().count()
}

/// Runs `count` turns of the ring, and one more.
async fn turns(count: usize) {
    for _ in 0..count {
        futures_lite::future::yield_now().await;
    }
}

#[test]
fn bytes_of_any_size_arrive_as_they_were_sent_in_any_steps() {
    for (size, step) in [(1, 1), (4096, 100), (4097, 16384), (100_000, 3), (5_000_000, 16_385), (3_000_000, 1 << 20)] {
        run(|| async move {
            let (mut acceptor, address) = listen_on_loopback();
            let client = thread::spawn(move || {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(&pattern(size)).unwrap();
                let mut back = vec![0; size];
                stream.read_exact(&mut back).unwrap();
                assert!(back == pattern(size), "{size} {step}");
            });
            let mut stream = accept(&mut acceptor).await;
            let came = read_all(&mut stream, size, step).await;
            assert!(came == pattern(size), "{size} {step}");
            let mut sent = 0;
            while sent < size {
                sent += poll_fn(|context| stream.poll_write(context, &came[sent..])).await.unwrap();
            }
            poll_fn(|context| stream.poll_written(context)).await.unwrap();
            client.join().unwrap();
        });
    }
}

#[test]
fn what_is_written_behind_arrives_in_order_and_only_one_is_under_way() {
    run(|| async {
        let (mut acceptor, address) = listen_on_loopback();
        let mut client = TcpStream::connect(address).unwrap();
        let mut stream = accept(&mut acceptor).await;
        let mut bytes = b"one".to_vec();
        assert!(stream.write_behind(&mut bytes) && bytes.is_empty());
        bytes.extend(b"two");
        assert!(!stream.write_behind(&mut bytes), "the first is under way");
        assert_eq!(bytes, b"two");
        poll_fn(|context| stream.poll_write(context, &bytes)).await.unwrap();
        let mut large = vec![0; 1 << 20];
        assert!(!stream.write_behind(&mut large), "too large to be held");
        drop(stream);
        let mut came = Vec::new();
        client.read_to_end(&mut came).unwrap();
        assert_eq!(came, b"onetwo");
    });
}

#[test]
fn a_stream_that_is_dropped_takes_its_operations_along_and_its_peer_sees_the_end() {
    run(|| async {
        let (mut acceptor, address) = listen_on_loopback();
        turns(3).await;
        let before = operations();
        for kind in 0..3 {
            let mut client = TcpStream::connect(address).unwrap();
            let mut stream = accept(&mut acceptor).await;
            let mut reading = Box::pin(async move {
                match kind {
                    0 => drop(read(&mut stream, 10).await),
                    1 => drop(read(&mut stream, 1 << 20).await),
                    // A peer that reads nothing: the send has no room.
                    _ => loop {
                        let _ = poll_fn(|context| stream.poll_write(context, &[0; 65536])).await;
                    },
                }
            });
            assert!(futures_lite::future::poll_once(&mut reading).await.is_none() || kind == 2);
            turns(3).await;
            drop(reading);
            turns(3).await;
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).unwrap();
        }
        // The accept, and the earlier operations.
        assert_eq!(operations(), before + 1);
        drop(acceptor);
        turns(3).await;
        assert_eq!(operations(), before);
    });
}

#[test]
fn a_connection_without_a_buffer_reads_all_the_same() {
    run(|| async {
        const CONNECTIONS: usize = 400;
        let (mut acceptor, address) = listen_on_loopback();
        let (mut clients, mut streams) = (Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            let mut client = TcpStream::connect(address).unwrap();
            client.write_all(b"hello").unwrap();
            clients.push(client);
            streams.push(accept(&mut acceptor).await);
        }
        // One byte each: a stream that got a buffer holds it.
        for stream in &mut streams {
            assert_eq!(read(stream, 1).await.unwrap(), b"h");
        }
        for stream in &mut streams {
            assert_eq!(read_all(stream, 4, 10).await, b"ello");
        }
        drop(clients);
        for stream in &mut streams {
            assert!(read(stream, 1).await.unwrap().is_empty());
        }
    });
}

/// Numbers that look random, the same in every run.
fn numbers(mut seed: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 40).ok()
    })
}

/// Exchanges small messages until the kernel receives by itself.
async fn make_steady(stream: &mut RingStream, client: &mut TcpStream) {
    for _ in 0..8 {
        client.write_all(b"ping").unwrap();
        assert_eq!(read(stream, 16).await.unwrap(), b"ping");
    }
    // The next receive is started, and nothing has come for it.
    assert!(futures_lite::future::poll_once(read(stream, 16)).await.is_none());
    turns(2).await;
}

#[test]
fn what_the_kernel_receives_by_itself_and_what_is_read_beside_it_come_in_order() {
    const SIZE: usize = 3_000_000;
    for seed in 0..8 {
        run(|| async move {
            let (mut acceptor, address) = listen_on_loopback();
            let mut client = TcpStream::connect(address).unwrap();
            let mut stream = accept(&mut acceptor).await;
            make_steady(&mut stream, &mut client).await;
            let sender = thread::spawn(move || {
                let bytes = pattern(SIZE);
                let (mut rest, mut sizes) = (&bytes[..], numbers(seed));
                while !rest.is_empty() {
                    let size = sizes.next().unwrap() % [100, 5_000, 70_000][sizes.next().unwrap() % 3] + 1;
                    let (now, later) = rest.split_at(size.min(rest.len()));
                    client.write_all(now).unwrap();
                    rest = later;
                    if sizes.next().unwrap() % 8 == 0 {
                        thread::park_timeout(Duration::from_micros(100));
                    }
                }
                client
            });
            let (mut came, mut sizes) = (Vec::new(), numbers(seed + 100));
            while came.len() < SIZE {
                let step = [16, 4_096, 16_384, 16_385, 1 << 20][sizes.next().unwrap() % 5];
                let now = read(&mut stream, step).await.unwrap();
                assert!(!now.is_empty());
                came.extend(now);
                if sizes.next().unwrap() % 4 == 0 {
                    turns(2).await;
                }
            }
            assert!(came == pattern(SIZE), "seed {seed}");
            drop(sender.join().unwrap());
            assert!(read(&mut stream, 10).await.unwrap().is_empty());
        });
    }
}

#[test]
fn a_client_that_sends_ahead_does_not_take_the_buffers_of_the_others() {
    const SIZE: usize = 1_000_000;
    run(|| async {
        let (mut acceptor, address) = listen_on_loopback();
        let mut pairs = Vec::new();
        for _ in 0..4 {
            let mut client = TcpStream::connect(address).unwrap();
            let mut stream = accept(&mut acceptor).await;
            make_steady(&mut stream, &mut client).await;
            pairs.push((client, stream));
        }
        let (mut client, mut stream) = pairs.pop().unwrap();
        let sender = thread::spawn(move || client.write_all(&pattern(SIZE)).map(|()| client));
        // Nothing is read meanwhile.
        for _ in 0..200 {
            turns(1).await;
            thread::park_timeout(Duration::from_micros(100));
            for (client, stream) in &mut pairs {
                client.write_all(b"ping").unwrap();
                assert_eq!(read(stream, 16).await.unwrap(), b"ping");
            }
        }
        assert!(waiting(&stream) <= crate::limits::RECEIVES_AHEAD_MAX + 33, "{}", waiting(&stream));
        assert!(read_all(&mut stream, SIZE, 16_384).await == pattern(SIZE));
        drop(sender.join().unwrap().unwrap());
        assert!(read(&mut stream, 10).await.unwrap().is_empty());
    });
}

/// Pieces that the ring has received for a stream and that were not read.
fn waiting(stream: &RingStream) -> usize {
    match (&stream.reading, &*current().unwrap().driver.borrow()) {
        (stream::ReadState::Many(key), IoDriver::Uring(driver)) => driver.waiting(key),
        _ => 0,
    }
}

#[test]
fn a_reset_that_the_kernel_has_told_the_ring_is_seen_by_who_does_not_read() {
    run(|| async {
        let (mut acceptor, address) = listen_on_loopback();
        let mut client = TcpStream::connect(address).unwrap();
        let mut stream = accept(&mut acceptor).await;
        make_steady(&mut stream, &mut client).await;
        socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        turns(3).await;
        assert!(stream.has_failed());
        assert!(read(&mut stream, 16).await.is_err());
    });
}

#[test]
fn sleepers_wake_when_it_is_time_and_not_before() {
    run(|| async {
        let ring = current().unwrap();
        let start = clock::now();
        let after = move |millis| start + Duration::from_millis(millis);
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = [30, 10, 20]
            .into_iter()
            .map(|millis| {
                let (ring, order) = (Rc::clone(&ring), Rc::clone(&order));
                spawn(async move {
                    SleepFuture::until(ring, after(millis)).await;
                    order.borrow_mut().push(millis);
                })
            })
            .collect();
        let dropped = SleepFuture::until(Rc::clone(&ring), after(1));
        let _ = futures_lite::future::poll_once(dropped).await;
        for task in tasks {
            task.await;
        }
        assert_eq!(*order.borrow(), [10, 20, 30]);
        let took = clock::now().since(start);
        assert!(took >= Duration::from_millis(30) && took < Duration::from_millis(500), "{took:?}");
    });
}

#[test]
fn a_ring_tells_how_long_it_has_waited() {
    run(|| async {
        let ring = current().unwrap();
        let (began, before) = (clock::now(), ring.idle_time());
        SleepFuture::until(Rc::clone(&ring), began + Duration::from_millis(20)).await;
        let slept = ring.idle_time() - before;
        assert!(slept >= Duration::from_millis(15) && slept <= clock::now().since(began), "{slept:?}");
        let (began, before) = (clock::now(), ring.idle_time());
        while clock::now().since(began) < Duration::from_millis(5) {
            std::hint::spin_loop();
        }
        turns(1).await;
        assert!(ring.idle_time() - before < Duration::from_millis(5), "it worked");
    });
}

#[test]
fn a_task_is_woken_by_other_threads_whether_the_ring_sleeps_or_not() {
    for ring in [Spin::Off, Spin::Fixed(Duration::from_micros(50)), Spin::Auto].into_iter().flat_map(rings) {
        ring.run(async {
            const ROUNDS: usize = 20_000;
            let completions = Arc::new(queue::completions::Completions::new());
            let (asked, answered) = (Arc::new(SegQueue::new()), Arc::new(SegQueue::new()));
            let worker = {
                let (completions, asked, answered) =
                    (Arc::clone(&completions), Arc::clone(&asked), Arc::clone(&answered));
                thread::spawn(move || {
                    let mut done = 0;
                    while done < ROUNDS {
                        let Some(round) = asked.pop() else {
                            thread::yield_now();
                            continue;
                        };
                        // Now and then late enough for the ring to fall asleep.
                        if round % 1000 == 0 {
                            thread::park_timeout(Duration::from_millis(1));
                        }
                        answered.push(round);
                        completions.wake();
                        done += 1;
                    }
                })
            };
            for round in 0..ROUNDS {
                asked.push(round);
                let got = poll_fn(|context| {
                    completions.register(context.waker());
                    answered.pop().map_or(Poll::Pending, Poll::Ready)
                })
                .await;
                assert_eq!(got, round);
            }
            worker.join().unwrap();
        })
        .unwrap();
    }
}

#[test]
fn a_listener_that_was_stopped_says_so() {
    run(|| async {
        let (listener, _) = listener();
        let raw = socket2::SockRef::from(&listener).try_clone().unwrap();
        let mut acceptor = RingAcceptor::new(current().unwrap(), OwnedFd::from(listener));
        let accepting = spawn(async move { poll_fn(|context| acceptor.poll_accept(context)).await.err() });
        turns(3).await;
        raw.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(accepting.await.unwrap().kind(), io::ErrorKind::InvalidInput);
    });
}

#[test]
fn an_acceptor_that_stops_returns_what_it_has_accepted_and_leaves_the_rest_to_others() {
    run(|| async {
        let (listener, address) = listener();
        let other = listener.try_clone().unwrap();
        let mut acceptor = RingAcceptor::new(current().unwrap(), OwnedFd::from(listener));
        let mut first = TcpStream::connect(address).unwrap();
        let mut taken = vec![accept(&mut acceptor).await];
        // Accepted by the ring, and not yet taken.
        let mut second = TcpStream::connect(address).unwrap();
        turns(3).await;
        acceptor.stop();
        let refused = loop {
            match poll_fn(|context| acceptor.poll_accept(context)).await {
                Ok(stream) => taken.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!((refused.kind(), taken.len()), (io::ErrorKind::InvalidInput, 2));
        let again = poll_fn(|context| acceptor.poll_accept(context)).await;
        assert_eq!(again.err().unwrap().kind(), io::ErrorKind::InvalidInput, "it stays stopped");
        // The socket still listens, for its other owners.
        let third = TcpStream::connect(address).unwrap();
        turns(3).await;
        let (accepted, _) = other.accept().unwrap();
        assert_eq!(accepted.peer_addr().unwrap(), third.local_addr().unwrap());
        for (client, server) in [&mut first, &mut second].into_iter().zip(&mut taken) {
            client.write_all(b"x").unwrap();
            assert_eq!(read(server, 1).await.unwrap(), b"x");
        }
    });
}

#[test]
fn a_ring_that_was_made_hears_other_threads_though_no_descriptor_is_left() {
    // Descriptors belong to the process: the test runs alone, in a process of its own that has few.
    if !std::env::args().any(|argument| argument == "--exact") {
        let name = "runtime::ring::tests::a_ring_that_was_made_hears_other_threads_though_no_descriptor_is_left";
        let mut alone = std::process::Command::new("sh");
        alone.args(["-c", "ulimit -n 64 && exec \"$@\"", "sh"]).arg(std::env::current_exe().unwrap());
        let output = alone.args(["--exact", name, "--nocapture"]).output().unwrap();
        return assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    for ring in rings(Spin::Off) {
        let (done, is_done) = std::sync::mpsc::channel();
        let watchdog = thread::spawn(move || {
            if is_done.recv_timeout(Duration::from_secs(5)).is_err() {
                eprintln!("the ring is deaf to other threads");
                std::process::exit(1);
            }
        });
        let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        let waker = Arc::new(atomic_waker::AtomicWaker::new());
        let is_woken = Arc::new(AtomicBool::new(false));
        let (of_thread, has_woken) = (Arc::clone(&waker), Arc::clone(&is_woken));
        let thread = thread::spawn(move || {
            thread::park_timeout(Duration::from_millis(50));
            has_woken.store(true, Ordering::SeqCst);
            of_thread.wake();
        });
        let wait = poll_fn(move |context| {
            waker.register(context.waker());
            if is_woken.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        });
        ring.run(wait).unwrap();
        drop(taken);
        done.send(()).unwrap();
        thread.join().unwrap();
        watchdog.join().unwrap();
    }
}

#[test]
fn the_kernel_is_done_with_all_that_was_under_way_when_a_driver_ends() {
    for kind in [DriverKind::Uring, DriverKind::Epoll].repeat(50) {
        let Ok(mut driver) = IoDriver::new(kind) else { continue };
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = Rc::new(OwnedFd::from(ours));
        let _receiving = driver.receive(&socket);
        let _polling = driver.readable(&socket);
        driver.turn(Some(Duration::ZERO)).unwrap();
        drop(socket);
        drop(driver);
        theirs.set_nonblocking(true).unwrap();
        // A receive that is still in the kernel keeps the socket open, and writes incoming bytes to
        // its buffer.
        assert_eq!(theirs.read(&mut [0]).ok(), Some(0), "{kind:?}");
    }
}

#[test]
fn of_connections_that_end_at_once_each_turn_sees_a_few_and_in_the_end_all() {
    const COUNT: usize = 40;
    run(|| async {
        // Only these tasks take time, whatever the machine does.
        clock::hold_at(Instant::ZERO);
        let (mut acceptor, address) = listen_on_loopback();
        let ended = Rc::new(Cell::new(0));
        let mut clients = Vec::new();
        for _ in 0..COUNT {
            clients.push(TcpStream::connect(address).unwrap());
            let (mut stream, ended) = (accept(&mut acceptor).await, Rc::clone(&ended));
            spawn(async move {
                assert!(read(&mut stream, 10).await.unwrap().is_empty());
                clock::hold_at(clock::now() + Duration::from_micros(200));
                ended.set(ended.get() + 1);
            })
            .detach();
        }
        turns(3).await;
        assert_eq!(ended.get(), 0);
        drop(clients);
        // The second of 200 µs ends the 250 of a turn.
        assert_eq!(counted_by_turns(&ended, COUNT).await, [2; COUNT / 2]);
    });
}

#[test]
fn tasks_that_are_woken_without_hurry_leave_each_turn_to_the_others() {
    const COUNT: usize = 6;
    run(|| async {
        clock::hold_at(Instant::ZERO);
        let (ran, wakers) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        for _ in 0..COUNT {
            let (ran, wakers, mut is_woken) = (Rc::clone(&ran), Rc::clone(&wakers), false);
            spawn(poll_fn(move |context| {
                if !std::mem::replace(&mut is_woken, true) {
                    wakers.borrow_mut().push(context.waker().clone());
                    return Poll::Pending;
                }
                clock::hold_at(clock::now() + Duration::from_micros(200));
                ran.set(ran.get() + 1);
                Poll::Ready(())
            }))
            .detach();
        }
        turns(1).await;
        let ring = current().unwrap();
        let failed =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ring.without_hurry(|| panic!("planned"))));
        assert!(failed.is_err() && !ring.is_closing.get(), "a panic leaves nothing behind");
        ring.without_hurry(|| wakers.take().into_iter().for_each(Waker::wake));
        // The second of 200 µs ends the 250 of a turn.
        assert_eq!(counted_by_turns(&ran, COUNT).await, [2; COUNT / 2]);
    });
}

/// Sends 4 MB and receives them, on one ring, with `call` as the time of each call. Returns the
/// most that moved in a turn, each way.
async fn most_in_a_turn(call: Duration) -> (usize, usize) {
    const SIZE: usize = 4_000_000;
    clock::hold_at(Instant::ZERO);
    let (listener, address) = listener();
    listener.set_nonblocking(false).unwrap();
    let ring = current().unwrap();
    let client = OwnedFd::from(TcpStream::connect(address).unwrap());
    let mut sender = RingStream::from_descriptor(Rc::clone(&ring), client).unwrap();
    let server = OwnedFd::from(listener.accept().unwrap().0);
    let mut receiver = RingStream::from_descriptor(ring, server).unwrap();
    let (sent, received) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let count = Rc::clone(&sent);
    spawn(async move {
        let bytes = pattern(SIZE);
        while count.get() < SIZE {
            let rest = &bytes[count.get()..];
            // By each of the two ways.
            let now = match count.get() < SIZE / 2 {
                true => poll_fn(|context| sender.poll_write(context, rest)).await.unwrap(),
                false => sender.try_write_vectored(&[IoSlice::new(&rest[..1]), IoSlice::new(&rest[1..])]).unwrap(),
            };
            clock::hold_at(clock::now() + call);
            count.set(count.get() + now);
            if now == 0 {
                sender.writable().await.unwrap();
            }
        }
    })
    .detach();
    let count = Rc::clone(&received);
    spawn(async move {
        let mut came = vec![0; SIZE];
        while count.get() < SIZE {
            let now = poll_fn(|context| receiver.poll_read(context, &mut came[count.get()..])).await.unwrap();
            clock::hold_at(clock::now() + call);
            count.set(count.get() + now);
        }
        assert!(came == pattern(SIZE));
    })
    .detach();
    let (mut most, mut seen) = ((0, 0), (0, 0));
    while received.get() < SIZE {
        turns(1).await;
        let now = (sent.get(), received.get());
        most = (most.0.max(now.0 - seen.0), most.1.max(now.1 - seen.1));
        seen = now;
    }
    most
}

#[test]
fn a_large_transfer_that_takes_long_leaves_each_turn_to_the_others_too() {
    run(|| async {
        let most = most_in_a_turn(PIECES_TIME_MAX).await;
        // The last few may go beyond.
        assert!(most.0 <= PIECE_SIZE_MAX + READ_SIZE && most.1 <= PIECE_SIZE_MAX + READ_SIZE, "{most:?}");
    });
}

#[test]
fn where_it_takes_long_to_make_room_less_is_made_the_next_time() {
    run(|| async {
        const SIZE: usize = 2 * READ_SIZE;
        clock::hold_at(Instant::ZERO);
        let (listener, address) = listener();
        listener.set_nonblocking(false).unwrap();
        let mut client = TcpStream::connect(address).unwrap();
        let server = OwnedFd::from(listener.accept().unwrap().0);
        let mut stream = RingStream::from_descriptor(current().unwrap(), server).unwrap();
        let mut sizes = Vec::new();
        for took in [0, 2, 2, 2, 0] {
            sizes.push(stream.begin_read());
            clock::hold_at(clock::now() + Duration::from_millis(took));
            client.write_all(&[7; SIZE]).unwrap();
            assert_eq!(read_all(&mut stream, SIZE, SIZE).await, [7; SIZE]);
        }
        assert_eq!(sizes, [1, 1, 2, 4, 8].map(|part| PIECE_SIZE_MAX / part));
    });
}

/// `count` connections receive something large in `turns_before` turns, at once each, and then once
/// more, which takes `took`. Returns how many of them did so in each turn.
async fn received_by_turns(count: usize, turns_before: u8, took: Duration) -> Vec<usize> {
    const SIZE: usize = 3 * READ_SIZE;
    clock::hold_at(Instant::ZERO);
    let (listener, address) = listener();
    listener.set_nonblocking(false).unwrap();
    let ring = current().unwrap();
    let received = Rc::new(Cell::new(0));
    for _ in 0..count {
        let mut client = TcpStream::connect(address).unwrap();
        let server = OwnedFd::from(listener.accept().unwrap().0);
        let mut stream = RingStream::from_descriptor(Rc::clone(&ring), server).unwrap();
        let received = Rc::clone(&received);
        spawn(async move {
            let mut came = vec![0; SIZE];
            for turn in 0..=turns_before {
                turns(usize::from(turn > 0)).await;
                client.write_all(&[7; SIZE]).unwrap();
                let count = poll_fn(|context| stream.poll_read(context, &mut came)).await.unwrap();
                assert_eq!(count, SIZE);
            }
            clock::hold_at(clock::now() + took);
            received.set(received.get() + 1);
        })
        .detach();
    }
    counted_by_turns(&received, count).await
}

#[test]
fn of_those_that_have_much_to_move_a_turn_serves_as_many_as_there_is_time_for() {
    run(|| async {
        assert_eq!(received_by_turns(6, 0, Duration::ZERO).await, [6]);
        // The turn has time for the first four; two of the others have a part of it.
        assert_eq!(received_by_turns(8, 0, LATE_TURN_NEW / 4).await, [6, 2]);
        // One, and in any case one of the others.
        assert_eq!(received_by_turns(6, 0, LATE_TURN_NEW).await, [2, 1, 1, 1, 1]);
        // They are new to it until they have done so in some turns, and then have a longer one:
        // four, and two of the others, which have a part of the time that they have waited.
        assert_eq!(received_by_turns(6, NEW_TURNS - 1, LATE_TURN_NEW).await, [2, 1, 1, 1, 1]);
        assert_eq!(received_by_turns(8, NEW_TURNS, LATE_TURN / 4).await, [6, 1, 1]);
    });
}

/// A value that a task holds, and the flag of its drop.
struct Held(Arc<AtomicBool>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_ring_that_ends_lets_go_of_its_tasks_and_they_of_their_sockets() {
    for ring in rings(Spin::Off) {
        let is_dropped = Arc::new(AtomicBool::new(false));
        let held = Held(Arc::clone(&is_dropped));
        let remote = Arc::downgrade(&ring.remote);
        let mut client = ring
            .run(async move {
                let (mut acceptor, address) = listen_on_loopback();
                let client = TcpStream::connect(address).unwrap();
                let mut stream = accept(&mut acceptor).await;
                spawn(async move {
                    let _held = held;
                    drop(read(&mut stream, 10).await);
                })
                .detach();
                turns(3).await;
                client
            })
            .unwrap();
        assert!(is_dropped.load(Ordering::SeqCst), "the task that reads");
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "its socket is closed");
        assert!(remote.upgrade().is_none(), "the ring");
    }
}

#[test]
fn what_completes_after_a_call_that_collected_all_is_nothing_to_wait_for() {
    let Ok(IoDriver::Uring(mut uring)) = IoDriver::new(DriverKind::Uring) else { return };
    let pairs: Vec<_> = (0..3).map(|_| std::os::unix::net::UnixStream::pair().unwrap()).collect();
    let sockets: Vec<_> = pairs.iter().map(|(ours, _)| Rc::new(OwnedFd::from(ours.try_clone().unwrap()))).collect();
    let keys: Vec<_> = sockets.iter().map(|socket| uring.receive(socket)).collect();
    let write = |index: usize| (&pairs[index].1).write_all(b"a").unwrap();
    uring.turn(Some(Duration::ZERO)).unwrap();
    write(0);
    uring.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(uring.waiting(&keys[0]), 1);
    write(1);
    assert!(!uring.has_pending(), "one was collected, and another has completed since");
    uring.look().unwrap();
    assert_eq!(uring.waiting(&keys[1]), 1, "who looks for work finds it");
}

#[test]
fn a_drain_that_is_out_of_time_says_so_and_goes_on_when_it_is_asked_again() {
    let Ok(IoDriver::Uring(mut uring)) = IoDriver::new(DriverKind::Uring) else { return };
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let socket = Rc::new(OwnedFd::from(ours));
    let _key = uring.receive(&socket);
    uring.turn(Some(Duration::ZERO)).unwrap();
    assert!(!uring.drain(Instant::ZERO) && Rc::strong_count(&socket) == 2, "the kernel has it");
    assert!(uring.drain(clock::now() + Duration::from_secs(5)) && Rc::strong_count(&socket) == 1);
}
