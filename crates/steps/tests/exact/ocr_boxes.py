"""PaddleOCR's DBPostProcess, filter_tag_det_res and sorted_boxes, as its copies in public `model.py` files have them."""

import cv2
import numpy as np
import pyclipper
from shapely.geometry import Polygon

cv2.setNumThreads(1)


def mini_box(contour):
    rectangle = cv2.minAreaRect(contour)
    points = sorted(list(cv2.boxPoints(rectangle)), key=lambda point: point[0])
    first, fourth = (0, 1) if points[1][1] > points[0][1] else (1, 0)
    second, third = (2, 3) if points[3][1] > points[2][1] else (3, 2)
    return np.array([points[first], points[second], points[third], points[fourth]]), min(rectangle[1])


def score_fast(map, box):
    height, width = map.shape
    box = box.copy()
    left, right = np.clip([np.floor(box[:, 0].min()), np.ceil(box[:, 0].max())], 0, width - 1).astype(np.int32)
    top, bottom = np.clip([np.floor(box[:, 1].min()), np.ceil(box[:, 1].max())], 0, height - 1).astype(np.int32)
    mask = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    box[:, 0] -= left
    box[:, 1] -= top
    cv2.fillPoly(mask, box.reshape(1, -1, 2).astype(np.int32), 1)
    return cv2.mean(map[top:bottom + 1, left:right + 1], mask)[0]


def score_slow(map, contour):
    contour = contour.reshape(-1, 2).copy()
    (left, top), (right, bottom) = contour.min(0), contour.max(0)
    mask = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillPoly(mask, (contour - [left, top]).reshape(1, -1, 2).astype(np.int32), 1)
    return cv2.mean(map[top:bottom + 1, left:right + 1], mask)[0]


def unclip(box, ratio):
    polygon = Polygon(box)
    offset = pyclipper.PyclipperOffset()
    offset.AddPath(box, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    return np.array(offset.Execute(polygon.area * ratio / polygon.length)).reshape(-1, 1, 2)


def clockwise(points):
    by_x = points[np.argsort(points[:, 0], kind="stable")]
    left, right = by_x[:2], by_x[2:]
    upper_left, lower_left = left[np.argsort(left[:, 1], kind="stable")]
    upper_right, lower_right = right[np.argsort(right[:, 1], kind="stable")]
    return np.array([upper_left, upper_right, lower_right, lower_left], np.float32)


def detected(map, size, threshold=0.3, box_threshold=0.6, unclip_ratio=1.5, max_candidates=1000, dilate=False, slow=False, min_size=3):
    """Boxes and scores in the order of the contours."""
    height, width = map.shape
    binary = (map > threshold).astype(np.uint8)
    if dilate:
        binary = cv2.dilate(binary, np.array([[1, 1], [1, 1]]))
    contours = cv2.findContours(binary * 255, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)[0]
    boxes, scores = [], []
    for contour in contours[:max_candidates]:
        points, side = mini_box(contour)
        if side < min_size:
            continue
        score = score_slow(map, contour) if slow else score_fast(map, points)
        if box_threshold > score:
            continue
        box, side = mini_box(unclip(points, unclip_ratio))
        if side < min_size + 2:
            continue
        box[:, 0] = np.clip(np.round(box[:, 0] / width * size[1]), 0, size[1])
        box[:, 1] = np.clip(np.round(box[:, 1] / height * size[0]), 0, size[0])
        box = clockwise(box.astype(np.int32))
        for point in box:
            point[0] = int(min(max(point[0], 0), size[1] - 1))
            point[1] = int(min(max(point[1], 0), size[0] - 1))
        if int(np.linalg.norm(box[0] - box[1])) <= 3 or int(np.linalg.norm(box[0] - box[3])) <= 3:
            continue
        boxes.append(box)
        scores.append(score)
    return np.array(boxes, np.float32).reshape(-1, 4, 2), np.array(scores, np.float32)


def sorted_paddleocr(boxes):
    """The order of the boxes, as places."""
    order = sorted(range(len(boxes)), key=lambda place: (boxes[place][0][1], boxes[place][0][0]))
    for i in range(len(order) - 1):
        for j in range(i, -1, -1):
            own, behind = boxes[order[j]][0], boxes[order[j + 1]][0]
            if abs(behind[1] - own[1]) < 10 and behind[0] < own[0]:
                order[j], order[j + 1] = order[j + 1], order[j]
            else:
                break
    return order


def sorted_rapidocr(boxes):
    if len(boxes) == 0:
        return []
    by_y = np.argsort(boxes[:, 0, 1], kind="stable")
    lines = np.concatenate([[0], np.cumsum(np.diff(boxes[by_y, 0, 1]) >= 10)])
    return by_y[np.lexsort((boxes[by_y, 0, 0], lines))]


def rotated_crop(image, points):
    """get_rotate_crop_image."""
    width = int(max(np.linalg.norm(points[0] - points[1]), np.linalg.norm(points[2] - points[3])))
    height = int(max(np.linalg.norm(points[0] - points[3]), np.linalg.norm(points[1] - points[2])))
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    matrix = cv2.getPerspectiveTransform(points, corners)
    crop = cv2.warpPerspective(image, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE, flags=cv2.INTER_CUBIC)
    return np.rot90(crop) if crop.shape[0] * 1.0 / crop.shape[1] >= 1.5 else crop


def recogniser_batch(crops, height, width, max_width=None):
    """resize_norm_img of PP-OCR's recogniser for one batch; without `max_width` that of its classifier, which keeps the width."""
    if max_width:
        ratio = max([width / height] + [crop.shape[1] * 1.0 / crop.shape[0] for crop in crops])
        width = min(int(height * ratio), max(max_width, width))
    batch = np.zeros((len(crops), 3, height, width), np.float32)
    for crop, place in zip(crops, batch):
        own = min(int(np.ceil(height * (crop.shape[1] / float(crop.shape[0])))), width)
        resized = cv2.resize(crop, (own, height)).astype("float32").transpose((2, 0, 1)) / 255
        resized -= 0.5
        resized /= 0.5
        place[:, :, :own] = resized
    return batch


def recognised(probabilities, characters):
    """CTCLabelDecode of rapidocr for one line, with a blank at 0: the text, and the mean of its characters' probabilities."""
    places, best = probabilities.argmax(1), probabilities.max(1)
    kept = np.ones(len(places), bool)
    kept[1:] = places[1:] != places[:-1]
    kept &= places != 0
    values = [round(value, 5) for value in best[kept].tolist()] or [0]
    return "".join(characters[place] for place in places[kept]), np.mean(values).round(5).tolist()
