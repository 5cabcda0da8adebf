//! What today's plugins fill for a later host: structs and errors with more room, and such that are too short.

mod common;
#[path = "common/rules.rs"]
mod rules;

use common::on_libraries;
use halyard_future::by_hand::{Entered, told};
use halyard_future::library::Library;
use halyard_future::program::{LaterProgram, LaterSpec};
use halyard_future::{Newer, UNTOUCHED};
use halyard_platform_api::abi::tables::{
    ABI_MAJOR, ABI_MINOR, AttentionBackendWire, ClaimReportWire, DeviceInfoWire, Host, MemoryInfoWire, OpSupportWire,
    OpenDescWire, Plugin, PreparedWire,
};
use halyard_platform_api::abi::{AbiLayout, ErrorOut};
use halyard_platform_api::ops::Add;
use halyard_platform_api::program::{Node, Program, TensorDecl};
use halyard_platform_api::{DType, Status};
use rules::{bytes, gives};

on_libraries! {
    facts => facts, with every;
    errors => errors, with every;
}

on_libraries! {
    ops => ops, with computing;
}

fn facts(library: &Library) {
    let mut host = Newer::marked(Host::zeroed());
    (host.known.abi_major, host.known.abi_minor_min) = (ABI_MAJOR, 0);
    host.known.abi_minor_max = ABI_MINOR + 5;
    let host = Box::leak(Box::new(host));
    let entered = gives(Plugin::zeroed(), |out| {
        // SAFETY: sized structs; the host's lives as long as the process.
        told(|err| unsafe { (library.entry)(host.ptr(), out, err) })
    });
    assert_eq!(
        (entered.abi_major, entered.abi_minor),
        (ABI_MAJOR, ABI_MINOR),
        "the highest that both know"
    );

    let plugin = Entered::new(library.entry).expect("it starts");
    let device_info = plugin.platform.device_info.expect("required");
    let listed = gives(DeviceInfoWire::zeroed(), |out| {
        // SAFETY: a live instance, a sized output.
        told(|err| unsafe { device_info(plugin.instance, 0, out, err) })
    });
    let device = plugin
        .open(&Newer::of(OpenDescWire::zeroed()))
        .expect("the device opens");
    let info = plugin.device.info.expect("required");
    let opened = gives(DeviceInfoWire::zeroed(), |out| {
        // SAFETY: a live device, a sized output.
        told(|err| unsafe { info(device.object.handle, out, err) })
    });
    assert_eq!(opened.total_memory_bytes, listed.total_memory_bytes);
    let memory = plugin.device.memory.expect("required");
    let counted = gives(MemoryInfoWire::zeroed(), |out| {
        // SAFETY: a live device, a sized output.
        told(|err| unsafe { memory(device.object.handle, out, err) })
    });
    assert!(counted.total_bytes > 0);
}

fn errors(library: &Library) {
    let plugin = Entered::new(library.entry).expect("it starts");
    let open = plugin.platform.open.expect("required");
    let mut desc = OpenDescWire::zeroed();
    desc.index = 999;
    let mut handle = std::ptr::null_mut();
    let mut fails = |err: *mut ErrorOut| {
        // SAFETY: a live instance, a sized descriptor, valid outputs.
        let code = unsafe { open(plugin.instance, &desc, &mut handle, err) };
        assert_eq!(code, Status::NotFound as u32);
    };
    let mut text = [0; 256];

    let mut larger = Newer::marked(ErrorOut::over(&mut text));
    fails(larger.out());
    assert_eq!(larger.known.status, Status::NotFound as u32);
    assert!(larger.known.text_len > 10, "no words");
    assert_eq!(larger.more, [UNTOUCHED; 4], "written past what the plugin knows");

    let mut short = Newer::marked(ErrorOut::over(&mut text)).stating(ErrorOut::MIN_SIZE - 4);
    let before = bytes(&short);
    fails(short.out());
    assert_eq!(bytes(&short), before, "written though it is too short");

    let mut cut = Newer::marked(ErrorOut::over(&mut text[..5]));
    fails(cut.out());
    assert!(cut.known.text_len <= 5);
    fails(std::ptr::null_mut());
}

fn ops(library: &Library) {
    let plugin = Entered::new(library.entry).expect("it starts");
    let device = plugin
        .open(&Newer::of(OpenDescWire::zeroed()))
        .expect("the device opens");
    let (handle, table) = (device.object.handle, &plugin.ops);
    let (width, dtype) = (4, DType::F32);
    let add = || LaterSpec::new(&Add { width, dtype }.into());

    let mut name = [0u8; 64];
    let mut out = OpSupportWire::zeroed();
    (out.implementation, out.implementation_capacity) = (name.as_mut_ptr(), 64);
    let support = table.support.expect("required");
    gives(out, |out| {
        // SAFETY: a live device, a spec for the call, a sized output.
        told(|err| unsafe { support(handle, add().ptr(), out, err) })
    });

    let (prepare, release) = (table.prepare.expect("required"), table.prepared_drop.expect("required"));
    gives(PreparedWire::zeroed(), |out| {
        // SAFETY: a live device, a spec for the call, a sized output, and what was made is used no more.
        told(|err| unsafe {
            let code = prepare(handle, add().ptr(), out, err);
            if code == 0 {
                release((*out).handle);
            }
            code
        })
    });

    let attention = plugin.attention.expect("what computes here has attention");
    let backend_info = attention.backend_info.expect("required");
    gives(AttentionBackendWire::zeroed(), |out| {
        // SAFETY: a live device, a sized output.
        told(|err| unsafe { backend_info(handle, 0, out, err) })
    });

    let Some(claim) = table.claim else {
        return;
    };
    let decl = TensorDecl::whole(dtype, false, 0);
    let program = Program {
        tensors: vec![decl; 3],
        nodes: vec![Node::new(Add { width, dtype }, [0, 1, 2])],
    };
    gives(ClaimReportWire::zeroed(), |out| {
        let mut program = LaterProgram::new(&program);
        // SAFETY: a live device, a program for the call, a sized output without arrays.
        program.call(|program| told(|err| unsafe { claim(handle, program, out, err) }))
    });
}
