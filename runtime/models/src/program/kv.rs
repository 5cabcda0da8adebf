//! KV groups: layers with equal needs share a block table, and all groups share one pool of equal pages.
//!
//! A page holds one block of each layer of a group. Groups must have equally many layers for that, so each kind of
//! layer is cut into groups as large as the rarest kind (Gemma 3: five sliding groups of three layers and one full
//! group); a group that comes out short leaves the rest of its pages unused.

use crate::config::ModelDescription;

/// A group of layers over one block table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroupLayout {
    /// A query sees this many positions; `None`: all.
    pub window: Option<u32>,
    /// The layers; position in the list = slot in the page.
    pub layers: Vec<u32>,
}

/// All groups of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvLayout {
    /// Groups, full ones first.
    pub groups: Vec<KvGroupLayout>,
    /// Blocks of a page: the largest number of layers of a group.
    pub page_slots: u32,
}

impl KvLayout {
    /// The groups of a model.
    pub fn of(description: &ModelDescription) -> KvLayout {
        let mut kinds: Vec<KvGroupLayout> = Vec::new();
        for (index, layer) in description.layers.iter().enumerate() {
            let window = layer.mixer.window.map(|w| w as u32);
            match kinds.iter_mut().find(|kind| kind.window == window) {
                Some(kind) => kind.layers.push(index as u32),
                None => kinds.push(KvGroupLayout {
                    window,
                    layers: vec![index as u32],
                }),
            }
        }
        kinds.sort_by_key(|kind| kind.window);
        let page_slots = kinds.iter().map(|kind| kind.layers.len()).min().unwrap_or(1);
        let groups = kinds
            .iter()
            .flat_map(|kind| {
                kind.layers.chunks(page_slots).map(|layers| KvGroupLayout {
                    window: kind.window,
                    layers: layers.to_vec(),
                })
            })
            .collect();
        KvLayout {
            groups,
            page_slots: page_slots as u32,
        }
    }

    /// Group and page slot of a layer.
    pub fn place(&self, layer: u32) -> (u32, u32) {
        for (group, layout) in self.groups.iter().enumerate() {
            if let Some(slot) = layout.layers.iter().position(|&l| l == layer) {
                return (group as u32, slot as u32);
            }
        }
        unreachable!("every layer of the description is in a group")
    }
}
