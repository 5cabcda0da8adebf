//! A driver without a device: it compiles nothing, and records how each function was requested, so that launches can be
//! written as text.

use std::sync::{Arc, Mutex};

use halyard_kernels_gpu::Source;
use halyard_platform_api::{DType, Error, Result, Status};

use super::devices::{Device, Products};
use crate::driver::{
    DevicePtr, Driver, Event, Facts, Function, Graph, KernelText, Module, Param, Pinned, Product, ProductCall,
    ProductSpec, Stream,
};
use crate::encoding::{Command, Encoding};
use crate::policy::Policy;

/// The driver.
pub(super) struct Recorder {
    pub(super) device: Device,
    /// What modules and functions were asked as; a handle is a place in the list and one more.
    asked: Mutex<Vec<String>>,
    products: Mutex<Vec<(Arc<dyn Product>, ProductSpec)>>,
}

struct NoProduct;

impl Product for NoProduct {
    fn workspace_bytes(&self) -> u64 {
        1 << 20
    }

    unsafe fn run(&self, _call: &ProductCall, _workspace: DevicePtr, _stream: Stream) -> Result<()> {
        Ok(())
    }
}

impl Recorder {
    pub(super) fn new(device: Device) -> Recorder {
        Recorder {
            device,
            asked: Mutex::default(),
            products: Mutex::default(),
        }
    }

    fn remember(&self, asked: String) -> usize {
        let mut all = self.asked.lock().unwrap();
        match all.iter().position(|known| *known == asked) {
            Some(place) => place + 1,
            None => {
                all.push(asked);
                all.len()
            }
        }
    }

    pub(super) fn asked(&self, handle: usize) -> String {
        self.asked.lock().unwrap()[handle - 1].clone()
    }

    /// The entry points and products of a list in order, each once.
    pub(super) fn names(&self, encoding: &Encoding) -> String {
        let mut names: Vec<String> = Vec::new();
        for command in &encoding.commands {
            let name = match command {
                Command::Launch(launch) => {
                    let asked = self.asked(launch.function.0);
                    asked.split(' ').next().unwrap().to_string()
                }
                Command::Product { in_scratch, .. } => match in_scratch.x {
                    true => "product of 8-bit tokens".to_string(),
                    false => "product".to_string(),
                },
                _ => "other".to_string(),
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.join(" + ")
    }

    /// Everything that a list enqueues, as text.
    pub(super) fn all(&self, encoding: &Encoding) -> String {
        let mut text = String::new();
        for command in &encoding.commands {
            match command {
                Command::Launch(launch) => {
                    let (first, count) = launch.args;
                    let args = &encoding.args[first as usize..(first + count) as usize];
                    text += &format!(
                        "{} {:?} {:?} {} {} {args:?}\n",
                        self.asked(launch.function.0),
                        launch.grid,
                        launch.block,
                        launch.shared_bytes,
                        launch.chained
                    );
                }
                Command::Product {
                    product,
                    call,
                    in_scratch,
                    workspace,
                } => {
                    let products = self.products.lock().unwrap();
                    let known = products.iter().find(|(known, _)| Arc::ptr_eq(known, product));
                    text += &format!("{:?} {call:?} {in_scratch:?} {workspace}\n", known.unwrap().1);
                }
                _ => text += "other\n",
            }
        }
        text
    }
}

fn none<T>() -> Result<T> {
    Err(Error::unsupported("a driver that only remembers"))
}

impl Driver for Recorder {
    fn facts(&self) -> &Facts {
        &self.device.facts
    }

    fn policy(&self) -> &Policy {
        &self.device.policy
    }

    fn memory(&self) -> Result<(u64, u64)> {
        Ok((1 << 30, 1 << 30))
    }

    fn allocate(&self, _bytes: u64) -> Result<DevicePtr> {
        none()
    }

    unsafe fn free(&self, _ptr: DevicePtr) {}

    fn allocate_pinned(&self, bytes: u64) -> Result<Pinned> {
        let host = Box::leak(vec![0u8; bytes as usize].into_boxed_slice()).as_mut_ptr();
        Ok(Pinned {
            host,
            device: host as u64,
        })
    }

    unsafe fn free_pinned(&self, _pinned: Pinned) {}

    fn create_stream(&self) -> Result<Stream> {
        Ok(Stream(1))
    }

    unsafe fn destroy_stream(&self, _stream: Stream) {}

    fn synchronize(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }

    fn create_event(&self) -> Result<Event> {
        none()
    }

    unsafe fn destroy_event(&self, _event: Event) {}

    fn record_event(&self, _event: Event, _stream: Stream) -> Result<()> {
        none()
    }

    fn stream_wait(&self, _stream: Stream, _event: Event) -> Result<()> {
        none()
    }

    fn synchronize_event(&self, _event: Event) -> Result<()> {
        none()
    }

    fn query_event(&self, _event: Event) -> Result<bool> {
        none()
    }

    unsafe fn copy(&self, _to: DevicePtr, _from: DevicePtr, _bytes: u64, _stream: Stream) -> Result<()> {
        none()
    }

    unsafe fn copy_2d(
        &self,
        _to: DevicePtr,
        _to_pitch: u64,
        _from: DevicePtr,
        _from_pitch: u64,
        _width: u64,
        _height: u64,
        _stream: Stream,
    ) -> Result<()> {
        none()
    }

    unsafe fn fill(&self, _to: DevicePtr, _value: u8, _bytes: u64, _stream: Stream) -> Result<()> {
        none()
    }

    unsafe fn write_value(&self, _to: DevicePtr, _value: u64, _stream: Stream) -> Result<()> {
        none()
    }

    fn kernel_text(&self, source: Source) -> Result<KernelText> {
        if self.device.lacks.contains(&source.name) {
            return none();
        }
        Ok(KernelText {
            text: if self.device.splits_attention {
                "attention_split"
            } else {
                ""
            },
            headers: &[],
        })
    }

    fn compile(&self, name: &str, _text: KernelText, options: &[String]) -> Result<Vec<u8>> {
        Ok(format!("{name} {}", options.join(" ")).into_bytes())
    }

    fn compiler(&self) -> Result<String> {
        Ok("none".to_string())
    }

    fn load(&self, image: &[u8]) -> Result<Module> {
        Ok(Module(self.remember(String::from_utf8(image.to_vec()).unwrap())))
    }

    fn function(&self, module: Module, name: &str, shared_bytes: u32) -> Result<Function> {
        let of = self.asked(module.0);
        Ok(Function(self.remember(format!("{name} {shared_bytes} of {of}"))))
    }

    fn prefer_shared(&self, function: Function, bytes: u32) -> Result<()> {
        let mut all = self.asked.lock().unwrap();
        let line = format!(" beside {bytes}");
        if !all[function.0 - 1].ends_with(&line) {
            all[function.0 - 1] += &line;
        }
        Ok(())
    }

    /// Attention, as its test at load launches it: every result is 0.
    unsafe fn launch(
        &self,
        function: Function,
        _grid: [u32; 3],
        _block: [u32; 3],
        _shared_bytes: u32,
        params: &[Param<'_>],
        _chained: bool,
        _stream: Stream,
    ) -> Result<()> {
        assert!(self.asked(function.0).starts_with("attention"));
        let word = |at: usize| match params[at] {
            Param::Word(word) => word as usize,
            _ => unreachable!("a word"),
        };
        let Param::Ptr(out) = params[11] else {
            unreachable!("an address")
        };
        let (pitch, head_dim, tokens, heads) = (word(12), word(13), word(14), word(16));
        for token in 0..tokens {
            let row = (out as usize + 2 * token * pitch) as *mut u8;
            // SAFETY: memory of 16-bit results, as the test made it.
            unsafe { row.write_bytes(0, 2 * heads * head_dim) };
        }
        Ok(())
    }

    fn begin_capture(&self, _stream: Stream) -> Result<()> {
        none()
    }

    fn end_capture(&self, _stream: Stream) -> Result<Graph> {
        none()
    }

    unsafe fn launch_graph(&self, _graph: Graph, _stream: Stream) -> Result<()> {
        none()
    }

    unsafe fn destroy_graph(&self, _graph: Graph) {}

    fn product(&self, spec: &ProductSpec) -> Result<Arc<dyn Product>> {
        use DType::{BF16, F8E4M3, F16, F32};
        let takes = spec.act == spec.weight
            && match self.device.products {
                Products::Missing => return Err(Error::new(Status::Unavailable, "no library")),
                Products::None => false,
                Products::CublasLt => match spec.act {
                    F32 | F16 | BF16 => [spec.act, F32].contains(&spec.out),
                    F8E4M3 => [F16, BF16, F32].contains(&spec.out),
                    _ => false,
                },
                Products::RocBlas => [F32, F16, BF16].contains(&spec.act) && [spec.act, F32].contains(&spec.out),
                Products::SixteenBit => [F16, BF16].contains(&spec.act),
            };
        if !takes {
            return none();
        }
        let product: Arc<dyn Product> = Arc::new(NoProduct);
        // An `Arc` of a type without a size still has an address of its own.
        self.products.lock().unwrap().push((product.clone(), *spec));
        Ok(product)
    }
}
