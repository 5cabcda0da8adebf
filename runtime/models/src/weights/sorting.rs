//! Act-order: groups whose columns are scattered over a matrix. Sorted by group, such a matrix has a canonical form,
//! and the product takes its input in the same order. Of an MLP's last matrix the input is put in order by the rows of
//! the matrices before it. Another input goes through a product with a matrix of zeros and ones ([`super::order`]),
//! which is exact and which every platform has.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::role::{Input, Linear, Part, Role};
use super::tensor::{Coding, WeightTensor};
use crate::config::{LayerDescription, MlpDescription, ModelDescription};
use crate::error::Result;

/// What must keep its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fixed {
    /// Ranks divide the columns of some matrices.
    pub cuts_columns: bool,
    /// Adapters read and add to the products.
    pub has_adapters: bool,
}

/// The order of each input: the column that comes first, second, …
#[derive(Clone, Debug, Default)]
pub(super) struct Orders(BTreeMap<(usize, Input), Arc<[u32]>>);

/// The weights of a model by role.
struct Finder<'t, F> {
    model: &'t ModelDescription,
    tensor: F,
}

impl Orders {
    /// The orders that sort all readers of an input, where they have one and a canonical form then.
    ///
    /// # Errors
    /// As `tensor`, which gives a model's weights.
    pub(super) fn find<'w>(
        model: &ModelDescription,
        tensor: impl Fn(Role) -> Result<WeightTensor<'w>>,
        fixed: Fixed,
    ) -> Result<Orders> {
        let finder = Finder { model, tensor };
        let mut orders = BTreeMap::new();
        for (index, layer) in model.layers.iter().enumerate() {
            for input in Input::ALL {
                let is_cut = fixed.cuts_columns && matches!(input, Input::Attended | Input::Activated);
                // Rows of gate and up projection take other places.
                let is_fixed = input == Input::Activated && (fixed.has_adapters || !finder.has_free_rows(index)?);
                if is_cut || is_fixed {
                    continue;
                }
                if let Some(order) = finder.order_of(index, &input.readers(layer))? {
                    orders.insert((index, input), order);
                }
            }
        }
        Ok(Orders(orders))
    }

    /// Whether nothing is sorted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Inputs that go through a product to be put in order.
    pub(super) fn moved(&self) -> Vec<(usize, Input)> {
        let all = self.0.keys().copied();
        all.filter(|(_, input)| *input != Input::Activated).collect()
    }

    fn of(&self, layer: usize, input: Input) -> Option<Arc<[u32]>> {
        self.0.get(&(layer, input)).cloned()
    }

    /// A weight with its columns, or its rows, in order.
    pub(super) fn sorted<'w>(&self, role: Role, mut tensor: WeightTensor<'w>) -> WeightTensor<'w> {
        let (columns, Role::Layer(layer, Part::Weight(linear))) = (tensor.row_len(), role) else {
            return tensor;
        };
        let (Coding::Grouped(grouped), Some(input)) = (&mut tensor.coding, linear.input()) else {
            return tensor;
        };
        if let Some(order) = self.of(layer, input) {
            grouped.sort(order);
            tensor.format = grouped.format(columns);
        }
        if input == Input::Mlp {
            grouped.row_order = self.of(layer, Input::Activated);
        }
        tensor
    }

    /// The matrix that puts an input in order; `None` where it is in order, or is no such matrix.
    pub(super) fn matrix(&self, role: Role) -> Option<WeightTensor<'static>> {
        let Role::Layer(layer, Part::Weight(Linear::Order(input))) = role else {
            return None;
        };
        let order = self.of(layer, input)?;
        Some(WeightTensor::of_order(
            format!("the order of {input:?} in layer {layer}"),
            order,
        ))
    }
}

impl<'w, F: Fn(Role) -> Result<WeightTensor<'w>>> Finder<'_, F> {
    /// Whether the rows of gate and up projection may be handed out in another order.
    fn has_free_rows(&self, index: usize) -> Result<bool> {
        let layer: &LayerDescription = &self.model.layers[index];
        let MlpDescription::Dense(mlp) = layer.mlp else {
            return Ok(false);
        };
        for linear in Input::Mlp.readers(layer) {
            let tensor = (self.tensor)(Role::weight(index, linear))?;
            if !matches!(tensor.coding, Coding::Grouped(_)) {
                return Ok(false);
            }
        }
        Ok(!mlp.bias)
    }

    /// The order that sorts all of these linears.
    fn order_of(&self, layer: usize, linears: &[Linear]) -> Result<Option<Arc<[u32]>>> {
        let mut found: Option<Vec<u32>> = None;
        for &linear in linears {
            let tensor = (self.tensor)(Role::weight(layer, linear))?;
            let order = match &tensor.coding {
                Coding::Grouped(grouped) => grouped.order(),
                _ => None,
            };
            match (order, &found) {
                (Some(order), None) => found = Some(order),
                (Some(order), Some(known)) if order == *known => {}
                _ => return Ok(None),
            }
        }
        Ok(found.map(Arc::from))
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use halyard_platform_api::WeightFormat;

    use super::super::grouped::{Elements, Global, Grouped, Numbers, Scales, Zeros};
    use super::super::packed::PackedCodes;
    use super::super::role::MlpLinear;
    use super::super::tensor::{Change, StoredRows};
    use super::*;

    /// Rows of an up projection that take other places are no square blocks any more.
    #[test]
    fn rows_in_another_order_have_no_blocks() {
        let codes = [0x38; 256 * 128];
        let tensor = || {
            let grouped = Grouped {
                codes: PackedCodes::Bytes(&codes),
                elements: Elements::E4m3,
                group: 128,
                scales: Scales {
                    numbers: Numbers::Made(vec![1.0, 2.0]),
                    rows: 128,
                    row_stride: 1,
                    group_stride: 1,
                    period: 2,
                    global: Global::None,
                },
                zeros: Zeros::All(0.0),
                group_of: None,
                order: None,
                row_order: None,
            };
            WeightTensor {
                name: String::new(),
                bytes: Cow::Borrowed(&[]),
                format: grouped.format(128),
                stored_rows: StoredRows::Whole,
                shape: vec![256, 128],
                coding: Coding::Grouped(Box::new(grouped)),
                turned_from: None,
                change: Change::default(),
            }
        };
        let up = Role::weight(0, Linear::Mlp(MlpLinear::Up));
        let kept = Orders::default().sorted(up, tensor()).in_square_blocks();
        assert_eq!(kept.format, WeightFormat::F8B128);
        let order: Arc<[u32]> = (0..256).rev().collect();
        let orders = Orders(BTreeMap::from([((0, Input::Activated), order)]));
        let moved = orders.sorted(up, tensor()).in_square_blocks();
        assert_eq!(moved.format, WeightFormat::F8G128);
        assert!(moved.in_format(WeightFormat::F8B128).is_err());
    }
}
