//! Buffers: sizes, contents, ranges and accounting.

use halyard_platform_api::{BufferKind, Device, Status};

use super::note;
use crate::Report;

pub(super) fn run(device: &dyn Device, report: &mut Report) {
    note(report, "memory", "new buffers are zero", zeroed(device));
    note(report, "memory", "bytes come back as written", round_trip(device));
    note(report, "memory", "ranges past the end are refused", ranges(device));
    note(report, "memory", "sizes 0 and too large are refused", sizes(device));
    note(
        report,
        "memory",
        "buffers are counted and given back",
        accounting(device),
    );
}

fn zeroed(device: &dyn Device) -> Result<(), String> {
    for kind in [BufferKind::Device, BufferKind::HostVisible] {
        // Dirty memory first, so that a recycled piece shows.
        let dirty = device.create_buffer(5000, kind).map_err(|e| e.to_string())?;
        dirty.write(0, &[0xEE; 5000]).map_err(|e| e.to_string())?;
        drop(dirty);
        let buffer = device.create_buffer(5000, kind).map_err(|e| e.to_string())?;
        let mut bytes = vec![1; 5000];
        buffer.read(0, &mut bytes).map_err(|e| e.to_string())?;
        if bytes.iter().any(|&b| b != 0) {
            return Err(format!("{kind:?}: a fresh buffer holds other bytes"));
        }
    }
    Ok(())
}

fn round_trip(device: &dyn Device) -> Result<(), String> {
    let buffer = device
        .create_buffer(1000, BufferKind::Device)
        .map_err(|e| e.to_string())?;
    let bytes: Vec<u8> = (0..333).map(|i| i as u8).collect();
    buffer.write(667, &bytes).map_err(|e| e.to_string())?;
    buffer.write(3, &bytes[..5]).map_err(|e| e.to_string())?;
    let mut out = vec![0; 1000];
    buffer.read(0, &mut out).map_err(|e| e.to_string())?;
    let right = out[667..] == bytes[..] && out[3..8] == bytes[..5] && out[8..667].iter().all(|&b| b == 0);
    if right {
        Ok(())
    } else {
        Err("bytes differ, or others changed".to_string())
    }
}

fn ranges(device: &dyn Device) -> Result<(), String> {
    let buffer = device
        .create_buffer(100, BufferKind::Device)
        .map_err(|e| e.to_string())?;
    for (offset, len) in [(0, 101), (100, 1), (u64::MAX, 1), (99, 2)] {
        let mut out = vec![0; len];
        for outcome in [buffer.write(offset, &out), buffer.read(offset, &mut out)] {
            match outcome {
                Err(e) if e.status == Status::InvalidArgument && !e.message.is_empty() => {}
                other => return Err(format!("{len} bytes at {offset} of 100: {other:?}")),
            }
        }
    }
    Ok(())
}

fn sizes(device: &dyn Device) -> Result<(), String> {
    for bytes in [0, u64::MAX, device.info().max_buffer_bytes.saturating_add(1)] {
        match device.create_buffer(bytes, BufferKind::Device) {
            Err(e) if matches!(e.status, Status::InvalidArgument | Status::OutOfMemory) && !e.message.is_empty() => {}
            Err(e) => return Err(format!("{bytes} bytes: {e}")),
            Ok(_) => return Err(format!("{bytes} bytes were given")),
        }
    }
    Ok(())
}

fn accounting(device: &dyn Device) -> Result<(), String> {
    let used = || device.memory().map(|m| m.used_bytes).map_err(|e| e.to_string());
    let before = used()?;
    let buffer = device
        .create_buffer(1 << 20, BufferKind::Device)
        .map_err(|e| e.to_string())?;
    let during = used()?;
    drop(buffer);
    let after = used()?;
    if during >= before + (1 << 20) && after == before {
        Ok(())
    } else {
        Err(format!(
            "used {before}, with 1 MiB more {during}, after giving it back {after}"
        ))
    }
}
