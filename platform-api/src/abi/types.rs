//! Types that may cross, how each is spelt in C, and reading and writing sized structs.

use std::ffi::c_void;

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
/// to `major`.`max_minor`, valid for the process's life. Status `Unsupported` where the plugin has no such interface,
/// `Incompatible` (with words) where its version does not fit.
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
    /// Where a callee puts an error: owned by the caller, written only on failure.
    pub struct ErrorOut = "halyard_error" {
        /// [`crate::Status`] code.
        pub status: u32,
        /// The vendor's own code.
        pub vendor_code: i64,
        /// UTF-8, not terminated; truncated at the capacity.
        pub text: *mut u8,
        /// Bytes at `text`.
        pub text_capacity: u32,
        /// Bytes written.
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

    /// Stores `error`, its text cut at a character border.
    ///
    /// # Safety
    /// `text` is null or valid for `text_capacity` bytes.
    pub unsafe fn store(&mut self, error: &Error) {
        self.status = error.status as u32;
        self.vendor_code = error.vendor_code;
        self.text_len = 0;
        if self.text.is_null() {
            return;
        }
        let mut len = error.message.len().min(self.text_capacity as usize);
        while !error.message.is_char_boundary(len) {
            len -= 1;
        }
        // SAFETY: the caller promises `text_capacity` bytes at `text`, and `len` is at most that.
        unsafe { std::ptr::copy_nonoverlapping(error.message.as_ptr(), self.text, len) };
        self.text_len = len as u32;
    }

    /// The error held, for a call that returned `code`.
    ///
    /// # Safety
    /// `text` is null or valid for `text_capacity` bytes.
    pub unsafe fn load(&self, code: u32) -> Error {
        let len = self.text_len.min(self.text_capacity) as usize;
        let message = if self.text.is_null() || len == 0 {
            "no message was given".to_string()
        } else {
            // SAFETY: the caller promises the bytes; they were initialised by the buffer's owner.
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

/// A wire struct from bytes that another version may have written: shorter ones are zero-extended.
///
/// # Errors
/// `Unsupported` when bytes past the known size are not zero; `InvalidArgument` below four bytes.
pub fn struct_from_bytes<T: AbiLayout>(bytes: &[u8]) -> Result<T> {
    if bytes.len() < 4 {
        return Err(Error::invalid(format!(
            "{}: {} bytes hold no struct size",
            T::layout().name,
            bytes.len()
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
    if !(4..=1 << 20).contains(&size) {
        return Err(Error::invalid(format!(
            "{}: struct_size {size} is outside 4 to 1048576",
            T::layout().name
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
    let name = T::layout().name;
    if ptr.is_null() {
        return Err(Error::invalid(format!("array of {name}: null pointer")));
    }
    if stride < 4 || !(stride as usize).is_multiple_of(align_of::<T>()) {
        return Err(Error::invalid(format!(
            "array of {name}: stride {stride} is not a multiple of {}",
            align_of::<T>()
        )));
    }
    // SAFETY: the caller promises more than `index` elements, `stride` bytes apart.
    let element = unsafe { ptr.cast::<u8>().add(index * stride as usize) };
    // SAFETY: every element starts with its size.
    let size = unsafe { *element.cast::<u32>() };
    if size > stride {
        return Err(Error::invalid(format!(
            "array of {name}: element {index} has {size} bytes, more than the stride {stride}"
        )));
    }
    Ok(element.cast())
}

/// Writes `value` to the struct at `ptr`, no further than the size that its owner stated there.
///
/// # Errors
/// `InvalidArgument` for null.
///
/// # Safety
/// `ptr` is null, or starts with a u32 that is the number of writable bytes there.
pub unsafe fn write_struct<T: AbiLayout>(ptr: *mut T, value: &T) -> Result<()> {
    if ptr.is_null() {
        return Err(Error::invalid(format!("{}: null pointer", T::layout().name)));
    }
    // SAFETY: as the caller promises.
    let theirs = unsafe { *ptr.cast::<u32>() } as usize;
    let taken = theirs.min(size_of::<T>());
    if taken > 4 {
        // SAFETY: `taken` is within both structs; the size word stays the owner's.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(value).cast::<u8>().add(4),
                ptr.cast::<u8>().add(4),
                taken - 4,
            );
        }
    }
    Ok(())
}
