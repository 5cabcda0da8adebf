//! A model's weights by their place in the architecture, whatever file they come from. Bytes stay as
//! stored: backends pack them, unless the user asked for smaller ones. A tensor that is handed out has the shape that
//! the description implies.

mod bits_and_bytes;
mod dummy;
mod finder;
mod grouped;
mod hqq;
pub(crate) mod kv_scales;
mod names;
mod order;
mod packed;
mod quantised;
mod role;
mod scales;
mod sorting;
mod tensor;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use halyard_platform_api::WeightFormat;
use halyard_platform_api::weight_format::Codes;

pub use dummy::{DummyFormat, DummyValues, DummyWeights};
use finder::Finder;
pub(crate) use names::{NameTables, NameTemplate, PackedOrder, PackedTensor};
use names::{StoredName, stored_names};
pub use role::{Input, Linear, MlpLinear, Norm, Part, Reader, Role};
use sorting::{Fixed, Orders};
pub use tensor::WeightTensor;
use tensor::{Change, Coding, MXFP4_BLOCK, StoredRows};

use crate::config::{ModelDescription, NormKind, Quantization};
use crate::error::{ModelError, Result, near_names};
use crate::gguf::GgufFile;
use crate::quant::{Rounding, format_name};
use crate::safetensors::SafetensorsFiles;
use crate::{gguf, safetensors};

/// What the names of decoder weights start with, in the order tried, in place of the first word of the family's own
/// names: the text part of multimodal checkpoints, before and after transformers 4.52; nothing.
const OTHER_PREFIXES: [&str; 3] = ["language_model.model.", "model.language_model.", ""];

/// How gpt-oss's checkpoints end the names of a matrix in MXFP4, and of the exponents beside it.
const MXFP4_CODES: &str = "_blocks";
const MXFP4_EXPONENTS: &str = "_scales";

/// All weights of a model.
#[derive(Debug)]
pub struct Weights {
    description: Arc<ModelDescription>,
    source: Source,
    /// Plain matrices of layers are rounded to this as they are handed out.
    quantised: Option<Rounding>,
    /// Columns of matrices are handed out in another order.
    orders: Orders,
}

#[derive(Debug)]
enum Source {
    Safetensors {
        files: SafetensorsFiles,
        names: &'static NameTables,
        /// What the family's names begin with (`model.`), and what these files have in its place.
        prefix: (&'static str, &'static str),
        quantization: Quantization,
    },
    Gguf {
        file: Arc<GgufFile>,
        names: &'static NameTables,
    },
    Dummy {
        dummy: DummyWeights,
        quantization: Quantization,
    },
}

impl Weights {
    /// The weights of a Hugging Face checkpoint.
    #[must_use]
    pub(crate) fn from_safetensors(
        description: Arc<ModelDescription>,
        names: &'static NameTables,
        files: SafetensorsFiles,
        quantization: Quantization,
    ) -> Self {
        let (own, embedding) = names.embedding().map_or(("", ""), |name| {
            let end = name.find('.').map_or(0, |dot| dot + 1);
            name.split_at(end)
        });
        let holds = |prefix: &&str| files.tensor(&format!("{prefix}{embedding}")).is_some();
        let found = [own].into_iter().chain(OTHER_PREFIXES).find(holds);
        let prefix = (own, found.unwrap_or(own));
        let source = Source::Safetensors {
            files,
            names,
            prefix,
            quantization,
        };
        Self {
            description,
            source,
            quantised: None,
            orders: Orders::default(),
        }
    }

    /// The weights of a GGUF file.
    #[must_use]
    pub(crate) fn from_gguf(
        description: Arc<ModelDescription>,
        names: &'static NameTables,
        file: Arc<GgufFile>,
    ) -> Self {
        Self {
            description,
            source: Source::Gguf { file, names },
            quantised: None,
            orders: Orders::default(),
        }
    }

    /// Hands out the matrices of all layers rounded from here on; embedding and output projection stay as stored. Those
    /// that are 8-bit floats already stay as they are where these are asked for; with scales of groups all have to be.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] where a matrix is stored in blocks: rounding it again would add to its error.
    pub fn quantise(&mut self, rounding: Rounding) -> Result<()> {
        let roles = Role::all(&self.description)
            .into_iter()
            .filter(|&role| is_layer_matrix(role));
        let formats: Vec<_> = roles
            .map(|role| Ok((role, self.format(role)?)))
            .collect::<Result<_>>()?;
        if rounding == Rounding::Fp8 && formats.iter().all(|(_, format)| format.layout().codes == Codes::E4m3) {
            return Ok(());
        }
        for (role, format) in formats {
            let is_there = rounding == Rounding::Fp8 && format == WeightFormat::F8E4M3;
            if !is_plain(format) && !is_there || self.is_grouped(role)? {
                let (name, stored) = (self.file_name(role), format_name(format));
                return Err(ModelError::Unsupported {
                    path: self.path().map(PathBuf::from).unwrap_or_default(),
                    field: "--quantization".to_owned(),
                    value: format!("{rounding:?}, while {name} is stored as {stored}"),
                    remedy: "leave it out: the weights are quantised already".to_owned(),
                });
            }
        }
        self.quantised = Some(rounding);
        Ok(())
    }

    /// Hands out weights that give keys and values divided by the checkpoint's scales for a cache of 8-bit floats, and
    /// nothing else changed; the description with the scales. `None` where the checkpoint has none.
    ///
    /// # Errors
    /// A scale that is no finite number above 0, more than one a layer, or a type that cannot be read.
    pub fn use_kv_scales(&mut self) -> Result<Option<Arc<ModelDescription>>> {
        let Source::Safetensors { files, prefix, .. } = &self.source else {
            return Ok(None);
        };
        let kv_scales = kv_scales::read(files, prefix.1, self.description.num_layers())?;
        if kv_scales.is_empty() {
            return Ok(None);
        }
        if self.description.layers.iter().any(|layer| layer.mixer.latent.is_some()) {
            return Err(ModelError::Unsupported {
                path: self.path().map(PathBuf::from).unwrap_or_default(),
                field: "k_scale".to_owned(),
                value: "scales of keys and values in a checkpoint with latent attention".to_owned(),
                remedy: "hold latents in the type of the activations: leave --kv-cache-dtype out".to_owned(),
            });
        }
        let description = ModelDescription {
            kv_scales,
            ..(*self.description).clone()
        };
        self.description = Arc::new(description);
        Ok(Some(self.description.clone()))
    }

    /// Hands out matrices in act-order with their columns sorted by group from here on, where all linears over an input
    /// have one order and a canonical form then. The description says which inputs are put in order; `None`: none.
    ///
    /// `cuts_columns`: ranks divide the columns of some matrices, `has_adapters`: adapters read and add to the
    /// products. Either leaves inputs alone whose order cannot be changed then.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn sort_columns(&mut self, cuts_columns: bool, has_adapters: bool) -> Result<Option<Arc<ModelDescription>>> {
        // Dummy weights are in order, and asking for one makes it.
        if matches!(self.source, Source::Dummy { .. }) {
            return Ok(None);
        }
        let fixed = Fixed {
            cuts_columns,
            has_adapters,
        };
        let orders = Orders::find(&self.description, |role| self.tensor(role), fixed)?;
        self.description = Arc::new(ModelDescription {
            sorted: orders.moved(),
            ..(*self.description).clone()
        });
        self.orders = orders;
        Ok((!self.orders.is_empty()).then(|| self.description.clone()))
    }

    /// The file that the weights come from; `None` for dummy weights.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Safetensors { files, .. } => Some(files.path()),
            Source::Gguf { file, .. } => Some(file.path()),
            Source::Dummy { .. } => None,
        }
    }

    /// Whether the files still hold what they held when they were opened. Those that were removed, or replaced under
    /// their names, do: they are mapped.
    ///
    /// # Errors
    /// [`ModelError::Io`] for a file that was written to in place.
    pub fn check_unchanged(&self) -> Result<()> {
        match &self.source {
            Source::Safetensors { files, .. } => files.check_unchanged(),
            Source::Gguf { file, .. } => file.check_unchanged(),
            Source::Dummy { .. } => Ok(()),
        }
    }

    /// The weight with a role, checked for shape and format. A tied output projection is the embedding.
    /// Nothing is copied, except that dummy weights are made at the call.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`] with near names, [`ModelError::WrongShape`] or [`ModelError::UnsupportedFormat`].
    pub fn tensor(&self, role: Role) -> Result<WeightTensor<'_>> {
        if let Some(matrix) = self.orders.matrix(role) {
            return Ok(matrix);
        }
        let role = self.stored_role(role);
        let stored = self.stored_name(role);
        let shape = role.shape(&self.description);
        match (stored.rows.map_or(0, |rows| rows.transposed_matrices), shape.as_slice()) {
            (matrices, &[rows, columns]) if matrices > 0 => {
                let of_stored = vec![matrices * columns, rows / matrices];
                let stored = self.stored_tensor(role, stored, of_stored)?;
                Ok(stored.with_matrices_transposed(matrices))
            }
            _ => self.stored_tensor(role, stored, shape),
        }
    }

    /// The bytes of a weight where they lie in its mapped file, for reading them before they are used. `None`: in no
    /// file, not as they are, or not to be had, which [`Weights::tensor`] explains.
    #[must_use]
    pub fn stored_bytes(&self, role: Role) -> Option<&[u8]> {
        self.path()?;
        self.tensor(role).ok()?.into_stored_bytes()
    }

    /// A weight of this shape as it is stored.
    fn stored_tensor(&self, role: Role, stored: StoredName, expected: Vec<usize>) -> Result<WeightTensor<'_>> {
        if let Some(grouped) = self.grouped(&stored, &expected)? {
            let tensor = self.orders.sorted(role, grouped);
            let tensor = match role.reader() {
                Reader::Linear => tensor.in_square_blocks(),
                _ => tensor,
            };
            return Ok(self.coded(role, tensor));
        }
        let StoredName { name, member, rows } = stored;
        let mut in_file = expected.clone();
        if let Some(rows) = rows {
            in_file[0] = rows.total;
            if rows.is_transposed {
                in_file.reverse();
            }
        }
        if let Some((_, count)) = member {
            in_file.insert(0, count);
        }
        if let Source::Safetensors { files, .. } = &self.source
            && name.ends_with(MXFP4_CODES)
        {
            let stored = self.mxfp4(files, &name, member, in_file, expected)?;
            let stored = match rows {
                Some(rows) => stored.of_packed(rows),
                None => stored,
            };
            return Ok(self.coded(role, stored));
        }
        let mut coding = Coding::AsStored;
        let (found, stored_as, format, bytes, supported) = match &self.source {
            Source::Dummy { dummy, .. } => {
                let made = match self.dummy_blocks(role) {
                    Some(format) => dummy.blocks(name, role, expected, format),
                    None => dummy.tensor(name, role, expected, &self.description),
                };
                return Ok(self.coded(role, made));
            }
            Source::Safetensors { files, .. } => {
                let tensor = files.tensor(&name).ok_or_else(|| self.missing(&name, files.names()))?;
                let bytes = files.tensor_bytes(tensor);
                (
                    &tensor.shape,
                    tensor.dtype.as_str(),
                    tensor.format,
                    bytes,
                    safetensors::SUPPORTED,
                )
            }
            Source::Gguf { file, .. } => {
                let tensor = file
                    .tensor(&name)
                    .ok_or_else(|| self.missing(&name, file.tensor_names()))?;
                let stored = tensor.tensor_type;
                let bytes = file.tensor_bytes(tensor);
                (
                    &tensor.shape,
                    stored.name(),
                    stored.weight_format(),
                    bytes,
                    gguf::SUPPORTED,
                )
            }
        };
        let path = || self.path().map(PathBuf::from).unwrap_or_default();
        // A matrix of one row may be stored as a vector.
        let is_row = in_file.len() == 2 && in_file[0] == 1 && found[..] == in_file[1..];
        // Matrices of heads may be stored as matrices of their own.
        let is_stack = matches!((found[..].split_last(), &in_file[..]), (Some((columns, of_heads)), [rows, width])
            if role.reader() == Reader::Heads && columns == width && of_heads.iter().product::<usize>() == *rows);
        if *found != in_file && !is_row && !is_stack {
            return Err(ModelError::WrongShape {
                path: path(),
                tensor: name,
                expected: in_file,
                found: found.clone(),
            });
        }
        let Some(format) = format else {
            return Err(ModelError::UnsupportedFormat {
                path: path(),
                tensor: name,
                found: stored_as.to_owned(),
                supported,
            });
        };
        let bytes = match member {
            Some((index, count)) => {
                let of_one = bytes.len() / count;
                &bytes[index as usize * of_one..][..of_one]
            }
            None => bytes,
        };
        let is_transposed = rows.is_some_and(|rows| rows.is_transposed);
        let unsupported = |name: &str| ModelError::UnsupportedFormat {
            path: path(),
            tensor: name.to_owned(),
            found: stored_as.to_owned(),
            supported,
        };
        if is_transposed && !is_plain(format) {
            return Err(unsupported(&name));
        }
        if let (WeightFormat::F8E4M3, Source::Safetensors { files, .. }) = (format, &self.source) {
            let &[num_rows, _] = expected.as_slice() else {
                return Err(unsupported(&name));
            };
            let total = rows.map_or(num_rows, |rows| rows.total);
            let mut scales = scales::read(files, &name, total)?;
            if let Some(rows) = rows.filter(|_| scales.len() > 1) {
                scales = (0..num_rows).map(|row| scales[rows.stored(row)]).collect();
            }
            coding = Coding::Scales(scales);
        }
        let stored = WeightTensor {
            name,
            bytes: Cow::Borrowed(bytes),
            format,
            stored_rows: StoredRows::Whole,
            shape: expected,
            coding,
            turned_from: None,
            change: Change::default(),
        };
        let stored = match rows {
            Some(rows) => stored.of_packed(rows),
            None => stored,
        };
        Ok(self.coded(role, stored))
    }

    /// Whether a quantised matrix is handed out as f32 values because no canonical format holds it.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn is_expanded(&self, role: Role) -> Result<bool> {
        Ok(role.is_matrix() && self.format(role)? == WeightFormat::F32 && self.is_grouped(role)?)
    }

    /// Whether a matrix is stored as codes and scales of its own.
    fn is_grouped(&self, role: Role) -> Result<bool> {
        Ok(match &self.source {
            Source::Safetensors { .. } => matches!(self.tensor(role)?.coding, Coding::Grouped(_)),
            _ => false,
        })
    }

    /// A matrix whose codes and scales are several tensors; `None` where it is not one.
    fn grouped(&self, stored: &StoredName, shape: &[usize]) -> Result<Option<WeightTensor<'_>>> {
        let (
            Source::Safetensors {
                files, quantization, ..
            },
            &[num_rows, columns],
        ) = (&self.source, shape)
        else {
            return Ok(None);
        };
        if stored.member.is_some() || stored.rows.is_some_and(|rows| rows.is_transposed) {
            return Ok(None);
        }
        let rows = stored.rows.map_or(num_rows, |rows| rows.total);
        let finder = Finder {
            files,
            quantization,
            name: &stored.name,
            rows,
            columns,
        };
        let Some(grouped) = finder.find()? else {
            return Ok(None);
        };
        let format = grouped.format(columns);
        Ok(Some(WeightTensor {
            name: stored.name.clone(),
            bytes: Cow::Borrowed(&[]),
            format,
            stored_rows: stored.rows.map_or(StoredRows::Whole, StoredRows::Packed),
            shape: shape.to_vec(),
            coding: Coding::Grouped(Box::new(grouped)),
            turned_from: None,
            change: Change::default(),
        }))
    }

    /// The codes of a matrix in MXFP4 (`[.., rows, blocks, 16]` u8), and beside them the exponents of its blocks
    /// (`[.., rows, blocks]` u8); of one expert where the tensors hold all of them.
    fn mxfp4<'w>(
        &'w self,
        files: &'w SafetensorsFiles,
        name: &str,
        member: Option<(u32, usize)>,
        mut in_file: Vec<usize>,
        shape: Vec<usize>,
    ) -> Result<WeightTensor<'w>> {
        let wrong = |tensor: &str, expected: &[usize], found: &[usize]| ModelError::WrongShape {
            path: files.path().to_path_buf(),
            tensor: tensor.to_owned(),
            expected: expected.to_vec(),
            found: found.to_vec(),
        };
        let width = in_file.pop().unwrap_or(0);
        if !width.is_multiple_of(MXFP4_BLOCK) {
            return Err(ModelError::Unsupported {
                path: files.path().to_path_buf(),
                field: name.to_owned(),
                value: format!("MXFP4 in rows of {width} values"),
                remedy: format!("rows must be whole blocks of {MXFP4_BLOCK}: use the unquantised checkpoint"),
            });
        }
        in_file.push(width / MXFP4_BLOCK);
        let part = |name: &str, expected: &[usize]| {
            let tensor = files.tensor(name).ok_or_else(|| self.missing(name, files.names()))?;
            if tensor.shape != expected || tensor.dtype != "U8" {
                return Err(wrong(name, expected, &tensor.shape));
            }
            let bytes = files.tensor_bytes(tensor);
            Ok(match member {
                Some((index, count)) => &bytes[index as usize * (bytes.len() / count)..][..bytes.len() / count],
                None => bytes,
            })
        };
        let exponents = part(&name.replace(MXFP4_CODES, MXFP4_EXPONENTS), &in_file)?.to_vec();
        in_file.push(MXFP4_BLOCK / 2);
        Ok(WeightTensor {
            name: name.to_owned(),
            bytes: Cow::Borrowed(part(name, &in_file)?),
            format: WeightFormat::Mxfp4,
            stored_rows: StoredRows::Whole,
            shape,
            coding: Coding::Mxfp4(exponents),
            turned_from: None,
            change: Change::default(),
        })
    }

    /// A weight as it is handed out.
    fn coded<'w>(&self, role: Role, mut tensor: WeightTensor<'w>) -> WeightTensor<'w> {
        let is_stored = is_plain(tensor.format) && tensor.coding == Coding::AsStored;
        if let Some(format) = self.rounded(role, tensor.row_len()).filter(|_| is_stored) {
            tensor.coding = Coding::Quantise(tensor.format);
            tensor.format = format;
        }
        tensor.change = Change {
            factor: kv_scales::factor(&self.description, role),
            offset: if role.is_norm() {
                self.description.norm.weight_offset
            } else {
                0.0
            },
            adds_offset: self.description.norm.kind != NormKind::Rms,
        };
        tensor
    }

    /// The format that a weight is handed out in, without touching its bytes.
    ///
    /// # Errors
    /// As [`Weights::tensor`].
    pub fn format(&self, role: Role) -> Result<WeightFormat> {
        match &self.source {
            Source::Dummy { dummy, .. } => Ok(self
                .dummy_blocks(role)
                .or_else(|| self.rounded(role, self.columns(role)))
                .unwrap_or(dummy.format_of(self.stored_role(role)))),
            _ => Ok(self.tensor(role)?.format),
        }
    }

    /// The format that a matrix of rows of `columns` values is rounded to.
    fn rounded(&self, role: Role, columns: usize) -> Option<WeightFormat> {
        self.quantised.filter(|_| is_layer_matrix(role))?.format(columns)
    }

    /// Values of a row.
    fn columns(&self, role: Role) -> usize {
        self.shape(role).last().copied().unwrap_or(0)
    }

    /// The shape that the description implies for a role, as [`WeightTensor::shape`].
    #[must_use]
    pub fn shape(&self, role: Role) -> Vec<usize> {
        self.stored_role(role).shape(&self.description)
    }

    /// Checks that every weight of the description is there with its shape and a usable format, and
    /// returns the bytes that they take as they are handed out.
    ///
    /// # Errors
    /// As [`Weights::tensor`], for the first weight that fails.
    pub fn check(&self) -> Result<u64> {
        let mut total_bytes = 0u64;
        for role in Role::each(&self.description) {
            if self.stored_role(role) != role {
                continue;
            }
            let shape = role.shape(&self.description);
            let (row_len, rows) = (
                shape[shape.len() - 1],
                shape[..shape.len() - 1].iter().product::<usize>(),
            );
            let format = self.format(role)?;
            self.check_scales(role)?;
            let bytes = rows.saturating_mul(format.row_bytes(row_len).unwrap_or(0)) as u64;
            total_bytes = bytes.saturating_add(total_bytes);
            self.check_expert(role, format)?;
        }
        Ok(total_bytes)
    }

    /// Every scale of a matrix must be a number.
    fn check_scales(&self, role: Role) -> Result<()> {
        if !role.is_matrix() || !matches!(self.source, Source::Safetensors { .. }) {
            return Ok(());
        }
        let tensor = self.tensor(role)?;
        let Coding::Grouped(grouped) = &tensor.coding else {
            return Ok(());
        };
        match grouped.bad_number() {
            None => Ok(()),
            Some((of, at, value)) => Err(ModelError::BadField {
                path: self.path().map(PathBuf::from).unwrap_or_default(),
                field: format!("{of} {at} of {}", tensor.name),
                value: value.to_string(),
                limit: "a finite number".to_owned(),
            }),
        }
    }

    /// One op multiplies by all experts' matrices of a kind: they must have one format.
    fn check_expert(&self, role: Role, format: WeightFormat) -> Result<()> {
        let Role::Layer(layer, Part::Weight(Linear::Expert(_, linear))) = role else {
            return Ok(());
        };
        let first = Role::weight(layer, Linear::Expert(0, linear));
        let expected = self.format(first)?;
        if format == expected {
            return Ok(());
        }
        Err(ModelError::Unsupported {
            path: self.path().map(PathBuf::from).unwrap_or_default(),
            field: self.file_name(role),
            value: format!(
                "{}, while {} is {}",
                format_name(format),
                self.file_name(first),
                format_name(expected)
            ),
            remedy: "the experts of a layer must have one format: convert or quantise the checkpoint again".to_owned(),
        })
    }

    /// The name that a weight has in the files; of an expert's, where all experts are one tensor, that tensor's.
    #[must_use]
    pub fn file_name(&self, role: Role) -> String {
        self.stored_name(role).name
    }

    fn stored_name(&self, role: Role) -> StoredName {
        let names = |tables| stored_names(tables, role, &self.description);
        match &self.source {
            Source::Gguf { names: tables, file } => first_found(names(tables), |name| file.tensor(name).is_some()),
            Source::Safetensors {
                names: tables,
                files,
                prefix,
                ..
            } => {
                let mut names = names(tables);
                let (own, found) = prefix;
                for stored in &mut names {
                    if let Some(rest) = stored.name.strip_prefix(own) {
                        stored.name = format!("{found}{rest}");
                    } else if *found == "language_model.model." {
                        // The output projection is outside the decoder's prefix.
                        stored.name = format!("language_model.{}", stored.name);
                    }
                }
                first_found(names, |name| quantised::is_there(files, name))
            }
            Source::Dummy { .. } => names(&NameTables::own(&[])).remove(0),
        }
    }

    fn stored_role(&self, role: Role) -> Role {
        match role {
            Role::LmHead if self.description.tie_word_embeddings => Role::Embedding,
            other => other,
        }
    }

    fn missing<'n>(&self, name: &str, names: impl Iterator<Item = &'n str>) -> ModelError {
        ModelError::MissingTensor {
            path: self.path().map(PathBuf::from).unwrap_or_default(),
            tensor: name.to_owned(),
            near: near_names(name, names),
        }
    }
}

/// The first name whose tensor is there, else the first.
fn first_found(mut names: Vec<StoredName>, is_there: impl Fn(&str) -> bool) -> StoredName {
    let found = names.iter().position(|stored| is_there(&stored.name));
    names.swap_remove(found.unwrap_or(0))
}

/// A matrix of a layer that 8-bit floats may hold. Routers are small, and a rounded score chooses another expert. The
/// matrices of latent attention's heads stay in the file's type, too.
fn is_layer_matrix(role: Role) -> bool {
    matches!(role, Role::Layer(_, Part::Weight(linear)) if !matches!(linear, Linear::Router | Linear::SharedWeight))
        && role.reader() != Reader::Heads
}

fn is_plain(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16)
}
