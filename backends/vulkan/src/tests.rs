//! The driver on whatever device there is: unaligned fills and copies, order within and between streams, recordings,
//! launches with parameters of any length. Skipped with the reason where there is no device.

use halyard_gpu::{DevicePtr, Driver, KernelText, Param, Pinned, Stream};
use halyard_platform_api::{OpenOptions, Result, Status};

use crate::driver::VulkanDriver;
use crate::instance::validated;
use crate::physical::usable_devices;

const NO_HEADERS: &[(&str, &str)] = &[];

/// The first device; `None`, and a line that says why, where there is none.
fn driver() -> Option<VulkanDriver> {
    match usable_devices() {
        Ok(devices) => Some(VulkanDriver::open(devices[0].clone(), &OpenOptions::default()).expect("the device opens")),
        Err(e) => {
            assert_eq!(e.status, Status::Unavailable, "{e}");
            println!("skipped: {}", e.message);
            None
        }
    }
}

/// Device memory with its way to the host.
struct Bytes<'a> {
    driver: &'a VulkanDriver,
    stream: Stream,
    device: DevicePtr,
    host: Pinned,
    len: usize,
}

impl<'a> Bytes<'a> {
    fn new(driver: &'a VulkanDriver, stream: Stream, contents: &[u8]) -> Result<Bytes<'a>> {
        let bytes = Bytes {
            driver,
            stream,
            device: driver.allocate(contents.len() as u64)?,
            host: driver.allocate_pinned(contents.len() as u64)?,
            len: contents.len(),
        };
        // SAFETY: memory of that size, not used yet.
        unsafe {
            std::ptr::copy_nonoverlapping(contents.as_ptr(), bytes.host.host, contents.len());
            driver.copy(bytes.device, bytes.host.device, bytes.len as u64, stream)?;
        }
        driver.synchronize(stream)?;
        Ok(bytes)
    }

    fn read(&self) -> Result<Vec<u8>> {
        // SAFETY: as above; waited for before the host looks.
        unsafe {
            self.driver
                .copy(self.host.device, self.device, self.len as u64, self.stream)?;
            self.driver.synchronize(self.stream)?;
            Ok(std::slice::from_raw_parts(self.host.host, self.len).to_vec())
        }
    }
}

impl Drop for Bytes<'_> {
    fn drop(&mut self) {
        self.driver.synchronize(self.stream).expect("the work ends");
        // SAFETY: nothing uses them any more.
        unsafe {
            self.driver.free(self.device);
            self.driver.free_pinned(self.host);
        }
    }
}

#[test]
fn fills_and_copies_touch_exactly_their_bytes() {
    let Some(driver) = driver() else { return };
    let stream = driver.create_stream().expect("a stream");
    let before: Vec<u8> = (0..64).map(|i| i as u8).collect();
    let target = Bytes::new(&driver, stream, &before).expect("memory");
    let mut expected = before.clone();
    for (at, bytes, value) in [
        (1, 1, 0xA0),
        (3, 2, 0xB1),
        (6, 11, 0xC2),
        (20, 8, 0),
        (29, 3, 0xD3),
        (63, 1, 0xE4),
    ] {
        // SAFETY: inside.
        unsafe { driver.fill(target.device + at, value, bytes, stream) }.expect("recorded");
        expected[at as usize..(at + bytes) as usize].fill(value);
    }
    assert_eq!(target.read().expect("read"), expected);

    // Two rows of three bytes, five apart, to rows seven apart.
    let source = Bytes::new(&driver, stream, &before).expect("memory");
    // SAFETY: inside.
    unsafe { driver.copy_2d(target.device + 33, 7, source.device + 2, 5, 3, 2, stream) }.expect("recorded");
    expected[33..36].copy_from_slice(&before[2..5]);
    expected[40..43].copy_from_slice(&before[7..10]);
    assert_eq!(target.read().expect("read"), expected);

    // SAFETY: refused before anything is recorded.
    let error = unsafe { driver.fill(target.device + 60, 0, 60, stream) }.expect_err("passes the end by far");
    assert_eq!(error.status, Status::InvalidArgument, "{error}");
    drop((target, source));
    // SAFETY: idle.
    unsafe { driver.destroy_stream(stream) };
    validated().expect("no messages");
}

/// Each launch adds one to every word; `extra` words of padding move the count behind them.
const ADD: &str = "#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
layout(local_size_x_id = 0) in;
layout(buffer_reference, scalar) buffer Words { uint at[]; };
#if EXTRA > 0
layout(buffer_reference, scalar) buffer Block { uint64_t words; uint skipped[EXTRA]; uint count; };
layout(push_constant, scalar) uniform Push { Block p; };
#else
layout(push_constant, scalar) uniform Push { uint64_t words; uint count; } p;
#endif
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < p.count) Words(p.words).at[i] += 1;
}
";

fn add(driver: &VulkanDriver, extra: usize) -> halyard_gpu::Function {
    let text = KernelText {
        text: ADD,
        headers: NO_HEADERS,
    };
    let image = driver
        .compile("add", text, &[format!("-DEXTRA={extra}")])
        .expect("it compiles");
    let module = driver.load(&image).expect("it loads");
    driver.function(module, "add", 0).expect("it has its entry")
}

fn launch(
    driver: &VulkanDriver,
    function: halyard_gpu::Function,
    words: DevicePtr,
    extra: usize,
    count: u32,
    on: Stream,
) {
    let mut params = vec![Param::Ptr(words)];
    params.extend(std::iter::repeat_n(Param::Word(7), extra));
    params.push(Param::Word(count));
    // SAFETY: what the kernel takes, over live memory.
    unsafe { driver.launch(function, [count.div_ceil(64), 1, 1], [64, 1, 1], 0, &params, true, on) }.expect("recorded");
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

#[test]
fn launches_follow_each_other_in_and_out_of_recordings() {
    let Some(driver) = driver() else { return };
    let stream = driver.create_stream().expect("a stream");
    // More than 65535 workgroups: some devices take them in parts.
    let count = 64 * 70_000;
    let memory = Bytes::new(&driver, stream, &vec![0; 4 * count]).expect("memory");
    let count = count as u32;
    let (short, long) = (add(&driver, 0), add(&driver, 30));
    // More than one submit holds.
    for _ in 0..3 {
        launch(&driver, short, memory.device, 0, count, stream);
    }
    for _ in 0..300 {
        launch(&driver, long, memory.device, 30, 64, stream);
    }
    driver.begin_capture(stream).expect("begins");
    for _ in 0..5 {
        launch(&driver, short, memory.device, 0, 64, stream);
        launch(&driver, long, memory.device, 30, 64, stream);
    }
    assert!(driver.synchronize(stream).is_err(), "a wait while recording");
    let graph = driver.end_capture(stream).expect("ends");
    for _ in 0..4 {
        // SAFETY: the memory lives.
        unsafe { driver.launch_graph(graph, stream) }.expect("enqueued");
        launch(&driver, short, memory.device, 0, 64, stream);
    }
    let found = words(&memory.read().expect("read"));
    assert_eq!(found[..64], [3 + 300 + 4 * 11; 64]);
    assert!(found[64..].iter().all(|&word| word == 3), "the large grid ran whole");
    drop(memory);
    // SAFETY: idle.
    unsafe {
        driver.destroy_graph(graph);
        driver.destroy_stream(stream);
    }
    validated().expect("no messages");
}

#[test]
fn streams_wait_for_each_other_and_the_host_sees_words_in_order() {
    let Some(driver) = driver() else { return };
    let [first, second] = [(); 2].map(|()| driver.create_stream().expect("a stream"));
    let event = driver.create_event().expect("an event");
    assert!(
        driver.query_event(event).expect("known"),
        "an event that was never recorded has passed"
    );
    let function = add(&driver, 0);
    let count = 1 << 16;
    let memory = Bytes::new(&driver, first, &vec![0; 4 * count]).expect("memory");
    let word = driver.allocate_pinned(64).expect("memory");
    for turn in 1..=20u64 {
        for stream in [first, second] {
            for _ in 0..3 {
                launch(&driver, function, memory.device, 0, count as u32, stream);
            }
            driver.record_event(event, stream).expect("recorded");
            let other = if stream == first { second } else { first };
            driver.stream_wait(other, event).expect("waits");
        }
        // SAFETY: a live word.
        unsafe { driver.write_value(word.device, turn, first) }.expect("enqueued");
    }
    // SAFETY: the word lives; the device writes it whole.
    let watched = unsafe { std::sync::atomic::AtomicU64::from_ptr(word.host.cast()) };
    driver.synchronize(first).expect("done");
    assert_eq!(watched.load(std::sync::atomic::Ordering::Acquire), 20);
    driver.synchronize_event(event).expect("done");
    assert!(driver.query_event(event).expect("known"));
    assert!(words(&memory.read().expect("read")).iter().all(|&found| found == 120));
    drop(memory);
    // SAFETY: idle.
    unsafe {
        driver.free_pinned(word);
        driver.destroy_event(event);
        driver.destroy_stream(first);
        driver.destroy_stream(second);
    }
    validated().expect("no messages");
}

#[test]
fn memory_is_counted_and_too_much_of_it_refused() {
    let Some(driver) = driver() else { return };
    let (free, total) = driver.memory().expect("known");
    assert!(0 < free && free <= total, "{free} of {total}");
    let bytes = (free / 4).min(64 << 20);
    let kept = driver.allocate(bytes).expect("there is room");
    assert!(kept.is_multiple_of(256));
    assert!(driver.memory().expect("known").0 <= free - bytes);
    let error = driver.allocate(total + 1).expect_err("more than there is");
    assert_eq!(error.status, Status::OutOfMemory);
    assert!(error.message.contains(&(total + 1).to_string()), "{error}");
    // SAFETY: unused.
    unsafe { driver.free(kept) };
    assert_eq!(driver.memory().expect("known").0, free);
}

#[test]
fn what_a_device_cannot_launch_is_refused_with_the_limit() {
    let Some(driver) = driver() else { return };
    let stream = driver.create_stream().expect("a stream");
    let function = add(&driver, 0);
    let params = [Param::Ptr(0), Param::Word(0)];
    let most = driver.facts().max_shared_bytes;
    for (block, word) in [
        ([1 << 20, 1, 1], "1048576"),
        ([32, 2, 1], "axis"),
        ([0, 1, 1], "0 threads"),
    ] {
        // SAFETY: refused before anything is recorded.
        let error = unsafe { driver.launch(function, [1, 1, 1], block, 0, &params, false, stream) };
        let error = error.expect_err("too many threads");
        assert!(error.message.contains(word), "{error}");
    }
    let text = KernelText {
        text: ADD,
        headers: NO_HEADERS,
    };
    let image = driver
        .compile("add", text, &["-DEXTRA=0".to_string()])
        .expect("it compiles");
    let module = driver.load(&image).expect("it loads");
    let error = driver
        .function(module, "add", most + 1)
        .expect_err("too much shared memory");
    assert!(error.message.contains(&most.to_string()), "{error}");
    assert!(driver.load(&image[..30]).is_err(), "a torn image");
    // SAFETY: idle.
    unsafe { driver.destroy_stream(stream) };
}

#[test]
fn commands_that_share_nothing_stand_side_by_side() {
    let Some(driver) = driver() else { return };
    let stream = driver.create_stream().expect("a stream");
    let (a, b) = (
        Bytes::new(&driver, stream, &[0; 64]).expect("memory"),
        Bytes::new(&driver, stream, &[0; 64]).expect("memory"),
    );
    let barriers = || {
        let mut found = 0;
        // SAFETY: a live stream.
        let core = unsafe { crate::stream::stream(stream) };
        core.record(|recorder, _| {
            found = recorder.barriers;
            Ok(())
        })
        .expect("a command buffer");
        found
    };
    // SAFETY: live memory of those sizes.
    unsafe {
        driver.fill(a.device, 7, 64, stream).expect("a fill");
        let first = barriers();
        driver.mark_independent(stream).expect("the mark reaches the recorder");
        driver.fill(b.device, 8, 64, stream).expect("a fill");
        assert_eq!(barriers(), first, "the fills share nothing");
        driver.copy(b.device, a.device, 32, stream).expect("a copy");
        assert_eq!(barriers(), first + 1, "the mark is for one command only");
    }
    let expected: Vec<u8> = [[7; 32], [8; 32]].concat();
    assert_eq!(b.read().expect("bytes"), expected);
}
