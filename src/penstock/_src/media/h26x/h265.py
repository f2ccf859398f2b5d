"""H.265: parameter sets, slice headers and the hvcC record, as far as moving and decoding a stream needs them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock._src.media.h26x.nal import Bits, MissingSet, PictureFormat, checked_size, sample_description, with_lengths
from penstock.errors import VideoError

VPS, SPS, PPS, DELIMITER, END_OF_SEQUENCE, FILLER = 32, 33, 34, 35, 36, 38
PICTURE_TYPES = frozenset((*range(10), *range(16, 22)))
KEY_TYPES = frozenset(range(16, 22))  # BLA, IDR and CRA
IDR_TYPES = frozenset((19, 20))
SKIPPED_LEADING_TYPES = frozenset((8, 9))  # RASL: shown before their key frame, predicted from what came before it
LEADING_TYPES = frozenset((6, 7, 8, 9))
NOT_IN_SAMPLES = frozenset((VPS, SPS, PPS, DELIMITER, FILLER))

_SLICE_HEAD_BYTES = 256
_LONGEST_REORDER = 16
_MAX_POC_SETS = 64


ReferenceSet = tuple[tuple[int, bool], ...]
"""Pictures that a decoder keeps: how far each is shown before (negative) or after, and whether it is used at once."""


class H265Vps(NamedTuple):
    """A video parameter set."""

    number: int


class H265Sps(NamedTuple):
    """A sequence parameter set."""

    number: int
    profile: bytes  # the 12 bytes of profile, tier and level, as hvcC repeats them
    layers: int
    nested: bool
    picture: PictureFormat
    separate_planes: bool
    poc_bits: int
    references: tuple[ReferenceSet, ...] | None  # None: they could not be read


class H265Pps(NamedTuple):
    """A picture parameter set: which sequence it belongs to, and what its slice headers hold."""

    number: int
    sps: int
    output_flag: bool
    extra_bits: int


class H265SliceHeader(NamedTuple):
    """The first fields of a slice header."""

    starts_picture: bool
    kind: int
    layer: int  # temporal layer
    shown: bool
    poc_lsb: int
    references: tuple[int, ...]  # pictures that it is predicted from, as distances in the order in which they are shown
    sps: H265Sps
    is_field: bool = False  # as H.264 has it


def unit_type(unit: bytes) -> int:
    """The type of a NAL unit; VideoError where its header is impossible."""
    if len(unit) < 2 or unit[0] & 0x80 or not unit[1] & 7:
        raise VideoError(f"a NAL unit begins with the impossible bytes {unit[:2].hex(' ')}")
    return unit[0] >> 1


def is_base_layer(unit: bytes) -> bool:
    return not (unit[0] & 1 or unit[1] >> 3)


def parse_vps(unit: bytes) -> H265Vps:
    return H265Vps(Bits(unit[:8], 2).u(4))


def parse_sps(unit: bytes) -> H265Sps:
    bits = Bits(unit, 2)
    bits.u(4)
    sub_layers = bits.u(3)
    if sub_layers > 6:
        raise VideoError(f"{sub_layers + 1} temporal layers, at most 7 are allowed")
    nested = bits.flag()
    profile = _profile(bits, sub_layers)
    number = bits.ue(15, "the number of a sequence parameter set")
    chroma = bits.ue(3, "chroma_format_idc")
    separate = chroma == 3 and bits.flag()
    width, height = bits.ue(2**16, "pic_width"), bits.ue(2**16, "pic_height")
    crop = [bits.ue(2**16, "cropping") for _ in range(4)] if bits.flag() else [0, 0, 0, 0]
    step = (2 if chroma in (1, 2) else 1, 2 if chroma == 1 else 1)
    shown_width, shown_height = checked_size(width, height, crop, step)
    depth = 8 + max(bits.ue(8, "bit_depth_luma"), bits.ue(8, "bit_depth_chroma"))
    poc_bits = 4 + bits.ue(12, "log2_max_pic_order_cnt_lsb")
    reorder = 0
    for _ in range(sub_layers + 1 if bits.flag() else 1):
        bits.ue(_LONGEST_REORDER, "sps_max_dec_pic_buffering")
        reorder = bits.ue(_LONGEST_REORDER, "sps_max_num_reorder_pics")
        bits.ue()
    references = _references(bits, chroma)
    picture = PictureFormat(
        width=shown_width,
        height=shown_height,
        chroma=0 if separate else chroma,
        bit_depth=depth,
        full_range=references is not None and _full_range(bits, poc_bits),
        reorder=reorder,
    )
    return H265Sps(number, profile, sub_layers + 1, nested, picture, separate, poc_bits, references)


def parse_pps(unit: bytes) -> H265Pps:
    bits = Bits(unit[:32], 2)
    number = bits.ue(63, "the number of a picture parameter set")
    sps = bits.ue(15, "the number of a sequence parameter set")
    bits.flag()
    output_flag = bits.flag()
    return H265Pps(number, sps, output_flag, bits.u(3))


def parse_slice(unit: bytes, spss: dict[int, H265Sps], ppss: dict[int, H265Pps]) -> H265SliceHeader:
    """The head of a slice; its parameter sets must have come before it."""
    kind = unit_type(unit)
    layer = (unit[1] & 7) - 1
    bits = Bits(unit[:_SLICE_HEAD_BYTES], 2)
    starts_picture = bits.flag()
    if 16 <= kind <= 23:
        bits.flag()
    pps = ppss.get(number := bits.ue(63, "the number of a picture parameter set"))
    sps = spss.get(pps.sps) if pps is not None else None
    if sps is None or pps is None:
        raise MissingSet(number)
    if not starts_picture:
        return H265SliceHeader(False, kind, layer, True, 0, (), sps)
    bits.skip(pps.extra_bits)
    bits.ue(2, "slice_type")
    shown = bits.flag() if pps.output_flag else True
    if sps.separate_planes:
        bits.skip(2)
    if kind in IDR_TYPES:
        return H265SliceHeader(True, kind, layer, shown, 0, (), sps)
    poc_lsb = bits.u(sps.poc_bits)
    return H265SliceHeader(True, kind, layer, shown, poc_lsb, _used_references(bits, sps), sps)


PARSERS = {VPS: parse_vps, SPS: parse_sps, PPS: parse_pps}


def describe(units: Mapping[int, Sequence[bytes]], active: H265Sps) -> bytes:
    """The stsd box: `hvc1` with the parameter sets, by their kinds, in hvcC."""
    depth = active.picture.bit_depth - 8
    record = [
        b"\1",
        active.profile,
        struct.pack(">HBBBBH", 0xF000, 0xFC, 0xFC | active.picture.chroma, 0xF8 | depth, 0xF8 | depth, 0),
        bytes((active.layers << 3 | active.nested << 2 | 3,)),
        b"\3",
    ]
    for kind in PARSERS:
        record.append(struct.pack(">BH", 0x80 | kind, len(units[kind])))
        record += with_lengths(units[kind])
    return sample_description(b"hvc1", b"hvcC", b"".join(record), active.picture.size_px)


def _profile(bits: Bits, sub_layers: int) -> bytes:
    general = bits.u(96).to_bytes(12, "big")
    if sub_layers:
        present = [(bits.flag(), bits.flag()) for _ in range(sub_layers)]
        bits.skip(2 * (8 - sub_layers))
        for has_profile, has_level in present:
            bits.skip((88 if has_profile else 0) + (8 if has_level else 0))
    return general


def _references(bits: Bits, chroma: int) -> tuple[ReferenceSet, ...] | None:
    """The reference picture sets, behind everything that only a decoder needs; None where they cannot be read."""
    try:
        for _ in range(6):
            bits.ue()
        if bits.flag() and bits.flag():
            _skip_scaling_lists(bits, chroma)
        bits.skip(2)
        if bits.flag():
            bits.skip(8)
            bits.ue()
            bits.ue()
            bits.flag()
        count = bits.ue(_MAX_POC_SETS, "num_short_term_ref_pic_sets")
        sets: list[ReferenceSet] = []
        for number in range(count):
            sets.append(_reference_set(bits, number, count, sets))
        return tuple(sets)
    except VideoError:  # a decoder will say what it thinks of them
        return None


def _full_range(bits: Bits, poc_bits: int) -> bool:
    """Whether luma uses all values; it stands near the end of a parameter set."""
    try:
        if bits.flag():
            for _ in range(bits.ue(32, "num_long_term_ref_pics")):
                bits.skip(poc_bits + 1)
        bits.skip(2)
        if not bits.flag():
            return False
        return bits.video_signal()
    except VideoError:  # decoders do not mind a broken end either, and take the usual range
        return False


def _skip_scaling_lists(bits: Bits, chroma: int) -> None:
    for size in range(4):
        for _ in range(2 if size == 3 and chroma != 3 else 6):
            if not bits.flag():
                bits.ue()
                continue
            if size > 1:
                bits.se()
            for _ in range(16 if size == 0 else 64):
                bits.se()


def _used_references(bits: Bits, sps: H265Sps) -> tuple[int, ...]:
    """What the slice's picture is predicted from; long-term references are left to the decoder."""
    if sps.references is None:
        return ()
    count = len(sps.references)
    if not bits.flag():
        chosen = _reference_set(bits, count, count, sps.references)
    elif not count:
        raise VideoError("it names a reference picture set, and there is none")
    else:
        chosen = sps.references[min(bits.u((count - 1).bit_length()), count - 1)]
    return tuple(distance for distance, used in chosen if used)


def _reference_set(bits: Bits, number: int, count: int, sets: Sequence[ReferenceSet]) -> ReferenceSet:
    """One set: written out, or as a change of an earlier one."""
    if number and bits.flag():
        back = 1 + (bits.ue(number - 1, "delta_idx") if number == count else 0)
        falls = bits.flag()
        shift = (1 + bits.ue(2**15, "abs_delta_rps")) * (-1 if falls else 1)
        references: list[tuple[int, bool]] = []
        for distance in (*(each for each, _ in sets[number - back]), 0):
            used = bits.flag()
            if (used or bits.flag()) and distance + shift:
                references.append((distance + shift, used))
        # Those before, nearest first, then those after: a later set counts on this order.
        references.sort(key=lambda entry: (entry[0] > 0, abs(entry[0])))
        return tuple(references)
    negative = bits.ue(_LONGEST_REORDER, "num_negative_pics")
    positive = bits.ue(_LONGEST_REORDER, "num_positive_pics")
    pictures: list[tuple[int, bool]] = []
    for total, sign in ((negative, -1), (positive, 1)):
        distance = 0
        for _ in range(total):
            distance += sign * (1 + bits.ue(2**15, "delta_poc"))
            pictures.append((distance, bits.flag()))
    return tuple(pictures)
