"""How far apart two colours are, for people who see all colours and for those who do not: CIEDE2000."""

from collections.abc import Iterable

import numpy as np
from numpy import cos, hypot, radians, sin

from tracekit.arrays.types import Floats

#: Machado, Oliveira and Fernandes (2009), full deficiency, on linear RGB.
VISIONS: dict[str, Floats] = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]])
_WHITE = np.array([0.95047, 1.0, 1.08883])
_HUGE = 25.0**7


def linear(colours: Iterable[str]) -> Floats:
    values = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in colours]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: Floats) -> Floats:
    xyz = rgb @ _XYZ.T / _WHITE
    x, y, z = np.moveaxis(np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116), -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


def least_differences(colours: Iterable[str]) -> Floats:
    rgb = linear(colours)
    seen = [lab(np.clip(rgb @ vision.T, 0, 1)) for vision in VISIONS.values()]
    return np.min([difference(one[:, None], one[None]) for one in seen], axis=0)


def contrast(text: str, ground: str) -> float:
    dark, light = sorted(float(luminance) + 0.05 for luminance in linear([text, ground]) @ _XYZ[1])
    return light / dark


def difference(one: Floats, other: Floats) -> Floats:
    """CIEDE2000 of colours in CIELAB (Sharma, Wu and Dalal, 2005)."""
    (light1, a1, b1), (light2, a2, b2) = np.moveaxis(one, -1, 0), np.moveaxis(other, -1, 0)
    mean = (hypot(a1, b1) + hypot(a2, b2)) / 2
    stretch = 1.5 - 0.5 * np.sqrt(mean**7 / (mean**7 + _HUGE))
    chroma1, chroma2 = hypot(a1 * stretch, b1), hypot(a2 * stretch, b2)
    hue1 = np.degrees(np.arctan2(b1, a1 * stretch)) % 360
    hue2 = np.degrees(np.arctan2(b2, a2 * stretch)) % 360
    turn = (hue2 - hue1 + 180) % 360 - 180
    light, chroma, hue = (light1 + light2) / 2, (chroma1 + chroma2) / 2, hue1 + turn / 2
    weight = (
        1
        - 0.17 * cos(radians(hue - 30))
        + 0.24 * cos(radians(2 * hue))
        + 0.32 * cos(radians(3 * hue + 6))
        - 0.2 * cos(radians(4 * hue - 63))
    )
    lighter = (light2 - light1) / (1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2))
    stronger = (chroma2 - chroma1) / (1 + 0.045 * chroma)
    turned = 2 * np.sqrt(chroma1 * chroma2) * sin(radians(turn / 2)) / (1 + 0.015 * chroma * weight)
    bent = -2 * np.sqrt(chroma**7 / (chroma**7 + _HUGE)) * sin(radians(60 * np.exp(-((((hue % 360) - 275) / 25) ** 2))))
    return np.sqrt(lighter**2 + stronger**2 + turned**2 + bent * stronger * turned)
