//! Act-order: matrices sorted by group, and what puts their inputs in order, are the stored matrices.

mod support;

use halyard_models::weights::{Input, Linear, MlpLinear};
use halyard_models::{DummyWeights, LoadFormat, ModelFiles, Role};
use halyard_platform_api::WeightFormat;
use support::fixtures;

const HIDDEN: usize = 64;
const GATE: Linear = Linear::Mlp(MlpLinear::Gate);
const UP: Linear = Linear::Mlp(MlpLinear::Up);
const DOWN: Linear = Linear::Mlp(MlpLinear::Down);

fn opened() -> ModelFiles {
    let folder = fixtures().join("models/quant/gptq-4-act-order");
    ModelFiles::open(&folder, LoadFormat::Auto, DummyWeights::default()).unwrap()
}

fn rows(model: &ModelFiles, layer: usize, linear: Linear) -> Vec<Vec<f32>> {
    let tensor = model.weights.tensor(Role::weight(layer, linear)).unwrap();
    let values = tensor.to_f32().unwrap();
    values.chunks_exact(tensor.row_len()).map(<[f32]>::to_vec).collect()
}

fn format(model: &ModelFiles, layer: usize, linear: Linear) -> WeightFormat {
    model.weights.format(Role::weight(layer, linear)).unwrap()
}

/// The column of the one in each row of a matrix of zeros and ones.
fn order(model: &ModelFiles, layer: usize, input: Input) -> Vec<usize> {
    let role = Role::weight(layer, Linear::Order(input));
    let tensor = model.weights.tensor(role).unwrap();
    assert_eq!(tensor.format, WeightFormat::U4G64);
    let packed = rows(model, layer, Linear::Order(input));
    let plain = tensor.in_format(WeightFormat::F32).unwrap().to_f32().unwrap();
    assert_eq!(packed.concat(), plain);
    let ones = packed.iter().map(|row| {
        assert_eq!(row.iter().filter(|&&value| value != 0.0).count(), 1);
        row.iter().position(|&value| value == 1.0).unwrap()
    });
    ones.collect()
}

fn taken(row: &[f32], order: &[usize]) -> Vec<f32> {
    order.iter().map(|&column| row[column]).collect()
}

#[test]
fn sorted_matrices_and_the_order_of_their_inputs_are_the_stored_ones() {
    let (plain, mut sorted) = (opened(), opened());
    assert_eq!(sorted.sort_columns(false, false).unwrap(), 2 * 3);
    for layer in 0..2 {
        for (input, linears) in [
            (Input::Attention, vec![Linear::Q, Linear::K, Linear::V]),
            (Input::Attended, vec![Linear::O]),
        ] {
            let order = order(&sorted, layer, input);
            assert_ne!(order, (0..HIDDEN).collect::<Vec<_>>());
            for linear in linears {
                assert_eq!(format(&plain, layer, linear), WeightFormat::F32);
                assert_eq!(format(&sorted, layer, linear), WeightFormat::U4G32);
                let expected = rows(&plain, layer, linear);
                let expected: Vec<Vec<f32>> = expected.iter().map(|row| taken(row, &order)).collect();
                assert_eq!(rows(&sorted, layer, linear), expected, "{linear:?} of layer {layer}");
            }
        }
        // Gates and ups come in the order of the down projection's columns.
        let order = order(&sorted, layer, Input::Mlp);
        let [gates, ups] = [GATE, UP].map(|linear| {
            let stored = rows(&plain, layer, linear);
            let place = |row: &Vec<f32>| stored.iter().position(|of| taken(of, &order) == *row).expect("a row");
            rows(&sorted, layer, linear).iter().map(place).collect::<Vec<usize>>()
        });
        assert_eq!(gates, ups);
        assert_ne!(gates, (0..gates.len()).collect::<Vec<_>>());
        let expected = rows(&plain, layer, DOWN);
        let expected: Vec<Vec<f32>> = expected.iter().map(|row| taken(row, &gates)).collect();
        assert_eq!(rows(&sorted, layer, DOWN), expected);
        assert_eq!(format(&sorted, layer, DOWN), WeightFormat::U4G32);
    }
    // Of a row of 64: 48 bytes instead of 256, and three matrices of 64 x 40 bytes a layer.
    let matrices = (64 + 32 + 32 + 64 + 192 + 192 + 3 * 64) * 2;
    assert_eq!(
        plain.weight_bytes - sorted.weight_bytes,
        matrices * (256 - 48) - 2 * 3 * 64 * 40
    );
}

#[test]
fn inputs_whose_order_is_fixed_are_left_alone() {
    let mut ranks = opened();
    assert_eq!(ranks.sort_columns(true, false).unwrap(), 2 * 2);
    for (linear, expected) in [
        (Linear::Q, WeightFormat::U4G32),
        (UP, WeightFormat::U4G32),
        (Linear::O, WeightFormat::F32),
        (DOWN, WeightFormat::F32),
    ] {
        assert_eq!(format(&ranks, 1, linear), expected, "{linear:?}");
    }
    let mut adapters = opened();
    assert_eq!(adapters.sort_columns(false, true).unwrap(), 2 * 3);
    assert_eq!(format(&adapters, 1, Linear::O), WeightFormat::U4G32);
    assert_eq!(format(&adapters, 1, DOWN), WeightFormat::F32);
    let (expected, order) = (rows(&opened(), 1, GATE), order(&adapters, 1, Input::Mlp));
    let expected: Vec<Vec<f32>> = expected.iter().map(|row| taken(row, &order)).collect();
    assert_eq!(rows(&adapters, 1, GATE), expected, "rows are where they were");
}

#[test]
fn a_model_without_act_order_stays_as_it_is() {
    let folder = fixtures().join("models/quant/gptq-4");
    let mut model = ModelFiles::open(&folder, LoadFormat::Auto, DummyWeights::default()).unwrap();
    let before = model.description.clone();
    assert_eq!(model.sort_columns(false, false).unwrap(), 0);
    assert_eq!(model.description, before);
}
