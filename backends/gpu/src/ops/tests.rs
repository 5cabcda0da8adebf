//! Which kernels run which ops, on every kind of device. This code writes the tables in `tests/*.txt` over drivers
//! without a device. Each line ends in a hash of all launches: entry points, definitions, grids, shared memory and
//! parameters. A change of a choice changes a line, and `HALYARD_BLESS=1` writes the files anew.

mod devices;
mod prebuilt;
mod recorder;
mod regions;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use halyard_platform_api::ops::{Epilogue, Linear};
use halyard_platform_api::{DType, OpSpec, Result, WeightFormat};
use sha2::{Digest, Sha256};

pub(super) use self::devices::facts;
use self::recorder::Recorder;
use super::{build, build_program};
use crate::driver::{CollectiveCall, DevicePtr, Driver, Group, Peers, Stream};
use crate::encoding::Encoding;
use crate::kernel::{Kernel, Packer, Preparation, RowSource};
use crate::modules::Modules;
use crate::view::View;

/// Tokens of the calls that are looked at: what choices turn on, and a neighbour on each side.
fn counts(most: u32) -> Vec<u32> {
    let large = [
        15, 16, 17, 31, 32, 33, 34, 63, 64, 65, 127, 128, 129, 511, 512, 513, 600,
    ];
    (1..=10).chain(large).filter(|&tokens| tokens <= most).collect()
}

/// Rows of `width` values at `ptr`.
fn rows(ptr: u64, rows: u32, width: u32, dtype: DType) -> View {
    View {
        ptr,
        shape: [rows, width, 1, 1],
        strides: [width, 1, 1, 1],
        dtype,
        rank: 2,
    }
}

/// A kernel that is prepared on a device, or why it is not.
struct Case {
    recorder: Arc<Recorder>,
    kernel: Result<Box<dyn Kernel>>,
    hash: Sha256,
}

impl Case {
    fn new(recorder: &Arc<Recorder>, kernel: Result<Box<dyn Kernel>>) -> Case {
        let driver: Arc<dyn Driver> = recorder.clone();
        let cx = Preparation {
            driver: &driver,
            modules: &Modules::default(),
        };
        let kernel = kernel.and_then(|mut kernel| kernel.prepare(&cx).map(|()| kernel));
        Case {
            recorder: recorder.clone(),
            kernel,
            hash: Sha256::new(),
        }
    }

    /// What a call launches, by name.
    fn call(&mut self, operands: &[View]) -> String {
        let kernel = match &self.kernel {
            Ok(kernel) => kernel,
            Err(error) => return format!("refused: {}", error.message),
        };
        let mut encoding = Encoding::default();
        if let Err(error) = kernel.encode(&mut encoding, operands) {
            return format!("refused: {}", error.message);
        }
        self.hash.update(self.recorder.all(&encoding));
        self.recorder.names(&encoding)
    }

    /// Packs a weight of `rows` rows in two parts.
    fn pack(&mut self, rows: u32, row_bytes: u64) {
        let Ok(kernel) = &self.kernel else { return };
        let packer = RecordingPacker {
            recorder: &self.recorder,
            text: RefCell::default(),
        };
        for (first, count) in [(0, rows / 2), (rows / 2, rows - rows / 2)] {
            let source = RowSource::Device(7 << 30, u64::from(count) * row_bytes);
            kernel.pack_weight(&packer, 0, first, count, source, 3 << 30).unwrap();
        }
        self.hash.update(packer.text.take());
    }

    /// Of the scratch, and of all that the calls launched.
    fn hash(mut self) -> [u8; 32] {
        let scratch = self.kernel.map_or(0, |kernel| kernel.scratch_bytes());
        self.hash.update(scratch.to_le_bytes());
        self.hash.finalize().into()
    }
}

/// Writes down what packing enqueues.
struct RecordingPacker<'a> {
    recorder: &'a Recorder,
    text: RefCell<String>,
}

impl Packer for RecordingPacker<'_> {
    fn copy(
        &self,
        to: DevicePtr,
        to_pitch: u64,
        _source: RowSource<'_>,
        offset: u64,
        pitch: u64,
        width: u64,
        height: u64,
    ) -> Result<()> {
        *self.text.borrow_mut() += &format!("copy {to} {to_pitch} {offset} {pitch} {width} {height}\n");
        Ok(())
    }

    fn on_device(&self, _source: RowSource<'_>, offset: u64, _bytes: u64) -> Result<DevicePtr> {
        Ok((7 << 30) + offset)
    }

    fn run(&self, encoding: &Encoding) -> Result<()> {
        *self.text.borrow_mut() += &self.recorder.all(encoding);
        Ok(())
    }
}

/// Neighbours that are equal as one: `1-8 this, 9-600 that`.
fn ranges(calls: &[(u32, String)]) -> String {
    let mut found: Vec<(u32, u32, &str)> = Vec::new();
    for (tokens, names) in calls {
        match found.last_mut() {
            Some((_, last, known)) if *known == names => *last = *tokens,
            _ => found.push((*tokens, *tokens, names)),
        }
    }
    let one = |&(first, last, names): &(u32, u32, &str)| match first == last {
        true => format!("{first} {names}"),
        false => format!("{first}-{last} {names}"),
    };
    found.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Lines that are equal but for their names stand together.
#[derive(Default)]
struct Table(Vec<(String, Vec<String>, Sha256)>);

impl Table {
    fn add(&mut self, name: &str, line: String, hash: [u8; 32]) {
        let place = self.0.iter().position(|(known, ..)| *known == line);
        let place = place.unwrap_or_else(|| {
            self.0.push((line, Vec::new(), Sha256::new()));
            self.0.len() - 1
        });
        self.0[place].1.push(name.to_string());
        self.0[place].2.update(hash);
    }

    fn text(self) -> String {
        let mut text = String::new();
        for (line, names, hash) in self.0 {
            let hash: String = hash.finalize()[..4].iter().map(|b| format!("{b:02x}")).collect();
            let mut kinds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
            for name in &names {
                let (kind, of) = name.split_once(' ').unwrap_or((name, ""));
                kinds.entry(of).or_default().push(kind);
            }
            let mut lists: BTreeMap<Vec<&str>, Vec<&str>> = BTreeMap::new();
            for (of, kinds) in kinds {
                lists.entry(kinds).or_default().push(of);
            }
            for (kinds, of) in lists {
                let _ = writeln!(text, "  {}: {}", kinds.join(" "), of.join("; "));
            }
            let _ = writeln!(text, "    {}\n    launches {hash}", line.replace('\n', "\n    "));
        }
        text
    }
}

/// Compares with the committed file.
fn hold(file: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops/tests").join(file);
    if std::env::var_os("HALYARD_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, found).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (known, found)) in known.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, known, "{file}, line {}", number + 1);
    }
    assert_eq!(
        found.lines().count(),
        known.lines().count(),
        "{file}: its number of lines"
    );
}

/// A section for every device.
fn over_devices(section: impl Fn(&Arc<Recorder>) -> String) -> String {
    over(devices::all(), section)
}

/// A section for every device that claims regions.
fn over_claiming_devices(section: impl Fn(&Arc<Recorder>) -> String) -> String {
    let mut devices = devices::all();
    devices.retain(|device| device.facts.matrix_units);
    over(devices, section)
}

fn over(devices: Vec<devices::Device>, section: impl Fn(&Arc<Recorder>) -> String) -> String {
    let mut known: Vec<(&str, String)> = Vec::new();
    let mut text = String::new();
    for device in devices {
        let name = device.name;
        let section = section(&Arc::new(Recorder::new(device)));
        let _ = match known.iter().find(|(_, same)| *same == section) {
            Some((other, _)) => writeln!(text, "== {name}: as {other}"),
            None => write!(text, "== {name}\n{section}"),
        };
        known.push((name, section));
    }
    text
}

const FORMATS: [WeightFormat; 11] = [
    WeightFormat::F32,
    WeightFormat::F16,
    WeightFormat::BF16,
    WeightFormat::Q4_0,
    WeightFormat::Q8_0,
    WeightFormat::Q4K,
    WeightFormat::F8E4M3,
    WeightFormat::F8G128,
    WeightFormat::F8B128,
    WeightFormat::U4G128,
    WeightFormat::Nf4G64,
];

/// A linear's calls: all aligned; x off by one value; out off by one; a bias and a residual in place.
fn linear(recorder: &Arc<Recorder>, op: &Linear) -> (String, [u8; 32]) {
    let mut case = Case::new(recorder, build(&OpSpec::from(op.clone())));
    let (k, n) = (op.in_features, op.out_features);
    let mut lines: Vec<String> = Vec::new();
    for (variant, x_off, out_off, added) in [
        ("", 0, 0, false),
        ("x off: ", 1, 0, false),
        ("out off: ", 0, 1, false),
        ("added: ", 0, 0, true),
    ] {
        let mut calls = Vec::new();
        for tokens in counts(op.max_tokens) {
            let x = rows((1 << 30) + x_off * op.act.bytes() as u64, tokens, k, op.act);
            let out = rows((2 << 30) + out_off * op.out.bytes() as u64, tokens, n, op.out);
            let weight = rows(3 << 30, 1, 1, DType::U8);
            let (bias, residual) = match added {
                true => (rows(5 << 30, 1, n, DType::F32), out),
                false => (View::NONE, View::NONE),
            };
            calls.push((tokens, case.call(&[x, weight, bias, residual, out])));
        }
        let line = format!("{variant}{}", ranges(&calls));
        if !lines.iter().any(|known| line.ends_with(known.as_str())) {
            lines.push(line);
        }
    }
    case.pack(n, op.weight.row_bytes(k as usize).unwrap() as u64);
    (lines.join("\n"), case.hash())
}

#[test]
fn linears_run_on_the_kernels_of_the_table() {
    let none = Epilogue::None;
    let cases = [
        (4096, 4096, none, 600),
        (576, 1536, none, 600),
        (65_536, 8192, none, 600),
        (1000, 72, none, 600),
        (576, 1536, Epilogue::Silu, 65),
        (4096, 4096, none, 20),
        // Rows too long for the kernels of few tokens, of fewer tokens than a tile is for.
        (4096, 14_336, none, 16),
    ];
    let section = |recorder: &Arc<Recorder>| {
        let mut table = Table::default();
        for (n, k, epilogue, max_tokens) in cases {
            for act in [DType::F32, DType::F16, DType::BF16] {
                for (format, rounded) in FORMATS.into_iter().flat_map(|format| [(format, false), (format, true)]) {
                    let op = Linear {
                        in_features: k,
                        out_features: n,
                        weight: format,
                        act,
                        out: act,
                        epilogue,
                        max_tokens,
                        allow_quantized_act: rounded,
                    };
                    if format.row_bytes(k as usize).is_none() {
                        continue;
                    }
                    let act = format!("{act:?}{}", if rounded { " may be rounded" } else { "" });
                    let then = if epilogue == Epilogue::None { "" } else { ", silu" };
                    let (line, hash) = linear(recorder, &op);
                    table.add(
                        &format!("{format:?} {act}, {n} x {k}{then}, to {max_tokens} tokens"),
                        line,
                        hash,
                    );
                }
            }
        }
        table.text()
    };
    hold("linear.txt", &over_devices(section));
}

#[test]
fn regions_of_linears_run_on_the_kernels_of_the_table() {
    let section = |recorder: &Arc<Recorder>| {
        let mut table = Table::default();
        for (name, program) in regions::linears() {
            let mut case = Case::new(recorder, build_program(&program, &|_| unreachable!("no collectives")));
            let mut lines: Vec<String> = Vec::new();
            for (variant, off) in [("", 0), ("x off: ", 1)] {
                let call = |tokens| (tokens, case.call(&regions::linear_operands(&program, tokens, off)));
                let line = format!(
                    "{variant}{}",
                    ranges(&counts(600).into_iter().map(call).collect::<Vec<_>>())
                );
                if !lines.iter().any(|known| line.ends_with(known.as_str())) {
                    lines.push(line);
                }
            }
            table.add(&name, lines.join("\n"), case.hash());
        }
        table.text()
    };
    hold("fused_linear.txt", &over_claiming_devices(section));
}

/// Rank 0 of two, with or without memory for own kernels.
struct Pair(Option<Peers>);

impl Group for Pair {
    fn rank(&self) -> u32 {
        0
    }

    fn size(&self) -> u32 {
        2
    }

    unsafe fn run(&self, _call: &CollectiveCall, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn peers(&self) -> Option<&Peers> {
        self.0.as_ref()
    }

    fn leave(&self) {}
}

#[test]
fn a_sum_joins_the_norm_behind_it() {
    let peers = || Peers {
        memory: vec![8 << 30, 9 << 30],
        window_bytes: 512 << 10,
        host_words: 10 << 30,
        limit_ticks: 1,
    };
    let section = |recorder: &Arc<Recorder>| {
        let mut table = Table::default();
        for (name, behind) in regions::linears().into_iter().step_by(3) {
            let program = regions::behind_a_sum(&behind);
            let claimed = super::claim(&program, recorder.facts()).expect("a program").claims;
            assert_eq!(claimed.len(), 1, "{name}");
            assert_eq!(claimed[0].count as usize, program.nodes.len(), "{name}");
            let mut lines = Vec::new();
            let mut hash = Sha256::new();
            for (title, group) in [("own kernels", Pair(Some(peers()))), ("the library", Pair(None))] {
                let group: Arc<dyn Group> = Arc::new(group);
                let mut case = Case::new(recorder, build_program(&program, &|_| Ok(group.clone())));
                let call = |tokens| (tokens, case.call(&regions::linear_operands(&behind, tokens, 0)));
                let calls: Vec<_> = counts(600).into_iter().map(call).collect();
                lines.push(format!("{title}: {}", ranges(&calls)));
                hash.update(case.hash());
            }
            table.add(&name, lines.join("\n"), hash.finalize().into());
        }
        table.text()
    };
    hold("fused_sum.txt", &over_claiming_devices(section));
}

/// Tokens and sequences of attention's calls.
fn calls() -> impl Iterator<Item = (u32, u32)> {
    let of = |seqs: u32| [seqs, seqs + 1, 8 * seqs - 1, 8 * seqs, 512 + seqs].map(|tokens| (tokens, seqs));
    [1, 2, 8, 9, 64].into_iter().flat_map(of)
}

/// Tokens over sequences, neighbours with equal names as one.
fn attention_line(mut names: impl FnMut(u32, u32) -> String) -> String {
    let mut found: Vec<(Vec<String>, String)> = Vec::new();
    for (tokens, seqs) in calls() {
        let (of, call) = (names(tokens, seqs), format!("{tokens}/{seqs}"));
        match found.iter_mut().find(|(_, known)| *known == of) {
            Some((all, _)) => all.push(call),
            None => found.push((vec![call], of)),
        }
    }
    let lines: Vec<String> = found
        .iter()
        .map(|(all, names)| format!("{names}: {}", all.join(" ")))
        .collect();
    lines.join("\n")
}

#[test]
fn attention_runs_on_the_kernels_of_the_table() {
    let section = |recorder: &Arc<Recorder>| {
        let mut table = Table::default();
        for (name, spec) in regions::attentions() {
            let mut case = Case::new(recorder, build(&OpSpec::from(spec.clone())));
            let line = attention_line(|tokens, seqs| case.call(&regions::attention_operands(&spec, tokens, seqs, 0)));
            let off = case.call(&regions::attention_operands(&spec, 512, 1, 4));
            table.add(&name, format!("{line}\n512/1, out off: {off}"), case.hash());
        }
        table.text()
    };
    hold("attention.txt", &over_devices(section));
}

#[test]
fn regions_of_attention_run_on_the_kernels_of_the_table() {
    let section = |recorder: &Arc<Recorder>| {
        let mut table = Table::default();
        for (name, program, spec) in regions::layers() {
            let mut case = Case::new(recorder, build_program(&program, &|_| unreachable!("no collectives")));
            let line = attention_line(|tokens, seqs| case.call(&regions::layer_operands(&spec, tokens, seqs, false)));
            let apart = case.call(&regions::layer_operands(&spec, 1, 1, true));
            table.add(&name, format!("{line}\n1/1, q and k apart: {apart}"), case.hash());
        }
        table.text()
    };
    hold("fused_attention.txt", &over_claiming_devices(section));
}

#[test]
fn what_sequences_have_in_common_is_found_once_for_all_layers() {
    let device = devices::all().into_iter().find(|device| device.name.contains("H200"));
    let recorder = Arc::new(Recorder::new(device.unwrap()));
    let (_, program, spec) = regions::layers().swap_remove(0);
    let case = Case::new(&recorder, build_program(&program, &|_| unreachable!("no collectives")));
    let kernel = case.kernel.unwrap();
    let mut encoding = Encoding::default();
    let mut launched = |seqs: u32, table: u64| {
        let mut operands = regions::layer_operands(&spec, seqs, seqs, false);
        operands[8].ptr += table;
        let before = encoding.commands.len();
        kernel.encode(&mut encoding, &operands).unwrap();
        encoding.note_write(&operands[12]);
        let mut own = Encoding::default();
        own.commands.extend_from_slice(&encoding.commands[before..]);
        recorder.names(&own)
    };
    assert_eq!(launched(64, 0), "find_common + attention_decode");
    assert_eq!(launched(64, 0), "attention_decode", "the second layer");
    assert_eq!(launched(32, 0), "find_common + attention_decode", "another batch");
    assert_eq!(launched(32, 1 << 29), "find_common + attention_decode", "another table");
    assert_eq!(launched(5, 0), "attention_decode", "too few for a team");
}

#[test]
fn policies_print_as_they_are_listed() {
    let line = |device: devices::Device| format!("{}: {}\n", device.name, device.policy);
    hold(
        "policies.txt",
        &devices::all().into_iter().map(line).collect::<String>(),
    );
}
