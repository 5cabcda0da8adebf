//! Programs of a later host in today's plugins: what a plugin cannot know is unknown node by node, the rest is claimed
//! as ever, and nothing of it stays behind.

mod common;
#[path = "common/rules.rs"]
mod rules;

use common::on_libraries;
use halyard_future::by_hand::{Device, Entered};
use halyard_future::library::Library;
use halyard_future::program::LaterProgram;
use halyard_future::{LATER_ACCESS, LATER_OP, LATER_VALUE, Newer};
use halyard_platform_api::abi::AbiLayout;
use halyard_platform_api::abi::tables::{OpenDescWire, ProgramWire};
use halyard_platform_api::ops::{Epilogue, Linear, RmsNorm};
use halyard_platform_api::program::{ABSENT, Node, Program, TensorDecl};
use halyard_platform_api::{DType, Error, Status, WeightFormat};
use rules::refused;

on_libraries! {
    nodes => |library| on_device(library, nodes), with computing;
    later_ops => |library| on_device(library, later_ops), with computing;
    whole_programs => |library| on_device(library, whole_programs), with computing;
}

/// Without this the tests above would show nothing.
#[test]
fn reference_claims_what_these_programs_consist_of() {
    on_device(&Library::built("reference"), |device| {
        assert_eq!(claims(device, &mut pairs()), Some(vec![(0, 2), (2, 2)]));
    });
}

fn on_device(library: &Library, check: impl FnOnce(&Device<'_>)) {
    let plugin = Entered::new(library.entry).expect("it starts");
    check(
        &plugin
            .open(&Newer::of(OpenDescWire::zeroed()))
            .expect("the device opens"),
    );
}

/// A norm and a product, twice: what `reference` claims in pairs.
fn pairs() -> LaterProgram {
    let norm = RmsNorm {
        width: 32,
        eps: 1e-5,
        weight_offset: 0.0,
        dtype: DType::F32,
    };
    let linear = Linear {
        in_features: 32,
        out_features: 32,
        weight: WeightFormat::F32,
        act: DType::F32,
        out: DType::F32,
        epilogue: Epilogue::None,
        max_tokens: 1,
        allow_quantized_act: false,
    };
    let pair = |x: u16| {
        [
            Node::new(norm.clone(), [x, x + 1, x + 2]),
            Node::new(linear.clone(), [x + 2, x + 3, ABSENT, ABSENT, x + 4]),
        ]
    };
    let decl = |at| {
        let dtype = if at == 3 || at == 7 { DType::U8 } else { DType::F32 };
        TensorDecl::whole(dtype, false, at)
    };
    LaterProgram::new(&Program {
        tensors: (0..9).map(decl).collect(),
        nodes: [pair(0), pair(4)].concat(),
    })
}

/// Claims; none where the plugin has no programs.
fn claims(device: &Device<'_>, program: &mut LaterProgram) -> Option<Vec<(u32, u32)>> {
    let asked = device.claim(program)?;
    Some(asked.unwrap_or_else(|e| panic!("the whole program is refused: {e}")))
}

fn nodes(device: &Device<'_>) {
    let Some(today) = claims(device, &mut pairs()) else {
        return;
    };
    let check = |what: &str, is_unknown: bool, change: &dyn Fn(&mut LaterProgram)| {
        let mut program = pairs();
        change(&mut program);
        let covers = |&(first, count): &(u32, u32)| (first..first + count).contains(&1);
        let expected: Vec<_> = today.iter().copied().filter(|c| !(is_unknown && covers(c))).collect();
        assert_eq!(claims(device, &mut program), Some(expected), "{what}");
        let prepared = device.prepare_program(&mut program).expect("claims come with it");
        match is_unknown {
            true => refused(what, Status::Unsupported, prepared),
            false => assert_eq!(prepared.is_ok(), prepares(device), "{what}"),
        }
        assert_eq!(claims(device, &mut pairs()), Some(today.clone()), "after {what}");
    };
    let unknown = |what: &str, change: &dyn Fn(&mut LaterProgram)| check(what, true, change);
    unknown("a field of a node", &|program| program.nodes[1].more[2] = 1);
    unknown("a field of a spec", &|program| program.nodes[1].spec.wire.more[0] = 1);
    unknown("a field of a descriptor", &|program| {
        *program.nodes[1].spec.descriptor.last_mut().expect("bytes") = 1;
    });
    // struct_size, in_features, out_features, weight, act, out, epilogue.
    unknown("a later epilogue", &|program| {
        program.nodes[1].spec.descriptor[24] = LATER_VALUE as u8
    });
    unknown("a later op", &|program| {
        program.nodes[1].spec.wire.known.code = LATER_OP
    });
    unknown("a later version", &|program| {
        program.nodes[1].spec.wire.known.version = 2
    });
    unknown("a later operand that is used", &|program| {
        program.nodes[1].operands[5] = 0
    });
    unknown("a later type", &|program| program.tensors[3].known.dtype = LATER_VALUE);
    unknown("a field of a tensor", &|program| program.tensors[3].more[3] = 1 << 63);
    check("an access of later", false, &|program| {
        program.nodes[1].access = vec![LATER_ACCESS; 6]
    });
    check("operands left out at the end", false, &|program| {
        let node = &mut program.nodes[1];
        node.operands.truncate(5);
        node.access.truncate(5);
    });
}

/// Whether the plugin prepares a program of today at all.
fn prepares(device: &Device<'_>) -> bool {
    device
        .prepare_program(&mut pairs())
        .is_some_and(|prepared| prepared.is_ok())
}

fn later_ops(device: &Device<'_>) {
    let Some(today) = claims(device, &mut pairs()) else {
        return;
    };
    for at in 0..=4u32 {
        let mut program = pairs();
        program.put_in(at as usize);
        let cut = |&(first, count): &(u32, u32)| (first + 1..first + count).contains(&at);
        let expected: Vec<_> = today.iter().copied().filter(|claim| !cut(claim)).collect();
        let found = claims(device, &mut program).unwrap_or_default();
        let found: Vec<_> = found
            .iter()
            .map(|&(first, count)| program.without_later(first, count))
            .collect();
        let expected: Vec<_> = expected.into_iter().map(Some).collect();
        assert_eq!(found, expected, "a later op in front of node {at}");
        let prepared = device.prepare_program(&mut program).expect("claims come with it");
        refused("a program with a later op", Status::Unsupported, prepared);
    }
}

fn whole_programs(device: &Device<'_>) {
    let Some(today) = claims(device, &mut pairs()) else {
        return;
    };
    let refuse = |status: Status, change: fn(&mut LaterProgram)| {
        let mut program = pairs();
        change(&mut program);
        let asked: Result<Vec<_>, Error> = device.claim(&mut program).expect("it is there");
        refused("a program", status, asked);
        refused(
            "a program",
            status,
            device.prepare_program(&mut program).expect("it is there"),
        );
        assert_eq!(claims(device, &mut pairs()), Some(today.clone()), "it works on");
    };
    refuse(Status::Unsupported, |program| program.wire.more[0] = 1);
    refuse(Status::InvalidArgument, |program| {
        program.wire = program.wire.stating(ProgramWire::MIN_SIZE - 4)
    });
    refuse(Status::InvalidArgument, |program| {
        program.tensors[1] = program.tensors[1].stating(8)
    });
    refuse(Status::InvalidArgument, |program| program.nodes[1].operands[4] = 40);
}
