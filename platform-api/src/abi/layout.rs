//! Descriptions of the wire's structs and tables, which the header, the layout file and the loader read.

use crate::status::{Error, Result};

/// Lines of a doc comment.
pub type Doc = &'static [&'static str];

/// A field of a wire struct.
#[derive(Clone, Debug)]
pub struct FieldLayout {
    /// Name.
    pub name: &'static str,
    /// Byte offset.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Spelling in C.
    pub c_type: String,
    /// What it is.
    pub doc: Doc,
}

/// A wire struct.
#[derive(Clone, Debug)]
pub struct StructLayout {
    /// Name in C.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Bytes that it had when its interface was frozen: [`AbiLayout::MIN_SIZE`].
    pub base: usize,
    /// Starts with its size and may grow.
    pub sized: bool,
    /// What it is.
    pub doc: Doc,
    /// Fields in order.
    pub fields: Vec<FieldLayout>,
}

/// A slot of a function table.
#[derive(Clone, Debug)]
pub struct Slot {
    /// Name.
    pub name: &'static str,
    /// Byte offset.
    pub offset: usize,
    /// A table without it is refused.
    pub required: bool,
    /// What the host does without it.
    pub fallback: Option<&'static str>,
    /// Return type in C.
    pub c_return: String,
    /// Arguments: name and type in C.
    pub c_args: Vec<(&'static str, String)>,
    /// What it does.
    pub doc: Doc,
}

/// A function table.
#[derive(Clone, Debug)]
pub struct TableLayout {
    /// Name in C.
    pub name: &'static str,
    /// Interface number.
    pub id: u32,
    /// Interface name.
    pub interface: &'static str,
    /// Version of this description.
    pub version: (u32, u32),
    /// Bytes.
    pub size: usize,
    /// What it is.
    pub doc: Doc,
    /// Slots in order.
    pub slots: Vec<Slot>,
}

/// A sized wire struct.
///
/// # Safety
/// repr(C), plain data, any byte pattern valid, first field `struct_size: u32`, no padding holes.
pub unsafe trait AbiLayout: Copy {
    /// Bytes that it had when its interface was frozen; fewer are no such struct.
    const MIN_SIZE: usize;

    /// Clears the fields that a reader of minor version `minor` does not know and that only inform: a field that asks
    /// for something stays, and the reader refuses it.
    fn for_minor(&mut self, minor: u32);

    /// The description.
    fn layout() -> StructLayout;
}

/// A function table.
///
/// # Safety
/// repr(C): `struct_size: u32`, `minor: u32`, then nullable function pointers.
pub unsafe trait AbiTable: Copy {
    /// Interface number.
    const ID: u32;

    /// The description.
    fn table_layout() -> TableLayout;

    /// Copies another side's table of any size into a full one and checks its required slots.
    ///
    /// # Errors
    /// `Incompatible` naming every missing slot; `InvalidArgument` for null.
    ///
    /// # Safety
    /// `ptr` is null, or starts with a u32 that is the number of readable bytes there.
    unsafe fn load(ptr: *const Self) -> Result<Self> {
        let layout = Self::table_layout();
        if ptr.is_null() {
            return Err(Error::invalid(format!("{}: null table", layout.name)));
        }
        // SAFETY: as the caller promises.
        let size = unsafe { *ptr.cast::<u32>() } as usize;
        // SAFETY: tables are sizes and nullable pointers, for which zero bytes are valid.
        let mut table: Self = unsafe { std::mem::zeroed() };
        let taken = size.min(size_of::<Self>());
        // SAFETY: `taken` is within both.
        unsafe { std::ptr::copy_nonoverlapping(ptr.cast::<u8>(), std::ptr::from_mut(&mut table).cast::<u8>(), taken) };
        let is_null = |slot: &&Slot| {
            // SAFETY: `offset` is a pointer-sized slot inside `table`.
            slot.required && unsafe { *std::ptr::from_ref(&table).cast::<u8>().add(slot.offset).cast::<usize>() } == 0
        };
        let missing: Vec<&str> = layout.slots.iter().filter(is_null).map(|slot| slot.name).collect();
        if missing.is_empty() {
            Ok(table)
        } else {
            Err(Error::new(
                crate::Status::Incompatible,
                format!(
                    "interface {} ({} of {} bytes) lacks required functions: {}",
                    layout.interface,
                    size,
                    layout.size,
                    missing.join(", ")
                ),
            ))
        }
    }
}

pub(crate) fn layout_of_wire<Op, W: AbiLayout>(_: fn(&Op) -> W) -> StructLayout {
    W::layout()
}
