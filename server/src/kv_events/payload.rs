//! A batch of events in vLLM 0.33's msgpack: an array of time, events and data parallel rank, and each event a map with
//! its `type`. Fields that vLLM leaves out where they have nothing to say are left out here too.

use halyard_engine::{KvBlockHash, KvEvent, KvMedium, KvStored};
use rmp::encode::{RmpWrite, write_array_len, write_bin, write_f64, write_map_len, write_nil, write_str, write_uint};

/// vLLM's words for where blocks are: a device's own cache is its `GPU` on every platform.
fn word_of(medium: KvMedium) -> &'static str {
    match medium {
        KvMedium::Device => "GPU",
        KvMedium::Host => "CPU",
    }
}

/// How batches are written.
#[derive(Clone, Copy, Debug)]
pub struct Payload {
    /// Blocks are named by the last 64 bits of their hash, as vLLM does by default; else by its 32 bytes.
    pub int_hashes: bool,
    /// The data parallel rank.
    pub rank: u32,
}

/// Writing into a vector cannot fail.
type Out = Vec<u8>;

impl Payload {
    /// A batch at `ts`, seconds since 1970.
    pub fn encode(&self, ts: f64, events: &[KvEvent]) -> Vec<u8> {
        let mut out = Vec::new();
        // The writer's errors are those of the vector, which has none.
        let _ = self.write(&mut out, ts, events);
        out
    }

    fn write(&self, out: &mut Out, ts: f64, events: &[KvEvent]) -> Result<(), Error> {
        write_array_len(out, 3)?;
        write_f64(out, ts)?;
        write_array_len(out, events.len() as u32)?;
        for event in events {
            match event {
                KvEvent::Stored(stored) => self.stored(out, stored)?,
                KvEvent::Removed { group, hash, medium } => {
                    write_map_len(out, 4)?;
                    text(out, "type", "BlockRemoved")?;
                    write_str(out, "block_hashes")?;
                    self.hashes(out, std::slice::from_ref(hash))?;
                    text(out, "medium", word_of(*medium))?;
                    write_str(out, "group_idx")?;
                    write_uint(out, u64::from(*group))?;
                }
                KvEvent::Cleared => {
                    write_map_len(out, 1)?;
                    text(out, "type", "AllBlocksCleared")?;
                }
            }
        }
        write_uint(out, u64::from(self.rank))?;
        Ok(())
    }

    fn stored(&self, out: &mut Out, stored: &KvStored) -> Result<(), Error> {
        write_map_len(out, 11 + u32::from(stored.window.is_some()))?;
        text(out, "type", "BlockStored")?;
        write_str(out, "block_hashes")?;
        self.hashes(out, &stored.hashes)?;
        write_str(out, "parent_block_hash")?;
        match &stored.parent {
            Some(parent) => self.hash(out, parent)?,
            None => nil(out)?,
        }
        write_str(out, "token_ids")?;
        write_array_len(out, stored.tokens.len() as u32)?;
        for token in &stored.tokens {
            write_uint(out, u64::from(*token))?;
        }
        write_str(out, "block_size")?;
        write_uint(out, u64::from(stored.block_size))?;
        write_str(out, "lora_id")?;
        match &stored.lora {
            Some((number, _)) => drop(write_uint(out, u64::from(*number))?),
            None => nil(out)?,
        }
        text(out, "medium", word_of(stored.medium))?;
        write_str(out, "lora_name")?;
        match &stored.lora {
            Some((_, name)) => write_str(out, name)?,
            None => nil(out)?,
        }
        write_str(out, "extra_keys")?;
        extra_keys(out, stored)?;
        write_str(out, "group_idx")?;
        write_uint(out, u64::from(stored.group))?;
        let spec = if stored.window.is_some() {
            "sliding_window"
        } else {
            "full_attention"
        };
        text(out, "kv_cache_spec_kind", spec)?;
        if let Some(window) = stored.window {
            write_str(out, "kv_cache_spec_sliding_window")?;
            write_uint(out, u64::from(window))?;
        }
        Ok(())
    }

    fn hashes(&self, out: &mut Out, hashes: &[KvBlockHash]) -> Result<(), Error> {
        write_array_len(out, hashes.len() as u32)?;
        hashes.iter().try_for_each(|hash| self.hash(out, hash))
    }

    fn hash(&self, out: &mut Out, hash: &KvBlockHash) -> Result<(), Error> {
        match hash.last_chunk::<8>() {
            Some(low) if self.int_hashes => write_uint(out, u64::from_be_bytes(*low)).map(drop),
            _ => write_bin(out, hash),
        }
    }
}

type Error = rmp::encode::ValueWriteError<<Out as RmpWrite>::Error>;

fn nil(out: &mut Out) -> Result<(), Error> {
    write_nil(out).map_err(Error::InvalidMarkerWrite)
}

fn text(out: &mut Out, key: &str, value: &str) -> Result<(), Error> {
    write_str(out, key)?;
    write_str(out, value)
}

/// What else the names of the blocks cover, one entry a block: the adapter's name, and the salt for the first block of
/// a sequence.
fn extra_keys(out: &mut Out, stored: &KvStored) -> Result<(), Error> {
    write_array_len(out, stored.hashes.len() as u32)?;
    for index in 0..stored.hashes.len() {
        let begins = index == 0 && stored.parent.is_none();
        let salt = stored.salt.as_deref().filter(|_| begins);
        let name = stored.lora.as_ref().map(|(_, name)| &**name);
        match u32::from(name.is_some()) + u32::from(salt.is_some()) {
            0 => nil(out)?,
            keys => drop(write_array_len(out, keys)?),
        }
        if let Some(name) = name {
            write_str(out, name)?;
        }
        if let Some(salt) = salt {
            // Salts come as text.
            write_str(out, &String::from_utf8_lossy(salt))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// What msgspec 0.22 makes of the same batches with the classes of vLLM 0.33's own vllm/distributed/kv_events.py.
    const VLLM: &str = concat!(
        "93cb3ff800000000000094de000ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cf010101010101",
        "0101cf0202020202020202b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401cd012cce0001117004aa",
        "626c6f636b5f73697a6502a76c6f72615f696407a66d656469756da3475055a96c6f72615f6e616d65a66672656e6368aa657874",
        "72615f6b6579739292a66672656e6368a674656e616e7491a66672656e6368a967726f75705f69647800b26b765f63616368655f",
        "737065635f6b696e64ae66756c6c5f617474656e74696f6ede000ca474797065ab426c6f636b53746f726564ac626c6f636b5f68",
        "617368657391cf0303030303030303b1706172656e745f626c6f636b5f68617368cf0202020202020202a9746f6b656e5f696473",
        "920506aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa6578747261",
        "5f6b65797391c0a967726f75705f69647801b26b765f63616368655f737065635f6b696e64ae736c6964696e675f77696e646f77",
        "bc6b765f63616368655f737065635f736c6964696e675f77696e646f77cd020084a474797065ac426c6f636b52656d6f766564ac",
        "626c6f636b5f68617368657391cf0101010101010101a66d656469756da3475055a967726f75705f6964780081a474797065b041",
        "6c6c426c6f636b73436c656172656400",
    );
    const VLLM_BYTES: &str = concat!(
        "93cb3ff80000000000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391c420090909090909",
        "0909090909090909090909090909090909090909090909090909a66d656469756da3475055a967726f75705f6964780000",
    );

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Msgspec begins a map of which fields may be missing with its size in 16 bits; the shorter way is msgpack's own.
    fn shortest(hex: &str) -> String {
        hex.replace("94de000b", "948b").replace("6ede000c", "6e8c")
    }

    #[test]
    fn batches_are_vllms_to_the_byte() {
        let first = KvStored {
            medium: KvMedium::Device,
            group: 0,
            hashes: vec![[1; 32], [2; 32]],
            parent: None,
            tokens: vec![1, 300, 70000, 4],
            block_size: 2,
            window: None,
            lora: Some((7, Arc::from("french"))),
            salt: Some(Arc::from(&b"tenant"[..])),
        };
        let second = KvStored {
            medium: KvMedium::Device,
            group: 1,
            hashes: vec![[3; 32]],
            parent: Some([2; 32]),
            tokens: vec![5, 6],
            block_size: 2,
            window: Some(512),
            lora: None,
            // It is told for the first block of a sequence only.
            salt: Some(Arc::from(&b"tenant"[..])),
        };
        let events = [
            KvEvent::Stored(first),
            KvEvent::Stored(second),
            KvEvent::Removed {
                group: 0,
                hash: [1; 32],
                medium: KvMedium::Device,
            },
            KvEvent::Cleared,
        ];
        let payload = |int_hashes| Payload { int_hashes, rank: 0 };
        assert_eq!(hex(&payload(true).encode(1.5, &events)), shortest(VLLM));
        let removed = [KvEvent::Removed {
            group: 0,
            hash: [9; 32],
            medium: KvMedium::Device,
        }];
        assert_eq!(hex(&payload(false).encode(1.5, &removed)), VLLM_BYTES);
    }

    #[test]
    fn blocks_in_host_memory_are_on_the_cpu() {
        let (group, hash, medium) = (0, [1; 32], KvMedium::Host);
        let stored = KvStored {
            medium,
            group,
            hashes: vec![hash],
            parent: None,
            tokens: Vec::new(),
            block_size: 16,
            window: None,
            lora: None,
            salt: None,
        };
        let events = [KvEvent::Stored(stored), KvEvent::Removed { group, hash, medium }];
        let payload = Payload {
            int_hashes: true,
            rank: 0,
        };
        let bytes = hex(&payload.encode(1.5, &events));
        assert_eq!(bytes.matches(&hex(b"\xa6medium\xa3CPU")).count(), 2, "{bytes}");
        assert!(bytes.contains(&hex(b"\xa9token_ids\x90")), "{bytes}");
    }
}
