//! Freed memory that goes back to the system. glibc keeps what it was given, by thread and in pieces: bodies of one
//! kind after another would each add to it.

/// Gives the system what the allocator holds and does not use. Takes some milliseconds; does nothing where the C
/// library is not glibc.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: takes the allocator's own locks; any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(test, target_os = "linux", target_env = "gnu"))]
mod tests {
    use super::*;

    /// Resident bytes of this process (proc(5): the second word of statm, in pages).
    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").expect("proc");
        let pages: usize = text
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok())
            .expect("a number");
        pages * rustix::param::page_size()
    }

    #[test]
    fn freed_pieces_between_kept_ones_go_back() {
        let shrinks = || {
            // Too small for mappings of their own, each second one kept: the heap cannot shrink from its end.
            let mut pieces: Vec<Option<Vec<u8>>> = (0..4000).map(|_| Some(vec![1; 64 << 10])).collect();
            pieces.iter_mut().step_by(2).for_each(|piece| *piece = None);
            let before = resident();
            give_back();
            let after = resident();
            assert_eq!(pieces.iter().flatten().count(), 2000);
            after + (64 << 20) < before
        };
        // Other tests of this process take memory meanwhile, or give freed memory back before.
        assert!((0..20).any(|_| shrinks()), "nothing went back");
    }
}
