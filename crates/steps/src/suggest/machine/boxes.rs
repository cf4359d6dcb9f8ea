//! Suppressions of boxes: OpenCV's and torchvision's.

use std::sync::Arc;

use crate::suggest::machine::Machine;
use crate::suggest::op::{ExprId, Kind, NmsForm, Op};
use crate::suggest::value::{Arguments, ArrayKind, Called, PyValue, needed};
use base::tensor::Datatype;

impl Machine<'_> {
    /// `cv2.dnn.NMSBoxes`.
    pub fn nms_boxes(&mut self, arguments: &Arguments) -> Called {
        let [boxes, scores, score, iou, eta, top_k] =
            arguments.bind(["bboxes", "scores", "score_threshold", "nms_threshold", "eta", "top_k"])?;
        let is_default =
            |value: &Option<PyValue>, default: f64| value.as_ref().is_none_or(|value| value.number() == Some(default));
        if !is_default(&top_k, 0.0) {
            return Err("its top_k is not followed".to_owned());
        }
        if !is_default(&eta, 1.0) {
            // An eta below 1 changes the threshold from box to box.
            return Err("its eta is not followed".to_owned());
        }
        let number = |value: Option<PyValue>, name: &str| {
            needed(value, name)?.number().ok_or_else(|| format!("its {name} is not known"))
        };
        let form = NmsForm {
            iou: "opencv",
            iou_threshold: number(iou, "nms_threshold")?,
            score_threshold: Some(number(score, "score_threshold")?),
            box_format: "xywh",
            nms: "agnostic",
            class_offset: None,
        };
        let (boxes, scores) = (self.as_array(&needed(boxes, "bboxes")?)?, self.as_array(&needed(scores, "scores")?)?);
        self.suppression(boxes, vec![scores], form)
    }

    /// `torchvision.ops.nms` and `batched_nms`.
    pub fn torchvision_nms(&mut self, path: &str, arguments: &Arguments) -> Called {
        let is_batched = path.ends_with("batched_nms");
        let (boxes, scores, classes, threshold) = if is_batched {
            let [boxes, scores, classes, threshold] = arguments.bind(["boxes", "scores", "idxs", "iou_threshold"])?;
            (boxes, scores, classes, threshold)
        } else {
            let [boxes, scores, threshold] = arguments.bind(["boxes", "scores", "iou_threshold"])?;
            (boxes, scores, None, threshold)
        };
        let form = NmsForm {
            iou: "torchvision",
            iou_threshold: needed(threshold, "iou_threshold")?.number().ok_or("its iou_threshold is not known")?,
            score_threshold: None,
            box_format: "xyxy",
            nms: if is_batched { "by_class" } else { "agnostic" },
            class_offset: None,
        };
        let boxes = self.as_array(&needed(boxes, "boxes")?)?;
        let mut others = vec![self.as_array(&needed(scores, "scores")?)?];
        if is_batched {
            self.assume("batched_nms moves fewer than 1000 boxes by their class before it compares them, which rounds; the step does not");
            others.push(self.as_array(&needed(classes, "idxs")?)?);
        }
        self.suppression(boxes, others, form)
    }

    fn suppression(&mut self, boxes: ExprId, others: Vec<ExprId>, form: NmsForm) -> Called {
        if self.graph.rank(boxes) != 2 {
            return Err("its boxes are not [boxes, 4]".to_owned());
        }
        let count = self.graph.open_size(false);
        let inputs = std::iter::once(boxes).chain(others).collect();
        let id = self.graph.add(Op::Nms(Arc::new(form)), inputs, Kind::Number(Datatype::Int64), vec![count])?;
        Ok(PyValue::Array(id, ArrayKind::Numpy))
    }
}
