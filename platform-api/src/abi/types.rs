//! Types that may cross, how each is spelt in C, and reading and writing sized structs.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use super::layout::AbiLayout;
use super::macros::abi_struct;
use crate::status::{Error, Result, Status};

/// A type with one layout on both sides.
///
/// # Safety
/// The type is plain data with the C layout that `c_type` names.
pub unsafe trait AbiType {
    /// Spelling in C; an array as `element[count]`.
    fn c_type() -> String;
}

macro_rules! c_types {
    ($($rust:ty => $c:literal),* $(,)?) => { $(
        // SAFETY: a primitive with the named C twin.
        unsafe impl AbiType for $rust { fn c_type() -> String { $c.to_string() } }
    )* };
}

c_types! {
    u8 => "uint8_t", u16 => "uint16_t", u32 => "uint32_t", u64 => "uint64_t", i32 => "int32_t", i64 => "int64_t",
    f32 => "float", f64 => "double", c_void => "void", () => "void",
}

// SAFETY: a thin pointer.
unsafe impl<T: AbiType> AbiType for *const T {
    fn c_type() -> String {
        format!("const {} *", T::c_type())
    }
}

// SAFETY: a thin pointer.
unsafe impl<T: AbiType> AbiType for *mut T {
    fn c_type() -> String {
        format!("{} *", T::c_type())
    }
}

/// The type of the log function of `halyard_host`. Any thread; borrows both texts for the call; may block for as long
/// as the host's log sink does.
pub type LogFn = unsafe extern "C" fn(context: *mut c_void, level: u32, target: Str, text: Str);

/// The type of the interface function of `halyard_plugin`: the table of interface `id` for the host's range `major`.0
/// to `major`.`max_minor`, valid for the process's life; a table of a higher minor version is fine, as tables only
/// grow. Status `Unsupported` where the plugin has no such interface, `Incompatible` (with words) where its version
/// does not fit.
pub type InterfaceFn = unsafe extern "C" fn(
    instance: *mut c_void,
    id: u32,
    major: u32,
    max_minor: u32,
    out: *mut *const c_void,
    err: *mut ErrorOut,
) -> u32;

// SAFETY: a nullable C function pointer; the header declares the name.
unsafe impl AbiType for Option<LogFn> {
    fn c_type() -> String {
        "halyard_log_fn".to_string()
    }
}

// SAFETY: a nullable C function pointer; the header declares the name.
unsafe impl AbiType for Option<InterfaceFn> {
    fn c_type() -> String {
        "halyard_interface_fn".to_string()
    }
}

// SAFETY: a C array.
unsafe impl<T: AbiType, const N: usize> AbiType for [T; N] {
    fn c_type() -> String {
        format!("{}[{N}]", T::c_type())
    }
}

/// A descriptor field's form on the wire.
pub trait WireField: Sized {
    /// What crosses.
    type Repr: Copy + AbiType;
    /// To the wire.
    fn to_wire(&self) -> Self::Repr;
    /// From the wire.
    ///
    /// # Errors
    /// `InvalidArgument` for a value outside the type.
    fn from_wire(repr: Self::Repr) -> Result<Self>;
}

macro_rules! wire_identity {
    ($($ty:ty),*) => { $(
        impl WireField for $ty {
            type Repr = $ty;
            fn to_wire(&self) -> $ty { *self }
            fn from_wire(repr: $ty) -> Result<$ty> { Ok(repr) }
        }
    )* };
}
wire_identity!(u32, i32, u64, f32);

impl WireField for bool {
    type Repr = u32;
    fn to_wire(&self) -> u32 {
        u32::from(*self)
    }
    fn from_wire(repr: u32) -> Result<bool> {
        match repr {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::invalid(format!("a flag is 0 or 1, not {other}"))),
        }
    }
}

abi_struct! {
    /// Where a callee puts an error: owned by the caller, who sets text and text_capacity. Written only on failure, and
    /// then status, vendor_code and text_len always are.
    pub struct ErrorOut = "halyard_error" {
        /// The HALYARD_STATUS_ code that the function returns, too.
        pub status: u32,
        /// The vendor's own code; 0 where there is none.
        pub vendor_code: i64,
        /// Receives words for a person: UTF-8, not terminated, cut between characters at the capacity. Null: none are
        /// wanted.
        pub text: *mut u8,
        /// Bytes at text.
        pub text_capacity: u32,
        /// Bytes written there; 0 where text is null.
        pub text_len: u32,
    }
}

impl ErrorOut {
    /// An empty error that writes into `buffer`.
    pub fn over(buffer: &mut [u8]) -> ErrorOut {
        let mut out = ErrorOut::zeroed();
        out.text = buffer.as_mut_ptr();
        out.text_capacity = buffer.len() as u32;
        out
    }

    /// An empty error that writes into `buffer`, which need not be cleared first.
    pub fn into_room(buffer: &mut [MaybeUninit<u8>]) -> ErrorOut {
        let mut out = ErrorOut::zeroed();
        out.text = buffer.as_mut_ptr().cast();
        out.text_capacity = buffer.len() as u32;
        out
    }

    /// Stores `error` at `out`, its text cut at a character border.
    ///
    /// # Safety
    /// `out` starts with its size, which is at least [`AbiLayout::MIN_SIZE`]; its `text` is null or valid for
    /// `text_capacity` bytes.
    pub unsafe fn store(out: *mut ErrorOut, error: &Error) {
        // SAFETY: as the caller promises; of an older writer's struct only what it has is touched.
        unsafe {
            (&raw mut (*out).status).write(error.status as u32);
            (&raw mut (*out).vendor_code).write(error.vendor_code);
            let (text, capacity) = (
                (&raw const (*out).text).read(),
                (&raw const (*out).text_capacity).read(),
            );
            let mut len = match text.is_null() {
                true => 0,
                false => error.message.len().min(capacity as usize),
            };
            while !error.message.is_char_boundary(len) {
                len -= 1;
            }
            std::ptr::copy_nonoverlapping(error.message.as_ptr(), text, len);
            (&raw mut (*out).text_len).write(len as u32);
        }
    }

    /// The error held, for a call that returned `code`.
    ///
    /// # Safety
    /// `text` is null or valid for `text_capacity` bytes, of which `text_len` were written.
    pub unsafe fn load(&self, code: u32) -> Error {
        let len = self.text_len.min(self.text_capacity) as usize;
        let message = if self.text.is_null() || len == 0 {
            "no message was given".to_string()
        } else {
            // SAFETY: the caller promises the bytes, and that a callee wrote as many as it said.
            let bytes = unsafe { std::slice::from_raw_parts(self.text, len) };
            String::from_utf8_lossy(bytes).into_owned()
        };
        let status = match Status::from_code(code) {
            Status::Ok => Status::Internal,
            status => status,
        };
        Error {
            status,
            vendor_code: self.vendor_code,
            message,
        }
    }
}

/// UTF-8 text that the other side owns, not terminated.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Str {
    /// First byte; null for an empty text.
    pub ptr: *const u8,
    /// Bytes.
    pub len: u64,
}

// SAFETY: repr(C) plain data.
unsafe impl AbiType for Str {
    fn c_type() -> String {
        "halyard_str".to_string()
    }
}

impl Str {
    /// The empty text.
    pub const EMPTY: Str = Str {
        ptr: std::ptr::null(),
        len: 0,
    };

    /// Borrows `text`; the result is valid as long as it is.
    pub fn new(text: &str) -> Str {
        Str {
            ptr: text.as_ptr(),
            len: text.len() as u64,
        }
    }

    /// A copy of the text, with invalid UTF-8 replaced.
    ///
    /// # Safety
    /// `ptr` is null or valid for `len` bytes.
    pub unsafe fn to_text(self) -> String {
        if self.ptr.is_null() || self.len == 0 {
            return String::new();
        }
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts(self.ptr, self.len as usize) };
        String::from_utf8_lossy(bytes).into_owned()
    }
}

/// Numbers that the other side owns.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct U64s {
    /// First number; null for none.
    pub ptr: *const u64,
    /// How many.
    pub len: u64,
}

// SAFETY: repr(C) plain data.
unsafe impl AbiType for U64s {
    fn c_type() -> String {
        "halyard_u64s".to_string()
    }
}

impl U64s {
    /// Most numbers that are taken from the other side.
    const MAX: u64 = 1 << 24;

    /// Borrows `numbers`; the result is valid as long as they are.
    pub fn new(numbers: &[u64]) -> U64s {
        U64s {
            ptr: numbers.as_ptr(),
            len: numbers.len() as u64,
        }
    }

    /// A copy of the numbers; none where the pointer or the length cannot be one.
    ///
    /// # Safety
    /// `ptr` is null or valid for `len` numbers.
    pub unsafe fn to_vec(self) -> Vec<u64> {
        if self.ptr.is_null() || !self.ptr.is_aligned() || self.len > U64s::MAX {
            return Vec::new();
        }
        // SAFETY: as the caller promises; not null, aligned.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len as usize) }.to_vec()
    }
}

/// The bytes of a wire struct.
pub fn struct_bytes<T: AbiLayout>(value: &T) -> Vec<u8> {
    // SAFETY: wire structs are plain data without padding holes.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }.to_vec()
}

/// A wire struct from bytes that another version may have written: fields that were appended to it later may be missing
/// and are zero then.
///
/// # Errors
/// `Unsupported` when bytes past the known size are not zero; `InvalidArgument` for fewer than the struct ever had.
pub fn struct_from_bytes<T: AbiLayout>(bytes: &[u8]) -> Result<T> {
    if bytes.len() < T::MIN_SIZE {
        return Err(Error::invalid(format!(
            "{}: {} bytes; it never had fewer than {}",
            T::layout().name,
            bytes.len(),
            T::MIN_SIZE
        )));
    }
    let known = size_of::<T>();
    if let Some(at) = bytes.iter().skip(known).position(|&b| b != 0) {
        return Err(Error::unsupported(format!(
            "{}: a field at byte {} is set that this side (size {known}) does not know",
            T::layout().name,
            known + at
        )));
    }
    let taken = bytes.len().min(known);
    // SAFETY: wire structs are plain data, so zero bytes are valid, and so is any byte pattern copied over them.
    let mut value: T = unsafe { std::mem::zeroed() };
    // SAFETY: both ranges hold at least `taken` bytes and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), std::ptr::from_mut(&mut value).cast::<u8>(), taken) };
    // SAFETY: every wire struct starts with its u32 size.
    unsafe { *std::ptr::from_mut(&mut value).cast::<u32>() = known as u32 };
    Ok(value)
}

/// Reads the struct at `ptr`, whose first word says its size.
///
/// # Errors
/// `InvalidArgument` for null or an absurd size; as [`struct_from_bytes`].
///
/// # Safety
/// `ptr` is null, or starts with a u32 that is the number of readable bytes there.
pub unsafe fn read_struct<T: AbiLayout>(ptr: *const T) -> Result<T> {
    // SAFETY: as the caller promises.
    struct_from_bytes(unsafe { sized_bytes(ptr)? })
}

/// The bytes of the struct at `ptr`, as many as its first word says.
///
/// # Safety
/// As [`read_struct`], for as long as the result is used.
unsafe fn sized_bytes<'a, T: AbiLayout>(ptr: *const T) -> Result<&'a [u8]> {
    if ptr.is_null() {
        return Err(Error::invalid(format!("{}: null pointer", T::layout().name)));
    }
    // SAFETY: as the caller promises.
    let size = unsafe { *ptr.cast::<u32>() } as usize;
    if !(T::MIN_SIZE..=1 << 20).contains(&size) {
        return Err(Error::invalid(format!(
            "{}: struct_size {size} is outside {} to 1048576",
            T::layout().name,
            T::MIN_SIZE
        )));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), size) })
}

/// Reads what this side knows of the struct at `ptr` and leaves the rest: for structs that inform and never ask (the
/// host's offer, the plugin's answer, stat records), where a newer writer's fields may be ignored.
///
/// # Errors
/// `InvalidArgument` for null or an absurd size.
///
/// # Safety
/// As [`read_struct`].
pub unsafe fn read_known<T: AbiLayout>(ptr: *const T) -> Result<T> {
    // SAFETY: as the caller promises.
    let bytes = unsafe { sized_bytes(ptr)? };
    struct_from_bytes(&bytes[..bytes.len().min(size_of::<T>())])
}

/// Reads element `index` of an array of structs that lie `stride` bytes apart; each must fit its stride.
///
/// # Errors
/// `InvalidArgument` for null, or a stride that is unaligned or below the element's size; as [`read_struct`] otherwise.
///
/// # Safety
/// `ptr` is null or points to more than `index` structs, `stride` bytes apart, each starting with its size.
pub unsafe fn read_element<T: AbiLayout>(ptr: *const T, index: usize, stride: u32) -> Result<T> {
    // SAFETY: as the caller promises.
    let element = unsafe { element_ptr(ptr, index, stride)? };
    // SAFETY: as the caller promises.
    unsafe { read_struct(element) }
}

/// As [`read_element`], taking what is known as [`read_known`] does.
///
/// # Errors
/// As [`read_element`] and [`read_known`].
///
/// # Safety
/// As [`read_element`].
pub unsafe fn read_known_element<T: AbiLayout>(ptr: *const T, index: usize, stride: u32) -> Result<T> {
    // SAFETY: as the caller promises.
    let element = unsafe { element_ptr(ptr, index, stride)? };
    // SAFETY: as the caller promises.
    unsafe { read_known(element) }
}

/// # Safety
/// As [`read_element`].
unsafe fn element_ptr<T: AbiLayout>(ptr: *const T, index: usize, stride: u32) -> Result<*const T> {
    if ptr.is_null() || stride < 4 || !(stride as usize).is_multiple_of(align_of::<T>()) {
        return Err(bad_element::<T>(format_args!(
            "{ptr:p} is null or the stride {stride} no multiple of {}",
            align_of::<T>()
        )));
    }
    // SAFETY: the caller promises more than `index` elements, `stride` bytes apart.
    let element = unsafe { ptr.cast::<u8>().add(index * stride as usize) };
    // SAFETY: every element starts with its size.
    let size = unsafe { *element.cast::<u32>() };
    if size > stride {
        return Err(bad_element::<T>(format_args!(
            "element {index} has {size} bytes, more than the stride {stride}"
        )));
    }
    Ok(element.cast())
}

/// Apart, so that no step asks for a name.
#[cold]
fn bad_element<T: AbiLayout>(what: std::fmt::Arguments<'_>) -> Error {
    Error::invalid(format!("array of {}: {what}", T::layout().name))
}

/// Writes `value` to the struct at `ptr`, no further than the size that its owner stated there.
///
/// # Errors
/// As [`check_output`].
///
/// # Safety
/// `ptr` is null, or starts with a u32 that is the number of writable bytes there.
pub unsafe fn write_struct<T: AbiLayout>(ptr: *mut T, value: &T) -> Result<()> {
    // SAFETY: as the caller promises.
    let theirs = unsafe { check_output(ptr)? };
    let taken = theirs.min(size_of::<T>());
    // SAFETY: `taken` is within both structs and above 4; the size word stays the owner's.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(value).cast::<u8>().add(4),
            ptr.cast::<u8>().add(4),
            taken - 4,
        );
    }
    Ok(())
}

/// The size of the output at `ptr`: to be asked before anything is made that only the output could hand over.
///
/// # Errors
/// `InvalidArgument` for null, or for fewer bytes than the struct ever had.
///
/// # Safety
/// As [`write_struct`].
pub unsafe fn check_output<T: AbiLayout>(ptr: *mut T) -> Result<usize> {
    if ptr.is_null() {
        return Err(Error::invalid(format!("{}: null pointer", T::layout().name)));
    }
    // SAFETY: as the caller promises.
    let theirs = unsafe { *ptr.cast::<u32>() } as usize;
    if theirs < T::MIN_SIZE {
        return Err(Error::invalid(format!(
            "{}: {theirs} bytes to write to; it never had fewer than {}",
            T::layout().name,
            T::MIN_SIZE
        )));
    }
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    abi_struct! {
        /// As it was frozen.
        pub struct Frozen = "halyard_frozen" {
            /// A field of the first form.
            pub first: u32,
        }
    }

    abi_struct! {
        /// As it is some versions later.
        pub struct Grown = "halyard_grown" {
            /// A field of the first form.
            pub first: u32,
        } appended {
            /// Asks for something.
            pub asks: u64;
            /// Only informs.
            pub informs: u64, informs from 3;
        }
    }

    fn grown() -> Grown {
        let mut grown = Grown::zeroed();
        (grown.first, grown.asks, grown.informs) = (1, 2, 3);
        grown
    }

    #[test]
    fn what_was_appended_may_be_missing() {
        assert_eq!((Grown::MIN_SIZE, size_of::<Grown>()), (8, 24));
        let read: Grown = struct_from_bytes(&struct_bytes(&grown())[..8]).expect("its first form");
        assert_eq!((read.first, read.asks, read.informs), (1, 0, 0));
        assert!(
            struct_from_bytes::<Grown>(&[4, 0, 0, 0]).is_err(),
            "less than its first form"
        );
        let mut older = Frozen::zeroed();
        // SAFETY: the size word is that of `older`, of which no more is written.
        unsafe { write_struct((&raw mut older).cast(), &grown()) }.expect("its first form");
        assert_eq!((older.struct_size, older.first), (8, 1));
    }

    #[test]
    fn readers_of_an_older_minor_version_are_not_shown_what_only_informs() {
        let shown = |minor| {
            let mut wire = grown();
            wire.for_minor(minor);
            (wire.first, wire.asks, wire.informs)
        };
        assert_eq!((shown(3), shown(2)), ((1, 2, 3), (1, 2, 0)));
        let names: Vec<&str> = Grown::layout().fields.iter().map(|field| field.name).collect();
        assert_eq!(names, ["struct_size", "first", "asks", "informs"]);
    }
}
