//! The shared memory of a hook's process: a ring of frames from the server to the child, and one answer at a time the
//! other way.
//!
//! Single producer, single consumer. Each side keeps its own position privately and publishes a copy; whatever it reads
//! of the other side is checked, because a hook with a wild pointer can write anywhere in this memory. The file is
//! sealed, so a child cannot shrink it under the server. A frame is `length, kind, sequence` and its payload, in whole
//! 8-byte words; it may wrap around the ring's end.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use halyard_platform_api::Status;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::thread::futex;

const MAGIC: u64 = u64::from_le_bytes(*b"halyrdh1");
/// Bytes of the ring: several batches of records with their texts. Memory is taken when it is first used.
pub(super) const RING_BYTES: usize = 1 << 20;
/// Longest text of an answer: the longest that a hook may show on the metrics route.
pub(super) const ANSWER_BYTES: usize = 16 << 20;
const FRAME_HEADER: usize = 16;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum FrameKind {
    /// JSON: library, name, configuration. Answered.
    Create = 1,
    /// One record, to be kept until `Deliver`. Not answered.
    Record = 2,
    /// Hands the kept records to the hook; nanoseconds it may take, records lost so far. Answered.
    Deliver = 3,
    /// Writes out what is held back; nanoseconds it may take. Answered.
    Flush = 4,
    /// Releases the hook; the child ends after its answer.
    End = 5,
    /// Text for the metrics route. Answered with it.
    Expose = 6,
}

impl FrameKind {
    fn from_code(code: u32) -> Option<FrameKind> {
        use FrameKind::{Create, Deliver, End, Expose, Flush, Record};
        [Create, Record, Deliver, Flush, End, Expose]
            .into_iter()
            .find(|kind| *kind as u32 == code)
    }
}

/// The first page. Producer's, consumer's and answer's fields stand on cache lines of their own.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    ring_bytes: AtomicU64,
    _pad0: [u64; 6],
    /// Bytes ever written by the server.
    tail: AtomicU64,
    /// Rises with each publication; the child sleeps on it.
    bell: AtomicU32,
    _pad1: [u32; 13],
    /// Bytes ever read by the child.
    head: AtomicU64,
    _pad2: [u64; 7],
    /// Sequence number of the frame that the answer below is for.
    answered: AtomicU64,
    status: AtomicU32,
    text_bytes: AtomicU32,
    vendor_code: AtomicI64,
    call_ns: AtomicU64,
}

const HEADER_BYTES: usize = 4096;
const TOTAL_BYTES: usize = HEADER_BYTES + RING_BYTES + ANSWER_BYTES;

/// The outcome of a hook's call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: Status,
    pub vendor_code: i64,
    pub text: String,
    /// Time in the hook itself, nanoseconds.
    pub call_ns: u64,
}

/// The mapping, at either end.
struct Shared {
    map: MmapRaw,
}

impl Shared {
    fn header(&self) -> &Header {
        // SAFETY: the mapping is TOTAL_BYTES long, page-aligned, lives as long as `self`, and the header has only
        // atomics and padding.
        unsafe { &*self.map.as_ptr().cast::<Header>() }
    }

    /// Copies `bytes` into the ring from byte `position` (ever written) on.
    fn write(&self, position: u64, bytes: &[u8]) {
        let at = (position % RING_BYTES as u64) as usize;
        let first = bytes.len().min(RING_BYTES - at);
        // SAFETY: `at + first` and the rest lie in the ring's part of the mapping; callers never pass more than
        // RING_BYTES. The other side does not read these bytes before they are published.
        unsafe {
            let ring = self.map.as_mut_ptr().add(HEADER_BYTES);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), ring.add(at), first);
            std::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), ring, bytes.len() - first);
        }
    }

    fn read(&self, position: u64, out: &mut [u8]) {
        let at = (position % RING_BYTES as u64) as usize;
        let first = out.len().min(RING_BYTES - at);
        // SAFETY: as in `write`; the producer leaves published bytes alone until `head` has passed them.
        unsafe {
            let ring = self.map.as_ptr().add(HEADER_BYTES);
            std::ptr::copy_nonoverlapping(ring.add(at), out.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(ring, out.as_mut_ptr().add(first), out.len() - first);
        }
    }
}

/// The server's end.
pub(super) struct Producer {
    shared: Shared,
    tail: u64,
    sequence: u64,
}

impl Producer {
    /// A new ring, and its file for the child.
    pub(super) fn create() -> io::Result<(Producer, OwnedFd)> {
        let file = rustix::fs::memfd_create("halyard-hook", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, TOTAL_BYTES as u64)?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let shared = map(file.as_fd())?;
        shared.header().ring_bytes.store(RING_BYTES as u64, Ordering::Relaxed);
        shared.header().magic.store(MAGIC, Ordering::Release);
        let producer = Producer {
            shared,
            tail: 0,
            sequence: 0,
        };
        Ok((producer, file))
    }

    /// Whether a frame with this payload fits into the free part of the ring.
    pub(super) fn fits(&self, payload_bytes: usize) -> Result<bool, Corrupt> {
        let head = self.shared.header().head.load(Ordering::Acquire);
        if head > self.tail || self.tail - head > RING_BYTES as u64 {
            return Err(Corrupt(format!(
                "its ring says that {head} of {} bytes were read",
                self.tail
            )));
        }
        Ok(frame_bytes(payload_bytes) <= RING_BYTES - (self.tail - head) as usize)
    }

    /// Writes a frame that fits; returns its sequence number. The child sees it with the next [`Producer::publish`].
    pub(super) fn write(&mut self, kind: FrameKind, payload: &[u8]) -> u64 {
        self.sequence += 1;
        let mut header = [0; FRAME_HEADER];
        header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&(kind as u32).to_le_bytes());
        header[8..].copy_from_slice(&self.sequence.to_le_bytes());
        self.shared.write(self.tail, &header);
        self.shared.write(self.tail + FRAME_HEADER as u64, payload);
        self.tail += frame_bytes(payload.len()) as u64;
        self.sequence
    }

    /// Shows the child what was written, and wakes it.
    pub(super) fn publish(&self) {
        let header = self.shared.header();
        header.tail.store(self.tail, Ordering::Release);
        header.bell.fetch_add(1, Ordering::Release);
        // It is fine if no thread sleeps, or if the child has gone.
        let _ = futex::wake(&header.bell, futex::Flags::empty(), 1);
    }

    /// The answer to frame `sequence`, once it is there.
    pub(super) fn answer(&self, sequence: u64) -> Result<Option<Answer>, Corrupt> {
        let header = self.shared.header();
        let answered = header.answered.load(Ordering::Acquire);
        if answered > sequence {
            return Err(Corrupt(format!(
                "it answered frame {answered} while {sequence} was the last"
            )));
        }
        if answered < sequence {
            return Ok(None);
        }
        let len = header.text_bytes.load(Ordering::Relaxed) as usize;
        if len > ANSWER_BYTES {
            return Err(Corrupt(format!("its answer says that it has {len} bytes")));
        }
        let mut text = vec![0; len];
        // SAFETY: at most ANSWER_BYTES, which lie in the mapping behind the ring; the child wrote them before it
        // published the answer.
        unsafe {
            let from = self.shared.map.as_ptr().add(HEADER_BYTES + RING_BYTES);
            std::ptr::copy_nonoverlapping(from, text.as_mut_ptr(), len);
        }
        Ok(Some(Answer {
            status: Status::from_code(header.status.load(Ordering::Relaxed)),
            vendor_code: header.vendor_code.load(Ordering::Relaxed),
            text: String::from_utf8_lossy(&text).into_owned(),
            call_ns: header.call_ns.load(Ordering::Relaxed),
        }))
    }
}

/// The child wrote something into the shared memory that cannot be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Corrupt(pub String);

/// A frame as the child gets it.
#[derive(Debug)]
pub(super) struct Frame {
    pub kind: FrameKind,
    pub sequence: u64,
    pub payload: Vec<u8>,
}

/// The child's end.
pub(super) struct Consumer {
    shared: Shared,
    head: u64,
    sequence: u64,
}

impl Consumer {
    /// The ring in `file`, which must be one that [`Producer::create`] made.
    pub(super) fn open(file: impl AsFd) -> io::Result<Consumer> {
        let size = rustix::fs::fstat(&file)?.st_size;
        if size != TOTAL_BYTES as i64 {
            return Err(io::Error::other(format!(
                "it has {size} bytes, a hook's ring {TOTAL_BYTES}"
            )));
        }
        let shared = map(file.as_fd())?;
        if shared.header().magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::other("it does not begin as a hook's ring"));
        }
        Ok(Consumer {
            shared,
            head: 0,
            sequence: 0,
        })
    }

    /// The next frame; sleeps until there is one.
    pub(super) fn next(&mut self) -> io::Result<Frame> {
        let header = self.shared.header();
        let available = loop {
            let bell = header.bell.load(Ordering::Acquire);
            let available = header.tail.load(Ordering::Acquire).wrapping_sub(self.head);
            if available != 0 {
                break available;
            }
            match futex::wait(&header.bell, futex::Flags::empty(), bell, None) {
                Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let mut head = [0; FRAME_HEADER];
        self.shared.read(self.head, &mut head);
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (len, code) = (word(0) as usize, word(4));
        let sequence = u64::from(word(8)) | u64::from(word(12)) << 32;
        let broken = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
        if available > RING_BYTES as u64 || frame_bytes(len) as u64 > available {
            return Err(broken(format!("a frame of {len} bytes among {available} written")));
        }
        if sequence != self.sequence + 1 {
            return Err(broken(format!("frame {sequence} came after frame {}", self.sequence)));
        }
        let kind = FrameKind::from_code(code).ok_or_else(|| broken(format!("a frame of the unknown kind {code}")))?;
        let mut payload = vec![0; len];
        self.shared.read(self.head + FRAME_HEADER as u64, &mut payload);
        self.head += frame_bytes(len) as u64;
        self.sequence = sequence;
        header.head.store(self.head, Ordering::Release);
        Ok(Frame {
            kind,
            sequence,
            payload,
        })
    }

    /// Publishes the answer to a frame. The caller rings the server's bell afterwards.
    pub(super) fn answer(&self, sequence: u64, answer: &Answer) {
        let header = self.shared.header();
        let mut len = answer.text.len().min(ANSWER_BYTES);
        while !answer.text.is_char_boundary(len) {
            len -= 1;
        }
        let text = &answer.text.as_bytes()[..len];
        // SAFETY: at most ANSWER_BYTES into the mapping's last part, which the server reads only after the store of
        // `answered` below.
        unsafe {
            let to = self.shared.map.as_mut_ptr().add(HEADER_BYTES + RING_BYTES);
            std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len());
        }
        header.text_bytes.store(text.len() as u32, Ordering::Relaxed);
        header.status.store(answer.status as u32, Ordering::Relaxed);
        header.vendor_code.store(answer.vendor_code, Ordering::Relaxed);
        header.call_ns.store(answer.call_ns, Ordering::Relaxed);
        header.answered.store(sequence, Ordering::Release);
    }
}

/// Bytes that a frame takes in the ring.
fn frame_bytes(payload_bytes: usize) -> usize {
    FRAME_HEADER + payload_bytes.next_multiple_of(8)
}

/// Largest payload of a frame.
pub(super) const MAX_PAYLOAD_BYTES: usize = RING_BYTES - FRAME_HEADER;

fn map(file: std::os::fd::BorrowedFd<'_>) -> io::Result<Shared> {
    use std::os::fd::AsRawFd as _;
    let map = MmapOptions::new().len(TOTAL_BYTES).map_raw(file.as_raw_fd())?;
    Ok(Shared { map })
}

#[cfg(test)]
mod tests {
    use super::{ANSWER_BYTES, Answer, Consumer, Corrupt, FrameKind, MAX_PAYLOAD_BYTES, Producer, RING_BYTES};
    use halyard_platform_api::Status;
    use std::sync::atomic::Ordering;

    fn pair() -> (Producer, Consumer) {
        let (producer, file) = Producer::create().expect("the system has memory files");
        let consumer = Consumer::open(&file).expect("the same file");
        (producer, consumer)
    }

    /// Bytes that depend on their place and on `seed`.
    fn pattern(seed: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| (seed.wrapping_mul(31) + i * 7) as u8).collect()
    }

    #[test]
    fn frames_of_all_lengths_arrive_in_order_across_the_rings_end() {
        let (mut producer, mut consumer) = pair();
        let mut bytes = 0;
        for round in 0..600u64 {
            let lens = [round as usize % 40, 7919 + round as usize % 17, 0];
            for (i, len) in lens.into_iter().enumerate() {
                assert_eq!(producer.fits(len), Ok(true));
                producer.write(FrameKind::Record, &pattern(round + i as u64, len));
                bytes += len;
            }
            producer.publish();
            for (i, len) in lens.into_iter().enumerate() {
                let frame = consumer.next().expect("a frame");
                assert_eq!(
                    (frame.kind, frame.sequence),
                    (FrameKind::Record, round * 3 + i as u64 + 1)
                );
                assert!(
                    frame.payload == pattern(round + i as u64, len),
                    "round {round}, frame {i}"
                );
            }
        }
        assert!(bytes > 4 * RING_BYTES, "only {bytes} bytes went through");
    }

    #[test]
    fn a_full_ring_says_so_until_the_child_has_read() {
        let (mut producer, mut consumer) = pair();
        assert_eq!(producer.fits(MAX_PAYLOAD_BYTES), Ok(true));
        assert_eq!(producer.fits(MAX_PAYLOAD_BYTES + 1), Ok(false));
        producer.write(FrameKind::Record, &pattern(1, MAX_PAYLOAD_BYTES));
        producer.publish();
        assert_eq!(producer.fits(0), Ok(false));
        assert_eq!(consumer.next().expect("a frame").payload.len(), MAX_PAYLOAD_BYTES);
        assert_eq!(producer.fits(MAX_PAYLOAD_BYTES), Ok(true));
    }

    #[test]
    fn whatever_a_child_writes_into_the_ring_is_room_an_answer_or_a_reason() {
        let (mut producer, consumer) = pair();
        producer.write(FrameKind::Record, &pattern(1, 1000));
        let sequence = producer.write(FrameKind::Record, &pattern(2, 50));
        producer.publish();
        let header = consumer.shared.header();
        let mut seed = 7_u64;
        let mut next = || {
            seed = seed
                .wrapping_mul(0x5851_F42D_4C95_7F2D)
                .wrapping_add(0x1405_7B7E_F767_814F);
            let bits = seed >> 33;
            [0, 1, bits % 2000, bits << 33, u64::MAX, u64::MAX - bits % 2000][(bits % 6) as usize]
        };
        let (mut answers, mut reasons) = (0, 0);
        for _ in 0..20_000 {
            header.head.store(next(), Ordering::Relaxed);
            header.answered.store(next().min(sequence + 1), Ordering::Relaxed);
            header.text_bytes.store(next() as u32, Ordering::Relaxed);
            header.status.store(next() as u32, Ordering::Relaxed);
            let fits = producer.fits((next() % 9000) as usize);
            let answer = producer.answer(sequence);
            answers += usize::from(matches!(answer, Ok(Some(_))));
            reasons += usize::from(fits.is_err()) + usize::from(answer.is_err());
        }
        assert!(answers > 0 && reasons > 0, "{answers} answers, {reasons} reasons");
    }

    #[test]
    fn an_answer_belongs_to_its_frame_and_a_long_text_is_cut_between_characters() {
        let (mut producer, mut consumer) = pair();
        let sequence = producer.write(FrameKind::Flush, &[]);
        producer.publish();
        assert_eq!(producer.answer(sequence), Ok(None));
        let frame = consumer.next().expect("a frame");
        let long = Answer {
            status: Status::Timeout,
            vendor_code: -7,
            text: format!("x{}", "ü".repeat(ANSWER_BYTES / 2)),
            call_ns: 12,
        };
        consumer.answer(frame.sequence, &long);
        let answer = producer.answer(sequence).expect("sound").expect("there");
        assert_eq!(
            (answer.status, answer.vendor_code, answer.call_ns),
            (Status::Timeout, -7, 12)
        );
        assert_eq!(answer.text.len(), ANSWER_BYTES - 1);
        assert!(answer.text.ends_with('ü'));
    }

    #[test]
    fn what_a_wild_child_writes_is_found_and_named() {
        let (mut producer, consumer) = pair();
        let sequence = producer.write(FrameKind::Flush, &[]);
        let header = consumer.shared.header();
        header.head.store(1 << 40, Ordering::Relaxed);
        assert!(matches!(producer.fits(0), Err(Corrupt(words)) if words.contains("1099511627776")));
        header.answered.store(sequence + 5, Ordering::Relaxed);
        assert!(matches!(producer.answer(sequence), Err(Corrupt(words)) if words.contains("frame 6")));
        header.answered.store(sequence, Ordering::Relaxed);
        header.text_bytes.store(u32::MAX, Ordering::Relaxed);
        assert!(matches!(producer.answer(sequence), Err(Corrupt(words)) if words.contains("4294967295")));
    }

    #[test]
    fn another_file_is_no_ring() {
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let error = Consumer::open(&file).map(|_| ()).expect_err("not a ring");
        assert!(error.to_string().contains("bytes, a hook's ring"), "{error}");
    }

    #[test]
    fn the_file_cannot_be_shrunk_under_the_server() {
        let (_, file) = Producer::create().expect("a ring");
        assert_eq!(rustix::fs::ftruncate(&file, 0), Err(rustix::io::Errno::PERM));
    }
}
