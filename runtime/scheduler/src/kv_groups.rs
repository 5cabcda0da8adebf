//! Block tables over the one pool: how each kind of KV group takes, frees, shares and finds blocks. A request must
//! never write a block that another table names, and a block that a step in flight may read must not be freed.

use crate::block_pool::BlockPool;
use crate::block_table::BlockTable;
use crate::config::{KvGroup, KvKind, SchedulerConfig};
use crate::host_tier::HostTier;
use crate::ids::{BlockId, HostBlockId};
use crate::kv_events::{self, KvBlockHash, KvEventLog, KvMedium, KvStored};
use crate::prefix_cache::{CacheKey, PrefixCache, block_hash, root_hash};
use crate::request::Request;

#[derive(Debug)]
struct Group {
    spec: KvGroup,
    /// Which hash chain its block size uses.
    chain: usize,
}

/// Where a block's content was found.
#[derive(Debug, Clone, Copy)]
enum Found {
    Device(BlockId),
    Host(HostBlockId),
}

/// Which tiers a prefix is looked for in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tiers {
    Device,
    DeviceAndHost,
}

/// Pool, prefix cache and the groups' rules.
#[derive(Debug)]
pub(crate) struct KvCache {
    groups: Vec<Group>,
    chain_sizes: Vec<u32>,
    /// Groups in the order in which a prefix is looked for: full ones first, which stop at the first block that is not
    /// cached, so that windows are not looked for behind it.
    search_order: Vec<usize>,
    pub(crate) pool: BlockPool,
    pub(crate) cache: PrefixCache,
    enable_prefix_caching: bool,
    /// A hit ends on a block border of every group, so on a multiple of this.
    alignment: u64,
    hash_key: [u64; 2],
    epoch: u64,
    /// The second tier, where there is one.
    pub(crate) host: Option<HostTier>,
    /// Where somebody listens.
    pub(crate) events: Option<KvEventLog>,
}

impl KvCache {
    pub(crate) fn new(config: &SchedulerConfig) -> Self {
        let mut chain_sizes: Vec<u32> = Vec::new();
        let mut groups = Vec::new();
        for spec in &config.groups {
            let chain = chain_sizes
                .iter()
                .position(|size| *size == spec.block_size)
                .unwrap_or_else(|| {
                    chain_sizes.push(spec.block_size);
                    chain_sizes.len() - 1
                });
            groups.push(Group { spec: *spec, chain });
        }
        let (mut search_order, windows): (Vec<usize>, Vec<usize>) =
            (0..groups.len()).partition(|index| groups[*index].spec.kind == KvKind::Full);
        search_order.extend(windows);
        Self {
            groups,
            search_order,
            alignment: chain_sizes
                .iter()
                .fold(1, |acc, size| least_common_multiple(acc, u64::from(*size))),
            chain_sizes,
            pool: BlockPool::new(config.num_blocks),
            cache: PrefixCache::new(if config.enable_prefix_caching {
                config.num_blocks
            } else {
                0
            }),
            enable_prefix_caching: config.enable_prefix_caching,
            hash_key: config.hash_key,
            epoch: 0,
            host: (config.num_host_blocks > 0 && config.enable_prefix_caching)
                .then(|| HostTier::new(config.num_host_blocks, config.enable_kv_cache_events)),
            events: (config.enable_kv_cache_events && config.enable_prefix_caching)
                .then(|| KvEventLog::new(config.num_blocks)),
        }
    }

    pub(crate) fn empty_tables(&self) -> Vec<BlockTable> {
        vec![BlockTable::default(); self.groups.len()]
    }

    pub(crate) fn group_spec(&self, group: usize) -> &KvGroup {
        &self.groups[group].spec
    }

    /// Blocks that the tables lack to hold `num_tokens` tokens.
    pub(crate) fn missing_blocks(&self, tables: &[BlockTable], num_tokens: u32) -> u32 {
        let missing = |(group, table): (&Group, &BlockTable)| {
            num_tokens.div_ceil(group.spec.block_size).saturating_sub(table.end())
        };
        self.groups.iter().zip(tables).map(missing).sum()
    }

    /// Takes the blocks that one group's table lacks to hold `num_tokens` tokens; the caller has asked
    /// [`Self::missing_blocks`] first. The new entries are the table's last ones.
    pub(crate) fn grow(&mut self, group: usize, table: &mut BlockTable, num_tokens: u32) {
        let end = num_tokens.div_ceil(self.groups[group].spec.block_size);
        while table.end() < end {
            let Some(block) = self.take_block(true) else {
                debug_assert!(false, "grow is called after missing_blocks");
                return;
            };
            table.blocks.push(block);
        }
    }

    /// A free block with one owner, no longer to be found on the device. With `offload` the next step moves what it
    /// held to the second tier; without, for an owner that may write it before a step runs, that is lost.
    pub(crate) fn take_block(&mut self, offload: bool) -> Option<BlockId> {
        let (block, forgotten) = self.pool.take()?;
        if let Some(key) = forgotten {
            self.cache.remove(key);
            if let Some(events) = &mut self.events {
                events.removed(key.group, block);
            }
            if let Some(host) = self.host.as_mut().filter(|_| offload) {
                let spec = &self.groups[key.group as usize].spec;
                host.store(key, block, self.events.as_mut().map(|events| (events, spec)));
            }
        }
        Some(block)
    }

    /// Frees what lies wholly in front of every window. `num_computed` is the exact count: queries of all steps in
    /// flight stand at that position or later, so none of them reads the freed blocks.
    pub(crate) fn trim_windows(&mut self, tables: &mut [BlockTable], num_computed: u32) {
        for (group, table) in self.groups.iter().zip(tables) {
            let first = first_needed_block(&group.spec, num_computed).min(table.end());
            if first > table.first {
                for block in table.blocks.drain(..(first - table.first) as usize) {
                    self.pool.release(block);
                }
                table.first = first;
            }
        }
    }

    /// Frees all blocks. The last ones go first, so that they are reused first and prefixes stay findable.
    pub(crate) fn free_tables(&mut self, tables: &mut [BlockTable]) {
        for table in tables {
            for block in table.blocks.drain(..).rev() {
                self.pool.release(block);
            }
            table.first = 0;
            table.num_published = 0;
            table.published = None;
        }
    }

    /// Brings a hash chain of the request up to its first `num_blocks` blocks, which must be full of known tokens.
    fn extend_chain(&self, request: &mut Request, chain: usize, num_blocks: u32) {
        request.chains.resize_with(self.chain_sizes.len(), Vec::new);
        let (size, start) = (self.chain_sizes[chain], request.chains[chain].len());
        if start >= num_blocks as usize {
            return;
        }
        let mut parent = match request.chains[chain].last() {
            Some(hash) => *hash,
            None => root_hash(self.hash_key, size, request.lora, request.cache_salt.as_deref()),
        };
        for block in start..num_blocks as usize {
            let tokens = request.tokens_from(block * size as usize).take(size as usize);
            parent = block_hash(self.hash_key, parent, tokens);
            request.chains[chain].push(parent);
        }
    }

    /// The longest prefix of at most `limit` tokens that every group can serve from the cache. At least one known token
    /// stays to be computed: without it there would be nothing to sample from. Only the blocks that are found, and the
    /// one behind them, are hashed, so a prompt that is not cached costs one hash.
    pub(crate) fn find_prefix(&self, request: &mut Request, limit: u32, tiers: Tiers) -> u32 {
        if !self.enable_prefix_caching || !request.cacheable {
            return 0;
        }
        let mut length = self.align(u64::from((request.num_known() - 1).min(limit)));
        // Every group can only shorten the prefix; again until all of them agree.
        loop {
            let before = length;
            for &index in &self.search_order {
                length = self.longest_in_group(index, request, length, tiers);
            }
            if length == before || self.groups.len() == 1 {
                return length as u32;
            }
        }
    }

    /// The longest prefix of at most `limit` tokens that this group can serve.
    fn longest_in_group(&self, index: usize, request: &mut Request, limit: u64, tiers: Tiers) -> u64 {
        let is_found = |request: &Request, block: u32| match self.find_block(index, request, block) {
            Some(Found::Device(_)) => true,
            Some(Found::Host(_)) => tiers == Tiers::DeviceAndHost,
            None => false,
        };
        let group = &self.groups[index];
        let block_size = u64::from(group.spec.block_size);
        match group.spec.kind {
            KvKind::Full => {
                let mut hits = 0;
                while hits < limit / block_size {
                    self.extend_chain(request, group.chain, hits as u32 + 1);
                    if !is_found(request, hits as u32) {
                        break;
                    }
                    hits += 1;
                }
                self.align(hits * block_size)
            }
            KvKind::Window { .. } => {
                self.extend_chain(request, group.chain, (limit / block_size) as u32);
                // From the right: a missing block inside the window moves the border in front of that block.
                let mut length = limit;
                let mut block = length / block_size;
                while block > u64::from(first_needed_block(&group.spec, length as u32)) {
                    block -= 1;
                    if !is_found(request, block as u32) {
                        length = self.align(block * block_size);
                        block = length / block_size;
                    }
                }
                length
            }
        }
    }

    /// A hit ends on a multiple of this; saturated.
    pub(crate) fn alignment(&self) -> u32 {
        u32::try_from(self.alignment).unwrap_or(u32::MAX)
    }

    fn align(&self, tokens: u64) -> u64 {
        tokens - tokens % self.alignment
    }

    fn find_block(&self, group: usize, request: &Request, block: u32) -> Option<Found> {
        let key = self.key_of(group, request, block)?;
        let on_host = || self.host.as_ref()?.find(key).map(Found::Host);
        self.cache.find(key).map(Found::Device).or_else(on_host)
    }

    /// The name of a block of known tokens, if the chain reaches it.
    fn key_of(&self, group: usize, request: &Request, block: u32) -> Option<CacheKey> {
        let hash = *request.chains[self.groups[group].chain].get(block as usize)?;
        Some(CacheKey {
            group: group as u32,
            hash,
        })
    }

    /// Blocks behind a hit of `length` tokens in one group: entry, and where it was found.
    fn hits<'a>(&'a self, group: usize, request: &'a Request, length: u32) -> impl Iterator<Item = (u32, Found)> + 'a {
        let spec = &self.groups[group].spec;
        (first_needed_block(spec, length)..length / spec.block_size)
            .filter_map(move |block| Some((block, self.find_block(group, request, block)?)))
    }

    /// Free blocks that must be there to admit the request with a hit of `hit` tokens and a first chunk up to
    /// `chunk_end` tokens: the hits that no request owns, and the new blocks of all known tokens. It takes only its
    /// first chunk's blocks now, but a prompt that is known not to fit would only be preempted half-way.
    pub(crate) fn admission_cost(&self, config: &SchedulerConfig, request: &Request, hit: u32, chunk_end: u32) -> u64 {
        let mut cost = 0;
        for (index, group) in self.groups.iter().enumerate() {
            let (mut hits, mut idle_hits) = (0, 0);
            for (_, found) in self.hits(index, request, hit) {
                hits += 1;
                idle_hits += u64::from(match found {
                    Found::Device(block) => self.pool.ref_count(block) == 0,
                    // It takes a free block, too.
                    Found::Host(_) => true,
                });
            }
            let chunk = u64::from(chunk_end.div_ceil(group.spec.block_size) - hit / group.spec.block_size);
            let whole = config.group_blocks_for(&group.spec, request.num_known());
            cost += chunk.max(whole.saturating_sub(hits)) + idle_hits;
        }
        cost
    }

    /// Puts the blocks behind a hit of `length` tokens into the request's empty tables, as one more owner.
    pub(crate) fn adopt_prefix(&mut self, request: &mut Request, length: u32) {
        request.cache_epoch = self.epoch;
        let hits: Vec<Vec<(u32, Found)>> = (0..self.groups.len())
            .map(|group| self.hits(group, request, length).collect())
            .collect();
        // All of them first: a block that is taken for a copy must be none of these.
        for (_, found) in hits.iter().flatten() {
            match (found, &mut self.host) {
                (Found::Device(block), _) => self.pool.add_ref(*block),
                (Found::Host(host), Some(tier)) => tier.touch(*host),
                (Found::Host(_), None) => debug_assert!(false, "there is no second tier"),
            }
        }
        for (group, hits) in hits.iter().enumerate() {
            let names = self.names_of_loads(group, request, hits);
            for (entry, found) in hits {
                let block = match found {
                    Found::Device(block) => Some(*block),
                    Found::Host(host) => self.load_block(group, request, *entry, *host),
                };
                let Some(block) = block else {
                    debug_assert!(false, "adopt_prefix is called after admission_cost");
                    return;
                };
                if let (Found::Host(_), Some(events)) = (found, &mut self.events) {
                    events.set_name(block, names[*entry as usize]);
                }
                request.tables[group].blocks.push(block);
            }
            self.note_loaded(group, request, hits, &names);
            let spec = self.groups[group].spec;
            let table = &mut request.tables[group];
            table.first = first_needed_block(&spec, length);
            table.num_published = length / spec.block_size;
            debug_assert_eq!(table.end(), table.num_published);
            if let Some(events) = &self.events {
                table.published = table.blocks.last().map(|block| events.name(*block));
            }
        }
    }

    /// A block that the next step fills from the second tier, with one owner; it can be found from now on, as whoever
    /// finds it reads it in that step or a later one.
    fn load_block(&mut self, group: usize, request: &Request, entry: u32, host: HostBlockId) -> Option<BlockId> {
        let key = self.key_of(group, request, entry)?;
        let block = self.take_block(true)?;
        self.host.as_mut()?.load(host, block);
        if self.cache.insert(key, block) {
            self.pool.set_cache_key(block, Some(key));
        }
        Some(block)
    }

    /// Where events are kept and a block comes from the second tier: the names of the request's blocks up to the last
    /// hit. They are computed, as only the last block's name is known otherwise, and a listener wants its parent's.
    fn names_of_loads(&self, group: usize, request: &Request, hits: &[(u32, Found)]) -> Vec<KvBlockHash> {
        let is_host = |(_, found): &(u32, Found)| matches!(found, Found::Host(_));
        let Some((last, _)) = hits
            .last()
            .filter(|_| self.events.is_some() && hits.iter().any(is_host))
        else {
            return Vec::new();
        };
        let spec = &self.groups[group].spec;
        let (lora, salt) = (request.lora_name.as_deref(), request.cache_salt.as_deref());
        let size = spec.block_size as usize;
        let mut name = kv_events::root(spec.block_size, lora, salt);
        let child = |entry: u32| {
            let tokens: Vec<u32> = request.tokens_from(entry as usize * size).take(size).collect();
            name = kv_events::child(&name, &tokens);
            name
        };
        (0..=*last).map(child).collect()
    }

    /// Notes the blocks that come from the second tier, those in a row as one event.
    fn note_loaded(&mut self, group: usize, request: &Request, hits: &[(u32, Found)], names: &[KvBlockHash]) {
        let Some(events) = &mut self.events else { return };
        let spec = &self.groups[group].spec;
        let mut open: Option<KvStored> = None;
        for (entry, found) in hits {
            let Found::Host(_) = found else {
                open.take().into_iter().for_each(|run| events.stored(run));
                continue;
            };
            let parent = entry.checked_sub(1).map(|before| names[before as usize]);
            let run = open.get_or_insert_with(|| new_run(group, spec, request, parent));
            let size = spec.block_size as usize;
            run.hashes.push(names[*entry as usize]);
            run.tokens
                .extend(request.tokens_from(*entry as usize * size).take(size));
        }
        open.into_iter().for_each(|run| events.stored(run));
    }

    /// Makes the full blocks of exactly computed tokens findable. They are hashed here, so that each step pays for its
    /// own tokens.
    pub(crate) fn publish(&mut self, request: &mut Request) {
        if !self.enable_prefix_caching || request.cache_epoch != self.epoch {
            return;
        }
        for index in 0..self.groups.len() {
            let (chain, block_size) = (self.groups[index].chain, self.groups[index].spec.block_size);
            let full = request.num_computed / block_size;
            self.extend_chain(request, chain, full);
            if self.events.is_some() {
                self.note_stored(request, index, full);
            }
            let table = &mut request.tables[index];
            for entry in table.num_published.max(table.first)..full {
                let block = table.blocks[(entry - table.first) as usize];
                let key = CacheKey {
                    group: index as u32,
                    hash: request.chains[chain][entry as usize],
                };
                if self.cache.insert(key, block) {
                    self.pool.set_cache_key(block, Some(key));
                }
            }
            table.num_published = table.num_published.max(full);
        }
    }

    /// Makes the blocks of the request's known tokens unfindable, those that others computed as well.
    pub(crate) fn forget(&mut self, request: &mut Request) {
        if !self.enable_prefix_caching {
            return;
        }
        for index in 0..self.groups.len() {
            let (chain, block_size) = (self.groups[index].chain, self.groups[index].spec.block_size);
            self.extend_chain(request, chain, request.num_known() / block_size);
            for &hash in &request.chains[chain] {
                let key = CacheKey {
                    group: index as u32,
                    hash,
                };
                if let Some(block) = self.cache.find(key) {
                    self.cache.remove(key);
                    self.pool.set_cache_key(block, None);
                    if let Some(events) = &mut self.events {
                        events.removed(key.group, block);
                    }
                }
                if let Some(host) = &mut self.host {
                    host.forget(key, self.events.as_mut());
                }
            }
        }
    }

    /// Notes the blocks of one group that [`Self::publish`] is about to make findable, those in a row as one event. A
    /// block whose content another one already stands for is none of them.
    fn note_stored(&mut self, request: &mut Request, index: usize, full: u32) {
        let Some(events) = &mut self.events else { return };
        let Group { spec, chain } = &self.groups[index];
        let (group, size) = (index as u32, spec.block_size as usize);
        let table = &request.tables[index];
        let (lora, salt) = (request.lora_name.as_ref(), request.cache_salt.as_ref());
        let mut parent = table.published;
        let mut open: Option<KvStored> = None;
        for entry in table.num_published..full {
            let tokens: Vec<u32> = request.tokens_from(entry as usize * size).take(size).collect();
            let root = || kv_events::root(spec.block_size, lora.map(|name| &**name), salt.map(|salt| &**salt));
            let hash = kv_events::child(&parent.unwrap_or_else(root), &tokens);
            let key = CacheKey {
                group,
                hash: request.chains[*chain][entry as usize],
            };
            // Blocks in front of a window are gone; another block may have the content already.
            let block = entry.checked_sub(table.first).map(|at| table.blocks[at as usize]);
            match block.filter(|_| self.cache.find(key).is_none()) {
                None => open.take().into_iter().for_each(|run| events.stored(run)),
                Some(block) => {
                    events.set_name(block, hash);
                    let run = open.get_or_insert_with(|| new_run(index, spec, request, parent));
                    run.hashes.push(hash);
                    run.tokens.extend(tokens);
                }
            }
            parent = Some(hash);
        }
        open.into_iter().for_each(|run| events.stored(run));
        request.tables[index].published = parent;
    }

    /// Forgets all cached content of both tiers; blocks of requests that run now are never published again.
    pub(crate) fn reset_prefix_cache(&mut self) -> usize {
        self.epoch += 1;
        let on_host = self.host.as_mut().map_or(0, HostTier::clear);
        let forgotten = self.cache.len() + on_host;
        self.cache.clear(|block| self.pool.set_cache_key(block, None));
        if let Some(events) = &mut self.events {
            events.cleared();
        }
        forgotten
    }
}

/// A run of blocks on the device behind `parent`, without a block yet.
fn new_run(group: usize, spec: &KvGroup, request: &Request, parent: Option<KvBlockHash>) -> KvStored {
    KvStored {
        medium: KvMedium::Device,
        group: group as u32,
        hashes: Vec::new(),
        parent,
        tokens: Vec::new(),
        block_size: spec.block_size,
        window: kv_events::window_of(spec),
        lora: request.lora.zip(request.lora_name.clone()),
        salt: request.cache_salt.clone(),
    }
}

/// First block that the query at position `next` or a later one reads.
pub(crate) fn first_needed_block(spec: &KvGroup, next: u32) -> u32 {
    match spec.kind {
        KvKind::Full => 0,
        KvKind::Window { tokens } => (next + 1).saturating_sub(tokens) / spec.block_size,
    }
}

/// Saturates: a multiple beyond any sequence means that no prefix ends on all borders.
fn least_common_multiple(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    (a / x).saturating_mul(b)
}
