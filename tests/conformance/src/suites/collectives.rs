//! Collectives over ranks in one process: each rank opens its own device and runs on its own thread.

use std::sync::Arc;

use halyard_platform_api::{
    Capabilities, CollectiveKind, CommunicatorDesc, CommunicatorId, DType, Device, EncoderMode, QueueKind, Tensor, ops,
};

use super::{Floats, expect_eq};
use crate::execute::WAIT_NS;

/// Elements that a rank has of an input which ranks share out.
const PART: usize = 6;

/// Checks every collective over these devices, one a rank; two ranks at least.
///
/// # Errors
/// What differs, or what the device refuses although it claims the capability.
pub fn check_collectives(devices: &[Arc<dyn Device>]) -> Result<(), String> {
    let claims = devices
        .iter()
        .all(|d| d.info().capabilities.has(Capabilities::COMMUNICATOR));
    let id = match devices[0].communicator_id() {
        Ok(id) if claims => id,
        Ok(_) => return Err("a communicator without the capability".to_string()),
        Err(e) if !claims && !e.message.is_empty() => return Ok(()),
        Err(e) => return Err(e.to_string()),
    };
    std::thread::scope(|scope| {
        let id = &id;
        let run = |rank: usize| move || rank_of(&*devices[rank], id, rank, devices.len());
        let ranks: Vec<_> = (0..devices.len()).map(|rank| scope.spawn(run(rank))).collect();
        ranks
            .into_iter()
            .try_for_each(|rank| rank.join().map_err(|_| "a rank panicked".to_string())?)
    })
}

/// What rank `rank` of `size` puts in: distinct everywhere.
fn input(rank: usize, size: usize) -> Vec<f32> {
    (0..PART * size).map(|i| (rank * 1000 + i) as f32 + 0.25).collect()
}

fn rank_of(device: &dyn Device, id: &CommunicatorId, rank: usize, size: usize) -> Result<(), String> {
    let group = device
        .create_communicator(&CommunicatorDesc::new(id, rank as u32, size as u32))
        .map_err(|e| e.to_string())?;
    expect_eq(
        "rank and size",
        &(group.rank(), group.size()),
        &(rank as u32, size as u32),
    )?;
    let input = |rank| input(rank, size);
    let sum: Vec<f32> = (0..PART * size).map(|i| (0..size).map(|r| input(r)[i]).sum()).collect();
    let own = rank * PART..(rank + 1) * PART;
    let of = |r: usize| input(r)[own.clone()].to_vec();
    let cases = [
        (CollectiveKind::AllReduce, 0, sum.clone()),
        (CollectiveKind::AllGather, 0, (0..size).flat_map(input).collect()),
        (CollectiveKind::ReduceScatter, 0, sum[own.clone()].to_vec()),
        (CollectiveKind::AllToAll, 0, (0..size).flat_map(of).collect()),
        (CollectiveKind::Broadcast, 1, input(1)),
    ];
    let queue = device.create_queue(QueueKind::Compute).map_err(|e| e.to_string())?;
    for (kind, peer, expected) in cases {
        let spec = ops::Collective {
            kind,
            dtype: DType::F32,
            peer,
            communicator: group.number(),
        };
        let of_group = group.prepare(&spec.of_communicator()).map_err(|e| e.to_string())?;
        let named = match spec.communicator {
            0 => None,
            _ => Some(device.ops().prepare(&spec.into()).map_err(|e| e.to_string())?),
        };
        for (way, op) in [("", Some(of_group)), (" as an op", named)] {
            let Some(op) = op else { continue };
            let (from, to) = (
                Floats::new(device, &input(rank))?,
                Floats::new(device, &vec![0.0; expected.len()])?,
            );
            let flat = |t: &Tensor| t.view(0, &[t.shape[1]], &[1]);
            let mut encoder = queue.create_encoder(EncoderMode::OneShot).map_err(|e| e.to_string())?;
            encoder
                .encode(op.id(), &[flat(&from.tensor), flat(&to.tensor)])
                .map_err(|e| e.to_string())?;
            let commands = encoder.finish().map_err(|e| e.to_string())?;
            let number = queue.submit(&[commands.id()], &[]).map_err(|e| e.to_string())?;
            queue.wait(number, WAIT_NS).map_err(|e| e.to_string())?;
            expect_eq(&format!("{kind:?}{way} on rank {rank}"), &to.read()?, &expected)?;
        }
    }
    let spec = ops::Collective {
        kind: CollectiveKind::AllReduce,
        dtype: DType::F32,
        peer: 0,
        communicator: group.number(),
    };
    drop(group);
    match device.ops().prepare(&spec.into()) {
        Ok(_) => Err("an op named a communicator that was dropped, and was prepared".to_string()),
        Err(_) => Ok(()),
    }
}
