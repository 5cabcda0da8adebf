//! Adapters on their way into records: what changed since it was last told. Pure; the registry's answers and the time are arguments.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use halyard_platform_api::hooks::{LoraRecord, StatRecord};

use super::{AdapterStatus, Residency};

/// Time between two looks while steps run: asking costs a lock and a list of names.
const INTERVAL: Duration = Duration::from_millis(200);

/// What was told of each adapter.
#[derive(Debug, Default)]
pub(crate) struct LoraRecords {
    told: BTreeMap<u32, AdapterStatus>,
    looked: Option<Instant>,
}

impl LoraRecords {
    /// Whether it is time to look again. An engine that goes idle always looks.
    pub(crate) fn is_due(&mut self, now: Instant, idle: bool) -> bool {
        let due = idle || self.looked.is_none_or(|looked| now.duration_since(looked) >= INTERVAL);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Sends a record of each adapter that changed or is gone.
    pub(crate) fn update(&mut self, statuses: Vec<AdapterStatus>, unix_ns: u64, mut send: impl FnMut(StatRecord)) {
        let mut now = BTreeMap::new();
        for status in statuses {
            if self.told.remove(&status.number).as_ref() != Some(&status) {
                send(record(&status, residency(status.residency), unix_ns));
            }
            now.insert(status.number, status);
        }
        for (_, gone) in std::mem::replace(&mut self.told, now) {
            let gone = AdapterStatus {
                num_running: 0,
                num_waiting: 0,
                ..gone
            };
            send(record(&gone, 0, unix_ns));
        }
    }
}

fn residency(residency: Residency) -> u32 {
    match residency {
        Residency::Disk => 1,
        Residency::Host => 2,
        Residency::Device => 3,
    }
}

fn record(status: &AdapterStatus, residency: u32, unix_ns: u64) -> StatRecord {
    StatRecord::Lora(LoraRecord {
        lora_id: status.number + 1,
        rank: status.rank,
        num_running: status.num_running as u32,
        num_waiting: status.num_waiting as u32,
        residency,
        unix_ns,
        weight_bytes: status.bytes,
        load_ns: (status.load_seconds_total * 1e9) as u64,
        loads_total: status.device_loads_total,
        hits_total: status.device_hits_total,
        name: status.name.as_str().into(),
        path: status
            .path
            .as_ref()
            .map_or_else(Default::default, |path| path.display().to_string().into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(number: u32, num_running: u64) -> AdapterStatus {
        AdapterStatus {
            name: format!("a{number}"),
            path: None,
            rank: 8,
            bytes: 100,
            residency: Residency::Device,
            num_running,
            num_waiting: 0,
            requests_total: 1,
            device_hits_total: 0,
            device_loads_total: 1,
            disk_reads_total: 1,
            load_seconds_total: 0.5,
            number,
        }
    }

    fn told(records: &mut LoraRecords, statuses: Vec<AdapterStatus>) -> Vec<(u32, u32, u32)> {
        let mut told = Vec::new();
        records.update(statuses, 7, |record| match record {
            StatRecord::Lora(lora) => told.push((lora.lora_id, lora.num_running, lora.residency)),
            other => panic!("{other:?}"),
        });
        told
    }

    #[test]
    fn only_changes_are_told_and_an_unloaded_adapter_is_told_last() {
        let mut records = LoraRecords::default();
        assert_eq!(
            told(&mut records, vec![status(0, 2), status(1, 0)]),
            [(1, 2, 3), (2, 0, 3)]
        );
        assert_eq!(told(&mut records, vec![status(0, 2), status(1, 0)]), []);
        assert_eq!(told(&mut records, vec![status(1, 4)]), [(2, 4, 3), (1, 0, 0)]);
    }

    #[test]
    fn a_busy_engine_looks_five_times_a_second_and_an_idle_one_at_once() {
        let (mut records, start) = (LoraRecords::default(), Instant::now());
        assert!(records.is_due(start, false));
        assert!(!records.is_due(start + INTERVAL / 2, false));
        assert!(records.is_due(start + INTERVAL / 2, true));
        assert!(records.is_due(start + INTERVAL * 2, false));
    }
}
