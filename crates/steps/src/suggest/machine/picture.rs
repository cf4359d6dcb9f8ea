//! Images: Pillow, OpenCV, torchvision's transforms and transformers' processors.

use crate::suggest::machine::Machine;
use crate::suggest::op::{ArithmeticOp, Dim, ExprId, Kind, LetterboxForm, Op, PictureOp};
use crate::suggest::value::{Arguments, ArrayKind, Called, Object, PyValue, Transform, needed};
use base::tensor::Datatype;

impl Machine<'_> {
    pub fn call_picture(&mut self, path: &str, arguments: &Arguments) -> Called {
        let first = arguments.positional.first().cloned();
        match path {
            "PIL.Image.open" => {
                let [file] = arguments.bind(["fp"])?;
                let id = self.file_of(&needed(file, "fp")?)?;
                Ok(PyValue::Array(self.decoded(id, "pillow")?, ArrayKind::Pillow))
            }
            "PIL.Image.fromarray" => {
                let [array] = arguments.bind(["obj"])?;
                match needed(array, "obj")? {
                    PyValue::Array(id, _)
                        if self.graph.kind(id) == Kind::Number(Datatype::Uint8) && self.graph.rank(id) == 3 =>
                    {
                        Ok(PyValue::Array(id, ArrayKind::Pillow))
                    }
                    _ => Err("an array that is no image of UINT8".to_owned()),
                }
            }
            "PIL.ImageOps.exif_transpose" => {
                let [image] = arguments.bind(["image"])?;
                let (id, _) = needed(image, "image")?.array().ok_or("its image is not known")?;
                Ok(PyValue::Array(self.sized(PictureOp::Upright, id, None)?, ArrayKind::Pillow))
            }
            "cv2.imdecode" => self.cv2_decode(arguments),
            "cv2.cvtColor" => self.cv2_colours(arguments),
            "cv2.resize" => self.cv2_resize(arguments),
            "cv2.copyMakeBorder" => self.bordered(arguments),
            "cv2.dnn.NMSBoxes" => self.nms_boxes(arguments),
            "torchvision.ops.nms" | "torchvision.ops.batched_nms" => self.torchvision_nms(path, arguments),
            "torchvision.ops.box_convert" => Err("it is not followed".to_owned()),
            "torchvision.transforms.Compose" => {
                let mut transforms = Vec::new();
                for item in self.items(&needed(first, "transforms")?)? {
                    match item {
                        PyValue::Object(object) => match &*object {
                            Object::Transforms(some) => transforms.extend(some.iter().cloned()),
                            _ => return Err("a transform is not known".to_owned()),
                        },
                        PyValue::Unknown(_) => return Ok(item),
                        _ => return Err("a transform is not known".to_owned()),
                    }
                }
                Ok(PyValue::object(Object::Transforms(transforms)))
            }
            _ => match path.strip_prefix("torchvision.transforms.") {
                Some(name) => self.transform(name, arguments),
                None => Err("it is not known".to_owned()),
            },
        }
    }

    fn cv2_decode(&mut self, arguments: &Arguments) -> Called {
        let [buffer, flags] = arguments.bind(["buf", "flags"])?;
        let id = self.file_of(&needed(buffer, "buf")?)?;
        let is_grey = match needed(flags, "flags")? {
            PyValue::Int(1) => false,
            PyValue::Library(flag) if flag == "cv2.IMREAD_COLOR" || flag == "cv2.IMREAD_COLOR_BGR" => false,
            PyValue::Int(0) => true,
            PyValue::Library(flag) if flag == "cv2.IMREAD_GRAYSCALE" => true,
            _ => return Err("only IMREAD_COLOR and IMREAD_GRAYSCALE are followed".to_owned()),
        };
        let mut image = self.decoded(id, "opencv")?;
        if is_grey {
            image = self.grey(image, "decode")?;
            image = self.without_channel(image)?;
        }
        Ok(PyValue::Array(image, ArrayKind::Numpy))
    }

    fn cv2_colours(&mut self, arguments: &Arguments) -> Called {
        let [image, code] = arguments.bind(["src", "code"])?;
        let form = match needed(code, "code")? {
            PyValue::Library(code) => match code.as_str() {
                "cv2.COLOR_BGR2RGB" | "cv2.COLOR_RGB2BGR" => None,
                "cv2.COLOR_BGR2GRAY" => Some("bgr"),
                "cv2.COLOR_RGB2GRAY" => Some("rgb"),
                _ => return Err("only the order of RGB and BGR, and GRAY, are followed".to_owned()),
            },
            _ => return Err("only the order of RGB and BGR, and GRAY, are followed".to_owned()),
        };
        if let Some(form) = form {
            let (id, kind) = needed(image, "src")?.array().ok_or("its image is not known")?;
            let grey = self.grey(id, form)?;
            return Ok(PyValue::Array(self.without_channel(grey)?, kind));
        }
        let reversed = PyValue::Slice(Box::new([PyValue::Nothing, PyValue::Nothing, PyValue::Int(-1)]));
        let index = PyValue::Tuple(vec![PyValue::Ellipsis, reversed]);
        self.subscript(&needed(image, "src")?, &index)
    }

    /// The bytes of a file in a tensor.
    fn file_of(&self, value: &PyValue) -> Result<ExprId, String> {
        match value {
            PyValue::Array(id, _) if self.graph.kind(*id) == Kind::Raw => Ok(*id),
            PyValue::Array(id, _)
                if self.graph.kind(*id) == Kind::Number(Datatype::Uint8) && self.graph.rank(*id) == 1 =>
            {
                Ok(*id)
            }
            _ => Err("the file of an image is not known".to_owned()),
        }
    }

    fn decoded(&mut self, file: ExprId, library: &'static str) -> Result<ExprId, String> {
        let [height, width] = [0; 2].map(|_| self.graph.open_size(false));
        let kind = Kind::Number(Datatype::Uint8);
        let (count, tail) = match self.graph.kind(file) {
            Kind::Raw => (0, [height, width, Dim::Known(3)]),
            _ => (1, [height, width, Dim::Known(3)]),
        };
        self.by_row(Op::Picture(PictureOp::Decode(library)), file, count, kind, &tail)
    }

    /// An operation on an image [.., height, width, channels], or on a grey one without the axis of channels, that gives it
    /// another size.
    fn sized(&mut self, op: PictureOp, id: ExprId, size: Option<[u64; 2]>) -> Result<ExprId, String> {
        let (id, is_flat) = match self.grey_below(id)? {
            Some(grey) => (grey, true),
            None => (id, false),
        };
        let shape = self.graph.shape(id);
        let channels = match shape.as_slice() {
            [.., _, _, three @ Dim::Known(3)] => Some(*three),
            [.., _, _, one @ Dim::Known(1)] if is_flat || self.is_grey(id) => Some(*one),
            _ => None,
        };
        let channels = channels.filter(|_| self.graph.kind(id) == Kind::Number(Datatype::Uint8));
        let channels = channels.ok_or("its image is not one of UINT8 with three channels or grey")?;
        let [height, width] = match size {
            Some(size) => size.map(Dim::Known),
            None => [0; 2].map(|_| self.graph.open_size(false)),
        };
        let made = self.by_row(Op::Picture(op), id, 3, Kind::Number(Datatype::Uint8), &[height, width, channels])?;
        if is_flat { self.without_channel(made) } else { Ok(made) }
    }

    /// An image [.., height, width, 3] as one channel [.., height, width, 1].
    fn grey(&mut self, id: ExprId, form: &'static str) -> Result<ExprId, String> {
        let shape = self.graph.shape(id);
        let [.., height, width, Dim::Known(3)] = *shape.as_slice() else {
            return Err("its image does not have three channels".to_owned());
        };
        let kind = Kind::Number(Datatype::Uint8);
        self.by_row(Op::Picture(PictureOp::Grey(form)), id, 3, kind, &[height, width, Dim::Known(1)])
    }

    /// A grey image without the axis of channels, as arrays have it.
    pub fn without_channel(&mut self, id: ExprId) -> Result<ExprId, String> {
        let mut shape = self.graph.shape(id);
        shape.pop();
        self.graph.view(id, shape)
    }

    /// Returns true for an image of one channel.
    pub fn is_grey(&self, id: ExprId) -> bool {
        self.graph.any_below(id, &mut |expression| matches!(expression.op, Op::Picture(PictureOp::Grey(_))))
    }

    /// A grey image with its axis of channels, of the same without it.
    fn grey_below(&mut self, id: ExprId) -> Result<Option<ExprId>, String> {
        let below = self.graph.operand(id).filter(|_| *self.graph.op(id) == Op::View && self.is_grey(id));
        let mut shape = self.graph.shape(id);
        shape.push(Dim::Known(1));
        // Below the view, the image may have an axis of images.
        match below.map(|below| self.graph.shape(below)) {
            Some(own) if shape.len() >= 3 && own.ends_with(shape.get(shape.len() - 3..).unwrap_or_default()) => {
                self.graph.view(id, shape).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Notes that an image is taken as RGB without a conversion.
    pub fn assume_rgb(&mut self, id: ExprId) {
        let is_converted = self.graph.any_below(id, &mut |expression| {
            matches!(expression.op, Op::Picture(PictureOp::Rgb | PictureOp::Grey(_) | PictureOp::Decode("opencv")))
        });
        let is_file =
            self.graph.any_below(id, &mut |expression| matches!(expression.op, Op::Picture(PictureOp::Decode(_))));
        if is_file && !is_converted {
            self.assume(
                "images are RGB: model.py does not convert grey ones and those with a palette or alpha, the steps do",
            );
        }
    }

    pub fn picture_method(&mut self, id: ExprId, name: &str, arguments: &Arguments) -> Called {
        match name {
            "convert" => match arguments.positional.as_slice() {
                [PyValue::Text(mode)] if mode == "RGB" && arguments.named.is_empty() => {
                    if self.is_grey(id) {
                        return Err("a grey image becomes one of three channels again".to_owned());
                    }
                    let is_resized = self.graph.any_below(id, &mut |expression| {
                        matches!(expression.op, Op::Picture(PictureOp::Resize { .. } | PictureOp::Shortest { .. }))
                    });
                    if is_resized {
                        self.assume("images are RGB: model.py converts them behind the resize, the step before it");
                    }
                    let shape = self.graph.shape(id);
                    let kind = self.graph.kind(id);
                    let tail = shape.get(shape.len().saturating_sub(3)..).unwrap_or_default().to_vec();
                    Ok(PyValue::Array(self.by_row(Op::Picture(PictureOp::Rgb), id, 3, kind, &tail)?, ArrayKind::Pillow))
                }
                [PyValue::Text(mode)] if mode == "L" && arguments.named.is_empty() => {
                    let grey = if self.is_grey(id) { id } else { self.grey(id, "pillow")? };
                    Ok(PyValue::Array(grey, ArrayKind::Pillow))
                }
                _ => Err("only the modes RGB and L are followed".to_owned()),
            },
            "resize" => {
                let [size, resample] = arguments.bind(["size", "resample"])?;
                let (width, height) = self.pair(&needed(size, "size")?)?;
                let filter = match resample {
                    None | Some(PyValue::Nothing) => {
                        self.assume("Pillow 7 or later: 'resize' without a filter is bicubic");
                        "bicubic"
                    }
                    Some(filter) => pillow_filter(&filter).ok_or("its filter is not known")?,
                };
                let op = PictureOp::Resize { height, width, filter };
                Ok(PyValue::Array(self.sized(op, id, Some([height, width]))?, ArrayKind::Pillow))
            }
            "copy" | "load" => Ok(PyValue::Array(id, ArrayKind::Pillow)),
            _ => Err("it is not followed".to_owned()),
        }
    }

    /// Two sizes.
    fn pair(&mut self, value: &PyValue) -> Result<(u64, u64), String> {
        let items = self.items(value)?;
        let size = |item: &PyValue| item.integer().and_then(|size| u64::try_from(size).ok()).filter(|size| *size > 0);
        match items.as_slice() {
            [one, two] => Ok((size(one).ok_or("a size is not known")?, size(two).ok_or("a size is not known")?)),
            _ => Err("a size has no two numbers".to_owned()),
        }
    }

    fn cv2_resize(&mut self, arguments: &Arguments) -> Called {
        let [image, size, dst, fx, fy, interpolation] =
            arguments.bind(["src", "dsize", "dst", "fx", "fy", "interpolation"])?;
        if [dst, fx, fy].iter().flatten().any(|value| !matches!(value, PyValue::Nothing | PyValue::Int(0))) {
            return Err("factors are not followed".to_owned());
        }
        let filter = match interpolation {
            None => "opencv:linear",
            Some(PyValue::Library(name)) => match name.as_str() {
                "cv2.INTER_LINEAR" => "opencv:linear",
                "cv2.INTER_NEAREST" => "opencv:nearest",
                "cv2.INTER_AREA" => "opencv:area",
                _ => return Err(format!("the filter '{name}' has no parameter")),
            },
            Some(PyValue::Int(1)) => "opencv:linear",
            Some(_) => return Err("its filter is not known".to_owned()),
        };
        let (id, kind) = needed(image, "src")?.array().ok_or("its image is not known")?;
        let size = needed(size, "dsize")?;
        let made = match self.pair(&size) {
            Ok((width, height)) => {
                self.sized(PictureOp::Resize { height, width, filter }, id, Some([height, width]))?
            }
            Err(_) => {
                let items = self.items(&size)?;
                let [width, height] = items.as_slice() else { return Err("a size has no two numbers".to_owned()) };
                let width = self.formula(width).ok_or("a size is not known")?;
                let height = self.formula(height).ok_or("a size is not known")?;
                self.sized(PictureOp::ResizeTo { height, width, filter }, id, None)?
            }
        };
        Ok(PyValue::Array(made, kind))
    }

    /// The text of a number that sizes determine.
    pub fn formula(&self, value: &PyValue) -> Option<String> {
        match value {
            PyValue::Int(number) => Some(number.to_string()),
            PyValue::Float(number) if number.fract() == 0.0 && number.abs() < 1e15 => Some(format!("{number:.0}")),
            PyValue::Float(number) => Some(number.to_string()),
            PyValue::Array(id, _) => match self.graph.op(*id) {
                Op::Size(dim) => match self.graph.resolved(*dim) {
                    Dim::Known(size) => Some(size.to_string()),
                    Dim::Open(place) => Some(format!("d{place}")),
                },
                Op::Formula(text) => Some(text.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    /// A number that sizes determine.
    pub fn new_formula(&mut self, text: String) -> Called {
        if text.len() > crate::limits::SUGGEST_FORMULA_SIZE_MAX {
            return Err("a size depends on too many numbers".to_owned());
        }
        let id = self.graph.add(Op::Formula(text), Vec::new(), Kind::Number(Datatype::Fp64), Vec::new())?;
        Ok(PyValue::Array(id, ArrayKind::Python))
    }

    /// `cv2.copyMakeBorder` behind a resize: a letterbox.
    fn bordered(&mut self, arguments: &Arguments) -> Called {
        let [image, top, bottom, left, right, border, _, value] =
            arguments.bind(["src", "top", "bottom", "left", "right", "borderType", "dst", "value"])?;
        if !matches!(border, Some(PyValue::Library(border)) if border == "cv2.BORDER_CONSTANT") {
            return Err("only a border of one colour is followed".to_owned());
        }
        let colours = match value {
            None => vec![PyValue::Int(0)],
            Some(one @ PyValue::Int(_)) => vec![one, PyValue::Int(0), PyValue::Int(0)],
            Some(several) => self.items(&several)?,
        };
        let (id, kind) = needed(image, "src")?.array().ok_or("its image is not known")?;
        let mut sides = Vec::new();
        for side in [top, bottom, left, right] {
            sides.push(self.formula(&needed(side, "a side")?).ok_or("a side of the border is not known")?);
        }
        let first = colours.first().and_then(PyValue::integer).and_then(|colour| u64::try_from(colour).ok());
        let colour = first
            .filter(|_| colours.windows(2).all(|pair| pair.first() == pair.last()))
            .ok_or("a colour that is not grey")?;
        let made = self.letterboxed(id, Some(&sides), colour)?;
        Ok(PyValue::Array(made, kind))
    }

    /// A letterbox of a resized image: with the formulas of its borders, or at the left top corner of a canvas.
    pub fn letterboxed(&mut self, id: ExprId, borders: Option<&[String]>, colour: u64) -> Result<ExprId, String> {
        let other = || "the sizes are not those of a letterbox that is known".to_owned();
        let resized = self.graph.below_views(id);
        let (Op::Picture(PictureOp::ResizeTo { height, width, filter }), Some(image)) =
            (self.graph.op(resized).clone(), self.graph.operand(resized))
        else {
            return Err(other());
        };
        let shape = self.graph.shape(image);
        let [.., rows, columns, _] = shape.as_slice() else { return Err(other()) };
        let name = |dim: &Dim| match dim {
            Dim::Known(size) => size.to_string(),
            Dim::Open(place) => format!("d{place}"),
        };
        let (rows, columns) = (name(rows), name(columns));
        let (canvas_height, canvas_width) = canvas_of(&height).ok_or_else(other)?;
        let [h, w] = [canvas_height.to_string(), canvas_width.to_string()];
        let scales = [
            (true, format!("min(({h}/{rows}),({w}/{columns}))")),
            (true, format!("min(({w}/{columns}),({h}/{rows}))")),
            (false, format!("min(min(({h}/{rows}),({w}/{columns})),1)")),
        ];
        for (enlarges, scale) in scales {
            for (is_rounded, round) in [(true, "round"), (false, "int")] {
                let [tall, wide] = [&rows, &columns]
                    .map(|side| [format!("{round}(({side}*{scale}))"), format!("{round}(({scale}*{side}))")]);
                if !tall.contains(&height) || !wide.contains(&width) {
                    continue;
                }
                let [across, down] =
                    [(&w, &width), (&h, &height)].map(|(canvas, side)| format!("(({canvas}-{side})/2)"));
                let centred = [(&down, '-'), (&down, '+'), (&across, '-'), (&across, '+')]
                    .map(|(gap, sign)| format!("round(({gap}{sign}0.1))"));
                let is_centred = match borders {
                    Some(borders) if borders == centred => true,
                    Some(_) => continue,
                    None => false,
                };
                let form = LetterboxForm { is_rounded, is_centred, enlarges, colour, filter };
                let (height, width) = (canvas_height, canvas_width);
                let made = self.sized(PictureOp::Letterbox { height, width, form }, image, Some([height, width]))?;
                self.graph.absorb(made, &[resized]);
                return Ok(made);
            }
        }
        Err(other())
    }

    /// A class of torchvision's transforms.
    fn transform(&mut self, name: &str, arguments: &Arguments) -> Called {
        let one = |transform| Ok(PyValue::object(Object::Transforms(vec![transform])));
        match name {
            "ToTensor" if arguments.positional.is_empty() && arguments.named.is_empty() => one(Transform::ToTensor),
            "Normalize" => {
                let [mean, deviation, _] = arguments.bind(["mean", "std", "inplace"])?;
                one(Transform::Normalize(needed(mean, "mean")?, needed(deviation, "std")?))
            }
            "CenterCrop" => {
                let [size] = arguments.bind(["size"])?;
                let size = needed(size, "size")?;
                let (height, width) = match size.integer() {
                    Some(side) => self.pair(&PyValue::Tuple(vec![PyValue::Int(side), PyValue::Int(side)]))?,
                    None => self.pair(&size)?,
                };
                one(Transform::Crop(height, width))
            }
            "Resize" => {
                let [size, interpolation, max_size, antialias] =
                    arguments.bind(["size", "interpolation", "max_size", "antialias"])?;
                if max_size.is_some_and(|size| size != PyValue::Nothing) {
                    return Err("a max_size has no parameter".to_owned());
                }
                if antialias == Some(PyValue::Bool(false)) {
                    self.assume("'antialias' means nothing for images of Pillow");
                }
                let filter = match interpolation {
                    None => "bilinear",
                    Some(PyValue::Library(name)) => pillow_filter(&PyValue::Library(
                        name.replace("torchvision.transforms.InterpolationMode", "PIL.Image"),
                    ))
                    .ok_or("its filter is not known")?,
                    Some(other) => pillow_filter(&other).ok_or("its filter is not known")?,
                };
                let size = needed(size, "size")?;
                let side = match &size {
                    PyValue::Int(side) => Some(*side),
                    PyValue::List(_) | PyValue::Tuple(_) => match self.items(&size)?.as_slice() {
                        [one] => one.integer(),
                        _ => None,
                    },
                    _ => None,
                };
                match side.and_then(|side| u64::try_from(side).ok()) {
                    Some(side) => one(Transform::Shortest(side, filter)),
                    None => {
                        let (height, width) = self.pair(&size)?;
                        one(Transform::Resize(height, width, filter))
                    }
                }
            }
            _ => Err("it is not known".to_owned()),
        }
    }

    /// Applies a transform of torchvision to an image.
    pub fn transformed(
        &mut self,
        id: ExprId,
        kind: ArrayKind,
        transform: &Transform,
    ) -> Result<(ExprId, ArrayKind), String> {
        let pillow = kind == ArrayKind::Pillow;
        match transform {
            Transform::Resize(..) | Transform::Shortest(..) | Transform::Crop(..) if !pillow => {
                Err("torchvision's transforms of tensors have other results than those of images".to_owned())
            }
            Transform::Resize(height, width, filter) => {
                let (height, width) = (*height, *width);
                Ok((self.sized(PictureOp::Resize { height, width, filter }, id, Some([height, width]))?, kind))
            }
            Transform::Shortest(side, filter) => {
                Ok((self.sized(PictureOp::Shortest { side: *side, filter }, id, None)?, kind))
            }
            Transform::Crop(height, width) => {
                let (height, width) = (*height, *width);
                Ok((self.sized(PictureOp::Crop { height, width }, id, Some([height, width]))?, kind))
            }
            Transform::ToTensor => {
                if !pillow {
                    return Err("ToTensor of an array is not followed".to_owned());
                }
                self.assume_rgb(id);
                let planar = self.transpose(id, Some(vec![2, 0, 1]))?;
                let single = self.cast(planar, Datatype::Fp32)?;
                let scaled = self.arithmetic(
                    ArithmeticOp::Divide,
                    &PyValue::Array(single, ArrayKind::Torch),
                    &PyValue::Int(255),
                    false,
                )?;
                scaled.array().ok_or_else(|| "an image is not known".to_owned())
            }
            Transform::Normalize(mean, deviation) => {
                if kind != ArrayKind::Torch || self.graph.rank(id) != 3 {
                    return Err("Normalize of something that is no tensor of one image".to_owned());
                }
                let mut value = PyValue::Array(id, kind);
                for (op, numbers) in [(ArithmeticOp::Subtract, mean), (ArithmeticOp::Divide, deviation)] {
                    let numbers = self.as_array(numbers)?;
                    let numbers = self.cast(numbers, Datatype::Fp32)?;
                    let count = self.graph.shape(numbers).first().copied().unwrap_or(Dim::Known(1));
                    let numbers = self.graph.view(numbers, vec![count, Dim::Known(1), Dim::Known(1)])?;
                    value = self.arithmetic(op, &value, &PyValue::Array(numbers, ArrayKind::Torch), false)?;
                }
                value.array().ok_or_else(|| "an image is not known".to_owned())
            }
        }
    }

    /// An image processor of transformers.
    pub fn call_image_processor(&mut self, file: &str, arguments: &Arguments) -> Called {
        let [images, tensors] = arguments.bind(["images", "return_tensors"])?;
        let images = needed(images, "images")?;
        let is_list = matches!(images, PyValue::List(_) | PyValue::Tuple(_));
        let is_pillow = match &images {
            PyValue::Array(_, kind) => *kind == ArrayKind::Pillow,
            PyValue::List(list) => match (self.list(*list).each, self.list(*list).items.first()) {
                (Some(each), _) => matches!(each.element, PyValue::Array(_, ArrayKind::Pillow)),
                (None, first) => matches!(first, Some(PyValue::Array(_, ArrayKind::Pillow))),
            },
            _ => false,
        };
        if !is_pillow {
            return Err("its images are not those of Pillow".to_owned());
        }
        let id = self.as_array(&images)?;
        if self.is_grey(id) {
            return Err("its images are grey".to_owned());
        }
        self.assume_rgb(id);
        let kind = match tensors {
            Some(PyValue::Text(form)) if form == "np" => ArrayKind::Numpy,
            Some(PyValue::Text(form)) if form == "pt" => ArrayKind::Torch,
            _ => return Err("its return_tensors is not known".to_owned()),
        };
        let [height, width] = [0; 2].map(|_| self.graph.open_size(false));
        let op = Op::Picture(PictureOp::Preprocessor(file.to_owned()));
        let mut made = self.by_row(op, id, 3, Kind::Number(Datatype::Fp32), &[Dim::Known(3), height, width])?;
        if !is_list {
            let shape = std::iter::once(Dim::Known(1)).chain(self.graph.shape(made)).collect();
            made = self.graph.view(made, shape)?;
        }
        let fields = [("pixel_values".to_owned(), (made, kind))].into();
        Ok(PyValue::object(Object::Encoding(fields)))
    }
}

/// The size that a formula of a letterbox scales into: the two numbers that sizes are divided from.
fn canvas_of(formula: &str) -> Option<(u64, u64)> {
    let start = formula.find("min(")?;
    let inner = formula.get(start..)?.trim_start_matches("min(").trim_start_matches('(');
    let (height, rest) = inner.split_once('/')?;
    let (_, rest) = rest.split_once(",(")?;
    let (width, _) = rest.split_once('/')?;
    Some((height.parse().ok()?, width.parse().ok()?))
}

/// A filter of Pillow, by its name or number.
fn pillow_filter(value: &PyValue) -> Option<&'static str> {
    match value {
        PyValue::Int(number) => {
            ["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"].get(usize::try_from(*number).ok()?).copied()
        }
        PyValue::Library(path) => match path.strip_prefix("PIL.Image.")? {
            "NEAREST" => Some("nearest"),
            "BOX" => Some("box"),
            "BILINEAR" => Some("bilinear"),
            "HAMMING" => Some("hamming"),
            "BICUBIC" => Some("bicubic"),
            "LANCZOS" | "ANTIALIAS" => Some("lanczos"),
            _ => None,
        },
        _ => None,
    }
}
